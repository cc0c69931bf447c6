"""``dask.dataframe.set_index`` from Parquet files with a shuffle of tasks: by partitions, by workers, by size,
and with memory for all of it.

The table has one column of random keys, and a file for each partition. The measured time is that of reading (twice: once for
the borders of the partitions), of the shuffle, and of a check that all rows of each partition are there and sorted. The
object store has 1 GiB. Each of Dask's workers has its share of that, and another GiB for everything else. Data that does not
fit goes to disk. In memory the store has four times the size of the data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.document import Sample, Size
from benchmarks.systems import WORKERS, dask_scheduler, seconds

BY_PARTITIONS, BY_WORKERS, BY_SIZE = "set_index by partitions", "set_index by workers", "set_index by size"
IN_MEMORY = "set_index in memory"
GIBIBYTE = 1 << 30
STORE_BYTES = GIBIBYTE
ROW_BYTES = 8


def by_partitions(system: str, size: Size) -> Iterator[Sample]:
    gibibytes = size.pick(0.5, 0.03, 0.0001)
    for partitions in size.pick((25, 50, 100), (5, 20), (2,)):
        yield Sample(BY_PARTITIONS, "set_index", _sorted(system, WORKERS, gibibytes, partitions), partitions)


def by_workers(system: str, size: Size) -> Iterator[Sample]:
    for workers in size.pick((1, 2, 4), (1, 2), (1,)):
        taken_s = _sorted(system, workers, size.pick(0.5, 0.03, 0.0001), size.pick(50, 10, 2))
        yield Sample(BY_WORKERS, "set_index", taken_s, workers)


def by_size(system: str, size: Size) -> Iterator[Sample]:
    for gibibytes in size.pick((0.1, 0.5, 2, 10), (0.01, 0.1), (0.0001,)):
        taken_s = _sorted(system, WORKERS, gibibytes, size.pick(100, 10, 2))
        yield Sample(BY_SIZE, "set_index", taken_s, gibibytes)


def in_memory(system: str, size: Size) -> Iterator[Sample]:
    gibibytes = size.pick(2, 0.1, 0.0001)
    store = max(STORE_BYTES, int(4 * gibibytes * GIBIBYTE))
    taken_s = _sorted(system, WORKERS, gibibytes, size.pick(100, 10, 2), store)
    yield Sample(IN_MEMORY, "set_index", taken_s, gibibytes)


def _sorted(system: str, workers: int, gibibytes: float, partitions: int, store: int = STORE_BYTES) -> float:
    """Start a cluster, write the files, and sort them; return the seconds of the sort."""
    import dask
    import dask.dataframe as dd

    rows = int(gibibytes * GIBIBYTE / ROW_BYTES) // partitions
    heap = store // workers + GIBIBYTE
    with tempfile.TemporaryDirectory() as folder:
        for number in range(partitions):
            write(Path(folder, f"{number:05}.parquet"), rows, number)

        def run() -> None:
            table = dd.read_parquet(folder, aggregate_files=False, split_row_groups=False)
            ordered = table.set_index("key", shuffle_method="tasks", max_branch=partitions)
            check(list(ordered.to_delayed()), rows * partitions)

        def check(parts: list[object], expected: int) -> None:
            found = dask.compute(*(dask.delayed(described)(part) for part in parts))
            borders = [(low, high) for low, high, _ in found if low is not None]
            assert sum(length for _, _, length in found) == expected
            assert all(high <= low for (_, high), (low, _) in zip(borders, borders[1:], strict=False))

        with (
            dask.config.set({"dataframe.parquet.minimum-partition-size": 1}),
            dask_scheduler(system, workers, memory_limit=heap, object_store_memory=store),
        ):
            return seconds(run)


def write(path: Path, rows: int, seed: int) -> None:
    import pandas as pd

    keys = np.random.default_rng(seed).integers(0, 2**62, rows)
    pd.DataFrame({"key": keys}).to_parquet(path, compression=None, index=False)


def described(part: object) -> tuple[int | None, int | None, int]:
    """Return the least and the greatest key of a partition, and the number of its rows; check that it is sorted."""
    index = part.index  # type: ignore[attr-defined]
    assert index.is_monotonic_increasing
    return (int(index[0]), int(index[-1]), len(index)) if len(index) else (None, None, 0)
