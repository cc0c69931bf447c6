"""Tasks that were pushed to this worker: taken in once, prepared, run in order, answered.

Ray: src/ray/core_worker/task_execution/task_receiver.h, normal_task_execution_queue.h

A push is known by its lease and its sequence within it. A repetition is answered from the kept reply (until the owner
says that it has it); a push of a lease that is over is refused. What must be here before a task can begin: the job's
environment, the function's definition, the values of large arguments. The queue is strictly first in, first out, so that
"started up to this sequence" says everything about a lease's tasks.

A task is *claimed* exactly once: by the user thread, which then runs it, or by the loop, which then answers CANCELLED or
NOT_STARTED instead. ``list.pop`` decides, which the GIL makes atomic.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from minray.common.ids import lease_tag, short
from minray.common.task_spec import TaskTemplate
from minray.core_worker.borrowing import Borrowing
from minray.core_worker.function_manager import FunctionManager
from minray.core_worker.memory_store import MemoryStore, StoredObject
from minray.core_worker.reference_counter import Effects, ReferenceCounter
from minray.core_worker.task_executor import Execution, TaskExecutor
from minray.core_worker.values import from_value, to_values
from minray.exceptions import RuntimeEnvSetupError, TaskCancelledError, pack_exception
from minray.platform.base import Buffer, Platform
from minray.protocol.base import DONE, Address, Done, decode
from minray.protocol.core_worker import (
    CANCELLED,
    ENVIRONMENT_FAILED,
    NOT_STARTED,
    OK,
    CancelTask,
    CancelTaskReply,
    PushTask,
    PushTaskReply,
    ReclaimTasks,
    RefInfo,
    TaskHeader,
    Value,
)
from minray.rpc.service import Call

MAX_PAST_LEASES = 10_000
MAX_HEADERS = 1_000


class ReceivedTask:
    """One push."""

    __slots__ = (
        "task_id",
        "attempt",
        "lease_tag",
        "sequence",
        "header",
        "depth",
        "gpu_ids",
        "items_arrived",
        "calls",
        "stored_args",
        "slots",
        "takes_arguments",
        "held",
        "fetching",
        "cancelled",
        "execution",
        "reply",
        "reply_buffers",
        "_unclaimed",
    )

    def __init__(self, request: PushTask, header: TaskHeader, call: Call) -> None:
        self.task_id = request.task_id
        self.attempt = request.attempt
        self.lease_tag = lease_tag(request.lease_id)
        self.sequence = request.sequence
        self.header = header
        self.depth = request.depth
        self.gpu_ids = request.gpu_ids
        self.items_arrived = request.items_arrived
        self.calls = [call]
        """The ways to answer, of all repetitions: the latest to arrive may have come late, from a channel that is broken."""
        self.stored_args: StoredObject | None = None
        self.slots: list[StoredObject] = []
        """Values of top-level references, in their order, when all are here."""
        self.takes_arguments = bool(request.args)
        self.held: list[bytes] = []
        """Objects that this task keeps in the reference counter while it is here."""
        self.fetching: list[tuple[bytes, Address]] | None = None
        """Large arguments to be fetched; None: nothing is missing."""
        self.cancelled = False
        self.execution: Execution | None = None
        """How it ended; set by the user thread."""
        self.reply: PushTaskReply | None = None
        """Kept until the owner acknowledges it."""
        self.reply_buffers: Sequence[Buffer] = ()
        self._unclaimed = [True]

    def claim(self) -> bool:
        """True for the one caller who decides what becomes of this task."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    def is_claimed(self) -> bool:
        return not self._unclaimed


class Surroundings(Protocol):
    """What the receiver needs of its core worker."""

    def prepare_environment(self, template: TaskTemplate) -> Any:
        """Awaitable; raises RuntimeEnvSetupError."""

    def fetch_argument(self, object_id: bytes, owner: Address, on_here: Callable[[], None]) -> None: ...

    def fetch_large(self, objects: list[tuple[bytes, Address]], on_fetched: Callable[[list[StoredObject]], None]) -> None:
        """Bring values from the object store into reach; errors come as error values."""

    def cancel_children(self, task_id: bytes, force: bool) -> None: ...

    def on_exiting(self) -> None:
        """This worker takes no more tasks; it ends when nobody depends on it."""


class TaskReceiver:
    """The loop's side of a worker."""

    def __init__(
        self,
        platform: Platform,
        own: Address,
        executor: TaskExecutor,
        functions: FunctionManager,
        references: ReferenceCounter,
        store: MemoryStore,
        borrowing: Borrowing,
        surroundings: Surroundings,
        node_ip: str,
    ) -> None:
        self._platform = platform
        self._own = own
        self._executor = executor
        self._functions = functions
        self._references = references
        self._store = store
        self._borrowing = borrowing
        self._surroundings = surroundings
        self._node_ip = node_ip
        self._lease_id = b""
        self._tasks: dict[int, ReceivedTask] = {}
        """Of the current lease, by sequence, until acknowledged."""
        self._acknowledged = 0
        self._past_leases: OrderedDict[bytes, None] = OrderedDict()
        self._headers: dict[bytes, TaskHeader] = {}
        self._waiting: deque[ReceivedTask] = deque()
        """Not yet with the user thread, oldest first: the first of them lacks something."""
        self._environment_ready = False
        self._preparing: asyncio.Task[None] | None = None
        self._exiting = False
        self._blocked = False
        """The running task waits for objects: nothing is queued behind it, for it may wait for just that."""
        self._answering: set[asyncio.Task[None]] = set()

    # --- arrival

    def handle_PushTask(self, request: PushTask, call: Call) -> PushTaskReply | None:
        if request.lease_id != self._lease_id:
            if request.lease_id in self._past_leases:
                call.fail("stale-lease", f"lease {short(request.lease_id)} of this worker is over")
                return None
            self._begin_lease(request.lease_id)
        known = self._tasks.get(request.sequence)
        if known is not None or request.sequence <= self._acknowledged:
            if known is not None:
                known.calls.append(call)
                if known.reply is not None:
                    call.reply(known.reply, known.reply_buffers)
            return None
        self._forget_acknowledged(request.acknowledged)
        header = self._headers.get(request.header)
        if header is None:
            if len(self._headers) >= MAX_HEADERS:
                self._headers.clear()
            header = self._headers[request.header] = decode(TaskHeader, request.header)
        task = ReceivedTask(request, header, call)
        self._tasks[task.sequence] = task
        if self._exiting or self._blocked:
            self._give_back(task)
            return None
        if request.args:
            self._take_arguments(task, request)
        if self._waiting or not self._is_ready(task):
            self._waiting.append(task)
            self._pump()
        else:
            self._start(task)
        return None

    def _begin_lease(self, lease_id: bytes) -> None:
        if self._lease_id:
            self._past_leases[self._lease_id] = None
            if len(self._past_leases) > MAX_PAST_LEASES:
                self._past_leases.popitem(last=False)
        for task in self._tasks.values():
            if task.claim():
                self._release(task)
        self._lease_id = lease_id
        self._tasks.clear()
        self._acknowledged = 0

    def _forget_acknowledged(self, acknowledged: int) -> None:
        while self._acknowledged < acknowledged:
            self._acknowledged += 1
            self._tasks.pop(self._acknowledged, None)

    def _take_arguments(self, task: ReceivedTask, request: PushTask) -> None:
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
            self._fill_slots(task, request)

    def _fill_slots(self, task: ReceivedTask, request: PushTask) -> None:
        """Put values into the slots, or note what has to be fetched first."""
        missing: list[tuple[bytes, Address]] = []
        slots: list[StoredObject] = []
        for argument in request.arguments:
            inline = argument.value
            stored = self._store.objects.get(argument.object_id) if inline is None else from_value(inline, ())
            if stored is not None:
                slots.append(stored)
            else:
                missing.append((argument.object_id, argument.owner))
        if not missing:
            self._reach_slots(task, request, slots)
            return
        task.fetching = missing
        remaining = len(missing)

        def on_here() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining == 0 and not task.is_claimed():
                self._fill_slots(task, request)
                self._pump()

        for object_id, owner in missing:
            self._surroundings.fetch_argument(object_id, owner, on_here)

    def _reach_slots(self, task: ReceivedTask, request: PushTask, slots: list[StoredObject]) -> None:
        """All values are known; those in the object store must be brought to this node, and pinned there."""
        large = [index for index, stored in enumerate(slots) if stored.place is not None]
        if not large:
            task.slots = slots
            task.fetching = None
            return
        task.fetching = [(request.arguments[index].object_id, request.arguments[index].owner) for index in large]

        def on_fetched(values: list[StoredObject]) -> None:
            if not task.is_claimed():
                for index, value in zip(large, values, strict=True):
                    slots[index] = value
                task.slots = slots
                task.fetching = None
                self._pump()

        self._surroundings.fetch_large(task.fetching, on_fetched)

    # --- preparation

    def _is_ready(self, task: ReceivedTask) -> bool:
        function_id = task.header.template.function_id
        return self._environment_ready and task.fetching is None and self._functions.is_here(function_id)

    def _pump(self) -> None:
        """Give the user thread everything that can begin, in order."""
        while self._waiting:
            task = self._waiting[0]
            if not task.is_claimed():
                template = task.header.template
                if not self._environment_ready:
                    if self._preparing is None:
                        preparing = self._prepare(template)
                        self._preparing = asyncio.get_running_loop().create_task(preparing, name="prepare_environment")
                    return
                if not self._functions.is_here(template.function_id):
                    self._functions.fetch(template.shape.job_id, template.function_id, self._pump)
                    return
                if task.fetching is not None:
                    return
                self._start(task)
            self._waiting.popleft()

    def _start(self, task: ReceivedTask) -> None:
        """Everything is here: hand it to the user thread, unless an argument was lost after its owner had seen it."""
        error = next((stored for stored in task.slots if stored.is_error), None) if task.slots else None
        if error is None:
            self._platform.user_code.run(partial(self._executor.execute, task), partial(self._on_executed, task))
        elif task.claim():
            self._answer_error(task, ENVIRONMENT_FAILED, error.data)

    async def _prepare(self, template: TaskTemplate) -> None:
        try:
            await self._surroundings.prepare_environment(template)
        except Exception as problem:
            error = problem if isinstance(problem, RuntimeEnvSetupError) else RuntimeEnvSetupError(reason=repr(problem))
            for task in list(self._waiting):
                if task.claim():
                    self._answer_error(task, ENVIRONMENT_FAILED, self._pack(task, error))
            self._preparing = None
            return
        self._environment_ready = True
        self._pump()

    def _pack(self, task: ReceivedTask, error: BaseException) -> bytes:
        name, pid = task.header.template.name, self._platform.processes.pid
        return pack_exception(error, task_name=name, pid=pid, node_id=self._own.node_id.hex(), ip=self._node_ip)

    # --- answers

    def _on_executed(self, task: ReceivedTask) -> None:
        """The user thread is through with a task, or has passed it over."""
        execution, task.execution = task.execution, None
        if execution is None:
            return
        exiting = self._executor.used_up
        if task.held or any(value.refs for value in execution.values):
            self._begin_answer(task, self._answer_slowly(task, execution, exiting))
        elif execution.status == OK:
            beside: list[Any] = []
            first = execution.values[0].stored if len(execution.values) == 1 else None
            if first is not None and not first.buffers and first.place is None:
                values = [Value(first.data)]
            else:
                values = to_values(((value.stored, []) for value in execution.values), beside)
            self._answer(task, PushTaskReply(OK, values, execution.duration_us, False, exiting), beside)
        else:
            self._answer_failed(task, execution, exiting)

    def _begin_answer(self, task: ReceivedTask, answer: Coroutine[Any, Any, None]) -> None:
        answering = asyncio.get_running_loop().create_task(answer, name=f"answer({short(task.task_id)})")
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer_slowly(self, task: ReceivedTask, execution: Execution, exiting: bool) -> None:
        """References are involved: those in the result get tickets, those that stay here too, before the owner hears."""
        kept = self._references.keep_after_task(task.held)
        if kept:
            await self._borrowing.keep(kept)
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
        self._release(task)
        self._answer(task, PushTaskReply(OK, values, execution.duration_us, False, exiting), beside)

    def _answer(self, task: ReceivedTask, reply: PushTaskReply, beside: Sequence[Buffer]) -> None:
        task.reply = reply
        task.reply_buffers = beside
        for call in task.calls:
            call.reply(reply, beside)
        task.stored_args = None
        task.slots = []
        if reply.worker_exiting:
            self._begin_exit()

    def _answer_error(self, task: ReceivedTask, status: int, error: bytes) -> None:
        """It has not run. Somebody may still be asking for its arguments, though."""
        execution = Execution(status, [], error, 0, False)
        if self._references.keep_after_task(task.held):
            self._begin_answer(task, self._answer_slowly(task, execution, False))
        else:
            self._answer_failed(task, execution, False)

    def _answer_failed(
        self, task: ReceivedTask, execution: Execution, exiting: bool, nested: Sequence[list[RefInfo]] = ()
    ) -> None:
        beside: list[Any] = []
        stored = [*(value.stored for value in execution.values), StoredObject(execution.error, (), True, ())]
        values = to_values(zip(stored, itertools.chain(nested, itertools.repeat([])), strict=False), beside)
        reply = PushTaskReply(execution.status, values, execution.duration_us, execution.retryable, exiting)
        self._release(task)
        self._answer(task, reply, beside)

    def _release(self, task: ReceivedTask) -> None:
        """The task lets go of its arguments."""
        if task.held:
            effects = Effects()
            self._references.remove_submitted(task.held, effects)
            task.held = []
            self._borrowing.apply(effects)

    # --- taking back, cancelling, ending

    def give_back_unstarted(self) -> None:
        """Answer NOT_STARTED for all that has not begun."""
        for task in list(self._tasks.values()):
            self._give_back(task)

    def _give_back(self, task: ReceivedTask) -> None:
        if not task.claim():
            return
        kept = self._references.keep_after_task(task.held)
        if kept:
            self._begin_answer(task, self._give_back_slowly(task, kept))
        else:
            self._answer_unstarted(task)

    async def _give_back_slowly(self, task: ReceivedTask, kept: list[tuple[bytes, Address]]) -> None:
        await self._borrowing.keep(kept)
        self._answer_unstarted(task)

    def _answer_unstarted(self, task: ReceivedTask) -> None:
        self._release(task)
        self._answer(task, PushTaskReply(NOT_STARTED, [], 0, worker_exiting=self._exiting), ())

    def on_blocked(self, blocked: bool) -> None:
        """The running task begins to wait for objects, or goes on."""
        self._blocked = blocked
        if blocked:
            self.give_back_unstarted()

    def handle_ReclaimTasks(self, request: ReclaimTasks, call: Call) -> Done:
        if request.lease_id == self._lease_id:
            self.give_back_unstarted()
        return DONE

    def handle_CancelTask(self, request: CancelTask, call: Call) -> CancelTaskReply:
        for task in self._tasks.values():
            if task.task_id == request.task_id and task.attempt == request.attempt and task.reply is None:
                return self._cancel(task, request)
        return CancelTaskReply(False, False)

    def _cancel(self, task: ReceivedTask, request: CancelTask) -> CancelTaskReply:
        task.cancelled = True
        if task.claim():
            error = TaskCancelledError(task_name=task.header.template.name, task_id_hex=task.task_id.hex())
            self._answer_error(task, CANCELLED, self._pack(task, error))
            self._pump()
            return CancelTaskReply(True, False)
        if request.recursive:
            self._surroundings.cancel_children(task.task_id, request.force)
        if request.force:
            asyncio.get_running_loop().call_later(0.02, self._exit_if_running, task)
        else:
            self._platform.user_code.interrupt(lambda: self._executor.current is task)
        return CancelTaskReply(True, True)

    def _exit_if_running(self, task: ReceivedTask) -> None:
        """A forced cancel, a moment later so that the children's cancellations and other replies have left."""
        if self._executor.current is task:
            self._platform.processes.exit(1)

    def _begin_exit(self) -> None:
        if not self._exiting:
            self._exiting = True
            self.give_back_unstarted()
            self._surroundings.on_exiting()

    def is_idle(self) -> bool:
        """No task is here that has not been answered."""
        return all(task.reply is not None for task in self._tasks.values()) and not self._answering

    def close(self) -> None:
        for answering in list(self._answering):
            answering.cancel()
        if self._preparing is not None:
            self._preparing.cancel()
