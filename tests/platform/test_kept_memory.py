"""A process that keeps freed memory: large blocks one after the other cost no page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from minray.platform.process.kept_memory import keep_freed_memory
if sys.argv[1] == "keeps":
    keep_freed_memory()
def pass_on():
    for _ in range(20):
        blocks = [bytearray(1 << 20) for _ in range(16)]
        blocks.clear()
pass_on()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
pass_on()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_blocks_that_are_freed_and_made_again_cost_no_page_faults() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True).stdout)
        for how in ("keeps", "does not")
    }
    assert faults["keeps"] < 1000 < 10_000 < faults["does not"], faults
