"""Iterators over the values that a remote generator function yields: the results of its ``f.remote()``.

Ray: ObjectRefGenerator in python/ray/_private/object_ref_generator.py, docs "Ray Generators"

Each step waits until the next yielded value (or the error in its place) exists, and returns its ``ObjectRef``, in the order
of the yields. The task runs on meanwhile. A generator belongs to the process that called the function: it cannot be pickled.
Dropping the generator frees the unread items, and the task goes on; ``minray.cancel(generator)`` ends the task.

Only one thread may read a generator at a time. As with Python's own generators, ``next`` in another thread raises ValueError
meanwhile. Coroutines may share a generator. A generator only counts the items that it has returned; the core worker of the
process does the rest (``ItemReader``).
"""

from __future__ import annotations

import _thread
import concurrent.futures
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from minray.common.ids import TaskID, task_of
from minray.errors.tracebacks import hides_from_pytest
from minray.values.object_ref import ObjectRef

__tracebackhide__ = hides_from_pytest

T = TypeVar("T", covariant=True)


class ItemReader(Protocol):
    """The calls that a core worker offers to the generators of its process. An item has a task and a number, from 1."""

    def peek(self, task_id: bytes, number: int) -> ObjectRef[Any]:
        """Return a reference with which to wait for the item; it does not keep the item alive."""

    def wait_for(self, task_id: bytes, number: int) -> None:
        """Return when the item exists, or can no longer exist."""

    def future_of(self, task_id: bytes, number: int) -> concurrent.futures.Future[None]:
        """Return a future that is done when the item exists, or can no longer exist."""

    def is_here(self, task_id: bytes, number: int) -> bool:
        """Return whether a ``get`` of the item would return or raise at once."""

    def is_end(self, task_id: bytes, number: int) -> bool:
        """Return whether the item can no longer exist, because the task has ended with fewer items."""

    def take_next(self, generator: ObjectRefGenerator[Any]) -> ObjectRef[Any] | None:
        """Return the reference of the next item and count it; None at the end."""

    def drop(self, task_id: bytes) -> None:
        """Free the unread items of a generator that was dropped; may be called in any thread at any moment."""


class ObjectRefGenerator(Generic[T]):
    """References to the values that a remote generator function yields: ``for ref in f.remote(): use(minray.get(ref))``."""

    __slots__ = ("_completed", "_reader", "_read", "_reading", "__weakref__")

    def __init__(self, completed: ObjectRef[None], reader: ItemReader) -> None:
        self._completed = completed
        self._reader = reader
        self._read = 0
        """Number of items returned so far; written by the reader."""
        self._reading = _thread.allocate_lock()
        """Lock of the thread that waits for the next item."""

    def __del__(self) -> None:
        self._reader.drop(task_of(self._completed._id))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ObjectRef[T]:
        if not self._reading.acquire(False):
            raise ValueError("another thread is already reading this generator")
        try:
            self._reader.wait_for(*self._next())
            ref: ObjectRef[T] | None = self._reader.take_next(self)
        finally:
            self._reading.release()
        if ref is None:
            raise StopIteration
        return ref

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ObjectRef[T]:
        import asyncio

        awaited = None
        while awaited != self._next():  # Another coroutine may have taken the item that this one waited for.
            awaited = self._next()
            await asyncio.wrap_future(self._reader.future_of(*awaited))
        ref: ObjectRef[T] | None = self._reader.take_next(self)
        if ref is None:
            raise StopAsyncIteration
        return ref

    def completed(self) -> ObjectRef[None]:
        """Return a reference that is ready when the task has ended; ``get`` of it raises the task's error, if any."""
        return self._completed

    def next_ready(self) -> bool:
        """Return whether ``get(next(generator))`` would return at once; False at the end."""
        return self._reader.is_here(*self._next())

    def is_finished(self) -> bool:
        """Return whether the task has ended and all its items were returned."""
        return self._reader.is_end(*self._next())

    def task_id(self) -> TaskID:
        return self._completed.task_id()

    def _next(self) -> tuple[bytes, int]:
        """Return the task's id and the number of the next item."""
        return task_of(self._completed._id), self._read + 1

    def _peek(self) -> ObjectRef[T]:
        """Return the reference for which ``minray.wait`` waits when it is given this generator."""
        return self._reader.peek(*self._next())

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._completed.hex()})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an ObjectRefGenerator cannot be pickled, nor passed to a task: only the process that called the generator can"
            " read it; pass the references that it gives"
        )

    def send(self, value: Any) -> NoReturn:
        _refuse("send")

    def throw(self, *error: Any) -> NoReturn:
        _refuse("throw")

    def close(self) -> NoReturn:
        _refuse("close")

    async def asend(self, value: Any) -> NoReturn:
        _refuse("asend")

    async def athrow(self, *error: Any) -> NoReturn:
        _refuse("athrow")

    async def aclose(self) -> NoReturn:
        _refuse("aclose")


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: nothing can be sent into a remote generator; drop it to free its items, or cancel it to end its task"
    )
