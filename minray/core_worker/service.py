"""What other processes ask of a core worker: one handler per message, most of them a line.

Ray: the Handle... methods of src/ray/core_worker/core_worker.h

A handler names what is asked and shapes the answer; the part of the core worker whose business it is does the rest. The few
that wait are ``async``: for a value, and for tickets of the references inside.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from minray.core_worker.memory_store import StoredObject, Waiter
from minray.core_worker.values import to_value, to_values
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
    GetMetrics,
    GetProfileEvents,
    GetStacks,
    GetTasksInfo,
    ProcessMetrics,
    ProcessStacks,
    ProfileEvents,
    TasksInfo,
)
from minray.rpc.service import Call

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker


def is_larger(stored: StoredObject, inline_limit: int) -> bool:
    """Whether a value is not to be sent to one who asks with this limit."""
    return inline_limit >= 0 and (stored.place is not None or stored.size() > inline_limit)


class CoreWorkerService:
    """The service of one driver or worker."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core

    def handle_PushTask(self, request: PushTask, call: Call) -> PushTaskReply | None:
        return self._core.receiver.handle_PushTask(request, call)

    def handle_PushActorTask(self, request: PushActorTask, call: Call) -> PushTaskReply | None:
        return self._core.actor_receiver.handle_PushActorTask(request, call)

    def handle_GiveUpCalls(self, request: GiveUpCalls, call: Call) -> Done:
        self._core.actor_receiver.handle_GiveUpCalls(request)
        return DONE

    def handle_ExitActor(self, request: ExitActor, call: Call) -> Done:
        return self._core.actor_receiver.handle_ExitActor(request, call)

    def handle_CancelTask(self, request: CancelTask, call: Call) -> CancelTaskReply:
        reply = self._core.actor_receiver.cancel(request)
        return reply if reply is not None else self._core.receiver.handle_CancelTask(request, call)

    def handle_ReclaimTasks(self, request: ReclaimTasks, call: Call) -> Done:
        return self._core.receiver.handle_ReclaimTasks(request, call)

    def handle_ReportGeneratorItem(self, request: ReportGeneratorItem, call: Call) -> GeneratorItemReply:
        return self._core.generators.on_report(request, call.buffers)

    def handle_WaitForReader(self, request: WaitForReader, call: Call) -> GeneratorItemReply | None:
        return self._core.generators.on_wait(request, call)

    def handle_CancelObject(self, request: CancelObject, call: Call) -> Done:
        self._core.cancel(request.object_id, self._core.address, request.force, request.recursive)
        return DONE

    async def handle_GetObject(self, request: GetObject, call: Call) -> ObjectReply | None:
        object_id = request.object_id
        stored = self._core.store.objects.get(object_id)
        if stored is None:
            if not self._core.references.is_in_scope(object_id):
                return ObjectReply(FREED)
            if not await self._arrives(object_id, request.timeout_s):
                return ObjectReply(PENDING)
            stored = self._core.store.objects.get(object_id)
            if stored is None:
                return ObjectReply(FREED)
        if is_larger(stored, request.inline_limit):
            return ObjectReply(LARGE, place=stored.place)
        stored.hand_over()
        nested = await self._lend_nested(stored, request.requester, request.question)
        beside: list[Any] = []
        call.reply(ObjectReply(READY, to_value(stored, nested, beside)), beside)
        return None

    async def _lend_nested(self, stored: StoredObject, requester: Address, question: bytes) -> list[RefInfo]:
        """The references inside a value, with tickets for the one that it is about to be sent to."""
        if not stored.nested:
            return []
        refs = [(info.object_id, info.owner) for info in stored.nested]
        return self._core.borrowing.lend_now(refs, requester, question) or await self._core.borrowing.lend(
            refs, requester, question
        )

    async def handle_GetObjects(self, request: GetObjects, call: Call) -> None:
        replies: list[ObjectReply | None] = []
        ready: list[tuple[StoredObject, bytes]] = []
        for one in request.questions:
            stored = self._core.store.objects.get(one.object_id)
            if stored is None:
                is_known = self._core.references.get(one.object_id) is not None
                replies.append(ObjectReply(PENDING if is_known else FREED))
            elif is_larger(stored, one.inline_limit):
                replies.append(ObjectReply(LARGE, place=stored.place))
            else:
                stored.hand_over()
                replies.append(None)
                ready.append((stored, one.question))
        nested = [await self._lend_nested(stored, request.requester, question) for stored, question in ready]
        beside: list[Any] = []
        values = iter(to_values(zip((stored for stored, _ in ready), nested, strict=True), beside))
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
        return self._core.statistician.account.tasks(request)

    def handle_GetProfileEvents(self, request: GetProfileEvents, call: Call) -> ProfileEvents:
        return self._core.statistician.profile()

    def handle_GetStacks(self, request: GetStacks, call: Call) -> ProcessStacks:
        return self._core.statistician.stacks()

    def handle_GetMetrics(self, request: GetMetrics, call: Call) -> ProcessMetrics:
        return self._core.statistician.metrics()

    def handle_CheckTickets(self, request: CheckTickets, call: Call) -> CheckTicketsReply:
        return CheckTicketsReply(self._core.borrowing.missing(request.lender_id, request.loans))

    async def handle_Explain(self, request: Explain, call: Call) -> Explanation:
        return Explanation(await self._core.explainer.explain(request.object_id, self._core.address, request.depth))

    async def handle_ExplainRun(self, request: ExplainRun, call: Call) -> Explanation:
        return Explanation(await self._core.explainer.explain_wait(request.task_id, request.depth))

    async def handle_ExplainCall(self, request: ExplainCall, call: Call) -> Explanation:
        return Explanation(await self._core.explainer.actors.explain_here(request))

    def handle_RevokeLeases(self, request: RevokeLeases, call: Call) -> Done:
        self._core.submitter.on_revoke(self._core.now())
        return DONE

    def handle_LocalGC(self, request: LocalGC, call: Call) -> Done:
        self._core.platform.user_code.collect_later()
        return DONE

    def handle_RayletEnds(self, request: RayletEnds, call: Call) -> Done:
        self._core.end_of_raylet = request.reason
        return DONE

    def handle_LeaveNode(self, request: LeaveNode, call: Call) -> Done:
        self._core.submitter.on_node_leaving(request.node_id, self._core.now())
        return DONE

    def handle_ExitWorker(self, request: ExitWorker, call: Call) -> ExitWorkerReply:
        if not request.force and not self._core.is_free():
            return ExitWorkerReply(False)
        self._core.is_exiting = True
        asyncio.get_running_loop().call_later(0.01, self._core.platform.processes.exit, 0)
        return ExitWorkerReply(True)

    def handle_PrintLines(self, request: PrintLines, call: Call) -> Done:
        if self._core.on_lines is not None:
            self._core.on_lines(request)
        return DONE

    def handle_CheckAlive(self, request: CheckAlive, call: Call) -> Done:
        return DONE
