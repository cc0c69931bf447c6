"""Cost of one object among many: put, get and free at 10^3, 10^4 and 10^5 objects.

    python -m benchmarks.many_objects [--counts 1000 10000 100000] [--rounds N] [--kinds small ...]

The figures are microseconds of processor time for each object, of all processes of the cluster together, since other
programs change this time the least. Microseconds of the clock are in brackets. The rows are ``put`` one by one, ``get`` of
all in one call, ``get`` one by one, ``results`` and ``free``. ``results`` submits as many tasks and waits for them. ``free``
is the time from dropping all references until the last node has freed its copies.

*Small* values stay in their owner. Values *in the store* have 1 KiB and are in shared memory (the limit for small values is
lowered). Values *on disk* are three times as large as the store together. The figures of a row should be alike: existing
objects must not make new ones more expensive. Each count has a cluster of its own, and a figure is the median of the rounds.
The last column is the last count's figure divided by the first one's. Processor time is counted in hundredths of a second,
so the least visible time is 10 microseconds for each of a thousand objects.

Rows are printed on standard error as they are measured, and at the end the whole table as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import psutil

import minray
from minray.api.calls import current_api
from minray.protocol.object_store import ObjectsInfo

LARGE_BYTES = 1024
KINDS = {"small": None, "in the store": 2.0, "on disk": 1 / 3}
"""Size of the store as a multiple of all objects together, by kind; None for objects that are not in the store."""
PAUSE_S = 0.005
"""Seconds between two looks at whether the stores are empty."""


@minray.remote
def make(size: int) -> Any:
    return np.zeros(size, np.uint8)


def stores() -> list[ObjectsInfo]:
    return list(current_api().objects_of_cluster(60).stores.values())


class Cost(NamedTuple):
    """The cost of one object in microseconds."""

    processor: float
    clock: float


def timed(work: Callable[[], Any], count: int) -> tuple[Cost, Any]:
    """Do work on ``count`` objects; return the cost of each, and the result of the work."""
    start, used = time.perf_counter(), processor_s()
    result = work()
    spent, passed = processor_s() - used, time.perf_counter() - start
    return Cost(spent / count * 1e6, passed / count * 1e6), result


def processor_s() -> float:
    """Return the seconds of processor time that this process and its descendants have used so far."""
    driver = psutil.Process()
    times = [process.cpu_times() for process in [driver, *driver.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


def wait_until_empty() -> None:
    while sum(store.total for store in stores()):
        time.sleep(PAUSE_S)


def measure(kind: str, count: int) -> dict[str, Cost]:
    """Measure all rows of a kind and a count in a new cluster."""
    room = KINDS[kind]
    size = LARGE_BYTES if room else 100
    store_bytes = max(int((room or 0) * count * (LARGE_BYTES + 256)), 1 << 17)
    system = {"max_direct_call_object_size": LARGE_BYTES // 2 if room else 1 << 20, "min_spilling_size": 1 << 20}
    taken: dict[str, Cost] = {}
    value = np.ones(size, np.uint8)
    with minray.init(num_cpus=2, object_store_memory=store_bytes, _system_config=system, log_to_driver=False):
        minray.get([make.remote(size) for _ in range(100)])
        gc.collect()
        taken["put"], refs = timed(lambda: [minray.put(value) for _ in range(count)], count)
        taken["get, each"], _ = timed(lambda: [minray.get(ref) is None for ref in refs], count)
        if room != KINDS["on disk"]:
            taken["get, all"], _ = timed(lambda: len(minray.get(refs)), count)

        def free() -> None:
            refs.clear()
            wait_until_empty()

        taken["free"], _ = timed(free, count)
        taken["results"], refs = timed(lambda: results(size, count), count)
        taken["free results"], _ = timed(free, count)
    return taken


def results(size: int, count: int) -> list[Any]:
    refs = [make.remote(size) for _ in range(count)]
    minray.wait(refs, num_returns=count, fetch_local=False)
    return refs


def compare(kinds: list[str], counts: list[int], rounds: int) -> dict[str, dict[str, dict[int, list[Cost]]]]:
    """Measure all kinds and counts; return the costs by kind, row and count, one for each round."""
    found: dict[str, dict[str, dict[int, list[Cost]]]] = {}
    for kind in kinds:
        rows = found.setdefault(kind, {})
        for _ in range(rounds):
            for count in counts:
                for row, taken in measure(kind, count).items():
                    rows.setdefault(row, {}).setdefault(count, []).append(taken)
        show(kind, rows)
    return found


def show(kind: str, rows: dict[str, dict[int, list[Cost]]]) -> None:
    for row, by_count in rows.items():
        medians = [Cost(*map(statistics.median, zip(*costs, strict=True))) for costs in by_count.values()]
        cells = "".join(f"{one.processor:>11.1f} {f'({one.clock:.1f})':>10}" for one in medians)
        print(f"{kind:14}{row:14}{cells}{medians[-1].processor / medians[0].processor:>8.2f}x", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", choices=list(KINDS), nargs="+", default=list(KINDS))
    arguments = parser.parse_args()
    print(f"{'microseconds each':28}" + "".join(f"{count:>22,}" for count in arguments.counts), file=sys.stderr)
    print(json.dumps(compare(arguments.kinds, arguments.counts, arguments.rounds)))


if __name__ == "__main__":
    main()
