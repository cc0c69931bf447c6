"""The sort of ``benchmarks.sort`` as a part: one graph of tasks, by the size of the data and the number of partitions."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.document import DASK, MINRAY, RAY, Sample, Size
from benchmarks.sort import MEBIBYTE, Job, with_dask, with_ray

NAME, DISK = "native sort", "disk volume of the native sort"
LIBRARIES = {MINRAY: "minray", RAY: "ray", DASK: "dask"}


def measure(system: str, size: Size) -> Iterator[Sample]:
    store = size.pick(1024, 80, 80) * MEBIBYTE
    for factor in size.pick((1, 10), (1, 3), (0.01,)):
        for partitions in size.pick((50, 200), (20, 50), (3,)):
            job = Job(LIBRARIES[system], store, int(factor * store), partitions)
            found = with_dask(job) if system == DASK else with_ray(job)
            row = f"{factor:g} times the store"
            yield Sample(NAME, row, found["seconds"], partitions)
            yield Sample(DISK, row, (found["spilled"] + found["restored"]) / 1e9, partitions)
