"""Arrays and dataframes, from "Dask Benchmarks": the same collections on each scheduler, with small and with large chunks.

The sizes are the document's for the number of workers here, if memory and time allow it. Large chunks ("expert") are so
large that each worker has two. A row is the time from its call until its result exists; it is persisted where the document
persists. The first turn of each size has tables of its own: in it workers import modules and write to fresh pages. The shape
or a statistic of each result is checked.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.document import Sample, Size
from benchmarks.systems import WORKERS, Persist, dask_scheduler, seconds

ARRAYS, FRAMES = "arrays", "dataframes"
FIRST_ARRAYS, FIRST_FRAMES = "arrays, first time", "dataframes, first time"
SMALL, LARGE = "", ", expert chunks"
DELAY_S = 0.1
COLUMNS = 10
VALUES = 10_000
"""Upper limit of the random numbers."""
SEEDS = itertools.count(1)
"""Seeds, a new one for each collection: a scheduler does not compute keys again that it still has."""

Call = Callable[[], Any]


def slow_inc(values: Any, delay: float = DELAY_S) -> Any:
    time.sleep(delay)
    return values + 1


class Shape(NamedTuple):
    """The size of an array or dataframe, and the size of its chunks."""

    length: int
    chunk: int
    name: str


def array_shapes(size: Size) -> list[Shape]:
    per_root = size.pick(5000, 1000, 40)
    length = int(per_root * math.sqrt(WORKERS))
    return [Shape(length, per_root * 2 // 5, SMALL), Shape(length, -(-length // 2), LARGE)]


def measure_arrays(system: str, size: Size) -> Iterator[Sample]:
    strip = size.pick(200, 100, 20)
    with dask_scheduler(system) as persist:
        for shape in array_shapes(size):
            for table in _tables(FIRST_ARRAYS, ARRAYS, size):
                yield from _array_rows(table, persist, shape, strip)


def _tables(first: str, later: str, size: Size) -> list[str]:
    """Return the table of each turn's samples."""
    return [first] + [later] * size.pick(2, 2, 1)


def _array_rows(table: str, persist: Persist, shape: Shape, strip: int) -> Iterator[Sample]:
    import dask.array as da

    n = shape.length
    place = (n // 5, n // 2)

    def sample(row: str, call: Call) -> Sample:
        return Sample(table, row + shape.name, seconds(call))

    def rechunk() -> None:
        strips = persist(x.rechunk((n, strip)))
        assert persist(strips.rechunk((strip, n))).chunksize == (strip, n)

    made: list[Any] = []
    random = da.random.RandomState(next(SEEDS))
    yield sample("create", lambda: made.append(persist(random.randint(0, VALUES, size=(n, n), chunks=shape.chunk))))
    x = made.pop()
    yield sample("elementwise", lambda: persist(da.sin(x) ** 2 + da.cos(x) ** 2))
    yield sample("std", lambda: _expect(x.std().compute(), VALUES / math.sqrt(12), 0.1))
    yield sample("random access", lambda: _expect(x[place].compute(), VALUES / 2, 1))
    yield sample("x + x.T", lambda: persist(x + x.T))
    yield sample("rechunk", rechunk)
    yield sample("overlap", lambda: persist(x.map_overlap(slow_inc, depth=1, delay=DELAY_S, boundary="none")))


def measure_frames(system: str, size: Size) -> Iterator[Sample]:
    rows = size.pick(2_000_000, 100_000, 500) * WORKERS
    shapes = [Shape(rows, rows // (2 * WORKERS), SMALL), Shape(rows, rows // WORKERS, LARGE)]
    with dask_scheduler(system) as persist:
        for shape in shapes:
            for table in _tables(FIRST_FRAMES, FRAMES, size):
                yield from _frame_rows(table, persist, shape)


def _frame_rows(table: str, persist: Persist, shape: Shape) -> Iterator[Sample]:
    import dask.array as da
    import dask.dataframe as dd

    n = shape.length

    def sample(row: str, call: Call) -> Sample:
        return Sample(table, row + shape.name, seconds(call))

    made: list[Any] = []

    def create() -> None:
        x = da.random.RandomState(next(SEEDS)).randint(0, VALUES, size=(n, COLUMNS), chunks=(shape.chunk, COLUMNS))
        made.append(persist(dd.from_dask_array(x)))

    yield sample("create", create)
    df = made.pop()
    yield sample("elementwise, 100 ms", lambda: persist(df.map_partitions(slow_inc, meta=df)))
    yield sample("elementwise, arithmetic", lambda: persist(df[0] + 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10))
    yield sample("loc", lambda: _expect(len(df.loc[n // 3].compute()), 1, 0))
    yield sample("std", lambda: _expect(df.std().compute().mean(), VALUES / math.sqrt(12), 0.1))
    yield sample("std of a series", lambda: _expect(df[0].std().compute(), VALUES / math.sqrt(12), 0.1))
    yield sample("groupby mean", lambda: _expect(df.groupby(0)[1].mean().compute().mean(), VALUES / 2, 0.1))
    yield sample("groupby apply", lambda: _expect(df.groupby(0).apply(len, meta=("size", "i8")).compute().sum(), n, 0))
    yield sample("set_index", lambda: persist(df.set_index(1)))
    yield sample("rolling", lambda: persist(df.rolling(5).mean()))


def _expect(found: float, expected: float, tolerance: float) -> None:
    if abs(found - expected) > tolerance * expected:
        raise AssertionError(f"{found} is not {expected}")
