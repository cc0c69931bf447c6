"""The beginning and the end of an actor in the process that it lives in.

Ray: CoreWorker::Exit and its drain in src/ray/core_worker/core_worker.cc, graceful_shutdown in python/ray/actor.py

A worker becomes an actor's with the constructor, and ends with the actor. One that ends by its own will, or because nobody
can call it any more, lets its running calls finish (C2) and begins no others; it waits for those who depend on objects that
it owns (not for actors of its own, which end with it, G25), though no longer than a graceful end may take (G28): they may
wait for calls of it that never begin. Meanwhile it lends its CPUs. Then it runs the user's clean-up (G27), tells the gcs,
and goes.
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
"""How often an actor that ends looks whether anybody still depends on it."""


class Dependants(Protocol):
    """Everything that may still need the process of an actor that ends."""

    def is_through(self) -> bool:
        """Whether nothing depends on this process any more, but for actors that it has made."""

    def lend_cpus(self) -> None:
        """Let other tasks use this process's CPUs: what it waits for may need them."""

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        """Cancel the tasks that a task of this process has submitted."""


class ActorHost:
    """The process of one actor; the surroundings of its receiver, which it makes."""

    def __init__(self, process: Process, executor: TaskExecutor, intake: TaskIntake, dependants: Dependants) -> None:
        self._process = process
        self._executor = executor
        self._dependants = dependants
        self.cancel_children = dependants.cancel_children
        max_wait_s = process.config.system_config.actor_scheduling_queue_max_reorder_wait_seconds
        self.receiver = ActorTaskReceiver(process.platform, executor, intake, self, max_wait_s)

    def run_constructor(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        """Make this process the actor's, for good, and run its constructor."""
        platform, receiver, system = self._process.platform, self.receiver, self._process.config.system_config
        actor = receiver.actor = ActorProcess(platform, self._executor, task, receiver.on_executed)

        def on_over(task: ReceivedTask) -> None:
            failed = task.execution is not None and task.execution.status == FAILED and task.execution.error
            if failed and system.report_unseen_errors:  # perhaps nobody will ever call it
                logger.error("the constructor of an actor has failed:\n%s", describe_packed(failed))
            then(task)

        actor.construct(on_over)

    def ask_about(self, caller: Address) -> None:
        """Ask the gcs whether a caller is dead; the receiver hears of it if it is."""

        def on_answer(reply: GetWorkerDeathReply | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if reply is not None and reply.death is not None:
                self.receiver.on_death(caller.worker_id)

        self._process.gcs.send(GetWorkerDeath(caller.worker_id, caller.node_id), on_answer)

    def announce_end(self, then: Callable[[], None]) -> None:
        """Tell the gcs that a call has ended the actor, and go on when it knows: before the caller does."""
        actor = self.receiver.actor
        assert actor is not None
        request = ReportActorEnding(actor.actor_id, self._process.config.worker_id)
        self._process.patient.send_to_gcs(request, lambda _reply, _error, _buffers: then())

    def end_actor(self, reason: str) -> None:
        """In an orderly way, and for good."""
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
