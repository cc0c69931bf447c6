"""Measure one driver, several clients and large values on all cores of a machine: ``--only cores``.

Every row is measured with one worker, with a quarter of the cores, with half of them and with all, or with all alone. On two
cores the rows only show that they run. A quick run of all of them takes minutes:

    python -m benchmarks --quick --only cores
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import granularity
from benchmarks.actors import create
from benchmarks.broadcast import broadcasting, sum_all
from benchmarks.document import DASK, DASK_THREADS, MINRAY, RAY, Document, Part, Sample, Size, Table, Target
from benchmarks.systems import connected, dask_client, seconds

CORES = os.cpu_count() or 1
WORKERS = sorted({1, max(1, CORES // 4), max(1, CORES // 2), CORES})
TASKS, EFFICIENCY, CLIENTS, VALUES, ACTORS, METG = (
    "tasks of one driver, by cores",
    "efficiency of one driver, by cores",
    "clients, by cores",
    "large values on all cores",
    "actors on all cores",
    "granularity, by cores",
)
BUSY_MS = (0.5, 1.0, 10.0)
"""Durations of the tasks whose efficiency is measured, in milliseconds."""
SUMS = 100
"""Number of tasks that sum the same array."""
BROADCAST = f"put, and {SUMS} tasks that sum it, tasks/s"


def nothing() -> None:
    """Do nothing: a no-op task."""


def busy(duration_s: float) -> None:
    """Keep a core busy."""
    until = time.perf_counter() + duration_s
    while time.perf_counter() < until:
        pass


def measure_tasks(system: str, size: Size) -> Iterator[Sample]:
    """Measure no-op tasks in a second, and which part of their workers' time busy tasks use."""
    for workers in WORKERS:
        if system == DASK:
            with dask_client(workers) as client:

                def by_dask(function: Callable[..., None], number: int, *arguments: Any) -> None:
                    client.gather([client.submit(function, *arguments, pure=False) for _ in range(number)])

                yield from _tasks(by_dask, workers, size.pick(5_000, 1_000, 10), size)
            continue
        with connected(system, workers) as ray:

            def by_ray(function: Callable[..., None], number: int, *arguments: Any) -> None:
                task = ray.remote(function)
                ray.get([task.remote(*arguments) for _ in range(number)])

            yield from _tasks(by_ray, workers, size.pick(50_000, 10_000, 10), size)


def _tasks(submit: Callable[..., None], workers: int, number: int, size: Size) -> Iterator[Sample]:
    submit(busy, 2 * workers, size.pick(0.5, 0.5, 0.01))  # every worker has begun
    for function, *arguments in (nothing,), (busy, 1e-4):
        submit(function, size.pick(500, 500, 5), *arguments)
    for _ in range(size.pick(2, 1, 1)):
        yield Sample(TASKS, "no-op tasks", number / seconds(lambda: submit(nothing, number)), workers)
    for duration_ms in BUSY_MS:
        count = max(workers, int(size.pick(2_000, 600, 4) * workers / duration_ms))
        taken_s = seconds(lambda: submit(busy, count, duration_ms / 1000))  # noqa: B023 (called at once)
        yield Sample(EFFICIENCY, f"tasks of {duration_ms:g} ms", count * duration_ms / 1000 / workers / taken_s, workers)


def measure_clients(system: str, size: Size) -> Iterator[Sample]:
    """Measure the tasks, and the actor calls, that half as many clients as there are workers make in a second."""
    number = size.pick(10_000, 2_000, 5)
    for workers in WORKERS:
        clients = max(1, workers // 2)
        with connected(system, workers) as ray:

            @ray.remote(num_cpus=0)
            class Client:
                def __init__(self, others: list[Any]) -> None:
                    self._others = others
                    self._task = ray.remote(nothing)

                def submit(self, number: int) -> None:
                    ray.get([self._task.remote() for _ in range(number)])

                def call(self, number: int) -> None:
                    others = self._others
                    ray.get([others[place % len(others)].submit.remote(0) for place in range(number)])

            called = [Client.remote([]) for _ in range(clients)]
            callers = [Client.remote(called) for _ in range(clients)]
            for row, method in ("tasks", "submit"), ("actor calls", "call"):

                def call_all(count: int) -> None:
                    ray.get([getattr(caller, method).remote(count) for caller in callers])  # noqa: B023

                call_all(size.pick(500, 500, 1))
                yield Sample(CLIENTS, row, clients * number / seconds(lambda: call_all(number)), workers)


def measure_values(system: str, size: Size) -> Iterator[Sample]:
    """Measure a put into untouched pages, puts into touched ones, and a put with tasks that read it."""
    array = np.ones(size.pick(1_000, 300, 1) * 10**6 // 8)
    gigabytes = array.nbytes / 1e9
    if system != DASK_THREADS:
        with connected(system, CORES, object_store_memory=4 * array.nbytes + (100 << 20)) as ray:
            for number in range(size.pick(4, 3, 2)):
                row = "put again" if number else "first put"
                yield Sample(VALUES, f"{row}, GB/s", gigabytes / seconds(lambda: ray.put(array)))
    target = np.empty_like(array)
    for number in range(3):
        taken_s = seconds(lambda: np.copyto(target, array))
        if number:
            yield Sample(VALUES, "copy by one thread, GB/s", gigabytes / taken_s)
    with broadcasting(system, array.nbytes, CORES) as broadcast:
        for _ in range(size.pick(3, 2, 1)):
            speed = SUMS / seconds(lambda: broadcast(array, sum_all, SUMS))
            yield Sample(VALUES, BROADCAST, speed)


def measure_actors(system: str, size: Size) -> Iterator[Sample]:
    number = size.pick(1_000, 300, 4) if system == MINRAY else size.pick(100, 30, 2)
    begun = time.perf_counter()
    with connected(system, CORES) as ray:
        yield Sample(ACTORS, "starts of a cluster", 1 / (time.perf_counter() - begun))
        yield Sample(ACTORS, "actors made and called", number / seconds(lambda: create(ray, number)))


def measure_granularity(system: str, size: Size) -> Iterator[Sample]:
    for workers in {1, CORES} if size is Size.FULL else {CORES}:
        yield from granularity.measure(system, size, workers, METG)


def _part(name: str, systems: tuple[str, ...], measure: Callable[[str, Size], Iterator[Sample]], quick_s: float) -> Part:
    times = {Size.FULL: 4 * quick_s, Size.QUICK: quick_s, Size.TINY: 10.0}
    return Part(name, systems, measure, times, is_quick=False)


DOCUMENT = Document(
    "Many cores",
    "No document: what grows with the cores of one machine, and should",
    parts=(
        _part(TASKS, (MINRAY, RAY, DASK), measure_tasks, 30.0),
        _part(CLIENTS, (MINRAY, RAY), measure_clients, 15.0),
        _part(VALUES, (MINRAY, RAY, DASK_THREADS), measure_values, 10.0),
        _part(ACTORS, (MINRAY, RAY), measure_actors, 8.0),
        _part(METG, (MINRAY, RAY, DASK), measure_granularity, 40.0),
    ),
    tables=(
        Table(TASKS, "No-op tasks of one driver", "tasks/s", True, "workers", targets={"": Target(RAY, 1)}),
        Table(
            EFFICIENCY,
            "Part of the workers' time that busy tasks of one driver use",
            "of 1",
            True,
            "workers",
            targets={"tasks of 1 ms": Target(limit=0.85), "tasks of 0.5 ms": Target(limit=0.6)},
        ),
        Table(CLIENTS, "Several clients: half as many as workers", "calls/s", True, "workers", targets={"": Target(RAY, 1)}),
        Table(
            VALUES,
            "Large values",
            "a second",
            True,
            targets={"first put, GB/s": Target(RAY, 1.5), BROADCAST: Target(RAY, 1)},
        ),
        Table(ACTORS, "Actors and starts", "a second", True, targets={"": Target(RAY, 1)}),
        Table(METG, "METG(50 %) of Task Bench by workers", "ms", False, "workers", targets={"": Target(RAY, 5)}),
    ),
)
