"""Overhead of Dask's graphs: ``python -m benchmarks.dask_graphs``.

The same graphs run on minray and on Dask distributed, each with two worker processes of one thread: 10,000 tiny tasks and
their sum; a chain of 1,000; a shuffle of 60 partitions. The best of three counts, since other programs can only add time.
CPU time is that of the driver; for distributed this process also runs the scheduler.
"""

from __future__ import annotations

import argparse
import operator
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pandas as pd
from dask.task_spec import List, Task, TaskRef

Get = Callable[[Any, Any], Any]
TASKS, CHAIN, PARTITIONS, ROWS = 10_000, 1_000, 60, 20_000


def inc(x: int) -> int:
    return x + 1


def tiny_tasks(get: Get, run: int) -> None:
    keys = [f"inc{run}-{n}" for n in range(TASKS)]
    dsk = {key: Task(key, inc, n) for n, key in enumerate(keys)}
    total = f"sum-{run}"
    assert get({**dsk, total: Task(total, sum, List(*map(TaskRef, keys)))}, total) == TASKS * (TASKS + 1) // 2


def chain(get: Get, run: int) -> None:
    keys = [f"link{run}-{n}" for n in range(CHAIN)]
    dsk = {keys[0]: Task(keys[0], inc, 0)}
    dsk |= {key: Task(key, operator.add, TaskRef(before), 1) for before, key in zip(keys, keys[1:], strict=False)}
    assert get(dsk, keys[-1]) == CHAIN


def part(n: int, run: int) -> pd.DataFrame:
    values = np.random.default_rng([n, run])
    return pd.DataFrame({"a": values.integers(0, 1 << 40, ROWS), "b": values.random(ROWS)})


def shuffle(get: Get, run: int) -> None:
    import dask.dataframe as dd

    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        lengths = dd.from_map(part, range(PARTITIONS), run=run).shuffle("a").map_partitions(len).compute(scheduler=get)
    assert lengths.sum() == PARTITIONS * ROWS


ROWS_OF_TABLE = {f"{TASKS:,} tiny tasks": tiny_tasks, f"chain of {CHAIN:,}": chain, f"shuffle of {PARTITIONS}": shuffle}


def scheduler(name: str) -> Any:
    if name == "minray":
        import minray
        from minray.util.dask import minray_dask_get

        minray.init(num_cpus=2)
        return minray_dask_get
    from distributed import Client, LocalCluster

    return Client(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)).get


def measure(name: str) -> None:
    get = scheduler(name)
    for title, row in ROWS_OF_TABLE.items():
        times = []
        for run in range(4):
            wall, cpu = time.perf_counter(), time.process_time()
            row(get, run)
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
        best = min(times[1:])
        print(f"{name:12} {title:20} {best[0]:7.2f} s, {best[1]:6.2f} s of CPU", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", choices=["minray", "distributed"], help="in this process")
    only = parser.parse_args().only
    if only:
        measure(only)
        return
    for name in ("minray", "distributed"):
        subprocess.run([sys.executable, "-m", "benchmarks.dask_graphs", name], check=True)


if __name__ == "__main__":
    main()
