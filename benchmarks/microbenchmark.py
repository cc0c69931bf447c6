"""The rows of Ray's own microbenchmark, for minray and Ray alike.

Run as ``python -m benchmarks.microbenchmark minray --quick``; prints one JSON object. Each row calls its function for a
warm-up and then in rounds of a fixed time, and reports the rate of every round. Where Ray's rows for tasks use actors as
clients, tasks without CPUs play them on both sides; the rows for actors are in ``benchmarks.actor_rows``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.actor_rows import actor_rows

Row = tuple[str, float, Callable[[], Any]]
"""Name as Ray prints it, what one call counts for, the call."""


def rows(ray: Any) -> list[Row]:
    """All rows on the connected cluster."""

    @ray.remote
    def small_value() -> bytes:
        return b"ok"

    @ray.remote(num_cpus=0)
    def small_value_batch(count: int) -> int:
        ray.get([small_value.remote() for _ in range(count)])
        return 0

    @ray.remote(num_cpus=0)
    def put_batch() -> None:
        for _ in range(100):
            ray.put(0)

    @ray.remote(num_cpus=0)
    def put_gigabytes() -> None:
        for _ in range(10):
            ray.put(np.zeros(10 * 1024 * 1024, np.int64))

    @ray.remote
    def create_object_containing_refs() -> Any:
        return [ray.put(1) for _ in range(10_000)]

    def wait_multiple_refs() -> None:
        not_ready = [small_value.remote() for _ in range(1000)]
        for _ in range(1000):
            _ready, not_ready = ray.wait(not_ready)

    groups = importlib.import_module(f"{ray.__name__}.util.placement_group")

    def create_and_remove_groups() -> None:
        made = [groups.placement_group([{"custom": 0.001}]) for _ in range(100)]
        for group in made:
            group.wait(timeout_seconds=30)
        for group in made:
            groups.remove_placement_group(group)

    value = ray.put(0)
    array = np.zeros(100 * 1024 * 1024, np.int64)
    containing = create_object_containing_refs.remote()
    ray.get(containing)
    return [
        ("single client get calls", 1, lambda: ray.get(value)),
        ("single client put calls", 1, lambda: ray.put(0)),
        ("multi client put calls", 1000, lambda: ray.get([put_batch.remote() for _ in range(10)])),
        ("single client put gigabytes", 0.8, lambda: ray.put(array)),
        ("multi client put gigabytes", 8, lambda: ray.get([put_gigabytes.remote() for _ in range(10)])),
        ("single client tasks and get batch", 1, lambda: ray.get([small_value.remote() for _ in range(1000)])),
        ("single client get object containing 10k refs", 1, lambda: ray.get(containing)),
        ("single client wait 1k refs", 1, wait_multiple_refs),
        ("single client tasks sync", 1, lambda: ray.get(small_value.remote())),
        ("single client tasks async", 1000, lambda: ray.get([small_value.remote() for _ in range(1000)])),
        ("multi client tasks async", 40_000, lambda: ray.get([small_value_batch.remote(10_000) for _ in range(4)])),
        *actor_rows(ray),
        ("placement group create/removal", 100, create_and_remove_groups),
    ]


def rates(call: Callable[[], Any], multiplier: float, rounds: int, round_s: float) -> list[float]:
    """Calls per second, times the multiplier, of each round."""
    _run_for(call, round_s / 2)
    return [multiplier * _run_for(call, round_s) for _ in range(rounds)]


def _run_for(call: Callable[[], Any], seconds: float) -> float:
    start = now = time.perf_counter()
    count = 0
    while now - start < seconds:
        for _ in range(1 + count // 10):
            call()
            count += 1
        now = time.perf_counter()
    return count / (now - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["minray", "ray"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-seconds", type=float, default=2.0)
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    arguments = parser.parse_args()
    ray = importlib.import_module(arguments.library)
    ray.init(num_cpus=2, resources={"custom": 100}, logging_level="ERROR", log_to_driver=False)
    results = {}
    for name, multiplier, call in rows(ray):
        if arguments.only in name:
            print(f"  {arguments.library}: {name}", file=sys.stderr)
            results[name] = rates(call, multiplier, arguments.rounds, arguments.round_seconds)
    ray.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
