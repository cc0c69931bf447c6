"""Keeps track of the items of an owner's generators: which have arrived, which were read, and where the end is.

Ray: ObjectRefStream in src/ray/core_worker/task_manager.h

Pure. Items are numbered from 1 in the order of their yields. An item's object id follows from its number
(``common.ids.item_id``). Hence each attempt of the task makes the same objects, and an item that has arrived need not come
again. Until an item is read, its stream holds one reference to it; the reader takes this reference over.

A stream is ``STREAMING`` while its task runs and its generator is held. If the generator is dropped first, the stream is
``DROPPED``: arriving items are not wanted, and the executor that makes them is not held up (G97). If the task ends first,
the stream is ``ENDED``: its last item may be an error, and the number behind it is the end. When both have happened, the
stream is forgotten.

A task that has ended may run again because items are lost (``Generators``); its stream does not change then.

The call of an executor that is held up (G91) waits here until enough items were read; ``Generators`` then answers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from minray.common.ids import short
from minray.common.state_table import NEW, StateMachine
from minray.rpc.service import Call

STREAMING, DROPPED, ENDED = "STREAMING", "DROPPED", "ENDED"
TRANSITIONS = {
    NEW: (STREAMING,),
    STREAMING: (DROPPED, ENDED),
    DROPPED: (NEW,),
    ENDED: (NEW,),
}


class ObjectRefStream:
    """The state of one generator's items."""

    __slots__ = ("arrived", "beyond", "has_large", "read", "total", "end", "waiting")

    def __init__(self) -> None:
        self.arrived = 0
        """Number up to which all items have arrived."""
        self.beyond: dict[int, None] = {}
        """Numbers of items that have arrived although an item before them is missing."""
        self.has_large = False
        """Whether an item was put into an object store, and may be lost with its node."""
        self.read = 0
        """Number up to which the items were handed to the reader."""
        self.total: int | None = None
        """Total number of items, as the latest attempt that reached its end has reported; None before that."""
        self.end: int | None = None
        """Number of the last item, which may be an error; None until the stream is ENDED."""
        self.waiting: list[tuple[int, Call]] = []
        """Calls of executors that wait for a reader, each with the number of items that must be read first."""

    def numbers(self) -> list[int]:
        """Return the numbers of the items that have arrived."""
        return [*range(1, self.arrived + 1), *self.beyond]


class Dropped(NamedTuple):
    """Consequences of the end of reading."""

    unread: list[int]
    """Numbers of items to which no reference is left."""
    end: int | None
    """Number of the last item, if the stream had ended."""
    waiting: list[Call]
    """Calls of executors that are held up, to be answered now."""


class Ending(NamedTuple):
    """Consequences of the end of a task whose items may still be read."""

    end: int
    """Number of the last item; it is the error, if there is one."""
    surplus: list[int]
    """Numbers of items that will not be read, because an item before them is missing."""
    waiting: list[Call]
    """Calls of executors that are held up, to be answered now."""


class ObjectRefStreams:
    """The table of one process's streams."""

    def __init__(self, record: Callable[[str, str, str, str], None] | None = None) -> None:
        self._states = StateMachine("stream", TRANSITIONS, record, short)
        self._streams: dict[bytes, ObjectRefStream] = {}
        """Streams by task id."""

    def __len__(self) -> int:
        return len(self._streams)

    def begin_stream(self, task_id: bytes) -> ObjectRefStream:
        self._states.set(task_id, STREAMING)
        stream = self._streams[task_id] = ObjectRefStream()
        return stream

    def stream_of(self, task_id: bytes) -> ObjectRefStream | None:
        return self._streams.get(task_id)

    def is_wanted(self, task_id: bytes) -> bool:
        """Whether items of this task may still be read."""
        return self._states.get(task_id) == STREAMING

    def is_open(self, task_id: bytes) -> bool:
        """Whether the task of a stream has not ended yet, not even once."""
        return self._states.get(task_id) in (STREAMING, DROPPED)

    # --- items

    def on_item(self, task_id: bytes, number: int) -> bool:
        """Note an item of a wanted stream as arrived; False if it had arrived before."""
        assert self.is_wanted(task_id) and number > 0
        stream = self._streams[task_id]
        if number <= stream.arrived or number in stream.beyond:
            return False
        stream.beyond[number] = None
        while stream.arrived + 1 in stream.beyond:
            stream.arrived += 1
            del stream.beyond[stream.arrived]
        return True

    def on_total(self, task_id: bytes, total: int) -> None:
        """Note the number of items that an attempt which reached its end has yielded."""
        self._streams[task_id].total = total

    def contradiction(self, task_id: bytes) -> str:
        """Return why the items contradict a task that has ended without an error; empty if they do not (G95)."""
        stream = self._streams[task_id]
        if not self.is_wanted(task_id):
            return ""
        known = stream.arrived + len(stream.beyond)
        if stream.total == known == stream.arrived:
            return ""
        count = "an unknown number of" if stream.total is None else str(stream.total)
        return f"the last attempt has yielded {count} items, but {known} have arrived"

    # --- reading

    def on_read(self, task_id: bytes, number: int) -> list[Call]:
        """Note that the reader has taken an item; return the calls that have waited for that."""
        stream = self._streams[task_id]
        assert stream.read + 1 == number <= stream.arrived, "items are read in order, and when they are here"
        stream.read = number
        due = [waiter for count, waiter in stream.waiting if count <= number]
        stream.waiting = [(count, waiter) for count, waiter in stream.waiting if count > number]
        return due

    def wait_read(self, task_id: bytes, count: int, waiter: Call) -> bool:
        """Let a call wait until this number of items was read; False if that is not necessary."""
        if not self.is_wanted(task_id) or self._streams[task_id].read >= count:
            return False
        self._streams[task_id].waiting.append((count, waiter))
        return True

    # --- ends

    def on_dropped(self, task_id: bytes) -> Dropped:
        """React to the reader's dropping of the generator."""
        stream = self._streams[task_id]
        unread = [*range(stream.read + 1, stream.arrived + 1), *stream.beyond]
        dropped = Dropped(unread, stream.end, [waiter for _, waiter in stream.waiting])
        stream.waiting = []
        if stream.end is None:
            self._states.set(task_id, DROPPED)
        else:
            self._forget(task_id)
        return dropped

    def on_ended(self, task_id: bytes, with_error: bool) -> Ending | None:
        """End the stream of a task that is over; an error becomes the last item. None if the generator was dropped."""
        if not self.is_wanted(task_id):
            self._forget(task_id)
            return None
        stream = self._streams[task_id]
        surplus = list(stream.beyond)
        stream.beyond.clear()
        stream.arrived += with_error
        stream.end = stream.arrived
        ending = Ending(stream.end, surplus, [waiter for _, waiter in stream.waiting])
        stream.waiting = []
        self._states.set(task_id, ENDED)
        return ending

    def _forget(self, task_id: bytes) -> None:
        self._states.set(task_id, NEW)
        del self._streams[task_id]
