"""Actors that share a stream of work: each takes the next value when it has finished its last one.

Ray: python/ray/util/actor_pool.py

This file uses the public API alone, so that it also runs on Ray. A pool is not thread-safe. A program should take results
either in the order of submission (``get_next``) or in the order of completion (``get_next_unordered``).

    pool = ActorPool([Doubler.remote() for _ in range(2)])
    list(pool.map(lambda actor, value: actor.double.remote(value), range(4)))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from minray.api.calls import get, wait

__all__ = ["ActorPool"]

V = TypeVar("V")

Call = Callable[[Any, V], Any]
"""A function that takes an actor and a value, calls a method of the actor, and returns what the call returned.

That is the reference to its result, or a list of references for a method with several results."""


class _Running(NamedTuple):
    number: int
    actor: Any
    returned: Any
    """The reference, or the list of references, to the result."""


class ActorPool(Generic[V]):
    """Gives values to idle actors, one at a time to each."""

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle = list(actors)
        self._waiting: deque[tuple[Call[V], V]] = deque()
        """Submissions that wait for an idle actor, oldest first."""
        self._running: dict[Any, _Running] = {}
        """Results that were not taken yet, by (first) reference, oldest first; their actors count as busy."""
        self._refs: dict[int, Any] = {}
        """The keys of ``_running``, by the number of their submission."""
        self._started = 0
        self._next_number = 0
        """Number of the submission whose result ``get_next`` returns next."""

    def map(self, fn: Call[V], values: Iterable[V]) -> Iterator[Any]:
        """Call ``fn(actor, value)`` for each value; return an iterator over the results in the order of the values.

        Results of earlier submissions are dropped. Values that wait for an actor are submitted only while the iterator is
        read.
        """
        self._submit_all(fn, values)
        return self._take(self.get_next)

    def map_unordered(self, fn: Call[V], values: Iterable[V]) -> Iterator[Any]:
        """Like ``map``, but the iterator returns results in the order in which they are ready."""
        self._submit_all(fn, values)
        return self._take(self.get_next_unordered)

    def _submit_all(self, fn: Call[V], values: Iterable[V]) -> None:
        while self._running:
            self._release(next(iter(self._running)))
        for value in values:
            self.submit(fn, value)

    def _take(self, get_next: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield get_next()

    def submit(self, fn: Call[V], value: V) -> None:
        """Call ``fn(actor, value)`` as soon as an actor is idle; ``get_next`` returns its result in turn."""
        if not self._idle:
            self._waiting.append((fn, value))
            return
        returned = fn(self._idle[-1], value)
        ref = returned[0] if isinstance(returned, list) else returned
        actor = self._idle.pop()
        self._running[ref] = _Running(self._started, actor, returned)
        self._refs[self._started] = ref
        self._started += 1

    def has_next(self) -> bool:
        """Whether there are results that were not taken yet."""
        return bool(self._running)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the next result in the order of submission, or raise the exception of its call.

        Raises StopIteration if there is none, and TimeoutError if it is not ready within ``timeout`` seconds (None: waits
        for ever). After a TimeoutError the same result is the next one; with ``ignore_if_timedout`` it is dropped. Raises
        ValueError if ``get_next_unordered`` has taken that result.
        """
        self._check_next()
        ref = self._refs.get(self._next_number)
        if ref is None:
            raise ValueError("get_next cannot follow get_next_unordered: its result was taken already")
        return self._get([ref], timeout, ignore_if_timedout)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return any result that is ready, like ``get_next``. On a timeout ``ignore_if_timedout`` drops the oldest one."""
        self._check_next()
        return self._get(list(self._running), timeout, ignore_if_timedout)

    def _check_next(self) -> None:
        if not self.has_next():
            raise StopIteration("there are no more results")

    def _get(self, refs: list[Any], timeout: float | None, ignore_if_timedout: bool) -> Any:
        ready, _ = wait(refs, num_returns=1, timeout=timeout)
        if ready:
            return get(self._release(ready[0]))
        if ignore_if_timedout:
            self._release(refs[0])
        raise TimeoutError(f"there is no result within {timeout} s" + (", it is given up" if ignore_if_timedout else ""))

    def _release(self, ref: Any) -> Any:
        """Take a result out of the pool and return its reference, or list of references; give its actor the next value."""
        number, actor, returned = self._running.pop(ref)
        del self._refs[number]
        self._next_number = max(self._next_number, number + 1)
        self._return(actor)
        return returned

    def _return(self, actor: Any) -> None:
        self._idle.append(actor)
        if self._waiting:
            self.submit(*self._waiting.popleft())

    def has_free(self) -> bool:
        """Whether an actor is idle and no value waits for one."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any:
        """Take an idle actor out of the pool and return it; None if there is none."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add an actor. Raises ValueError if it is in the pool already."""
        if actor in self._idle or any(running.actor == actor for running in self._running.values()):
            raise ValueError("this actor belongs to the pool already")
        self._return(actor)
