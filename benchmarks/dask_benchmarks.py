"""The document "Dask Benchmarks": patterns of tasks, arrays and dataframes, small chunks and large ones, weak scaling."""

from __future__ import annotations

from benchmarks import dask_collections, dask_tasks
from benchmarks.document import DASK, DASK_ON_MINRAY, DASK_ON_RAY, MINRAY, RAY, Document, Part, Size, Table, Target

SCHEDULERS = (DASK_ON_MINRAY, DASK_ON_RAY, DASK)
AT_LEAST_AS_FAST = {"": Target(DASK, 1)}


def _seconds(full: float, quick: float) -> dict[Size, float]:
    return {Size.FULL: full, Size.QUICK: quick, Size.TINY: 3}


DOCUMENT = Document(
    "Dask Benchmarks",
    "Matthew Rocklin, 2017: one to 256 workers of two cores each (Google Compute Engine); sizes grow with the workers",
    parts=(
        Part(dask_tasks.NATIVE, (MINRAY, RAY, DASK), dask_tasks.measure_native, _seconds(40, 7)),
        Part(dask_tasks.GRAPHS, SCHEDULERS, dask_tasks.measure_graphs, _seconds(40, 7)),
        Part(dask_tasks.SCALING, (MINRAY, RAY, DASK), dask_tasks.measure_scaling, _seconds(60, 9), is_quick=False),
        Part(dask_collections.ARRAYS, SCHEDULERS, dask_collections.measure_arrays, _seconds(50, 10)),
        Part(dask_collections.FRAMES, SCHEDULERS, dask_collections.measure_frames, _seconds(100, 15)),
    ),
    tables=(
        Table(
            dask_tasks.NATIVE,
            "Patterns of tasks, in each library's own words",
            "tasks/s",
            more_is_better=True,
            original="2,000 to 3,000 fast tasks each second at most, also in a tree and among neighbours; "
            "100 round trips of a chain each second. With large workers: 3,800 tasks each second.",
            original_rows={"parallel, fast": {None: 3000}, "sequential": {None: 100}},
            targets={
                "parallel, 1 s": Target(DASK, 0.95),
                "parallel, 100 ms": Target(limit=200 / 10.2),
                "parallel, fast": Target(DASK, 50),
                "tree reduction": Target(DASK, 20),
                "nearest neighbour": Target(DASK, 30),
                "sequential": Target(DASK, 30),
                "client in the loop": Target(DASK, 1),
            },
        ),
        Table(
            dask_tasks.GRAPHS,
            "The same patterns as Dask graphs (delayed)",
            "tasks/s",
            more_is_better=True,
            original="Tree and chain are delayed values there too: up to 3,000 tasks, and 100 round trips, each second.",
            original_rows={"tree reduction": {None: 3000}, "sequential": {None: 100}},
            targets=AT_LEAST_AS_FAST,
        ),
        Table(
            dask_tasks.SCALING,
            "As many tasks for each worker, by workers",
            "tasks/s",
            more_is_better=True,
            axis="workers",
            original="Tasks of 100 ms scale to about 300 cores; fast ones do not scale: 2,000 to 3,000 each second.",
        ),
        Table(
            dask_collections.ARRAYS,
            "dask.array",
            "s",
            original="On many workers: elementwise 2,400 MB/s, with large chunks 6,500; rechunk 4,700 and 4,800 MB/s; "
            "random access 10 to 20 ms.",
            original_rows={"random access": {None: 0.015}},
            targets=AT_LEAST_AS_FAST,
        ),
        Table(dask_collections.FIRST_ARRAYS, "dask.array, when nobody has done it before in the cluster", "s"),
        Table(
            dask_collections.FRAMES,
            "dask.dataframe",
            "s",
            original="On many workers: elementwise arithmetic 9,600 MB/s, with large chunks 66,000; "
            "set_index 1,400 and 1,000 MB/s.",
            targets=AT_LEAST_AS_FAST,
        ),
        Table(dask_collections.FIRST_FRAMES, "dask.dataframe, when nobody has done it before in the cluster", "s"),
    ),
)
