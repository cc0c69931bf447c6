"""The rows of Ray's own microbenchmark, for minray and Ray alike.

Each row calls its function for a warm-up and then for a fixed time, and reports how often it could. Where Ray's rows
for tasks use actors as clients, tasks without CPUs play them on both sides; the rows for actors are in
``benchmarks.actor_rows``.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from benchmarks.actor_rows import actor_rows
from benchmarks.document import Sample, Size, Target
from benchmarks.systems import connected

NAME = "microbenchmark"

Row = tuple[str, float, Callable[[], Any]]
"""Name as Ray prints it, what one call counts for, the call."""


TARGETS = {
    "single client get calls": 10,
    "single client put calls": 20,
    "multi client put calls": 20,
    "single client put gigabytes": 3,
    "multi client put gigabytes": 1,
    "single client tasks and get batch": 25,
    "single client get object containing 10k refs": 3,
    "single client wait 1k refs": 10,
    "single client tasks sync": 10,
    "single client tasks async": 25,
    "multi client tasks async": 20,
    "1:1 actor calls sync": 6,
    "1:1 actor calls async": 10,
    "1:1 actor calls concurrent": 5,
    "1:n actor calls async": 10,
    "n:n actor calls async": 8,
    "n:n actor calls with arg async": 10,
    "1:1 async-actor calls sync": 8,
    "1:1 async-actor calls async": 10,
    "1:1 async-actor calls with args async": 10,
    "1:n async-actor calls async": 10,
    "n:n async-actor calls async": 10,
    "placement group create/removal": 5,
}
"""At least so many times as fast as Ray."""
QUICKLY = {
    "single client get calls",
    "single client put calls",
    "single client put gigabytes",
    "single client tasks sync",
    "single client tasks async",
    "1:1 actor calls sync",
    "1:1 actor calls async",
    "1:1 async-actor calls async",
    "placement group create/removal",
}
"""Enough for a quick look."""


def targets() -> dict[str, Target]:
    return {row: Target(ratio=ratio) for row, ratio in TARGETS.items()}


def rows(ray: Any, part: float = 1) -> list[Row]:
    """All rows on the connected cluster; many clients do this part of what they do in Ray's rows."""
    in_batch = round(10_000 * part)

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
    containing = cache(create_object_containing_refs.remote)
    return [
        ("single client get calls", 1, lambda: ray.get(value)),
        ("single client put calls", 1, lambda: ray.put(0)),
        ("multi client put calls", 1000, lambda: ray.get([put_batch.remote() for _ in range(10)])),
        ("single client put gigabytes", 0.8, lambda: ray.put(array)),
        ("multi client put gigabytes", 8, lambda: ray.get([put_gigabytes.remote() for _ in range(10)])),
        ("single client tasks and get batch", 1, lambda: ray.get([small_value.remote() for _ in range(1000)])),
        ("single client get object containing 10k refs", 1, lambda: ray.get(containing())),
        ("single client wait 1k refs", 1, wait_multiple_refs),
        ("single client tasks sync", 1, lambda: ray.get(small_value.remote())),
        ("single client tasks async", 1000, lambda: ray.get([small_value.remote() for _ in range(1000)])),
        ("multi client tasks async", 4 * in_batch, lambda: ray.get([small_value_batch.remote(in_batch) for _ in range(4)])),
        *actor_rows(ray, part),
        ("placement group create/removal", 100, create_and_remove_groups),
    ]


def measure(system: str, size: Size) -> Iterator[Sample]:
    round_s = size.pick(2.0, 0.2, 0.0)
    with connected(system, resources={"custom": 100}) as ray:
        for name, multiplier, call in rows(ray, size.pick(1, 0.1, 0.001)):
            if size is Size.QUICK and name not in QUICKLY:
                continue
            _rate(call, round_s / 2)
            for _ in range(size.pick(1, 2, 1)):
                yield Sample(NAME, name, multiplier * _rate(call, round_s))


def _rate(call: Callable[[], Any], seconds: float) -> float:
    """Calls each second, in so many seconds; one at least."""
    start = now = time.perf_counter()
    count = 0
    while not count or now - start < seconds:
        for _ in range(1 + count // 10):
            call()
            count += 1
        now = time.perf_counter()
    return count / (now - start)
