"""Begins and ends an actor in the process that it lives in.

Ray: CoreWorker::Exit and its drain in src/ray/core_worker/core_worker.cc, graceful_shutdown in python/ray/actor.py

A worker becomes an actor's process when it runs the constructor, and it ends with the actor. An actor may end by itself, or
because no handle of it is left. Its process then takes these steps:

  * It begins no more calls, and lets the running ones finish (C2).
  * It waits until no process depends on objects that it owns. It does not wait for its own actors, which end with it (G25).
    It waits no longer than ``actor_graceful_shutdown_timeout_ms`` (G28): a dependant may wait for a call of this actor that
    never begins. Meanwhile it lends its CPUs.
  * It runs the user's clean-up (G27), tells the gcs, and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from minray.common.ids import short_actor
from minray.core_worker.execution.actor_process import ActorProcess
from minray.core_worker.execution.actor_task_receiver import ActorTaskReceiver
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.core_worker.execution.task_intake import TaskIntake
from minray.core_worker.ground.process import Process
from minray.core_worker.records.received_task import ReceivedTask
from minray.errors.packed_exception import describe_packed
from minray.platform.base import PlatformError
from minray.protocol.actor import ReportActorEnding, ReportActorExit
from minray.protocol.base import Address
from minray.protocol.core_worker import FAILED
from minray.protocol.gcs import GetWorkerDeath, GetWorkerDeathReply

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.01
"""Seconds between two looks of an ending actor at whether it may end. Nothing signals that; a look costs little."""


class Dependants(Protocol):
    """The part of the core worker that knows what still needs the process of an ending actor."""

    def is_through(self) -> bool:
        """Whether nothing depends on this process any more, except actors that it has created."""

    def lend_cpus(self) -> None:
        """Let other tasks use this process's CPUs: the tasks that it waits for may need them."""

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        """Cancel the tasks that a task of this process has submitted."""


class ActorHost:
    """Begins and ends the actor of this process. It makes the actor's task receiver and implements its surroundings."""

    def __init__(self, process: Process, executor: TaskExecutor, intake: TaskIntake, dependants: Dependants) -> None:
        self._process = process
        self._executor = executor
        self._dependants = dependants
        self.cancel_children = dependants.cancel_children
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

    async def _end(self, actor: ActorProcess, reason: str) -> None:
        process, dependants = self._process, self._dependants
        while actor.constructor.reply is None or not self.receiver.is_idle():
            await asyncio.sleep(LOOK_AGAIN_S)
        if not dependants.is_through():
            dependants.lend_cpus()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(process.config.system_config.actor_graceful_shutdown_timeout_ms / 1000):
                while not dependants.is_through():
                    await asyncio.sleep(LOOK_AGAIN_S)
        shut_down = asyncio.Event()
        actor.shut_down(shut_down.set)
        await shut_down.wait()
        try:
            await process.gcs.call(ReportActorExit(actor.actor_id, process.config.worker_id, reason))
        except PlatformError as error:
            logger.warning("the gcs could not be told that an actor ends: %s", error)
        process.platform.processes.exit(0)
