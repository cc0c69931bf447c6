"""References to values that may not exist yet: what ``f.remote()`` and ``put`` return.

Ray: python/ray/includes/object_ref.pxi, docs "Objects"

An ``ObjectRef`` is an id, the address of its owner, and a function to call when it is dropped. It does not depend on the
system around it. The core worker of the process gives it ``dropped``, the ``append`` of a deque: ``__del__`` may do no more,
since it may run in any thread at any moment. The core worker also installs the hooks below, once per process or simulated
process.

Pickling: inside a value that minray serialises, a reference travels as an index into the list of references that goes with
the value (``serialization``), so that the owner knows all borrowers. Any other pickler writes the owner's address too, and
these bytes may be unpickled anywhere, at any time (Ray: out-of-band serialisation). If such bytes are made while minray
serialises a value, that value keeps the object alive. Otherwise the object is pinned for the life of this process.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from minray.common.ids import OBJECT_ID_BYTES, JobID, TaskID, job_of, task_of
from minray.common.shown import ShownInNotebooks

if TYPE_CHECKING:
    import asyncio

COUNTS_REFERENCES = True
"""Marks this module for ``common/package.py``: an interrupt waits until its frames have finished counting references."""

T = TypeVar("T", covariant=True)


class RefHooks(Protocol):
    """The calls that a core worker offers to the references of its process."""

    def future_of(self, ref: ObjectRef[Any]) -> concurrent.futures.Future[Any]: ...

    def pickle_out_of_band(self, ref: ObjectRef[Any], *, pinned: bool) -> tuple[bytes, bytes]:
        """Return the object's id and its encoded owner. With ``pinned`` the object lives as long as this process."""

    def unpickle_out_of_band(self, object_id: bytes, owner: bytes) -> ObjectRef[Any]: ...

    def call_site_of(self, ref: ObjectRef[Any]) -> str: ...


current_hooks: ContextVar[RefHooks | None] = ContextVar("minray_ref_hooks")
"""Hooks of a simulated process. Outside of the simulation all threads use the process-wide default below."""
_default_hooks: RefHooks | None = None


def set_default_hooks(hooks: RefHooks | None) -> None:
    """Set the hooks of this process's references; None when it disconnects."""
    global _default_hooks
    _default_hooks = hooks


def hooks() -> RefHooks:
    found = current_hooks.get(None) or _default_hooks
    if found is None:
        raise RuntimeError("this ObjectRef belongs to a cluster that this process is not connected to; call minray.init()")
    return found


class _Serialising(threading.local):
    """State of the value that this thread is pickling or unpickling."""

    collect: Callable[[ObjectRef[Any]], int] | None = None
    """Function that records a reference in the value being pickled and returns its index; None otherwise."""
    refs: list[ObjectRef[Any]] | None = None
    """References in the value being unpickled, by index; None otherwise."""


serialising = _Serialising()


class ObjectRef(ShownInNotebooks, Generic[T]):
    """A reference to a value that exists or will exist.

    Get the value with ``minray.get(ref)`` or ``await ref``; pass the reference to tasks as an argument.
    """

    __slots__ = ("_id", "_owner", "_dropped", "__weakref__")

    def __init__(self, object_id: bytes, owner: Any = None, dropped: Callable[[bytes], None] | None = None) -> None:
        """Make a reference; only minray itself does. Raises TypeError without an owner: an id alone has no object."""
        self._id = object_id
        self._owner = owner
        """Address of the owner; this class does not look into it."""
        self._dropped = dropped
        if owner is None:
            raise TypeError("an ObjectRef comes from .remote() or put(); ObjectRef.from_binary(id) is an id to compare with")

    def __del__(self) -> None:
        if self._dropped is not None:
            self._dropped(self._id)

    @staticmethod
    def nil() -> ObjectRef[Any]:
        """Return the nil id, which no object has."""
        return ObjectName(b"\xff" * OBJECT_ID_BYTES)

    @staticmethod
    def from_hex(text: str) -> ObjectRef[Any]:
        """Make an id to compare, log or look up; it has no owner, so ``get`` refuses it. Raises ValueError for bad hex."""
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
        """Return the id of the task that creates the value; for ``put`` an id of its own."""
        return TaskID(task_of(self._id))

    def job_id(self) -> JobID:
        return JobID(job_of(self._id))

    def owner_address(self) -> Any:
        """Return the address record of the process that owns the object."""
        return self._owner

    def call_site(self) -> str:
        """Return the code line where this process made the reference, as ``(task call) | file:function:line | ...``.

        Returns "" unless ``MINRAY_record_ref_creation_sites=1`` is set.
        """
        return hooks().call_site_of(self)

    def future(self) -> concurrent.futures.Future[T]:
        """Return a ``concurrent.futures.Future`` of the value; cancelling it does not cancel the task."""
        return hooks().future_of(self)

    def as_future(self) -> asyncio.Future[T]:
        """Return an asyncio future of the value, on the running loop."""
        import asyncio

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
    """The id of an object without its owner, as ``ObjectRef.from_hex`` and ``from_binary`` return it. It does not keep the
    object alive, and ``get``, ``wait`` and ``cancel`` refuse it."""

    __slots__ = ()

    def __init__(self, object_id: bytes) -> None:
        self._id, self._owner, self._dropped = object_id, None, None
        if len(object_id) != OBJECT_ID_BYTES:
            raise ValueError(f"the id of an object has {OBJECT_ID_BYTES} bytes, not {len(object_id)}")

    def future(self) -> NoReturn:
        raise ValueError(f"{self!r} is an id without an owner, so its value cannot be fetched; use the ObjectRef itself")

    def __hash__(self) -> int:
        return hash(self._id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._id == other._id

    def __repr__(self) -> str:
        return f"ObjectName({self._id.hex()})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return ObjectName, (self._id,)


def numbered(number: int) -> ObjectRef[Any]:
    """Return the reference with this index in the value being unpickled; streams of minray call this function.

    Raises RuntimeError for a stream that is unpickled without its references.
    """
    refs = serialising.refs
    if refs is None:
        raise RuntimeError("these bytes are part of a minray message and cannot be unpickled on their own")
    return refs[number]


def _out_of_band(object_id: bytes, owner: bytes) -> ObjectRef[Any]:
    return hooks().unpickle_out_of_band(object_id, owner)
