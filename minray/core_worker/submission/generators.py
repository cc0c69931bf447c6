"""Receives the items of streaming generators for their owner, hands them to the reader, and ends the streams.

Ray: TaskManager::HandleReportGeneratorItemReturns and its neighbours

This is the shell around ``ObjectRefStreams``. An item that arrives becomes an object of this process, like any result. The
reader waits for the object whose id the next item will have. Behind the last item the memory store has ``END_OF_STREAM``
under that id. Hence a waiting thread learns in the same way whether there is another item.

An item in an object store may be lost, and is made again, like any result. Its task runs once more and is told which items
are missing; the other items stay untouched. Such an attempt does not end the stream, and no reader holds it up.

A report is accepted only from the task's current attempt (G94). A refused item may bring tickets (notes of this borrower)
and copies along: the tickets go back to their owners, and the copies are discarded where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minray.common.ids import item_id
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.object_ref_streams import ObjectRefStreams
from minray.core_worker.records.pending_task import PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.values import from_value
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import pack_exception
from minray.exceptions import ObjectRefStreamEndOfStreamError, RayError, StreamingGeneratorReplayInconsistentError
from minray.protocol.core_worker import GeneratorItemReply, ReportGeneratorItem, WaitForReader
from minray.rpc.service import Call

_packed_end = pack_exception(ObjectRefStreamEndOfStreamError(), task_name="", pid=0, node_id="", ip="")
END_OF_STREAM = StoredObject(_packed_end, (), True, ())
"""Value in the memory store that says that a stream has no more items; shared by all streams."""
UNWANTED = GeneratorItemReply(0, True)
"""Answer that tells a generator that its items are not wanted any more."""
EVERYTHING = 2**62
"""Number of items that count as read for an attempt that makes lost items again: no reader holds it up."""


class Generators:
    """Receives and ends the streams of one process's generators."""

    def __init__(
        self,
        record: Callable[[str, str, str, str], None] | None,
        tasks: TaskManager,
        references: ReferenceCounter,
        store: MemoryStore,
        borrowing: Borrowing,
        directory: ObjectDirectory,
        objects: Objects,
        max_in_flight: int,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._tasks = tasks
        self._references = references
        self._store = store
        self._borrowing = borrowing
        self._directory = directory
        self._objects = objects
        self.streams = ObjectRefStreams(record)

    def begin_stream(self, task: PendingTask) -> None:
        """Begin the stream of a generator task that was submitted here."""
        task.stream = self.streams.begin_stream(task.task_id)

    # --- from the executor

    def on_report(self, request: ReportGeneratorItem, buffers: Sequence[Any]) -> GeneratorItemReply:
        """Receive an item, or the news that the iterator has ended; return the answer for the executor."""
        task_id = request.task_id
        task = self._tasks.tasks.get(task_id)
        is_present = task is not None and task.attempt == request.attempt
        if request.value is not None:
            self._on_item(task if is_present else None, request, from_value(request.value, buffers))
        elif is_present and self.streams.is_wanted(task_id):
            self.streams.on_total(task_id, request.number - 1)
        return self._answer(task_id) if is_present else UNWANTED

    def _on_item(self, task: PendingTask | None, request: ReportGeneratorItem, stored: StoredObject) -> None:
        """Store an item, or refuse it; ``task`` is None if the report is not from the task's current attempt."""
        number = request.number
        object_id = item_id(request.task_id, number)
        if task is not None and self.streams.is_wanted(task.task_id) and self.streams.on_item(task.task_id, number):
            self._references.add_owned(object_id)
        elif task is not None and task.items_lost and number in task.items_lost and self._is_lost(object_id):
            del task.items_lost[number]
        else:
            self._refuse(object_id, stored)
            return
        if task.stream is not None and stored.place is not None:
            task.stream.has_large = True
        self._objects.on_result(object_id, stored)

    def lost_items(self, task: PendingTask) -> list[int]:
        """Return the numbers of items that have arrived, are lost, and are still in scope."""
        assert task.stream is not None
        if not task.stream.has_large:
            return []
        return [number for number in task.stream.numbers() if self._is_lost(item_id(task.task_id, number))]

    def _is_lost(self, object_id: bytes) -> bool:
        return object_id not in self._store.objects and self._references.is_in_scope(object_id)

    def on_wait(self, request: WaitForReader, call: Call) -> GeneratorItemReply | None:
        """Answer when the reader has read as many items as asked for, or never will."""
        if not self._is_present(request.task_id, request.attempt):
            return UNWANTED
        if self._tasks.tasks[request.task_id].has_lost_results:
            return GeneratorItemReply(EVERYTHING, False)
        if self.streams.wait_read(request.task_id, request.count, call):
            return None
        return self._answer(request.task_id)

    def _is_present(self, task_id: bytes, attempt: int) -> bool:
        task = self._tasks.tasks.get(task_id)
        return task is not None and task.attempt == attempt

    def _answer(self, task_id: bytes) -> GeneratorItemReply:
        stream = self.streams.stream_of(task_id)
        if stream is not None and self.streams.is_wanted(task_id):
            return GeneratorItemReply(stream.read, False)
        task = self._tasks.tasks.get(task_id)
        return GeneratorItemReply(EVERYTHING, False) if task is not None and task.items_lost else UNWANTED

    def _refuse(self, object_id: bytes, stored: StoredObject) -> None:
        """Refuse an item that is not wanted, or was here before."""
        effects = Effects()
        for info in stored.nested:
            self._references.receive_ticket(info, effects)
        self._borrowing.apply(effects)
        if stored.place is not None:
            known = self._store.objects.get(object_id)
            if known is None or known.place != stored.place:
                self._directory.discard_copies([object_id], stored.place.attempt, stored.place.raylet)

    # --- from the reader

    def on_read(self, task_id: bytes, number: int) -> None:
        """Take note that a user thread has taken an item, and with it the stream's reference to it."""
        self._let_go(task_id, self.streams.on_read(task_id, number))

    def hurry(self, task: PendingTask) -> None:
        """Release an attempt that back-pressure holds up: the reader waits for the attempt that follows it (G91)."""
        if task.stream is not None:
            waiting, task.stream.waiting = task.stream.waiting, []
            for _, call in waiting:
                call.reply(GeneratorItemReply(EVERYTHING, False))

    def on_dropped(self, task_id: bytes) -> None:
        """Free the unread items of a generator that a user thread has dropped (G97)."""
        end = self.streams.on_dropped(task_id)
        self._free(task_id, end.unread)
        if end.end is not None:
            self._store.delete([item_id(task_id, end.end + 1)])
        self._let_go(task_id, end.waiting)

    def _free(self, task_id: bytes, numbers: list[int]) -> None:
        effects = Effects()
        for number in numbers:
            self._references.remove_local([item_id(task_id, number)], effects)
        self._borrowing.apply(effects)

    def _let_go(self, task_id: bytes, waiting: list[Call]) -> None:
        for call in waiting:
            call.reply(self._answer(task_id))

    # --- from the outcomes of the task

    def is_wanted(self, task_id: bytes) -> bool:
        """Whether a user may still read items of this task."""
        return self.streams.is_wanted(task_id)

    def contradiction(self, task: PendingTask) -> RayError | None:
        """Return the error of a task that reports success, although its stream contradicts that; None if it does not."""
        if not self.streams.is_open(task.task_id):
            return None
        reason = self.streams.contradiction(task.task_id)
        return StreamingGeneratorReplayInconsistentError(reason=reason) if reason else None

    def on_ended(self, task: PendingTask, value: StoredObject | None) -> StoredObject | None:
        """End the stream of a task that is over; ``value`` is its error, or a value that is none (G92, G93).

        Return the value that is still to be stored for the task itself.
        """
        if self.streams.is_open(task.task_id):
            assert value is not None
            self._end(task, value)
        if task.items_lost:
            self._give_up(task, value)
        return value

    def _give_up(self, task: PendingTask, value: StoredObject | None) -> None:
        """Store an error for each lost item that an attempt has not made again (G95)."""
        lost, task.items_lost = task.items_lost, None
        for number in lost or ():
            object_id = item_id(task.task_id, number)
            if not self._is_lost(object_id):
                continue
            if value is not None and value.is_error:
                self._objects.on_value(object_id, value)
            else:
                reason = f"item {number} was lost, and is not among those that the last attempt has yielded"
                self._objects.put_error(object_id, StreamingGeneratorReplayInconsistentError(reason=reason))

    def _end(self, task: PendingTask, value: StoredObject) -> None:
        ending = self.streams.on_ended(task.task_id, value.is_error)
        if ending is None:
            return
        self._free(task.task_id, ending.surplus)
        if value.is_error:
            object_id = item_id(task.task_id, ending.end)
            self._references.add_owned(object_id)
            self._objects.on_value(object_id, value)
        self._store.put(item_id(task.task_id, ending.end + 1), END_OF_STREAM)
        self._let_go(task.task_id, ending.waiting)

    def unreported(self, task: PendingTask) -> list[bytes]:
        """Return the ids of items that a dead attempt may have put into its node's store without reporting them."""
        if task.stream is None:
            return []
        first = task.stream.arrived + 1
        numbers = [*(task.items_lost or ()), *range(first, first + self._max_in_flight + 1)]
        return [item_id(task.task_id, number) for number in numbers]
