"""An array of tasks that do nothing, also beside HyperQueue, which has no workers that wait for tasks.

HyperQueue starts a program for each task, so its row is compared with tasks of the others that start the same program. Its
Python tasks are programs too: each is a Python of its own, and is not measured. Its cluster is ``LocalCluster``, the server
and the worker of its wheel in one process.
"""

from __future__ import annotations

import importlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.document import DASK, HYPERQUEUE, RAY, Sample, Size, Target
from benchmarks.systems import WORKERS, connected, dask_client, seconds

NAME = "array of empty tasks"
FUNCTION, PROGRAM = "empty functions", "empty programs"
COMMAND = ["true"]
TARGETS = {FUNCTION: Target(RAY, 1), PROGRAM: Target(HYPERQUEUE, 1)}


def nothing() -> None:
    """Do nothing."""


def start_program() -> None:
    subprocess.run(COMMAND, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def measure(system: str, size: Size) -> Iterator[Sample]:
    functions, programs = size.pick(10_000, 3_000, 10), size.pick(20_000, 5_000, 10)
    if system == HYPERQUEUE:
        yield from _of_hyperqueue(programs, size)
    elif system == DASK:
        with dask_client() as client:

            def by_dask(function: Callable[[], None], number: int) -> None:
                client.gather([client.submit(function, pure=False) for _ in range(number)])

            yield from _samples(by_dask, functions, programs, size)
    else:
        with connected(system) as ray:

            def by_ray(function: Callable[[], None], number: int) -> None:
                task = ray.remote(function)
                ray.get([task.remote() for _ in range(number)])

            yield from _samples(by_ray, functions, programs, size)


def _samples(
    run: Callable[[Callable[[], None], int], None], functions: int, programs: int, size: Size
) -> Iterator[Sample]:
    for row, function, number in (FUNCTION, nothing, functions), (PROGRAM, start_program, programs):
        run(function, size.pick(100, 100, 2))
        for _ in range(size.pick(3, 2, 1)):
            yield Sample(NAME, row, number / seconds(lambda: run(function, number)))  # noqa: B023 (called at once)


def _of_hyperqueue(number: int, size: Size) -> Iterator[Sample]:
    hyperqueue = importlib.import_module("hyperqueue")
    of_cluster = importlib.import_module("hyperqueue.cluster")
    with tempfile.TemporaryDirectory() as folder, hyperqueue.LocalCluster() as cluster:
        cluster.start_worker(of_cluster.WorkerConfig(cores=WORKERS))
        client = cluster.client()

        def run(number: int) -> Any:
            job = hyperqueue.Job(default_workdir=folder)
            for _ in range(number):
                job.program(COMMAND, stdout=None, stderr=None)
            return client.wait_for_jobs([client.submit(job)])

        run(size.pick(100, 100, 2))
        for _ in range(size.pick(3, 2, 1)):
            yield Sample(NAME, PROGRAM, number / seconds(lambda: run(number)))
