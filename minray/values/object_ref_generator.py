"""Iterators over values that are being made elsewhere: what ``f.remote()`` returns if ``f`` is a generator function.

Ray: ObjectRefGenerator in python/ray/_private/object_ref_generator.py, docs "Ray Generators"

Each step gives the ``ObjectRef`` of one yielded value, in the order of the yields, and waits until that value (or the error
that came instead) is there. The task runs on meanwhile. A generator belongs to the process that called it: it cannot be
pickled. Dropping it frees what was not read, and the task goes on; to end that, ``minray.cancel(generator)``.

One generator is read by one thread at a time: as with Python's own, ``next`` in another one raises ValueError meanwhile.
Coroutines may share it. All it knows is how many items it has handed out; the core worker of the process does the rest
(``ItemReader``).
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from minray.common.ids import TaskID, task_of
from minray.values.object_ref import ObjectRef

T = TypeVar("T", covariant=True)


class ItemReader(Protocol):
    """What a core worker does for the generators of its process. Items are named by task and number, from 1."""

    def peek(self, task_id: bytes, number: int) -> ObjectRef[Any]:
        """A reference to wait for, and no more: it does not keep the item."""

    def wait_for(self, task_id: bytes, number: int) -> None:
        """Return when there is such an item, or will never be."""

    def future_of(self, task_id: bytes, number: int) -> concurrent.futures.Future[None]:
        """Done when there is such an item, or will never be."""

    def is_here(self, task_id: bytes, number: int) -> bool:
        """Whether a ``get`` of the item would return, or raise, at once."""

    def is_end(self, task_id: bytes, number: int) -> bool:
        """Whether there never will be such an item."""

    def take_next(self, generator: ObjectRefGenerator[Any]) -> ObjectRef[Any] | None:
        """Hand out the next item and count it; None at the end."""

    def drop(self, task_id: bytes) -> None:
        """Nobody will read any more; may be called in any thread at any moment."""


class ObjectRefGenerator(Generic[T]):
    """References to the values that a remote generator function yields: ``for ref in f.remote(): use(minray.get(ref))``."""

    __slots__ = ("_completed", "_reader", "_read", "_reading", "__weakref__")

    def __init__(self, completed: ObjectRef[None], reader: ItemReader) -> None:
        self._completed = completed
        self._reader = reader
        self._read = 0
        """So many items were handed out; written by the reader."""
        self._reading = _thread.allocate_lock()
        """Held by the thread that waits for the next one."""

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
        awaited = None
        while awaited != self._next():  # Another coroutine may have taken what this one has waited for.
            awaited = self._next()
            await asyncio.wrap_future(self._reader.future_of(*awaited))
        ref: ObjectRef[T] | None = self._reader.take_next(self)
        if ref is None:
            raise StopAsyncIteration
        return ref

    def completed(self) -> ObjectRef[None]:
        """A reference that is ready when the task has ended; ``get`` of it raises the task's error, if it has one (G96)."""
        return self._completed

    def next_ready(self) -> bool:
        """Whether the next item is here, so that ``get(next(generator))`` would not wait; False at the end."""
        return self._reader.is_here(*self._next())

    def is_finished(self) -> bool:
        """Whether the task has ended and all its items were handed out."""
        return self._reader.is_end(*self._next())

    def task_id(self) -> TaskID:
        return self._completed.task_id()

    def _next(self) -> tuple[bytes, int]:
        """The task, and the number of the next item."""
        return task_of(self._completed._id), self._read + 1

    def _peek(self) -> ObjectRef[T]:
        """What to wait for, if somebody waits for this generator."""
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
