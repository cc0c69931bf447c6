"""Takes in the arguments of every task and actor call that was pushed to this process, and sends its answer.

Ray: src/ray/core_worker/core_worker.cc (GetAndPinArgsForExecutor), task_execution/task_receiver.cc

Small arguments come with the call; large ones are brought to this node and pinned. The call keeps its arguments in the
reference counter until it is answered. If this process still holds some of them then, it first asks their owners for tickets
of its own (notes that this process borrows them). The receiver of the answer gets tickets for the references inside results.

A call is *claimed* exactly once: by the user thread, which then runs it, or by the core worker's loop, which then answers
CANCELLED or NOT_STARTED instead. ``bytearray.pop`` decides, which the GIL makes atomic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from minray.common.ids import short
from minray.common.task_set import TaskSet
from minray.core_worker.fetching.value_fetcher import ValueFetcher
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.received_task import Execution, ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.values import from_value, to_values
from minray.errors.packed_exception import pack_exception, text_alone, wrap_packed_dependency
from minray.exceptions import TaskCancelledError
from minray.platform.base import Buffer, Platform
from minray.protocol.actor import PushActorTask
from minray.protocol.base import Address
from minray.protocol.core_worker import (
    ARGUMENT_FAILED,
    CANCELLED,
    ENVIRONMENT_FAILED,
    NOT_STARTED,
    OK,
    Argument,
    PushTask,
    PushTaskReply,
    RefInfo,
    Value,
)


class _PendingArguments(NamedTuple):
    """A task whose arguments are being taken in."""

    task: ReceivedTask
    request: PushTask | PushActorTask
    on_ready: Callable[[], None]
    """Called when everything that had to be fetched is here."""
    on_missing: Callable[[], None]
    """Called instead if an argument was lost and is being made again."""


class TaskIntake:
    """Takes in the arguments of received tasks and sends their answers, for one process."""

    def __init__(
        self,
        platform: Platform,
        own: Address,
        references: ReferenceCounter,
        store: MemoryStore,
        borrowing: Borrowing,
        fetcher: ValueFetcher,
        node_ip: str,
        on_slow_answer: Callable[[ReceivedTask], None],
        on_last_answer: Callable[[], None],
    ) -> None:
        """Make the intake of one process.

        ``on_slow_answer`` is called when an answer was sent that had to wait for owners of references. ``on_last_answer`` is
        called when an answer was sent that says that this process takes no more tasks.
        """
        self._platform = platform
        self._own = own
        self._references = references
        self._store = store
        self._borrowing = borrowing
        self._fetcher = fetcher
        self._node_ip = node_ip
        self._on_slow_answer = on_slow_answer
        self._on_last_answer = on_last_answer
        self._answering = TaskSet()

    # --- arguments

    def take(
        self,
        task: ReceivedTask,
        request: PushTask | PushActorTask,
        on_ready: Callable[[], None],
        on_missing: Callable[[], None],
    ) -> None:
        """Keep a task's arguments, and fetch those that are not here.

        If something had to be fetched, ``on_ready`` is called when it is here. ``on_missing`` is called instead if an
        argument was lost and is being made again.
        """
        task.stored_args = StoredObject(request.args, request.inline_buffers, False, request.nested)
        infos = list(request.nested)
        for argument in request.arguments:
            if argument.value is not None:
                infos.extend(argument.value.nested)
        held = [(info.object_id, info.owner) for info in infos]
        held.extend((argument.object_id, argument.owner) for argument in request.arguments if argument.value is None)
        if held:
            task.held = [object_id for object_id, _ in held]
            owners = [None if owner.worker_id == self._own.worker_id else owner for _, owner in held]
            self._references.add_submitted(task.held, owners)
        if request.arguments:
            self._fill_slots(_PendingArguments(task, request, on_ready, on_missing))

    def _fill_slots(self, pending: _PendingArguments) -> None:
        """Put the arguments' values into the task's slots, or fetch the missing ones first."""
        task = pending.task
        missing: list[tuple[bytes, Address]] = []
        slots: list[StoredObject] = []
        for argument in pending.request.arguments:
            stored = self._known(argument)
            if stored is not None:
                slots.append(stored)
            else:
                missing.append((argument.object_id, argument.owner))
        if not missing:
            self._reach_slots(pending, slots)
            return
        task.fetching = missing
        remaining = len(missing)

        def on_here() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining == 0 and not task.is_claimed():
                self._fill_slots(pending)
                pending.on_ready()

        def on_gone(object_id: bytes) -> None:
            task.missing = (object_id,)
            pending.on_missing()

        for object_id, owner in missing:
            if task.is_claimed():  # an earlier argument is lost and ours to make again, so the task was already given back
                break
            self._fetcher.fetch_argument(object_id, owner, on_here, partial(on_gone, object_id), task.keeps_place)

    def _reach_slots(self, pending: _PendingArguments, slots: list[StoredObject]) -> None:
        """Bring those values that are in the object store to this node and pin them; all values are known."""
        task, arguments = pending.task, pending.request.arguments
        large = [index for index, stored in enumerate(slots) if stored.place is not None]
        if not large:
            task.slots = slots
            task.fetching = None
            return
        wanted = [(arguments[index], slots[index]) for index in large]
        task.fetching = [(argument.object_id, argument.owner) for argument, _ in wanted]
        objects = [LargeObject.known(argument.object_id, argument.owner, stored) for argument, stored in wanted]

        def on_fetched(values: list[StoredObject | None]) -> None:
            if task.is_claimed():
                return
            for index, value in zip(large, values, strict=True):
                if value is None:
                    task.missing += (arguments[index].object_id,)
                else:
                    slots[index] = value
            if task.missing:
                pending.on_missing()
                return
            task.slots = slots
            task.fetching = None
            pending.on_ready()

        self._fetcher.fetch_arguments(objects, on_fetched, task.keeps_place)

    def _known(self, argument: Argument) -> StoredObject | None:
        """Return an argument's value or place, which came with the task or is known here; None: its owner must be asked."""
        if argument.value is not None:
            return from_value(argument.value, ())
        stored = self._store.objects.get(argument.object_id)
        return stored if stored or argument.place is None else StoredObject(b"", (), False, (), place=argument.place)

    # --- tasks that will not run

    def fail_for_argument(self, task: ReceivedTask) -> bool:
        """Fail a task of which an argument was lost after its owner had seen it; return whether that is so."""
        failed = next((stored for stored in task.slots if stored.is_error), None) if task.slots else None
        if failed is not None and task.claim():
            self.answer_error(task, ARGUMENT_FAILED, wrap_packed_dependency(bytes(failed.data), task.header.template.name))
        return failed is not None

    def cancel_unstarted(self, task: ReceivedTask) -> bool:
        """Mark a task as cancelled, and answer CANCELLED if it has not begun; return whether that is so."""
        task.cancelled = True
        if not task.claim():
            return False
        error = TaskCancelledError(task_name=task.header.template.name, task_id_hex=task.task_id.hex())
        self.answer_error(task, CANCELLED, self.pack(task, error))
        return True

    def give_back(self, task: ReceivedTask, exiting: bool = False) -> None:
        """Answer NOT_STARTED unless the task has begun or is answered: it will not run here."""
        if task.claim():
            kept = self._references.keep_after_task(task.held)
            if kept:
                self._begin_answer(task, self._give_back_slowly(task, kept, exiting))
            else:
                self._give_back(task, exiting)

    # --- answers

    def answer_executed(self, task: ReceivedTask, execution: Execution, exiting: bool = False) -> None:
        """Answer a task that has run. ``exiting``: this process takes no more tasks."""
        if task.held or any(value.refs for value in execution.values):
            self._begin_answer(task, self._answer_slowly(task, execution, exiting))
        elif execution.status == OK:
            beside: list[Any] = []
            first = execution.values[0].stored if len(execution.values) == 1 else None
            if first is not None and not first.buffers and first.place is None:
                values: tuple[Value, ...] = (Value(first.data),)
            else:
                values = to_values(((value.stored, ()) for value in execution.values), beside)
            self.answer(task, PushTaskReply(OK, values, execution.duration_us, False, exiting), beside)
        else:
            self._answer_failed(task, execution, exiting)

    def answer_error(self, task: ReceivedTask, status: int, error: bytes) -> None:
        """Answer a task that has not run with an error; references to its arguments may still be held here."""
        execution = Execution(status, [], error, 0, False)
        if self._references.keep_after_task(task.held):
            self._begin_answer(task, self._answer_slowly(task, execution, False))
        else:
            self._answer_failed(task, execution, False)

    def pack(self, task: ReceivedTask, error: BaseException) -> bytes:
        name, pid = task.header.template.name, self._platform.processes.pid
        return pack_exception(error, task_name=name, pid=pid, node_id=self._own.node_id.hex(), ip=self._node_ip)

    def _begin_answer(self, task: ReceivedTask, answer: Coroutine[Any, Any, None]) -> None:
        answering = self._answering.begin(answer, f"answer({short(task.task_id)})")
        answering.add_done_callback(lambda _: self._on_slow_answer(task))

    async def _answer_slowly(self, task: ReceivedTask, execution: Execution, exiting: bool) -> None:
        """Answer a task with references in its arguments or results, once their owners know the new borrowers.

        These are the owner of the task, for references in the results, and this process, for arguments that it still holds.
        """
        kept = self._references.keep_after_task(task.held)
        if kept:
            await self._borrowing.keep_refs(kept)
        nested: list[list[RefInfo]] = []
        for value in execution.values:
            refs = [(ref._id, ref._owner) for ref in value.refs]
            owner = task.header.owner
            lent = (self._borrowing.lend_now(refs, owner) or await self._borrowing.lend(refs, owner)) if refs else []
            nested.append(lent)
        if execution.status != OK:
            self._answer_failed(task, execution, exiting, nested)
            return
        beside: list[Any] = []
        values = to_values(zip((value.stored for value in execution.values), nested, strict=True), beside)
        self.release(task)
        self.answer(task, PushTaskReply(OK, values, execution.duration_us, False, exiting), beside)

    async def _give_back_slowly(self, task: ReceivedTask, kept: list[tuple[bytes, Address]], exiting: bool) -> None:
        await self._borrowing.keep_refs(kept)
        self._give_back(task, exiting)

    def _give_back(self, task: ReceivedTask, exiting: bool) -> None:
        self.release(task)
        self.answer(task, PushTaskReply(NOT_STARTED, (), 0, worker_exiting=exiting, missing=task.missing), ())

    def _answer_failed(
        self, task: ReceivedTask, execution: Execution, exiting: bool, nested: Sequence[list[RefInfo]] = ()
    ) -> None:
        beside: list[Any] = []
        error = execution.error
        if task.header.template.actor is not None and execution.status != ENVIRONMENT_FAILED:
            error = text_alone(error)  # of a constructor: the gcs keeps the error, and it is never raised
        stored = [*(value.stored for value in execution.values), StoredObject(error, (), True, ())]
        values = to_values(zip(stored, itertools.chain(nested, itertools.repeat(())), strict=False), beside)
        reply = PushTaskReply(execution.status, values, execution.duration_us, execution.retryable, exiting)
        self.release(task)
        self.answer(task, reply, beside)

    def answer(self, task: ReceivedTask, reply: PushTaskReply, beside: Sequence[Buffer]) -> None:
        task.reply = reply
        task.reply_buffers = beside or ()
        for call in task.calls:
            call.reply(reply, beside)
        task.calls = ()
        task.stored_args = None
        task.slots = ()
        if task.is_given_up:
            self._take_back(reply)
        if reply.worker_exiting:
            self._on_last_answer()

    def give_up(self, task: ReceivedTask) -> None:
        """Take back the references in a task's answer, which its caller will never receive; there may be no answer yet."""
        task.is_given_up = True
        if task.reply is not None:
            self._take_back(task.reply)

    def _take_back(self, reply: PushTaskReply) -> None:
        """Give back the tickets (notes of borrowers) in an answer that its receiver never sees."""
        effects = Effects()
        for info in (info for value in reply.values for info in value.nested):
            if info.owner.worker_id == self._own.worker_id:
                self._references.take_back(info.object_id, [info.ticket], effects)
            else:
                effects.give_back.append((info.object_id, info.owner, [info.ticket]))
        self._borrowing.apply(effects)

    def release(self, task: ReceivedTask) -> None:
        """Release the arguments that a task keeps in the reference counter."""
        if task.held:
            effects = Effects()
            self._references.remove_submitted(task.held, effects)
            task.held = ()
            self._borrowing.apply(effects)

    def is_idle(self) -> bool:
        """Whether no answer is being prepared."""
        return not self._answering
