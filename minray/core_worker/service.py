"""Handles the messages of other processes to a core worker: one handler per message, most of them one line.

Ray: the Handle... methods of src/ray/core_worker/core_worker.h

A handler passes the request to the part of the core worker that answers it, and shapes the reply. The few handlers that
wait are ``async``: they wait for a value, for tickets (the owners' notes of a borrower) of the references inside, or for
another process's explanation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from minray.core_worker.execution.task_execution import TaskExecution
from minray.core_worker.fetching.results import check_references
from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.explainer import Explainer
from minray.core_worker.introspection.stats import Statistician
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore, Waiter
from minray.core_worker.ownership.object_deletion import ObjectDeletion
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.object_locator import ObjectLocator
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.values import to_value, to_values
from minray.core_worker.submission.task_submission import TaskSubmission
from minray.protocol.actor import ExitActor, ExplainCall, GiveUpCalls, PushActorTask
from minray.protocol.base import DONE, Address, Done
from minray.protocol.core_worker import (
    FREED,
    LARGE,
    PENDING,
    READY,
    AddBorrower,
    AddBorrowerReply,
    CancelObject,
    CancelTask,
    CancelTaskReply,
    CheckTickets,
    CheckTicketsReply,
    CoreWorkerStats,
    DeleteObjects,
    ExitWorker,
    ExitWorkerReply,
    Explain,
    ExplainRun,
    Explanation,
    GeneratorItemReply,
    GetCoreWorkerStats,
    GetObject,
    GetObjectLocations,
    GetObjects,
    LeaveNode,
    LocalGC,
    ObjectLocations,
    ObjectReplies,
    ObjectReply,
    PrintLines,
    PushTask,
    PushTaskReply,
    RayletEnds,
    ReclaimTasks,
    RefInfo,
    RemoveBorrower,
    ReportGeneratorItem,
    RevokeLeases,
    UpdateObjectLocations,
    WaitForReader,
)
from minray.protocol.gcs import CheckAlive
from minray.protocol.state import (
    GetBreakpoints,
    GetMetrics,
    GetProfileEvents,
    GetStacks,
    GetTasksInfo,
    ProcessBreakpoints,
    ProcessMetrics,
    ProcessStacks,
    ProfileEvents,
    TasksInfo,
)
from minray.rpc.service import Call


def is_larger(stored: StoredObject, inline_limit: int) -> bool:
    """Whether a value is too large to be sent to a process that asks with this limit; a negative limit allows any size."""
    return inline_limit >= 0 and (stored.place is not None or stored.size() > inline_limit)


class Parts(Protocol):
    """The parts of a core worker that messages are passed to; they exist when the first message arrives."""

    process: Process
    # --- objects
    references: ReferenceCounter
    store: MemoryStore
    borrowing: Borrowing
    directory: ObjectDirectory
    locator: ObjectLocator
    deletion: ObjectDeletion
    # --- tasks
    submission: TaskSubmission
    execution: TaskExecution
    # --- explanations and state
    statistician: Statistician
    explainer: Explainer
    # --- the whole process
    on_lines: Callable[[PrintLines], None] | None
    """Function that shows the output of workers; None in a worker."""
    end_of_raylet: str
    """The reason that the raylet has given for its end; empty if it has given none."""

    def is_free(self) -> bool:
        """Whether nothing depends on this process."""

    def report_last(self) -> None:
        """Tell the gcs and the raylet what they keep when this process has ended in order."""


class CoreWorkerService:
    """Handles the messages that one driver or worker receives."""

    def __init__(self, core: Parts) -> None:
        self._core = core

    def handle_PushTask(self, request: PushTask, call: Call) -> PushTaskReply | None:
        return self._core.execution.receiver.handle_PushTask(request, call)

    def handle_PushActorTask(self, request: PushActorTask, call: Call) -> PushTaskReply | None:
        return self._core.execution.actor_receiver.handle_PushActorTask(request, call)

    def handle_GiveUpCalls(self, request: GiveUpCalls, call: Call) -> Done:
        self._core.execution.actor_receiver.handle_GiveUpCalls(request)
        return DONE

    def handle_ExitActor(self, request: ExitActor, call: Call) -> Done:
        return self._core.execution.actor_receiver.handle_ExitActor(request, call)

    def handle_CancelTask(self, request: CancelTask, call: Call) -> CancelTaskReply:
        reply = self._core.execution.actor_receiver.cancel(request)
        return reply if reply is not None else self._core.execution.receiver.handle_CancelTask(request, call)

    def handle_ReclaimTasks(self, request: ReclaimTasks, call: Call) -> Done:
        return self._core.execution.receiver.handle_ReclaimTasks(request, call)

    def handle_ReportGeneratorItem(self, request: ReportGeneratorItem, call: Call) -> GeneratorItemReply:
        return self._core.submission.generators.on_report(request, call.buffers)

    def handle_WaitForReader(self, request: WaitForReader, call: Call) -> GeneratorItemReply | None:
        return self._core.submission.generators.on_wait(request, call)

    def handle_CancelObject(self, request: CancelObject, call: Call) -> Done:
        self._core.submission.cancel_task(request.object_id, self._core.process.address, request.force, request.recursive)
        return DONE

    async def handle_GetObject(self, request: GetObject, call: Call) -> ObjectReply | None:
        object_id, question = request.object_id, request.question
        stored = self._answer_to(object_id, question)
        if stored is None and self._core.references.is_in_scope(object_id):
            if not await self._arrives(object_id, request.timeout_s):
                return ObjectReply(PENDING)
            stored = self._answer_to(object_id, question)
        if stored is None:
            return ObjectReply(FREED)
        if is_larger(stored, request.inline_limit):
            return ObjectReply(LARGE, place=stored.place)
        stored.hand_over()
        nested = await self._lend_nested(object_id, stored, request.requester, question)
        beside: list[Any] = []
        call.reply(ObjectReply(READY, to_value(stored, nested, beside)), beside)
        return None

    def _answer_to(self, object_id: bytes, question: bytes) -> StoredObject | None:
        """Return the value that was sent as the answer to this question before, else the object's value."""
        return self._core.references.answer_to(object_id, question) or self._core.store.objects.get(object_id)

    async def _lend_nested(
        self, object_id: bytes, stored: StoredObject, requester: Address, question: bytes
    ) -> Sequence[RefInfo]:
        """Return the references inside a value, with tickets for the process that the value is sent to.

        A ticket for the object itself, named after the question, comes first. It keeps the object, and this answer to the
        question, until that process has got the answer. If that ticket was given back, this question is a late repetition,
        and nobody hears the answer.
        """
        check_references(len(stored.nested), self._core.process.config.system_config.max_references_per_answer)
        borrowing, own = self._core.borrowing, self._core.process.address
        if not stored.nested or not borrowing.lend_as_owner(object_id, requester, question, own, stored):
            return stored.nested
        refs = [(info.object_id, info.owner) for info in stored.nested]
        return borrowing.lend_now(refs, requester, question) or await borrowing.lend(refs, requester, question)

    async def handle_GetObjects(self, request: GetObjects, call: Call) -> None:
        replies: list[ObjectReply | None] = []
        ready: list[tuple[bytes, StoredObject, bytes]] = []
        for one in request.questions:
            stored = self._answer_to(one.object_id, one.question)
            if stored is None:
                is_known = self._core.references.reference_of(one.object_id) is not None
                replies.append(ObjectReply(PENDING if is_known else FREED))
            elif is_larger(stored, one.inline_limit):
                replies.append(ObjectReply(LARGE, place=stored.place))
            else:
                stored.hand_over()
                replies.append(None)
                ready.append((one.object_id, stored, one.question))
        asker = request.requester
        nested = [await self._lend_nested(object_id, stored, asker, question) for object_id, stored, question in ready]
        beside: list[Any] = []
        values = iter(to_values(zip((stored for _, stored, _ in ready), nested, strict=True), beside))
        call.reply(ObjectReplies([reply or ObjectReply(READY, next(values)) for reply in replies]), beside)

    async def _arrives(self, object_id: bytes, timeout_s: float) -> bool:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_here() -> None:
            if not arrived.done():
                arrived.set_result(None)

        waiter = Waiter(1, False, on_here)
        self._core.store.wait([object_id], waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await arrived
        except TimeoutError:
            self._core.store.stop_waiting([object_id], waiter)
            return False
        return True

    def handle_AddBorrower(self, request: AddBorrower, call: Call) -> AddBorrowerReply:
        return AddBorrowerReply(self._core.borrowing.lend_to(request))

    def handle_RemoveBorrower(self, request: RemoveBorrower, call: Call) -> Done:
        self._core.borrowing.take_back(request.loans)
        return DONE

    def handle_GetObjectLocations(self, request: GetObjectLocations, call: Call) -> ObjectLocations:
        return self._core.locator.answer(request.object_id, request.receiver, request.number)

    def handle_UpdateObjectLocations(self, request: UpdateObjectLocations, call: Call) -> Done:
        self._core.directory.on_update(request.raylet, request.number, request.changes)
        return DONE

    def handle_DeleteObjects(self, request: DeleteObjects, call: Call) -> Done:
        self._core.deletion.delete_owned(request.object_ids)
        return DONE

    def handle_GetCoreWorkerStats(self, request: GetCoreWorkerStats, call: Call) -> CoreWorkerStats:
        return self._core.statistician.stats(request)

    def handle_GetTasksInfo(self, request: GetTasksInfo, call: Call) -> TasksInfo:
        return self._core.statistician.tasks(request)

    def handle_GetProfileEvents(self, request: GetProfileEvents, call: Call) -> ProfileEvents:
        return self._core.statistician.profile(request)

    def handle_GetStacks(self, request: GetStacks, call: Call) -> ProcessStacks:
        return self._core.statistician.stacks()

    def handle_GetMetrics(self, request: GetMetrics, call: Call) -> ProcessMetrics:
        return self._core.statistician.metrics()

    def handle_GetBreakpoints(self, request: GetBreakpoints, call: Call) -> ProcessBreakpoints:
        return self._core.statistician.breakpoints()

    def handle_CheckTickets(self, request: CheckTickets, call: Call) -> CheckTicketsReply:
        return CheckTicketsReply(self._core.borrowing.missing(request.lender_id, request.loans))

    async def handle_Explain(self, request: Explain, call: Call) -> Explanation:
        return Explanation(await self._core.explainer.explain(request.object_id, self._core.process.address, request.depth))

    async def handle_ExplainRun(self, request: ExplainRun, call: Call) -> Explanation:
        return Explanation(await self._core.explainer.explain_wait(request.task_id, request.depth))

    async def handle_ExplainCall(self, request: ExplainCall, call: Call) -> Explanation:
        return Explanation(await self._core.explainer.actors.explain_here(request))

    def handle_RevokeLeases(self, request: RevokeLeases, call: Call) -> Done:
        self._core.submission.submitter.on_revoke(self._core.process.now())
        return DONE

    def handle_LocalGC(self, request: LocalGC, call: Call) -> Done:
        self._core.process.platform.user_code.collect_later(at_once=True)
        return DONE

    def handle_RayletEnds(self, request: RayletEnds, call: Call) -> Done:
        self._core.end_of_raylet = request.reason
        if request.is_decided:
            self._core.process.raylet.give_up(request.reason)
        return DONE

    def handle_LeaveNode(self, request: LeaveNode, call: Call) -> Done:
        self._core.submission.submitter.on_node_leaving(request.node_id, self._core.process.now())
        return DONE

    def handle_ExitWorker(self, request: ExitWorker, call: Call) -> ExitWorkerReply:
        if not request.force and (self._core.process.breakpoints or not self._core.is_free()):
            return ExitWorkerReply(False)
        self._core.process.is_exiting = True
        self._core.report_last()
        asyncio.get_running_loop().call_later(0.01, self._core.process.platform.processes.exit, 0)
        return ExitWorkerReply(True)

    def handle_PrintLines(self, request: PrintLines, call: Call) -> Done:
        if self._core.on_lines is not None:
            self._core.on_lines(request)
        return DONE

    def handle_CheckAlive(self, request: CheckAlive, call: Call) -> Done:
        return DONE
