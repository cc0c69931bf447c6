"""Grids of tasks that depend on each other as in Task Bench: a tree, stencils, a fast Fourier transform, and others.

A grid has ``width`` tasks in each of its steps. A pattern says which tasks of the step before give their results to a task.
The results are arrays: tiny ones that travel in messages, ones just above the limit for that (100 KiB), and ones of 200 kB.
A task does no work but its check: each array that it receives must name the step and the column of the task that made it.

minray and Ray run the same code, and the Dask schedulers the same graphs. A row is the number of tasks in a second. The
original asks for the smallest task with which half of the peak performance is reached (``benchmarks/granularity.py``);
this is what bounds it.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks import no_op_array
from benchmarks.document import (
    DASK,
    DASK_ON_MINRAY,
    DASK_ON_RAY,
    HYPERQUEUE,
    MINRAY,
    RAY,
    Document,
    Part,
    Sample,
    Size,
    Table,
    Target,
)
from benchmarks.systems import connected, dask_scheduler, seconds

NATIVE, GRAPHS = "grids of tasks", "grids of tasks as Dask graphs"
OUTPUTS = {"16 B": 16, "110 kB": 110_000, "200 kB": 200_000}
"""Bytes of a task's result by the name of the row."""

SECONDS = {Size.FULL: 60.0, Size.QUICK: 30.0, Size.TINY: 3.0}


class Grid(NamedTuple):
    """A grid of tasks; its width is a power of two."""

    width: int
    steps: int


def tree(step: int, column: int, width: int) -> list[int]:
    return [column // 2]


def trivial(step: int, column: int, width: int) -> list[int]:
    return []


def stencil(step: int, column: int, width: int) -> list[int]:
    return [near for near in (column - 1, column, column + 1) if 0 <= near < width]


def periodic_stencil(step: int, column: int, width: int) -> list[int]:
    return sorted({(column + distance) % width for distance in (-1, 0, 1)})


def fft(step: int, column: int, width: int) -> list[int]:
    distance = 1 << (step - 1) % (width.bit_length() - 1)
    return [near for near in (column - distance, column, column + distance) if 0 <= near < width]


def all_to_all(step: int, column: int, width: int) -> list[int]:
    return list(range(width))


def random_nearest(step: int, column: int, width: int) -> list[int]:
    """The task's own column, and each of the four nearest ones in half of the cases."""
    near = random.Random(f"{step} {column}")
    others = [other for other in range(column - 2, column + 3) if 0 <= other < width and other != column]
    return sorted([column, *(other for other in others if near.random() < 0.5)])


def spread(step: int, column: int, width: int) -> list[int]:
    """Five columns that are as far apart as possible, others in each step but for the task's own."""
    return sorted({(column + place * width // FAN + (step if place else 0)) % width for place in range(FAN)})


FAN = 5
"""Number of inputs of a task in the pattern ``spread``."""
Pattern = Callable[[int, int, int], list[int]]
PATTERNS: dict[str, Pattern] = {
    "trivial": trivial,
    "stencil": stencil,
    "periodic stencil": periodic_stencil,
    "fft": fft,
    "tree": tree,
    "random nearest": random_nearest,
    "all to all": all_to_all,
    "spread": spread,
}
"""Function from a task's step and column and the width of the grid to the columns of the step before that it needs."""


Work = tuple[str, int]
"""Name of a kernel that a task runs beside its check, and how often the kernel repeats."""
IDLE: Work = ("nothing", 0)


def cell(step: int, column: int, size: int, work: Work, needed: list[int], *inputs: Any) -> Any:
    """Check the arrays that a task receives, work, and make its own array."""
    for source, given in zip(needed, inputs, strict=True):
        assert tuple(given[:8].view(np.int32)) == (step - 1, source), f"step {step}, column {column}: not from {source}"
    KERNELS[work[0]](work[1], step, column)
    made = np.empty(size, np.uint8)
    made[:8].view(np.int32)[:] = step, column
    return made


def compute(times: int, step: int, column: int) -> float:
    """Multiply and add: what the processor alone bounds."""
    value = 1.0
    for _ in range(times):
        value = value * 0.5 + 1.0
    return value


def move(times: int, step: int, column: int) -> None:
    """Copy a part of an array to the next part: what the memory bounds."""
    if not SCRATCH:
        SCRATCH.append(np.ones((SCRATCH_BYTES // PART_BYTES, PART_BYTES), np.uint8))
    parts = SCRATCH[0]
    for number in range(times):
        parts[(number + 1) % len(parts)] = parts[number % len(parts)]


def compute_unevenly(times: int, step: int, column: int) -> float:
    """Compute between nothing and twice as much, by a number that depends on the task alone."""
    return compute(int(2 * times * random.Random(f"{step} {column}").random()), step, column)


SCRATCH_BYTES, PART_BYTES = 16 << 20, 64 << 10
SCRATCH: list[Any] = []
"""Array of this process, made by its first task that needs it: larger than its share of the caches."""
KERNELS: dict[str, Callable[[int, int, int], object]] = {
    "nothing": lambda *_: None,
    "compute": compute,
    "memory": move,
    "uneven": compute_unevenly,
}
"""Work of a task by its name: function of a count, and of the task's step and column."""


def nothing(*_: Any) -> None:
    """Take the last step's arrays, so that they are made but not fetched."""


def run_natively(ray: Any, pattern: Pattern, size: int, grid: Grid, work: Work = IDLE) -> None:
    task = ray.remote(cell)
    row: list[Any] = []
    for step in range(grid.steps):
        needed = [pattern(step, column, grid.width) if step else [] for column in range(grid.width)]
        row = [
            task.remote(step, column, size, work, needed[column], *(row[i] for i in needed[column]))
            for column in range(grid.width)
        ]
    ray.get(ray.remote(nothing).remote(*row))


def run_as_graph(name: str, pattern: Pattern, size: int, grid: Grid, work: Work = IDLE) -> None:
    """Compute a grid with Dask's present scheduler; ``name`` begins its keys, and no two graphs may share it."""
    dask, spec = importlib.import_module("dask"), importlib.import_module("dask.task_spec")
    graph: dict[Any, Any] = {}
    for step in range(grid.steps):
        for column in range(grid.width):
            needed = pattern(step, column, grid.width) if step else []
            inputs = [spec.TaskRef((name, step - 1, source)) for source in needed]
            key = name, step, column
            graph[key] = spec.Task(key, cell, step, column, size, work, needed, *inputs)
    last = [spec.TaskRef((name, grid.steps - 1, column)) for column in range(grid.width)]
    graph[f"{name}-end"] = spec.Task(f"{name}-end", nothing, *last)
    dask.base.get_scheduler()(graph, f"{name}-end")


def _samples(table: str, run: Callable[[str, Pattern, int, Grid], None], size: Size) -> Iterator[Sample]:
    grid = size.pick(Grid(16, 40), Grid(16, 20), Grid(4, 3))
    for pattern in ("tree", "stencil", "fft", "all to all"):
        needed = PATTERNS[pattern]
        for output, size_bytes in OUTPUTS.items():
            run(f"first-{pattern}-{output}", needed, size_bytes, Grid(grid.width, 3))
            for turn in range(size.pick(2, 2, 1)):
                spent_s = seconds(lambda: run(f"{turn}-{pattern}-{output}", needed, size_bytes, grid))  # noqa: B023
                yield Sample(table, f"{pattern}, {output}", grid.width * grid.steps / spent_s)


def measure_native(system: str, size: Size) -> Iterator[Sample]:
    with connected(system) as ray:
        yield from _samples(NATIVE, lambda _, *grid: run_natively(ray, *grid), size)


def measure_graphs(system: str, size: Size) -> Iterator[Sample]:
    with dask_scheduler(system):
        yield from _samples(GRAPHS, run_as_graph, size)


DOCUMENT = Document(
    "Task Bench",
    "Slaughter and others, SC 2020: Cori (Cray XC40), 32 cores for each node, 15 systems; here only what a task costs",
    parts=(
        Part(NATIVE, (MINRAY, RAY), measure_native, SECONDS, is_quick=False),
        Part(GRAPHS, (DASK_ON_MINRAY, DASK_ON_RAY, DASK), measure_graphs, SECONDS, is_quick=False),
        Part(no_op_array.NAME, (MINRAY, RAY, DASK, HYPERQUEUE), no_op_array.measure, SECONDS, is_quick=False),
    ),
    tables=(
        Table(
            NATIVE,
            "Grids of tasks by pattern and size of the results",
            "tasks/s",
            more_is_better=True,
            targets={"": Target(RAY, 1)},
        ),
        Table(
            GRAPHS,
            "The same grids as Dask graphs",
            "tasks/s",
            more_is_better=True,
            targets={"": Target(DASK_ON_RAY, 1)},
        ),
        Table(
            no_op_array.NAME,
            "Arrays of empty tasks: functions, and programs that are started",
            "tasks/s",
            more_is_better=True,
            targets=no_op_array.TARGETS,
        ),
    ),
)
