"""Time of starting and stopping a cluster, and memory of an idle one, for minray and Ray.

Memory is the proportional set size (PSS) of all processes of the cluster and of the driver, a program that has imported
nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from benchmarks.document import MINRAY, RAY, Sample, Size, Target
from benchmarks.systems import WORKERS, library

NAME = "start and stop"
MEMORY = "idle memory"
TARGETS = {
    "init": Target(limit=0.3),
    "first task after init": Target(limit=0.03),
    "shutdown": Target(limit=0.1),
    "hello-world script, whole process": Target(limit=0.6),
}
MEMORY_TARGETS = {"cluster with 2 workers": Target(limit=80)}

HELLO = """
import {library} as ray
ray.init(num_cpus=2, logging_level="ERROR")

@ray.remote
def hello():
    return "hello"

assert ray.get(hello.remote()) == "hello"
"""
IDLE = """
print("idle", flush=True)
input()
"""


def measure(system: str, size: Size) -> Iterator[Sample]:
    script = HELLO.format(library={MINRAY: "minray", RAY: "ray"}[system])
    start = time.perf_counter()
    _output(script)
    yield Sample(NAME, "hello-world script, whole process", time.perf_counter() - start)
    yield Sample(MEMORY, "cluster with 2 workers", _idle_pss_bytes(script + IDLE, size.pick(2, 1, 0)) / 1e6)
    ray = library(system)
    start = time.perf_counter()
    ray.init(num_cpus=WORKERS, logging_level="ERROR")
    yield Sample(NAME, "init", time.perf_counter() - start)

    @ray.remote
    def first() -> int:
        return 1

    start = time.perf_counter()
    ray.get(first.remote())
    yield Sample(NAME, "first task after init", time.perf_counter() - start)
    start = time.perf_counter()
    ray.shutdown()
    yield Sample(NAME, "shutdown", time.perf_counter() - start)


def cluster_pss_bytes(pid: int | None = None) -> int:
    """Return the PSS in bytes of a process (default: this one) and all its descendants."""
    total = 0
    driver = psutil.Process(pid)
    for process in [driver, *driver.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # the process has ended meanwhile
            continue
    return total


def _idle_pss_bytes(script: str, seconds: float) -> int:
    """Run a program until it prints "idle"; return the PSS of its cluster some seconds later.

    The pause lets processes start that are started lazily.
    """
    program = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    with program:
        if "idle\n" not in iter(program.stdout.readline, ""):
            raise RuntimeError("the program has ended before it was idle")
        time.sleep(seconds)
        total = cluster_pss_bytes(program.pid)
        program.communicate("\n")
    return total


def _output(script: str) -> str:
    """Run a program in a new process, and return its output."""
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
