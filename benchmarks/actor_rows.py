"""The actor rows of Ray's own microbenchmark, for minray and Ray alike; ``benchmarks.microbenchmark`` runs them.

Actors need no CPU and are made when their row first runs. ``n`` is half the number of cores, as in Ray's own file; four
tasks or one actor play the clients where a row has several callers. The row for placement groups is not here. How many calls
a client makes at once is Ray's number, or a part of it for a quick look.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

Row = tuple[str, float, Callable[[], Any]]
CALLS = 1000
MANY_CALLS = 5000
CALLERS = 4


def actor_rows(ray: Any, part: float) -> list[Row]:
    """All of them on the connected cluster, with this part of Ray's numbers of calls."""
    calls, many_calls = round(CALLS * part), round(MANY_CALLS * part)
    return [*_plain_rows(ray, calls, many_calls), *_async_rows(ray, calls, many_calls)]


def _servers() -> int:
    return max(1, (os.cpu_count() or 2) // 2)


def _plain_rows(ray: Any, calls: int, many_calls: int) -> list[Row]:
    @ray.remote(num_cpus=0)
    class Actor:
        def small_value(self) -> bytes:
            return b"ok"

        def small_value_arg(self, x: Any) -> bytes:
            return b"ok"

    Client, work = _clients(ray, many_calls)
    one = cache(Actor.remote)
    threaded = cache(Actor.options(max_concurrency=16).remote)
    many = cache(lambda: [Actor.remote() for _ in range(_servers())])
    client_of_many = cache(lambda: Client.remote(many()))
    clients = cache(lambda: [Client.remote([Actor.remote()]) for _ in range(_servers())])
    n = _servers()
    return [
        ("1:1 actor calls sync", 1, lambda: ray.get(one().small_value.remote())),
        ("1:1 actor calls async", calls, lambda: _get_many(ray, one(), calls)),
        ("1:1 actor calls concurrent", calls, lambda: _get_many(ray, threaded(), calls)),
        ("1:n actor calls async", n * many_calls, lambda: ray.get(client_of_many().call_each.remote(many_calls))),
        ("n:n actor calls async", CALLERS * many_calls, lambda: ray.get([work.remote(many()) for _ in range(CALLERS)])),
        ("n:n actor calls with arg async", n * calls, lambda: ray.get([c.call_each_with.remote(calls) for c in clients()])),
    ]


def _async_rows(ray: Any, calls: int, many_calls: int) -> list[Row]:
    @ray.remote(num_cpus=0)
    class AsyncActor:
        async def small_value(self) -> bytes:
            return b"ok"

        async def small_value_arg(self, x: Any) -> bytes:
            return b"ok"

    Client, work = _clients(ray, many_calls)
    one = cache(AsyncActor.remote)
    many = cache(lambda: [AsyncActor.remote() for _ in range(_servers())])
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


def _get_many(ray: Any, actor: Any, calls: int) -> None:
    ray.get([actor.small_value.remote() for _ in range(calls)])


def _clients(ray: Any, many_calls: int) -> tuple[Any, Any]:
    """Callers of actors that are processes themselves: an actor and a task."""

    @ray.remote(num_cpus=0)
    class Client:
        def __init__(self, servers: list[Any]) -> None:
            self.servers = servers

        def call_each(self, count: int) -> None:
            ray.get([server.small_value.remote() for server in self.servers for _ in range(count)])

        def call_each_with(self, count: int) -> None:
            value = ray.put(0)
            ray.get([server.small_value_arg.remote(value) for server in self.servers for _ in range(count)])

    @ray.remote(num_cpus=0)
    def work(servers: list[Any]) -> None:
        ray.get([servers[i % len(servers)].small_value.remote() for i in range(many_calls)])

    return Client, work
