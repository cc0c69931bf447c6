"""References to values that may not exist yet: what ``f.remote()`` and ``put`` return.

Ray: python/ray/includes/object_ref.pxi, docs "Objects"

An ``ObjectRef`` is an id, the address of its owner, and a way to say that it is gone. It knows nothing of the system
around it: the core worker of the process gives it ``dropped`` (the ``append`` of a deque; all that ``__del__`` may do,
since it may run in any thread at any moment) and installs the hooks below, once per process or simulated process.

Pickling: inside a value that minray serialises, a reference travels as a number into the list of references that goes
beside the value (``serialization``), so that the owner knows of everyone who holds it. Pickled by anything else it takes
its owner's address along, and these bytes may be unpickled anywhere, at any time. If such bytes become part of a value that
minray serialises meanwhile, the value keeps the object alive; else it is pinned for the life of this process (Ray:
out-of-band serialisation).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from minray.common.ids import OBJECT_ID_BYTES, JobID, TaskID, job_of, task_of

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""

T = TypeVar("T", covariant=True)


class RefHooks(Protocol):
    """What a core worker does for the references of its process."""

    def future_of(self, ref: ObjectRef[Any]) -> concurrent.futures.Future[Any]: ...

    def pickle_out_of_band(self, ref: ObjectRef[Any], *, pinned: bool) -> tuple[bytes, bytes]:
        """The id of the object and its encoded owner; ``pinned``: it lives as long as this process."""

    def unpickle_out_of_band(self, object_id: bytes, owner: bytes) -> ObjectRef[Any]: ...

    def call_site_of(self, ref: ObjectRef[Any]) -> str: ...


current_hooks: ContextVar[RefHooks] = ContextVar("minray_ref_hooks")
"""Set inside simulated processes; elsewhere the process-wide default below serves all threads."""
_default_hooks: RefHooks | None = None


def set_default_hooks(hooks: RefHooks | None) -> None:
    """Say who serves the references of this process."""
    global _default_hooks
    _default_hooks = hooks


def hooks() -> RefHooks:
    found = current_hooks.get(None) or _default_hooks
    if found is None:
        raise RuntimeError("this ObjectRef belongs to a cluster that this process is not connected to; call minray.init()")
    return found


class _Serialising(threading.local):
    """Which value this thread is turning into bytes, or back."""

    collect: Callable[[ObjectRef[Any]], int] | None = None
    """While pickling: notes a reference that the value contains, and gives it its number."""
    refs: list[ObjectRef[Any]] | None = None
    """While unpickling: the references by number."""


serialising = _Serialising()


class ObjectRef(Generic[T]):
    """A value that exists, or will. Get it with ``minray.get(ref)`` or ``await ref``; pass it to tasks as an argument."""

    __slots__ = ("_id", "_owner", "_dropped", "__weakref__")

    def __init__(self, object_id: bytes, owner: Any = None, dropped: Callable[[bytes], None] | None = None) -> None:
        """By minray itself. TypeError without an owner: an id alone does not lead to the object."""
        self._id = object_id
        self._owner = owner
        """The owner's Address; opaque here."""
        self._dropped = dropped
        if owner is None:
            raise TypeError("an ObjectRef comes from .remote() or put(); ObjectRef.from_binary(id) is an id to compare with")

    def __del__(self) -> None:
        if self._dropped is not None:
            self._dropped(self._id)

    @staticmethod
    def nil() -> ObjectRef[Any]:
        """The id of no object."""
        return ObjectName(b"\xff" * OBJECT_ID_BYTES)

    @staticmethod
    def from_hex(text: str) -> ObjectRef[Any]:
        """An id to compare with, to log, to look up; it does not lead to the object. ValueError for anything but hex."""
        return ObjectName(bytes.fromhex(text))

    @staticmethod
    def from_binary(binary: bytes) -> ObjectRef[Any]:
        return ObjectName(binary)

    @staticmethod
    def from_random() -> ObjectRef[Any]:
        return ObjectName(os.urandom(OBJECT_ID_BYTES))

    def binary(self) -> bytes:
        return self._id

    def hex(self) -> str:
        return self._id.hex()

    def is_nil(self) -> bool:
        return self._id == b"\xff" * len(self._id)

    def task_id(self) -> TaskID:
        """The task that creates the value (for ``put``: an id of its own)."""
        return TaskID(task_of(self._id))

    def job_id(self) -> JobID:
        return JobID(job_of(self._id))

    def owner_address(self) -> Any:
        """The address record of the process that owns the object (G57)."""
        return self._owner

    def call_site(self) -> str:
        """Where this process has made it, ``(task call) | file:function:line | ...``; empty unless that is recorded, by
        ``MINRAY_record_ref_creation_sites=1``."""
        return hooks().call_site_of(self)

    def future(self) -> concurrent.futures.Future[T]:
        """A ``concurrent.futures.Future`` of the value; cancelling it does not cancel the task."""
        return hooks().future_of(self)

    def as_future(self) -> asyncio.Future[T]:
        """An asyncio future on the running loop."""
        return asyncio.wrap_future(self.future())

    def __await__(self) -> Generator[Any, None, T]:
        return self.as_future().__await__()

    def __hash__(self) -> int:
        return hash(self._id)

    def __eq__(self, other: object) -> bool:
        return type(other) is ObjectRef and self._id == other._id

    def __repr__(self) -> str:
        return f"ObjectRef({self._id.hex()})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        collect = serialising.collect
        if collect is not None:
            collect(self)
        return _out_of_band, hooks().pickle_out_of_band(self, pinned=collect is None)


ObjectID = ObjectRef


class ObjectName(ObjectRef[Any]):
    """The id of an object, without its owner: ``ObjectRef.from_hex`` and its like make it. It keeps nothing alive, and
    ``get``, ``wait`` and ``cancel`` refuse it."""

    __slots__ = ()

    def __init__(self, object_id: bytes) -> None:
        self._id, self._owner, self._dropped = object_id, None, None
        if len(object_id) != OBJECT_ID_BYTES:
            raise ValueError(f"the id of an object has {OBJECT_ID_BYTES} bytes, not {len(object_id)}")

    def future(self) -> NoReturn:
        raise ValueError(f"{self!r} is an id without an owner, so its value cannot be had")

    def __hash__(self) -> int:
        return hash(self._id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._id == other._id

    def __repr__(self) -> str:
        return f"ObjectName({self._id.hex()})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return ObjectName, (self._id,)


def numbered(number: int) -> ObjectRef[Any]:
    """What a reference is in the stream of a value that minray has serialised."""
    refs = serialising.refs
    if refs is None:
        raise RuntimeError("these bytes are part of a minray message and cannot be unpickled on their own")
    return refs[number]


def _out_of_band(object_id: bytes, owner: bytes) -> ObjectRef[Any]:
    return hooks().unpickle_out_of_band(object_id, owner)
