"""Broadcast of one array to many tasks: put once, passed to each task by reference, timed from the put to the last answer.

The tasks either sum the array (numpy reads all of it, and lets other threads run), or add up some of its numbers one by one,
which holds the GIL of their process. Each system has two workers; Dask scatters the array to its workers. Each row runs once
before it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.document import DASK, DASK_THREADS, Sample, Size
from benchmarks.systems import WORKERS, connected, dask_client, seconds

NAME = "broadcast"
NUMBERS = 50_000
"""Count of numbers that a task adds up one by one."""


def sum_all(array: Any) -> float:
    return float(array.sum())


def sum_some(array: Any) -> float:
    total = 0.0
    for number in array[:NUMBERS]:
        total += number
    return total


Broadcast = Callable[[Any, Callable[[Any], float], int], list[float]]


@contextmanager
def broadcasting(system: str, array_bytes: int, workers: int = WORKERS) -> Iterator[Broadcast]:
    """Start a system; yield a function that runs a number of tasks with a function on one array."""
    if system in (DASK, DASK_THREADS):
        with dask_client(workers, threads=system == DASK_THREADS) as client:

            def by_dask(array: Any, function: Callable[[Any], float], tasks: int) -> list[float]:
                future = client.scatter(array, hash=False, broadcast=True)
                return list(client.gather([client.submit(function, future, pure=False) for _ in range(tasks)]))

            yield by_dask
        return
    with connected(system, workers, object_store_memory=max(3 * array_bytes, 100 << 20)) as ray:

        def by_ray(array: Any, function: Callable[[Any], float], tasks: int) -> list[float]:
            task, ref = ray.remote(function), ray.put(array)
            return list(ray.get([task.remote(ref) for _ in range(tasks)]))

        yield by_ray


def measure(system: str, size: Size) -> Iterator[Sample]:
    array = np.ones((size.pick(512, 64, 1) << 20) // 8)
    tasks = size.pick(50, 20, 2)
    with broadcasting(system, array.nbytes) as broadcast:
        for row, function in {"sum": sum_all, "holding the GIL": sum_some}.items():
            expected = [function(array)] * tasks
            for number in range(size.pick(3, 3, 1)):
                results: list[float] = []
                taken_s = seconds(lambda: results.extend(broadcast(array, function, tasks)))  # noqa: B023 (called at once)
                assert results == expected
                if number or size is Size.TINY:
                    yield Sample(NAME, row, taken_s)
