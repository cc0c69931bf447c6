"""A cluster of minray for all tests here, in whose processes ``import ray`` finds minray with Ray's utilities on top.

They need an installed Ray: `make ray-utilities`. Elsewhere nothing is collected.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

IN_PLACE = str(Path(__file__).parent / "in_place")
collect_ignore_glob = [] if importlib.util.find_spec("ray") else ["test_*.py"]
if not collect_ignore_glob:
    sys.path.insert(0, IN_PLACE)
    os.environ["PYTHONPATH"] = IN_PLACE + os.pathsep + os.environ.get("PYTHONPATH", "")


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    import minray

    with minray.init(num_cpus=2, logging_level="ERROR"):
        yield
    for child in psutil.Process().children():
        if any("joblib" in argument for argument in child.cmdline()):  # a helper of joblib's, which would outlive the tests
            child.kill()
            child.wait()
