"""Kernels of Jupyter for the tests of this folder.

``make test-notebooks`` runs these tests. They need the extra ``test-notebooks``: a kernel takes seconds to start.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chromium import skip_folder
from tests.notebooks.kernel import Kernel

ASKED = "MINRAY_TEST_NOTEBOOKS"
"""Environment variable with which the tests run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder unless they are asked for and can run."""
    if not os.environ.get(ASKED):
        skip_folder(items, Path(__file__).parent, f"run by make test-notebooks, which sets {ASKED}")
    elif missing := [name for name in ("ipykernel", "nbclient", "nbformat") if importlib.util.find_spec(name) is None]:
        skip_folder(items, Path(__file__).parent, f'{", ".join(missing)} missing: pip install "minray[test-notebooks]"')


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Jupyter's files in the folder of the test, and join no cluster that runs on this machine."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("MINRAY_ADDRESS", "local")


@pytest.fixture
def kernel(own_folders: None) -> Iterator[Kernel]:
    """A kernel with a cluster of two CPUs."""
    kernel = Kernel()
    try:
        kernel.run('import minray as ray\nray.init(num_cpus=2, logging_level="ERROR")')
        yield kernel
        kernel.run("ray.shutdown()")
    finally:
        kernel.stop()
