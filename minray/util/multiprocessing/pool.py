"""``Pool``: the interface of ``multiprocessing.pool.Pool`` over a crew of actors.

Ray: python/ray/util/multiprocessing/pool.py

Differences from the standard library, which leaves programs waiting for ever in such cases:
  * When a worker dies, its calls fail with ActorDiedError, and another worker takes its place.
  * ``terminate`` fails unfinished calls with ActorDiedError.
  * An ``initializer`` has run in all workers when the pool is made. If it raises, making the pool raises ActorDiedError.
    Without an initializer workers are started when there are calls for them.
  * The iterable of ``imap`` is read only as far ahead as keeps the workers busy.
  * A callback that raises is logged.
Functions may be lambdas and closures, and references among the arguments of ``apply`` arrive as their values.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

import minray as ray
from minray.common.shown import shown
from minray.util.crew import Crew, call_each_starred, chunks

T = TypeVar("T")
CHUNKS_PER_WORKER = 4
"""Number of chunks per worker in ``map``, unless a chunk size is given; several, because some take longer than others."""
AHEAD = 2
"""Largest number of unfinished chunks per worker that ``imap`` has submitted."""
logger = logging.getLogger("minray")


class AsyncResult(Generic[T]):
    """The result of ``apply_async`` and ``map_async``, which may not be ready yet."""

    def __init__(
        self,
        parts: Sequence[Future[Any]],
        combine: Callable[[list[Any]], T],
        callback: Callable[[T], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> None:
        """``combine`` makes the value from the results of all ``parts``."""
        self._parts = parts
        self._combine = combine
        self._callback = callback
        self._error_callback = error_callback
        self._outcome: Future[T] = Future()
        self._left = itertools.count(len(parts) - 1, -1).__next__
        """Counts down the missing parts. The counter is atomic, since parts end in several threads."""
        for part in parts:
            part.add_done_callback(self._on_part)
        if not parts:
            self._finish()

    def get(self, timeout: float | None = None) -> T:
        """Return the value, or raise the exception of the call. Waits at most ``timeout`` seconds (None: for ever), then
        raises multiprocessing.TimeoutError."""
        self.wait(timeout)
        if not self.ready():
            raise multiprocessing.TimeoutError(f"the result is not ready within {timeout} s")
        try:
            return self._outcome.result()
        finally:
            del self  # An error's traceback refers to this frame, which would keep this object.

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is ready, at most ``timeout`` seconds (None: for ever)."""
        try:
            self._outcome.exception(timeout)
        except TimeoutError:
            return

    def ready(self) -> bool:
        return self._outcome.done()

    def successful(self) -> bool:
        """Whether no exception was raised. Raises ValueError if the result is not ready yet."""
        if not self.ready():
            raise ValueError("the result is not ready yet, so it is not known whether it is successful")
        return self._outcome.exception() is None

    def _on_part(self, part: Future[Any]) -> None:
        if self._left() == 0:
            self._finish()

    def _finish(self) -> None:
        """Run the callbacks, then set the outcome, so that a program that has the result can rely on the callbacks."""
        parts, self._parts = self._parts, ()  # They refer to this object, and their results are not needed any more.
        error = next((error for part in parts if (error := part.exception()) is not None), None)
        if error is not None:
            _call_back(self._error_callback, error)
            self._outcome.set_exception(error)
            return
        value = self._combine([part.result() for part in parts])
        _call_back(self._callback, value)
        self._outcome.set_result(value)


def _call_back(callback: Callable[[Any], object] | None, value: Any) -> None:
    if callback is not None:
        try:
            callback(value)
        except BaseException:  # SystemExit too: otherwise the result would never be ready.
            logger.exception("a callback of a pool has raised")


class IMapIterator(Iterator[T]):
    """An iterator over results: the result of ``imap`` and ``imap_unordered``."""

    def __init__(self, is_ordered: bool, room: int) -> None:
        self._is_ordered = is_ordered
        self._room = threading.Semaphore(room)
        """Limits the number of chunks that are submitted and not done."""
        self._changed = threading.Condition()
        self._chunks: deque[Future[list[T]]] = deque()
        """The chunks that were not returned yet, in order; if not ordered, only those that are done."""
        self._total: int | None = None
        """Number of chunks; None until it is known."""
        self._taken = 0
        self._items: deque[T] = deque()
        """The results of the current chunk that were not returned yet."""

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """Return the next result, or raise the exception of its chunk; after that the iterator goes on with the next chunk.

        Raises multiprocessing.TimeoutError after ``timeout`` seconds (None: waits for ever), StopIteration at the end.
        """
        while not self._items:
            self._items.extend(self._next_chunk(timeout).result())
        return self._items.popleft()

    def _next_chunk(self, timeout: float | None) -> Future[list[T]]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_ready() or self._taken == self._total, timeout):
                raise multiprocessing.TimeoutError(f"the next result is not ready within {timeout} s")
            if self._taken == self._total:
                raise StopIteration
            self._taken += 1
            return self._chunks.popleft()

    def _is_ready(self) -> bool:
        return bool(self._chunks) and self._chunks[0].done()

    def feed(self, submit: Callable[[list[Any]], Future[list[T]]], chunks: Iterator[list[Any]]) -> None:
        """Submit all chunks, in a thread of its own, as there is room. An exception of the iterable becomes the last
        result."""
        total = 0
        try:
            for chunk in chunks:
                self._room.acquire()
                self._add(submit(chunk))
                total += 1
        except BaseException as error:
            failed: Future[list[T]] = Future()
            failed.set_exception(error)
            self._add(failed)
            total += 1
        with self._changed:
            self._total = total
            self._changed.notify_all()

    def _add(self, chunk: Future[list[T]]) -> None:
        if self._is_ordered:
            with self._changed:
                self._chunks.append(chunk)
        chunk.add_done_callback(self._on_done)

    def _on_done(self, chunk: Future[list[T]]) -> None:
        self._room.release()
        with self._changed:
            if not self._is_ordered:
                self._chunks.append(chunk)
            self._changed.notify_all()


class Pool:
    """A pool of workers with the interface of ``multiprocessing.pool.Pool``; its workers are actors.

    When a worker dies, its calls fail with ActorDiedError, and another worker takes its place. ``terminate`` fails
    unfinished calls with RuntimeError. The iterable of ``imap`` is read only as far ahead as keeps the workers busy.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: object = None,
        ray_address: str | None = None,
        ray_remote_args: dict[str, Any] | None = None,
    ) -> None:
        """``processes``: the number of workers; None: the number of CPUs of the cluster. Each calls
        ``initializer(*initargs)`` when it begins, and ends after ``maxtasksperchild`` calls (None: never).

        ``ray_address`` is the address for ``init``, if this process is not connected yet. ``ray_remote_args`` are options of
        the workers' actors. ``context`` is ignored.
        """
        for name, number in (("processes", processes), ("maxtasksperchild", maxtasksperchild)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise ValueError(f"{name} must be a positive int, or None, but is {shown(number)}")
        if not ray.is_initialized():
            ray.init(address=ray_address)
        self._crew = Crew(
            processes, initializer, tuple(initargs), maxtasksperchild, remote_args=ray_remote_args, finishes=False
        )
        if initializer is not None:
            self._start()
        self._lock = threading.Lock()
        self._is_running = True
        self._feeders: list[threading.Thread] = []
        """Running threads of ``imap``. They still submit after ``close``; the last one then closes the crew."""

    def _start(self) -> None:
        try:
            self._crew.start_all()
        except BaseException:
            self._crew.kill()
            raise

    def apply(
        self,
        func: Callable[..., T],
        args: Iterable[Any] | None = None,
        kwds: dict[str, Any] | None = None,
        *,
        kwargs: dict[str, Any] | None = None,
    ) -> T:
        """Call ``func(*args, **kwds)`` in a worker and return its result. ``kwargs`` is Ray's name of ``kwds``."""
        return self.apply_async(func, args, kwds, kwargs=kwargs).get()

    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] | None = None,
        kwds: dict[str, Any] | None = None,
        callback: Callable[[T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
        *,
        kwargs: dict[str, Any] | None = None,
    ) -> AsyncResult[T]:
        """Submit ``func(*args, **kwds)`` and return its result to come. A callback runs before the result is ready, and
        should return soon."""
        self._check_running()
        if kwds is not None and kwargs is not None:
            raise TypeError("kwds and kwargs are two names of one argument: give one of them")
        part = self._crew.submit(func, *(args or ()), **(kwds or kwargs or {}))
        return AsyncResult([part], _only, callback, error_callback)

    def map(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None = None) -> list[T]:
        """Call ``func(item)`` for each item, sent to the workers in chunks; return the results in order."""
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[T]]:
        return self._map_async(_call_each, func, iterable, chunksize, callback, error_callback)

    def starmap(self, func: Callable[..., T], iterable: Iterable[Iterable[Any]], chunksize: int | None = None) -> list[T]:
        """Call ``func(*item)`` for each item, sent to the workers in chunks; return the results in order."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[T]]:
        return self._map_async(call_each_starred, func, iterable, chunksize, callback, error_callback)

    def imap(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1) -> IMapIterator[T]:
        """Call ``func(item)`` for each item; return an iterator over the results in order. The work goes on even if the
        results are not read."""
        return self._imap(func, iterable, chunksize, True)

    def imap_unordered(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1) -> IMapIterator[T]:
        """Like ``imap``, but the iterator returns results in the order in which they are ready."""
        return self._imap(func, iterable, chunksize, False)

    def close(self) -> None:
        """Accept no more work; the workers end when they have finished the submitted work."""
        with self._lock:
            self._is_running = False
            self._maybe_close()

    def terminate(self) -> None:
        """End the workers at once."""
        with self._lock:
            self._is_running = False
            self._crew.kill()

    def join(self) -> None:
        """Wait for the workers to end. Raises ValueError before ``close`` or ``terminate``."""
        if self._is_running:
            raise ValueError("the pool is still running; close or terminate it before join")
        for feeder in list(self._feeders):
            feeder.join()
        self._crew.close()
        self._crew.join()

    def __enter__(self) -> Pool:
        self._check_running()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def __reduce__(self) -> NoReturn:
        raise NotImplementedError("a pool cannot be passed to another process; make one there")

    def _map_async(
        self,
        call_chunk: Callable[[Callable[..., T], list[Any]], list[T]],
        func: Callable[..., T],
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: Callable[[list[T]], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> AsyncResult[list[T]]:
        self._check_running()
        items = list(iterable)
        if chunksize is None:
            chunksize = max(1, -(-len(items) // (CHUNKS_PER_WORKER * self._crew.size)))
        parts = [self._crew.submit(call_chunk, func, chunk) for chunk in _chunks(items, chunksize)]
        return AsyncResult(parts, _joined, callback, error_callback)

    def _imap(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int, is_ordered: bool) -> IMapIterator[T]:
        self._check_running()
        crew, parts = self._crew, _chunks(iterable, chunksize)
        results: IMapIterator[T] = IMapIterator(is_ordered, AHEAD * crew.size)
        feeder = threading.Thread(
            target=self._feed,
            args=(partial(results.feed, lambda chunk: crew.submit(_call_each, func, chunk), parts),),
            name="minray-imap",
            daemon=True,
        )
        with self._lock:
            feeder.start()
            self._feeders.append(feeder)
        return results

    def _feed(self, feed: Callable[[], None]) -> None:
        """Run a thread of ``imap``: submit its chunks, then remove the thread from ``_feeders``."""
        try:
            feed()
        finally:
            with self._lock:
                self._feeders.remove(threading.current_thread())
                self._maybe_close()

    def _maybe_close(self) -> None:
        if not self._is_running and not self._feeders:
            self._crew.close()

    def _check_running(self) -> None:
        if not self._is_running:
            raise ValueError("the pool is not running any more")


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    if size < 1:
        raise ValueError(f"chunksize must be at least 1, not {size}")
    return chunks(items, size)


def _call_each(function: Callable[[Any], T], chunk: list[Any]) -> list[T]:
    return [function(item) for item in chunk]


def _only(results: list[T]) -> T:
    return results[0]


def _joined(results: list[list[T]]) -> list[T]:
    return [item for chunk in results for item in chunk]
