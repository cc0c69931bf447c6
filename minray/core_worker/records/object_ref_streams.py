"""The items of an owner's generators: which have arrived, which were read, and where the end is.

Ray: ObjectRefStream in src/ray/core_worker/task_manager.h

Pure. Items are numbered from 1 in the order of their yields; an item's object id follows from its number
(``common.ids.item_id``), so that each attempt of the task makes the same objects, and an item that has arrived need not
come again. Until it is read an item belongs to its stream, which holds one reference to it; the reader takes that over.

A stream is ``STREAMING`` while its task runs and its generator is held. If the generator is dropped first, the stream is
``DROPPED``: whatever arrives is not wanted, and nobody who produces it is held up (G97). If the task ends first, the
stream is ``ENDED``: its last item may be an error, and the place behind it is the end. When both have happened it is
forgotten.

A task that has ended may run again, because items are lost (``Generators``); its stream stays as it is.

An executor that is held up (G91) waits here until enough was read; what it is answered then is the shell's business.
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
    """One generator."""

    __slots__ = ("arrived", "beyond", "has_large", "read", "total", "end", "waiting")

    def __init__(self) -> None:
        self.arrived = 0
        """Items 1 to this one are here, or were."""
        self.beyond: dict[int, None] = {}
        """Items that have come before one that is missing."""
        self.has_large = False
        """Some of them were put into an object store, and may be lost with their node."""
        self.read = 0
        """Items 1 to this one were handed to the reader."""
        self.total: int | None = None
        """How many there are, as the last attempt to come to its end has said."""
        self.end: int | None = None
        """Once ENDED: the number of the last item, which may be an error."""
        self.waiting: list[tuple[int, Call]] = []
        """Calls of executors that wait for a reader, each with the number of items that must be read first."""

    def numbers(self) -> list[int]:
        """List the numbers of the items that have come."""
        return [*range(1, self.arrived + 1), *self.beyond]


class Dropped(NamedTuple):
    """Things to do when the items are not read any more."""

    unread: list[int]
    """Items that nobody refers to now."""
    end: int | None
    """The last item, if the stream had ended."""
    waiting: list[Call]
    """Calls of executors that are held up, to be answered now."""


class Ending(NamedTuple):
    """Things to do when the task is over and its items may still be read."""

    end: int
    """The number of the last item; the error, if there is one."""
    surplus: list[int]
    """Items that will not be read, because one before them is missing."""
    waiting: list[Call]


class ObjectRefStreams:
    """The table of one process."""

    def __init__(self, record: Callable[[str, str, str, str], None] | None = None) -> None:
        self._states = StateMachine("stream", TRANSITIONS, record, short)
        self._streams: dict[bytes, ObjectRefStream] = {}
        """By task id."""

    def __len__(self) -> int:
        return len(self._streams)

    def begin(self, task_id: bytes) -> ObjectRefStream:
        self._states.set(task_id, STREAMING)
        stream = self._streams[task_id] = ObjectRefStream()
        return stream

    def get(self, task_id: bytes) -> ObjectRefStream | None:
        return self._streams.get(task_id)

    def is_wanted(self, task_id: bytes) -> bool:
        """Whether items of this task may still be read."""
        return self._states.get(task_id) == STREAMING

    def is_open(self, task_id: bytes) -> bool:
        """Whether its task has not ended yet, for the first time."""
        return self._states.get(task_id) in (STREAMING, DROPPED)

    # --- items

    def on_item(self, task_id: bytes, number: int) -> bool:
        """An item of a wanted stream has come; False if it was here before."""
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
        """An attempt has come to its end and says how many items it has yielded."""
        self._streams[task_id].total = total

    def contradiction(self, task_id: bytes) -> str:
        """The task has returned: what its items say against that, or nothing (G95)."""
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
        """The reader has taken an item over; returns who has waited for that."""
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
        """The generator is gone."""
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
        """The task is over, perhaps with an error, which is then the last item; None if nobody reads."""
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
