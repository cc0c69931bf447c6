"""Begins and ends an actor in the process that it lives in.

Ray: CoreWorker::Exit and its drain in src/ray/core_worker/core_worker.cc, graceful_shutdown in python/ray/actor.py

A worker becomes an actor's process when it runs the constructor, and it ends with the actor. An actor may end by itself, or
because no handle of it is left. Its process then takes these steps:

  * It begins no more calls, and lets the running ones finish (C2). Calls that come too late fail. Running calls have
    ``actor_graceful_shutdown_timeout_ms``; coroutines are then cancelled. If a call goes on even so, the process ends
    without the steps that follow (G28).
  * It waits until no process depends on objects that it owns. It does not wait for its own actors, which end with it (G25).
    It waits no longer than that time (G28): a dependant may wait for a call of this actor that never begins. Meanwhile it
    lends its CPUs.
  * It runs the user's clean-up (G27), tells the gcs, and exits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from minray.common.ids import short_actor
from minray.core_worker.execution.actor_process import ActorProcess
from minray.core_worker.execution.actor_task_receiver import ActorTaskReceiver
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.core_worker.execution.task_intake import TaskIntake
from minray.core_worker.fetching.blocked_tasks import BlockedTasks
from minray.core_worker.ground.process import Process
from minray.core_worker.records.received_task import ReceivedTask
from minray.errors.packed_exception import describe_packed
from minray.exceptions import ActorDiedError
from minray.platform.base import PlatformError
from minray.protocol.actor import ReportActorEnding, ReportActorExit
from minray.protocol.base import Address
from minray.protocol.core_worker import FAILED
from minray.protocol.gcs import GetWorkerDeath, GetWorkerDeathReply

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.01
"""Seconds between two looks of an ending actor at whether it may end. Nothing signals that; a look costs little."""
CUT_OFF_S = 1.0
"""Seconds that coroutines get to handle their cancellation when their actor's time is up: enough for a ``finally``."""


class ActorHost:
    """Begins and ends the actor of this process. It makes the actor's task receiver and implements its surroundings."""

    def __init__(
        self,
        process: Process,
        executor: TaskExecutor,
        intake: TaskIntake,
        blocked: BlockedTasks,
        cancel_children: Callable[[bytes, bool], None],
        is_through: Callable[[], bool],
        report_last: Callable[[], None],
    ) -> None:
        """Serve one process; the three functions are described at ``TaskExecution``."""
        self._process = process
        self._report_last = report_last
        self._executor = executor
        self._intake = intake
        self._blocked = blocked
        self.cancel_children = cancel_children
        self._is_through = is_through
        self._refused: list[ReceivedTask] = []
        """Calls that never begin, until they are answered."""
        self._is_announced = False
        """Whether the gcs knows that the actor exits, so that calls may fail for it."""
        max_wait_s = process.config.system_config.actor_scheduling_queue_max_reorder_wait_seconds
        self.receiver = ActorTaskReceiver(process.platform, executor, intake, self, max_wait_s)

    def run_constructor(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        """Dedicate this process to the actor for the rest of its life, and run the constructor."""
        platform, receiver, system = self._process.platform, self.receiver, self._process.config.system_config
        actor = receiver.actor = ActorProcess(platform, self._executor, task, receiver.on_executed)

        def on_over(task: ReceivedTask) -> None:
            failed = task.execution is not None and task.execution.status == FAILED and task.execution.error
            if failed and system.report_unseen_errors:  # the error shows up nowhere else if no method is ever called
                logger.error("the constructor of an actor has failed:\n%s", describe_packed(failed))
            then(task)

        actor.construct(on_over)

    def ask_about(self, caller: Address) -> None:
        """Ask the gcs whether a caller is dead; if so, tell the receiver."""

        def on_answer(reply: GetWorkerDeathReply | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if reply is not None and reply.death is not None:
                self.receiver.on_death(caller.worker_id)

        self._process.gcs.send(GetWorkerDeath(caller.worker_id, caller.node_id), on_answer)

    def announce_end(self, then: Callable[[], None]) -> None:
        """Tell the gcs that a call has ended the actor, then call ``then``: the gcs must know before the caller does."""
        actor = self.receiver.actor
        assert actor is not None
        request = ReportActorEnding(actor.actor_id, self._process.config.worker_id)
        self._process.patient.send_to_gcs(request, lambda _reply, _error, _buffers: then())

    def end_actor(self, reason: str) -> None:
        """Begin the actor's orderly end (see the header); it cannot be undone."""
        actor = self.receiver.actor
        if actor is None or actor.is_ending:
            return
        actor.is_ending = True
        self.receiver.stop_beginning()
        self._process.begin(self._end(actor, reason), f"end_actor({short_actor(actor.actor_id)})")

    def refuse(self, task: ReceivedTask) -> None:
        """Fail a call that will never begin because the actor exits, as soon as the gcs knows that it does."""
        self._refused.append(task)
        if self._is_announced:
            self._fail_refused()

    def _on_announced(self) -> None:
        self._is_announced = True
        self._fail_refused()

    def _fail_refused(self) -> None:
        refused, self._refused = self._refused, []
        for task in refused:
            error = ActorDiedError(actor_id=task.actor_id.hex(), reason=self._executor.wants_exit)
            self._intake.answer_error(task, FAILED, self._intake.pack(task, error))

    async def _end(self, actor: ActorProcess, reason: str) -> None:
        process = self._process
        if self._executor.wants_exit:
            self.announce_end(self._on_announced)
        grace_s = process.config.system_config.actor_graceful_shutdown_timeout_ms / 1000
        ends_at = asyncio.get_running_loop().time() + grace_s
        if await self._until(lambda: self._is_idle(actor), ends_at) or await self._cut_off(actor, grace_s):
            if not self._is_through():
                self._blocked.begin_to_end()  # the tasks that this process waits for may need its CPUs
                await self._until(self._is_through, ends_at)
            await self._clean_up(actor, grace_s)
        self._report_last()
        try:
            await process.gcs.call(ReportActorExit(actor.actor_id, process.config.worker_id, reason))
        except PlatformError as error:
            logger.warning("the gcs could not be told that an actor ends: %s", error)
        process.platform.processes.exit(0)

    def _is_idle(self, actor: ActorProcess) -> bool:
        """Whether neither the constructor nor a call runs."""
        return actor.constructor.reply is not None and self.receiver.is_idle()

    @staticmethod
    async def _until(is_so: Callable[[], bool], ends_at: float) -> bool:
        """Wait for a condition; return whether it came true before the time ``ends_at`` of the loop's clock."""
        while not is_so():
            if asyncio.get_running_loop().time() >= ends_at:
                return False
            await asyncio.sleep(LOOK_AGAIN_S)
        return True

    async def _cut_off(self, actor: ActorProcess, grace_s: float) -> bool:
        """Cancel the coroutines that still run; return whether they have ended. Threads cannot be ended."""
        calls = self.receiver.unanswered()
        names = ", ".join(sorted({task.header.template.name for task in calls})) or "its constructor"
        logger.warning("an actor that exits ends %s, which has not finished within %g s", names, grace_s)
        self._executor.make_leave(calls)
        for task in calls:
            actor.cancel_call(task)
        return await self._until(lambda: self._is_idle(actor), asyncio.get_running_loop().time() + CUT_OFF_S)

    async def _clean_up(self, actor: ActorProcess, grace_s: float) -> None:
        shut_down = asyncio.Event()
        actor.shut_down(shut_down.set)
        try:
            async with asyncio.timeout(grace_s):
                await shut_down.wait()
        except TimeoutError:
            logger.warning("the clean-up of an actor has not finished within %g s, and is broken off", grace_s)
