"""Patterns of tasks, from "Dask Benchmarks": with each library's own API, and as Dask graphs on each scheduler.

All systems run the same patterns with the same numbers. These are many parallel tasks of three durations, a tree of
additions, sums of neighbours, a chain, and a client that adds the results that are ready first. Each result is checked.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from benchmarks.document import DASK, Sample, Size
from benchmarks.systems import WORKERS, connected, dask_client, dask_scheduler, seconds

NATIVE, GRAPHS, SCALING = "tasks", "tasks as Dask graphs", "tasks by workers"
PAUSE_S = 0.01
"""Seconds that each task of the client in the loop sleeps."""


def inc(x: int) -> int:
    return x + 1


def add(x: int, y: int) -> int:
    return x + y


def slow_inc(x: int, delay: float = 0.1) -> int:
    time.sleep(delay)
    return x + 1


def slow_sum(*values: int, delay: float = PAUSE_S) -> int:
    time.sleep(delay)
    return sum(values)


class Counts(NamedTuple):
    """The number of tasks (or leaves) of each pattern."""

    seconds_long: int
    tenths: int
    fast: int
    leaves: int
    neighbours: int
    chain: int
    looped: int

    @staticmethod
    def of(size: Size) -> Counts:
        """Return the counts for a size.

        The full ones are the document's for each worker times the workers here. Fast patterns are larger, to be measurable.
        """
        full = Counts(4 * WORKERS, 100 * WORKERS, 5000, 2**11, 2000, 300, 100 * WORKERS)
        counts: Counts = size.pick(full, Counts(WORKERS, 20, 500, 2**8, 200, 50, 20), Counts(1, 1, 4, 4, 3, 2, 4))
        return counts


class Api(Protocol):
    """The calls of a library that the patterns use."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any: ...

    def gather(self, futures: list[Any]) -> list[Any]: ...

    def first_done(self, futures: list[Any]) -> tuple[list[Any], list[Any]]:
        """Wait until two futures are done; return all that are done, and the rest."""
        ...


class RayApi:
    """The calls of minray and Ray."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._remote: dict[Callable[..., Any], Any] = {}

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function not in self._remote:
            self._remote[function] = self._ray.remote(function)
        return self._remote[function].remote(*arguments)

    def gather(self, futures: list[Any]) -> list[Any]:
        return list(self._ray.get(futures))

    def first_done(self, futures: list[Any]) -> tuple[list[Any], list[Any]]:
        done, rest = self._ray.wait(futures, num_returns=2)
        if rest:
            more, rest = self._ray.wait(rest, num_returns=len(rest), timeout=0)
            done += more
        return done, rest


class DaskApi:
    """The calls of Dask distributed, with futures."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._wait = importlib.import_module("distributed").wait

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._client.submit(function, *arguments, pure=False)

    def gather(self, futures: list[Any]) -> list[Any]:
        return list(self._client.gather(futures))

    def first_done(self, futures: list[Any]) -> tuple[list[Any], list[Any]]:
        done: list[Any] = []
        while len(done) < 2:
            found = self._wait(futures, return_when="FIRST_COMPLETED")
            done += found.done
            futures = list(found.not_done)
        return done, futures


class GraphApi:
    """The calls of Dask delayed values, computed by the configured scheduler. It has no client that could be in a loop."""

    def __init__(self) -> None:
        self._dask = importlib.import_module("dask")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._dask.delayed(function, pure=False)(*arguments)

    def gather(self, futures: list[Any]) -> list[Any]:
        return list(self._dask.compute(*futures, optimize_graph=False))

    def first_done(self, futures: list[Any]) -> tuple[list[Any], list[Any]]:
        raise NotImplementedError("a graph is computed as a whole")


def parallel(api: Api, count: int, function: Callable[..., Any], *arguments: Any) -> None:
    results = api.gather([api.submit(function, number, *arguments) for number in range(count)])
    assert results == list(range(1, count + 1))


def tree(api: Api, leaves: int) -> None:
    level: list[Any] = list(range(leaves))
    while len(level) > 1:
        level = [api.submit(add, left, right) for left, right in zip(level[::2], level[1::2], strict=True)]
    assert api.gather(level) == [leaves * (leaves - 1) // 2]


def neighbours(api: Api, count: int) -> None:
    level: list[Any] = list(range(count + 2))
    for _ in range(2):
        level = [api.submit(add, left, right) for left, right in zip(level, level[1:], strict=False)]
    assert api.gather(level) == [4 * (number + 1) for number in range(count)]


def chain(api: Api, length: int) -> None:
    value: Any = 0
    for _ in range(length):
        value = api.submit(inc, value)
    assert api.gather([value]) == [length]


def client_in_the_loop(api: Api, count: int) -> None:
    pool = [api.submit(slow_inc, number, PAUSE_S) for number in range(count)]
    while len(pool) > 1:
        done, pool = api.first_done(pool)
        pool.append(api.submit(slow_sum, *done))
    assert api.gather(pool) == [count * (count + 1) // 2]


@contextmanager
def native(system: str, workers: int = WORKERS) -> Iterator[Api]:
    if system == DASK:
        with dask_client(workers) as client:
            yield DaskApi(client)
    else:
        with connected(system, workers) as ray:
            yield RayApi(ray)


def rows(api: Api, table: str, counts: Counts) -> Iterator[Sample]:
    """Measure all patterns except the client in the loop, in tasks per second, as the document does."""
    parallel(api, 10 * WORKERS, inc)
    patterns: list[tuple[str, int, Callable[[], None]]] = [
        ("parallel, 1 s", counts.seconds_long, lambda: parallel(api, counts.seconds_long, slow_inc, 1)),
        ("parallel, 100 ms", counts.tenths, lambda: parallel(api, counts.tenths, slow_inc)),
        ("parallel, fast", counts.fast, lambda: parallel(api, counts.fast, inc)),
        ("tree reduction", counts.leaves - 1, lambda: tree(api, counts.leaves)),
        ("nearest neighbour", 2 * counts.neighbours + 1, lambda: neighbours(api, counts.neighbours)),
        ("sequential", counts.chain, lambda: chain(api, counts.chain)),
    ]
    for name, tasks, call in patterns:
        yield Sample(table, name, tasks / seconds(call))


def measure_native(system: str, size: Size) -> Iterator[Sample]:
    counts = Counts.of(size)
    with native(system) as api:
        for _ in range(size.pick(1, 2, 1)):
            yield from rows(api, NATIVE, counts)
            looped_s = seconds(lambda: client_in_the_loop(api, counts.looped))
            yield Sample(NATIVE, "client in the loop", counts.looped / looped_s)


def measure_graphs(system: str, size: Size) -> Iterator[Sample]:
    with dask_scheduler(system):
        for _ in range(size.pick(1, 2, 1)):
            yield from rows(GraphApi(), GRAPHS, Counts.of(size))


def measure_scaling(system: str, size: Size) -> Iterator[Sample]:
    """Measure the same number of tasks for each worker, by the number of workers.

    Sleeping tasks can scale beyond the cores, fast ones cannot.
    """
    counts = Counts.of(size)
    for workers in size.pick((1, 2, 4, 8), (1, 2), (1,)):
        tenths, fast = max(1, workers * counts.tenths // 4), workers * counts.fast // 2
        with native(system, workers) as api:
            parallel(api, 10 * workers, inc)
            for _ in range(size.pick(1, 2, 1)):
                sleeping_s = seconds(lambda: parallel(api, tenths, slow_inc))  # noqa: B023 (called at once)
                yield Sample(SCALING, "100 ms", tenths / sleeping_s, workers)
                yield Sample(SCALING, "fast", fast / seconds(lambda: parallel(api, fast, inc)), workers)  # noqa: B023
