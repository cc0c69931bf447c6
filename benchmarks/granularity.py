"""METG(50 %) of Task Bench: the smallest mean duration of a task at which half of the machine's peak is still reached.

The grids are those of ``benchmarks/task_bench.py``, with results of 16 bytes, and the same for every system. The peak of a
system is the best rate of work that it reaches with any duration of a task, so the processor's speed cancels out. Durations
are halved until less than half of the peak is reached. METG lies between the last two; it is interpolated on logarithmic
scales. A duration is the wall time of all workers, divided by the number of tasks, as in the paper.

What differs from the paper: grids have 16 columns whatever the number of workers is, and kernels are in Python and numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count

from benchmarks.document import DASK, Sample, Size
from benchmarks.systems import connected, dask_scheduler, seconds
from benchmarks.task_bench import KERNELS, PATTERNS, Grid, Pattern, Work, run_as_graph, run_natively

WIDTH, OUTPUT_BYTES = 16, 16
LONGEST_S = 0.016
"""Duration of the first tasks, with which every system reaches its peak, in seconds."""
SHORTEST_S = 2e-5
"""Duration at which the search ends in any case, in seconds."""
KERNEL_ROWS = {"memory": "stencil", "uneven": "stencil"}
"""Pattern with which each further kernel is measured."""

Run = Callable[[Pattern, int, Grid, Work], None]
"""Runs a grid; the arguments are those of ``run_natively``, without the library."""


def repeats_per_second(kernel: str) -> float:
    """Measure how often a kernel repeats in a second in this process; only sizes of grids follow from it."""
    times = 100
    while (taken_s := seconds(lambda: KERNELS[kernel](times, 0, 1))) < 0.01:  # noqa: B023 (called at once)
        times *= 2
    return times / taken_s


def metg_s(
    run: Run,
    pattern: Pattern,
    per_second: float,
    kernel: str,
    workers: int,
    point_s: float,
    seconds: Callable[[Callable[[], None]], float] = seconds,
) -> float:
    """Search METG(50 %), in seconds.

    ``per_second``: how often the kernel repeats in a second. ``point_s``: about how long each duration is measured.
    ``seconds`` measures a call.
    """
    run(pattern, OUTPUT_BYTES, Grid(WIDTH, 3), (kernel, 1))
    points: list[tuple[float, float]] = []
    duration_s = LONGEST_S
    while duration_s >= SHORTEST_S:
        steps = max(4, min(400, round(point_s * workers / duration_s / WIDTH)))
        times = max(1, round(duration_s * per_second))
        taken_s = seconds(lambda: run(pattern, OUTPUT_BYTES, Grid(WIDTH, steps), (kernel, times)))  # noqa: B023
        tasks = WIDTH * steps
        points.append((taken_s * workers / tasks, times * tasks / taken_s))
        if points[-1][1] < max(rate for _, rate in points) / 2:
            break
        duration_s /= 2
    return crossing(points)


def crossing(points: list[tuple[float, float]]) -> float:
    """Return the duration at which half of the best rate is reached, from durations with their rates, longest first."""
    half = max(rate for _, rate in points) / 2
    last, rate = points[-1]
    if rate >= half or len(points) == 1:
        return last
    before, rate_before = points[-2]
    share = (math.log(rate_before) - math.log(half)) / (math.log(rate_before) - math.log(rate))
    return math.exp(math.log(before) + share * (math.log(last) - math.log(before)))


def samples(table: str, run: Run, workers: int, size: Size) -> Iterator[Sample]:
    """Yield METG in milliseconds for each pattern with the kernel that computes, and for the other kernels."""
    point_s = size.pick(1.0, 0.3, 0.0)
    rows = [(pattern, "compute") for pattern in PATTERNS] + [(pattern, kernel) for kernel, pattern in KERNEL_ROWS.items()]
    for pattern, kernel in rows[: size.pick(None, None, 2)]:
        row = pattern if kernel == "compute" else f"{pattern}, {kernel}"
        found_s = metg_s(run, PATTERNS[pattern], repeats_per_second(kernel), kernel, workers, point_s)
        yield Sample(table, row, 1000 * found_s, workers)


def measure(system: str, size: Size, workers: int, table: str) -> Iterator[Sample]:
    """Measure METG of a system with this number of workers."""
    if system == DASK:
        numbers = count()
        with dask_scheduler(system, workers):
            yield from samples(table, lambda *grid: run_as_graph(f"metg-{next(numbers)}", *grid), workers, size)
        return
    with connected(system, workers) as ray:
        yield from samples(table, lambda *grid: run_natively(ray, *grid), workers, size)
