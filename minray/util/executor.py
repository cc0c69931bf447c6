"""A ``concurrent.futures.Executor`` whose workers are processes of the cluster: ``with Executor() as executor: ...``

Ray: has no counterpart

Programs written for ``ProcessPoolExecutor`` run on it. The differences are those of minray's tasks: functions may be lambdas
and closures, references among the arguments arrive as their values, ``remote_args`` are options of the workers' actors, and
``max_workers`` means CPUs of the cluster. What must be the same is: a future that waits can be cancelled and one that runs
cannot; ``map`` keeps the order; what was submitted is done when the program ends; a worker's death, or an initializer that
raises, breaks the executor with ``BrokenExecutor``, unless its actors may be restarted
(``remote_args={"max_restarts": -1, "max_task_retries": -1}``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent import futures
from contextlib import closing
from functools import partial
from numbers import Integral
from typing import Any, TypeVar, cast

from minray.util.crew import Crew, call_each_starred, chunks

T = TypeVar("T")


class Executor(futures.Executor):
    """Runs calls in the cluster's processes; see the head of this file."""

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        max_tasks_per_child: int | None = None,
        remote_args: dict[str, Any] | None = None,
    ) -> None:
        """``max_workers``: how many processes there are at most; None: as many as the cluster has CPUs. Each of them calls
        ``initializer(*initargs)`` when it begins, and ends after ``max_tasks_per_child`` calls.

        Raises ValueError for numbers that are not positive, TypeError for others than integers and for an initializer that
        cannot be called.
        """
        _check_positive("max_workers", max_workers)
        _check_positive("max_tasks_per_child", max_tasks_per_child)
        self._crew = Crew(max_workers, initializer, initargs, max_tasks_per_child, breaks=True, remote_args=remote_args)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        """The future of ``fn(*args, **kwargs)``. Raises RuntimeError after ``shutdown``, BrokenExecutor after a death."""
        return self._crew.submit(fn, *args, **kwargs)

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """The results in the order of the arguments, ``chunksize`` calls being sent at a time.

        Raises TimeoutError if a result is not there ``timeout`` seconds after this call, and what a call has raised when
        its result is reached. Calls that wait are cancelled when the iterator is closed.
        """
        _check_positive("chunksize", chunksize)
        calls = chunks(zip(*iterables, strict=False), chunksize)
        results = super().map(partial(call_each_starred, fn), calls, timeout=timeout)
        return _flat(cast(Generator[list[T], None, None], results))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; finish the others, or with ``cancel_futures`` only those that run. May be called again."""
        self._crew.close(cancel_futures)
        if wait:
            self._crew.join()


def _flat(chunks: Generator[list[T], None, None]) -> Iterator[T]:
    """A result that has been handed over is not kept."""
    with closing(chunks):
        for chunk in chunks:
            chunk.reverse()
            while chunk:
                yield chunk.pop()


def _check_positive(name: str, value: int | None) -> None:
    if value is None:
        return
    if not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, but is {value!r}")
    if value <= 0:
        raise ValueError(f"{name} must be greater than 0, but is {value}")
