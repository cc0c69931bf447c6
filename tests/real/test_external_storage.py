"""Objects without memory that go elsewhere than to a directory, on a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bucket import bucket, names_in
from tests.helpers import wait_for_condition
from tests.real.support import run_driver

PROGRAM = """
import numpy as np
ray.init(num_cpus=1, object_store_memory=8 << 20, object_spilling_directory=sys.argv[1],
         _system_config={"min_spilling_size": 1 << 20, "object_spilling_compression": sys.argv[2]})
refs = [ray.put(np.full(65536, number)) for number in range(30)]
for number, ref in [*enumerate(refs), *enumerate(refs)]:
    value = ray.get(ref)
    assert (value == number).all()
print(ray.internal.memory_summary(stats_only=True))
"""


def check(url: str, compression: str = "") -> None:
    result = run_driver(PROGRAM, url, compression)
    assert "Spilled" in result.stdout and "restored" in result.stdout, result.stderr


def test_a_file_system_of_fsspec(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    check("memory://spilled", "zlib")


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    check(f"file://{tmp_path}")
    wait_for_condition(lambda: not any(tmp_path.iterdir()))


@pytest.mark.slow
def test_a_bucket() -> None:
    with bucket() as url:
        check(f"{url}/some/prefix")
        wait_for_condition(lambda: names_in(url) == [])


def test_what_cannot_be_had_is_said_at_the_start() -> None:
    result = run_driver("ray.init(object_spilling_directory='nowhere://x')")
    assert "RuntimeError: cannot spill objects to nowhere://x: " in result.stderr


def test_compressions_are_named() -> None:
    result = run_driver("ray.init(_system_config={'object_spilling_compression': 'rar'})")
    assert "must be '' or 'zlib', not 'rar'" in result.stderr
