"""An external sort at one, three and ten times the size of the object store: minray beside Ray and Dask, in turn.

    python -m benchmarks.sort [--store-mebibytes 1024] [--factors 1 3 10] [--partitions 50 100 200 500]
                              [--libraries minray ray dask] [--limit-s N] [--quick]

All libraries run the same graph of tasks, that of ``examples/external_sort.py``. For each partition one task makes random
keys and cuts them by value into one piece for each partition, and another task merges a piece of each. So the number of
pieces grows with the square of the partitions, while the bytes stay the same. The questions are whether each library
finishes, and how much the time depends on that number. There are two workers with a core each. Order, counts and checksums
are verified.

The store is ``object_store_memory`` for minray and Ray. Dask has no store, so each of its two workers may keep half as much
as results before it writes them to disk. The libraries themselves count the bytes to disk and back. A library that is not
installed is left out. One that takes longer than the limit is stopped, and its row says so. ``--quick`` means a store of
80 MiB, the least that Ray accepts, and 50 and 100 partitions.

Rows are printed on standard error as they are measured, and at the end the whole table as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

WORKERS = 2
KEY_BYTES = 8
KEYS_END = 1 << 63
MEBIBYTE = 1 << 20
MODULES = {"minray": "minray", "ray": "ray", "dask": "distributed"}


class Job(NamedTuple):
    """One sort: the library, the bytes of its store and of the data, and the number of partitions."""

    system: str
    store_bytes: int
    data_bytes: int
    partitions: int

    @property
    def keys(self) -> int:
        """Number of keys in one part of the input."""
        return self.data_bytes // KEY_BYTES // self.partitions


class Summary(NamedTuple):
    """The number of keys of a sorted partition, its first and last key, and its checksum."""

    count: int
    first: int
    last: int
    checksum: int


def cut(part: int, keys: int, partitions: int) -> list[Any]:
    """Make one part of the input; return its pieces, followed by its checksum."""
    values = np.random.default_rng(part).integers(0, KEYS_END, keys, dtype=np.uint64)
    targets = (values // np.uint64(-(-KEYS_END // partitions))).astype(np.int64)
    order = np.argsort(targets, kind="stable")
    ends = np.searchsorted(targets[order], np.arange(1, partitions))
    checksum = int(np.bitwise_xor.reduce(values, initial=0))
    return [*(piece.copy() for piece in np.split(values[order], ends)), checksum]


def merge(*pieces: Any) -> Summary:
    values = np.sort(np.concatenate(pieces))
    assert bool(np.all(values[:-1] <= values[1:]))
    ends = (int(values[0]), int(values[-1])) if len(values) else (0, 0)
    return Summary(len(values), *ends, int(np.bitwise_xor.reduce(values, initial=0)))


def verify(job: Job, summaries: list[Summary], checksums: list[int]) -> None:
    summaries = [Summary(*one) for one in summaries]
    filled = [one for one in summaries if one.count]
    assert sum(one.count for one in summaries) == job.keys * job.partitions, "keys are missing"
    assert all(left.last <= right.first for left, right in zip(filled[:-1], filled[1:], strict=True)), "not in order"
    both = [one.checksum for one in summaries], checksums
    assert len({int(np.bitwise_xor.reduce(np.array(sums, np.uint64))) for sums in both}) == 1, "a checksum is wrong"


def with_ray(job: Job) -> dict[str, float]:
    """Sort with Ray, or with minray, whose API is the same; return seconds, and bytes spilled and restored."""
    ray = importlib.import_module(job.system)
    ray.init(num_cpus=WORKERS, object_store_memory=job.store_bytes, logging_level="ERROR", log_to_driver=False)
    cutting = ray.remote(cut).options(num_returns=job.partitions + 1)
    merging = ray.remote(merge)
    ray.get([merging.remote(np.ones(1, np.uint64)) for _ in range(WORKERS)])
    start = time.perf_counter()
    parts = [cutting.remote(part, job.keys, job.partitions) for part in range(job.partitions)]
    merged = [merging.remote(*(pieces[index] for pieces in parts)) for index in range(job.partitions)]
    sums = [pieces[-1] for pieces in parts]
    del parts
    summaries = ray.get(merged)
    taken_s = time.perf_counter() - start
    verify(job, summaries, ray.get(sums))
    spilled, restored = disk_of_minray(ray) if job.system == "minray" else disk_of_ray()
    ray.shutdown()
    return {"seconds": taken_s, "spilled": spilled, "restored": restored}


def disk_of_minray(ray: Any) -> tuple[float, float]:
    found = ray.worker.current_api().objects_of_cluster(60).stores.values()
    return sum(one.spill.spilled_bytes for one in found), sum(one.spill.restored_bytes for one in found)


def disk_of_ray() -> tuple[float, float]:
    summary = importlib.import_module("ray._private.internal_api").memory_summary(stats_only=True)

    def figure(word: str) -> float:
        found = re.search(rf"{word} (\d+) MiB", summary)
        return float(found[1]) * MEBIBYTE if found else 0.0

    return figure("Spilled"), figure("Restored")


def with_dask(job: Job) -> dict[str, float]:
    dask, distributed = importlib.import_module("dask"), importlib.import_module("distributed")
    memory = "distributed.worker.memory."
    dask.config.set({memory + "target": 0.6, memory + "spill": False, memory + "pause": False, memory + "terminate": False})
    limit = int(job.store_bytes / WORKERS / 0.6)
    options = {"n_workers": WORKERS, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": limit}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        client.gather([client.submit(merge, np.ones(1, np.uint64), pure=False) for _ in range(WORKERS)])
        start = time.perf_counter()
        merged, sums = client.compute(list(dask_graph(dask, job)))
        summaries = merged.result()
        taken_s = time.perf_counter() - start
        verify(job, summaries, sums.result())
        metrics = client.run(lambda dask_worker: dict(dask_worker.data.cumulative_metrics))
        spilled = sum(one.get(("disk-write", "bytes"), 0.0) for one in metrics.values())
        restored = sum(one.get(("disk-read", "bytes"), 0.0) for one in metrics.values())
    return {"seconds": taken_s, "spilled": spilled, "restored": restored}


def dask_graph(dask: Any, job: Job) -> Iterator[Any]:
    """Yield two delayed values: the summaries of all partitions, and the checksums of all parts."""
    cutting, merging = dask.delayed(cut, nout=job.partitions + 1, pure=False), dask.delayed(merge, pure=False)
    parts = [list(cutting(part, job.keys, job.partitions)) for part in range(job.partitions)]
    yield dask.delayed(list)([merging(*(pieces[index] for pieces in parts)) for index in range(job.partitions)])
    yield dask.delayed(list)([pieces[-1] for pieces in parts])


def measure(job: Job, limit_s: float) -> dict[str, float] | None:
    """Run a sort in a new process; return its results, or None if it has not finished in time."""
    command = [sys.executable, "-m", "benchmarks.sort", "--job", json.dumps(job)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGINT)
        try:
            running.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
        return None
    if running.returncode:
        raise SystemExit(f"{job} ended with {running.returncode}")
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def show(job: Job, found: dict[str, float] | None) -> None:
    size = f"{job.data_bytes / job.store_bytes:.0f}x {job.store_bytes / MEBIBYTE:.0f} MiB"
    cells = "did not finish in time"
    if found is not None:
        volumes = "".join(f"{found[name] / MEBIBYTE:>12.0f}" for name in ("spilled", "restored"))
        cells = f"{found['seconds']:>10.1f}{volumes}"
    print(f"{size:>14}{job.partitions:>12}  {job.system:8}{cells}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store-mebibytes", type=int, default=1024)
    parser.add_argument("--factors", type=float, nargs="+", default=[1, 3, 10])
    parser.add_argument("--partitions", type=int, nargs="+", default=[50, 100, 200, 500])
    parser.add_argument("--libraries", choices=list(MODULES), nargs="+", default=list(MODULES))
    parser.add_argument("--limit-s", type=float, default=3600.0)
    parser.add_argument("--quick", action="store_true", help="use a small store and few partitions")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        job = Job(*json.loads(arguments.job))
        print(json.dumps(with_dask(job) if job.system == "dask" else with_ray(job)))
        return
    if arguments.quick:
        arguments.store_mebibytes, arguments.partitions = 80, [50, 100]
    libraries = [library for library in arguments.libraries if importlib.util.find_spec(MODULES[library])]
    print(f"{'':14}{'partitions':>12}  {'':8}{'seconds':>10}{'MiB to disk':>12}{'and back':>12}", file=sys.stderr)
    results: list[dict[str, Any]] = []
    for factor in arguments.factors:
        for partitions in arguments.partitions:
            for library in libraries:
                store_bytes = arguments.store_mebibytes * MEBIBYTE
                job = Job(library, store_bytes, int(factor * store_bytes), partitions)
                found = measure(job, arguments.limit_s)
                show(job, found)
                results.append({**job._asdict(), "result": found})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
