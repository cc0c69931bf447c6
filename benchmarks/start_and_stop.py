"""How long starting and stopping take, and what an idle cluster weighs; for minray and Ray alike.

Run as ``python -m benchmarks.start_and_stop minray``; prints one JSON object. Times are in seconds; memory is the
proportional set size (PSS) of all processes of the cluster, the driver included, in megabytes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from typing import Any

import psutil

HELLO = """
import {library} as ray
ray.init(num_cpus=2, logging_level="ERROR")

@ray.remote
def hello():
    return "hello"

assert ray.get(hello.remote()) == "hello"
"""


def measure(library: str) -> dict[str, float]:
    """One measurement of everything."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", HELLO.format(library=library)], check=True, capture_output=True)
    hello_s = time.perf_counter() - start
    ray: Any = importlib.import_module(library)
    start = time.perf_counter()
    ray.init(num_cpus=2, logging_level="ERROR")
    init_s = time.perf_counter() - start

    @ray.remote
    def first() -> int:
        return 1

    start = time.perf_counter()
    ray.get(first.remote())
    first_s = time.perf_counter() - start
    time.sleep(2)  # Idle, so that what was started lazily is there.
    driver = psutil.Process()
    memory_mb = sum(_pss_mb(process.pid) for process in [driver, *driver.children(recursive=True)])
    start = time.perf_counter()
    ray.shutdown()
    shutdown_s = time.perf_counter() - start
    return {
        "init (s)": init_s,
        "first task after init (s)": first_s,
        "shutdown (s)": shutdown_s,
        "hello-world script, whole process (s)": hello_s,
        "idle memory, 2 workers (MB PSS)": memory_mb,
    }


def _pss_mb(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_full_info().pss) / 1e6
    except psutil.Error:
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["minray", "ray"])
    print(json.dumps(measure(parser.parse_args().library)))


if __name__ == "__main__":
    main()
