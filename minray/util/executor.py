"""A ``concurrent.futures.Executor`` whose workers are processes of the cluster: ``with Executor() as executor: ...``

Ray: has no counterpart

Programs written for ``ProcessPoolExecutor`` run on it. It differs from that as minray's tasks do: functions may be lambdas
and closures, and references among the arguments arrive as their values. ``remote_args`` are options of the workers' actors.
``max_workers`` is by default the number of CPUs of the cluster.

These rules are the same. A future that waits can be cancelled, and one that runs cannot. ``map`` keeps the order. Submitted
calls are finished before the program ends. A worker's death, or an initializer that raises, breaks the executor with
``BrokenExecutor``, unless its actors may be restarted (``remote_args={"max_restarts": -1, "max_task_retries": -1}``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent import futures
from contextlib import closing
from functools import partial
from numbers import Integral
from typing import Any, TypeVar, cast

from minray.common.shown import shown
from minray.util.crew import Crew, call_each_starred, chunks

__all__ = ["Executor"]

T = TypeVar("T")


class Executor(futures.Executor):
    """Runs calls in processes of the cluster: a ``concurrent.futures.Executor`` like ``ProcessPoolExecutor``.

    Functions may be lambdas and closures, and references among the arguments arrive as their values. ``remote_args`` are
    options of the workers' actors. ``max_workers`` is by default the number of CPUs of the cluster.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        max_tasks_per_child: int | None = None,
        remote_args: dict[str, Any] | None = None,
    ) -> None:
        """``max_workers``: the largest number of processes; None: the number of CPUs of the cluster. Each process calls
        ``initializer(*initargs)`` when it begins, and ends after ``max_tasks_per_child`` calls (None: never).

        Raises ValueError for a number that is not positive, TypeError for one that is no integer or for an initializer that
        cannot be called.
        """
        _check_positive("max_workers", max_workers)
        _check_positive("max_tasks_per_child", max_tasks_per_child)
        self._crew = Crew(max_workers, initializer, initargs, max_tasks_per_child, breaks=True, remote_args=remote_args)
        self._max_workers = self._crew.size
        """Largest number of processes. Dask and others read it of any executor, and submit as many calls at a time."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        """Submit ``fn(*args, **kwargs)`` and return its future. Raises RuntimeError after ``shutdown``, BrokenExecutor after
        a worker's death."""
        return self._crew.submit(fn, *args, **kwargs)

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """Return an iterator over the results in the order of the arguments. ``chunksize`` calls are sent at a time.

        The iterator raises TimeoutError if a result is not ready ``timeout`` seconds after this call. An exception of a
        call is raised when its result is reached. Closing the iterator cancels calls that wait.
        """
        _check_positive("chunksize", chunksize)
        calls = chunks(zip(*iterables, strict=False), chunksize)
        results = super().map(partial(call_each_starred, fn), calls, timeout=timeout)
        return _flat(cast(Generator[list[T], None, None], results))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls and finish the others; with ``cancel_futures`` finish only running ones and cancel the rest.

        With ``wait``, return when that is done. May be called again.
        """
        self._crew.close(cancel_futures)
        if wait:
            self._crew.join()


def _flat(chunks: Generator[list[T], None, None]) -> Iterator[T]:
    """Yield the items of all chunks, without keeping those that were handed over."""
    with closing(chunks):
        for chunk in chunks:
            chunk.reverse()
            while chunk:
                yield chunk.pop()


def _check_positive(name: str, value: int | None) -> None:
    if value is None:
        return
    if not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, but is {shown(value)}")
    if value <= 0:
        raise ValueError(f"{name} must be greater than 0, but is {shown(value)}")
