"""Ray's own microbenchmark: how often per second this machine does what programs do most, in rows.

Ray: python/ray/_private/ray_perf.py, ray_microbenchmark_helpers.py

    minray microbenchmark                      all rows, on a cluster of its own
    minray microbenchmark "tasks async" put    the rows whose names contain one of these words

``rows`` takes the library as an argument, so that the same calls can be measured on Ray. Each row calls its function for a
warm-up and then for a fixed time, and reports the calls per second. Where Ray's rows for tasks use actors as clients,
the clients here are tasks without CPUs. Actors need no CPU and are made when their row first runs. ``n`` is half the number
of cores. Where a row has several callers, they are four tasks or one actor.
"""

from __future__ import annotations

import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

Row = tuple[str, float, Callable[[], Any]]
"""Name as Ray prints it, number of operations (or gigabytes) of one call, the call."""
IN_BATCH = 10_000
"""Number of tasks that each of several clients submits, as in Ray."""
CALLS, MANY_CALLS, CALLERS = 1000, 5000, 4
"""Actor calls at once by one client, actor calls at once by each of several, and number of tasks that act as clients."""
NEEDED: dict[str, float] = {"custom": 100}
"""Resources of the cluster that the row for placement groups needs."""


def rows(ray: Any, part: float = 1) -> list[Row]:
    """Return all rows for the connected cluster. ``part``: fraction of Ray's numbers of tasks and calls of many clients."""
    calls, many_calls = round(CALLS * part), round(MANY_CALLS * part)
    return [
        *_object_rows(ray),
        *_task_rows(ray, round(IN_BATCH * part)),
        *_actor_rows(ray, calls, many_calls),
        *_async_actor_rows(ray, calls, many_calls),
        _placement_group_row(ray),
    ]


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Return the calls per second, measured for ``seconds`` seconds and at least one call."""
    start = now = time.perf_counter()
    count = 0
    while not count or now - start < seconds:
        for _ in range(1 + count // 10):
            call()
            count += 1
        now = time.perf_counter()
    return count / (now - start)


def measure(words: Sequence[str], rounds: int, seconds: float) -> Iterator[str]:
    """Measure rows on a new local cluster; yield a line for each row when it is measured.

    Raises ValueError if no row's name contains any of these words.
    """
    import minray

    with minray.init(address="local", resources=NEEDED, logging_level="ERROR", log_to_driver=False):
        chosen = [row for row in rows(minray) if not words or any(word in row[0] for word in words)]
        if not chosen:
            raise ValueError(f"no row has {' or '.join(map(repr, words))} in its name")
        for name, multiplier, call in chosen:
            rate(call, seconds / 2)
            rates = [multiplier * rate(call, seconds) for _ in range(rounds)]
            yield f"{name} per second {statistics.fmean(rates):.2f} +- {statistics.pstdev(rates):.2f}"


# --- Objects and tasks


def _object_rows(ray: Any) -> list[Row]:
    def put_batch() -> None:
        for _ in range(100):
            ray.put(0)

    def put_gigabytes() -> None:
        for _ in range(10):
            ray.put(np.zeros(10 * 1024 * 1024, np.int64))

    put_batch_task, put_gigabytes_task = ray.remote(num_cpus=0)(put_batch), ray.remote(num_cpus=0)(put_gigabytes)
    value = ray.put(0)
    array = cache(lambda: np.zeros(100 * 1024 * 1024, np.int64))
    return [
        ("single client get calls", 1, lambda: ray.get(value)),
        ("single client put calls", 1, lambda: ray.put(0)),
        ("multi client put calls", 1000, lambda: ray.get([put_batch_task.remote() for _ in range(10)])),
        ("single client put gigabytes", 0.8, lambda: ray.put(array())),
        ("multi client put gigabytes", 8, lambda: ray.get([put_gigabytes_task.remote() for _ in range(10)])),
    ]


def _task_rows(ray: Any, in_batch: int) -> list[Row]:
    def small_value() -> bytes:
        return b"ok"

    def small_value_batch(count: int) -> int:
        ray.get([small.remote() for _ in range(count)])
        return 0

    def create_object_containing_refs() -> Any:
        return [ray.put(1) for _ in range(10_000)]

    def wait_multiple_refs() -> None:
        not_ready = [small.remote() for _ in range(1000)]
        for _ in range(1000):
            _ready, not_ready = ray.wait(not_ready)

    small, batch = ray.remote(small_value), ray.remote(num_cpus=0)(small_value_batch)
    containing = cache(ray.remote(create_object_containing_refs).remote)
    return [
        ("single client tasks and get batch", 1, lambda: ray.get([small.remote() for _ in range(1000)])),
        ("single client get object containing 10k refs", 1, lambda: ray.get(containing())),
        ("single client wait 1k refs", 1, wait_multiple_refs),
        ("single client tasks sync", 1, lambda: ray.get(small.remote())),
        ("single client tasks async", 1000, lambda: ray.get([small.remote() for _ in range(1000)])),
        ("multi client tasks async", 4 * in_batch, lambda: ray.get([batch.remote(in_batch) for _ in range(4)])),
    ]


# --- Actors


def _actor_rows(ray: Any, calls: int, many_calls: int) -> list[Row]:
    class Actor:
        def small_value(self) -> bytes:
            return b"ok"

        def small_value_arg(self, x: Any) -> bytes:
            return b"ok"

    Server = ray.remote(num_cpus=0)(Actor)
    Client, work = _clients(ray, many_calls)
    one, threaded = cache(Server.remote), cache(Server.options(max_concurrency=16).remote)
    many = cache(lambda: [Server.remote() for _ in range(_servers())])
    client_of_many = cache(lambda: Client.remote(many()))
    clients = cache(lambda: [Client.remote([Server.remote()]) for _ in range(_servers())])
    n = _servers()
    return [
        ("1:1 actor calls sync", 1, lambda: ray.get(one().small_value.remote())),
        ("1:1 actor calls async", calls, lambda: _get_many(ray, one(), calls)),
        ("1:1 actor calls concurrent", calls, lambda: _get_many(ray, threaded(), calls)),
        ("1:n actor calls async", n * many_calls, lambda: ray.get(client_of_many().call_each.remote(many_calls))),
        ("n:n actor calls async", CALLERS * many_calls, lambda: ray.get([work.remote(many()) for _ in range(CALLERS)])),
        ("n:n actor calls with arg async", n * calls, lambda: ray.get([c.call_each_with.remote(calls) for c in clients()])),
    ]


def _async_actor_rows(ray: Any, calls: int, many_calls: int) -> list[Row]:
    class AsyncActor:
        async def small_value(self) -> bytes:
            return b"ok"

        async def small_value_arg(self, x: Any) -> bytes:
            return b"ok"

    Server = ray.remote(num_cpus=0)(AsyncActor)
    Client, work = _clients(ray, many_calls)
    one = cache(Server.remote)
    many = cache(lambda: [Server.remote() for _ in range(_servers())])
    client_of_many = cache(lambda: Client.remote(many()))
    n, n_to_n = _servers(), CALLERS * many_calls
    return [
        ("1:1 async-actor calls sync", 1, lambda: ray.get(one().small_value.remote())),
        ("1:1 async-actor calls async", calls, lambda: _get_many(ray, one(), calls)),
        (
            "1:1 async-actor calls with args async",
            calls,
            lambda: ray.get([one().small_value_arg.remote(i) for i in range(calls)]),
        ),
        ("1:n async-actor calls async", n * many_calls, lambda: ray.get(client_of_many().call_each.remote(many_calls))),
        ("n:n async-actor calls async", n_to_n, lambda: ray.get([work.remote(many()) for _ in range(CALLERS)])),
    ]


def _servers() -> int:
    return max(1, (os.cpu_count() or 2) // 2)


def _get_many(ray: Any, actor: Any, calls: int) -> None:
    ray.get([actor.small_value.remote() for _ in range(calls)])


def _clients(ray: Any, many_calls: int) -> tuple[Any, Any]:
    """Make an actor class and a remote function that call other actors."""

    class Client:
        def __init__(self, servers: list[Any]) -> None:
            self.servers = servers

        def call_each(self, count: int) -> None:
            ray.get([server.small_value.remote() for server in self.servers for _ in range(count)])

        def call_each_with(self, count: int) -> None:
            value = ray.put(0)
            ray.get([server.small_value_arg.remote(value) for server in self.servers for _ in range(count)])

    def work(servers: list[Any]) -> None:
        ray.get([servers[i % len(servers)].small_value.remote() for i in range(many_calls)])

    return ray.remote(num_cpus=0)(Client), ray.remote(num_cpus=0)(work)


# --- Placement groups


def _placement_group_row(ray: Any) -> Row:
    groups = importlib.import_module(f"{ray.__name__}.util.placement_group")

    def create_and_remove() -> None:
        made = [groups.placement_group([{"custom": 0.001}]) for _ in range(100)]
        for group in made:
            group.wait(timeout_seconds=30)
        for group in made:
            groups.remove_placement_group(group)

    return "placement group create/removal", 100, create_and_remove
