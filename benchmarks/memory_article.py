"""The document "Analyzing memory management and performance in Dask-on-Ray": broadcast, and sorting out of memory."""

from __future__ import annotations

from benchmarks import broadcast, native_sort, set_index
from benchmarks.document import (
    DASK,
    DASK_ON_MINRAY,
    DASK_ON_RAY,
    DASK_THREADS,
    MINRAY,
    RAY,
    Document,
    Part,
    Size,
    Table,
    Target,
)

SORTERS = (DASK_ON_MINRAY, DASK_ON_RAY, DASK, DASK_THREADS)


def _seconds(full: float, quick: float) -> dict[Size, float]:
    return {Size.FULL: full, Size.QUICK: quick, Size.TINY: 5}


DOCUMENT = Document(
    "Analyzing memory management and performance in Dask-on-Ray",
    "Stephanie Wang, 2021: i3.8xlarge machines (AWS) with 32 processors and 244 GiB; Dask 2021.4, Ray before 1.5",
    parts=(
        Part(broadcast.NAME, (MINRAY, RAY, DASK, DASK_THREADS), broadcast.measure, _seconds(20, 5)),
        Part(set_index.BY_PARTITIONS, SORTERS, set_index.by_partitions, _seconds(60, 10), is_quick=False),
        Part(
            set_index.BY_WORKERS, (DASK_ON_MINRAY, DASK_ON_RAY, DASK), set_index.by_workers, _seconds(60, 10), is_quick=False
        ),
        Part(set_index.IN_MEMORY, SORTERS, set_index.in_memory, _seconds(60, 10), is_quick=False),
        Part(set_index.BY_SIZE, SORTERS, set_index.by_size, _seconds(600, 10), rounds=1),
        Part(native_sort.NAME, (MINRAY, RAY, DASK), native_sort.measure, _seconds(900, 20), rounds=1, is_quick=False),
    ),
    tables=(
        Table(
            broadcast.NAME,
            "One array to many tasks",
            "s",
            original="1 GB to 100 tasks on a node: Dask-on-Ray and Dask's threads take about as long, Dask's processes many "
            "times that; with tasks that hold the GIL the threads fall behind too. (A picture without numbers.)",
            targets={"": Target(RAY, 1)},
        ),
        Table(
            set_index.BY_PARTITIONS,
            "set_index by the number of partitions",
            "s",
            axis="partitions",
            original="20 GB in 100 partitions: Dask fails; with 200 or 500 it finishes. "
            "Dask-on-Ray takes as long with any number.",
            targets={"": Target(DASK_ON_RAY, 1)},
        ),
        Table(
            set_index.BY_WORKERS,
            "set_index by the number of workers",
            "s",
            axis="workers",
            original="Of 32, 8 and 1 processes, Dask sorts 20 GB with 8 and 100 GB with 1 only; Dask-on-Ray with all 32.",
            targets={"": Target(DASK_ON_RAY, 1)},
        ),
        Table(
            set_index.IN_MEMORY,
            "set_index with memory for all of it",
            "s",
            axis="GiB",
            original="10 GB in 100 partitions on 32 processors: Dask is fast with processes, slow with threads. (A picture "
            "without numbers.)",
            targets={"": Target(DASK_ON_RAY, 1)},
        ),
        Table(
            set_index.BY_SIZE,
            "set_index by size, with a store of 1 GiB",
            "s",
            axis="GiB",
            original="100 GB: Dask-on-Ray (32 workers, a store of 50 GB) is about nine times as fast as Dask with "
            "one process, the only one of Dask's configurations that succeeded.",
            targets={"": Target(DASK_ON_RAY, 1)},
        ),
        Table(
            native_sort.NAME,
            "The same graph of tasks in each library's own words, with a store of 1 GiB",
            "s",
            axis="partitions",
            original="Dask-on-Ray sorts ten times as much as fits, and takes as long with any number of partitions.",
            targets={"": Target(RAY, 1)},
        ),
        Table(native_sort.DISK, "What that sort writes to disk and reads again", "GB", axis="partitions"),
    ),
)
