"""One array to many tasks: minray beside Ray and Dask, in turn and in one run.

    python -m benchmarks.broadcast [--rounds N] [--mebibytes N] [--tasks N]

An array is put once and given to each task by reference; what is measured is the time from the put to the last answer. The
tasks either sum it (numpy reads all of it, and lets other threads run), or add up some of its numbers one by one (which
holds the GIL of their worker). Two workers on either side; Dask has two processes with a thread each, to which the array
is scattered. Each round runs every library in a process of its own, which does everything once before it is measured.
Medians; ratios are medians of the rounds' ratios. A library that is not installed is left out.

The table comes on standard error, and in the end all of it as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WORKERS = 2
MEBIBYTE = 1 << 20
KINDS = ("sum", "holding the GIL")
NUMBERS = 50_000
"""So many are added up one by one."""


def sum_all(array: Any) -> float:
    return float(array.sum())


def sum_some(array: Any) -> float:
    total = 0.0
    for number in array[:NUMBERS]:
        total += number
    return total


FUNCTIONS: dict[str, Callable[[Any], float]] = dict(zip(KINDS, (sum_all, sum_some), strict=True))


def with_ray(library: str, array: Any, tasks: int) -> dict[str, float]:
    """Also of minray, whose names are the same."""
    ray = importlib.import_module(library)
    ray.init(num_cpus=WORKERS, object_store_memory=3 * array.nbytes, logging_level="ERROR", log_to_driver=False)

    def once(task: Any) -> list[float]:
        ref = ray.put(array)
        results: list[float] = ray.get([task.remote(ref) for _ in range(tasks)])
        return results

    taken = {kind: timed(once, ray.remote(function), array, function) for kind, function in FUNCTIONS.items()}
    ray.shutdown()
    return taken


def with_dask(array: Any, tasks: int) -> dict[str, float]:
    distributed = importlib.import_module("distributed")
    options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:

        def once(function: Any) -> list[float]:
            future = client.scatter(array, hash=False, broadcast=True)
            results: list[float] = client.gather([client.submit(function, future, pure=False) for _ in range(tasks)])
            return results

        return {kind: timed(once, function, array, function) for kind, function in FUNCTIONS.items()}


def timed(once: Callable[[Any], list[float]], task: Any, array: Any, function: Callable[[Any], float]) -> float:
    """Seconds of the second time."""
    expected = function(array)
    for _ in range(2):
        start = time.perf_counter()
        results = once(task)
        taken_s = time.perf_counter() - start
        assert results == [expected] * len(results)
    return taken_s


def measure(library: str, mebibytes: int, tasks: int) -> dict[str, float]:
    """In a process of its own."""
    options = ["--library", library, "--mebibytes", str(mebibytes), "--tasks", str(tasks)]
    command = [sys.executable, "-m", "benchmarks.broadcast", *options]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return result


def compare(rounds: int, mebibytes: int, tasks: int) -> dict[str, dict[str, list[float]]]:
    """Library to kind to seconds of each round."""
    modules = {"minray": "minray", "ray": "ray", "dask": "distributed"}
    libraries = [library for library, module in modules.items() if importlib.util.find_spec(module)]
    found: dict[str, dict[str, list[float]]] = {library: {kind: [] for kind in KINDS} for library in libraries}
    for number in range(rounds):
        for library in libraries:
            print(f"round {number + 1} of {rounds}: {library}", file=sys.stderr)
            for kind, taken_s in measure(library, mebibytes, tasks).items():
                found[library][kind].append(taken_s)
    return found


def show(found: dict[str, dict[str, list[float]]]) -> None:
    print(f"\n{'':10}" + "".join(f"{kind:>36}" for kind in KINDS), file=sys.stderr)
    for library, kinds in found.items():
        cells = ""
        for kind, times in kinds.items():
            ratio = statistics.median(own / other for own, other in zip(times, found["minray"][kind], strict=True))
            cells += f"{statistics.median(times):>12.2f} s ({min(times):.2f}-{max(times):.2f}) {ratio:>5.1f}x"
        print(f"{library:10}{cells}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--library", choices=["minray", "ray", "dask"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.library:
        array = np.ones(arguments.mebibytes * MEBIBYTE // 8)
        is_dask = arguments.library == "dask"
        taken = with_dask(array, arguments.tasks) if is_dask else with_ray(arguments.library, array, arguments.tasks)
        print(json.dumps(taken))
        return
    found = compare(arguments.rounds, arguments.mebibytes, arguments.tasks)
    show(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
