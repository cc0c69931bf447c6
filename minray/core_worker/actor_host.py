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
from typing import TYPE_CHECKING, Any

from minray.common.ids import short_actor
from minray.core_worker.actor_process import ActorProcess
from minray.core_worker.task_intake import ReceivedTask
from minray.packed_exception import describe_packed
from minray.platform.base import PlatformError
from minray.protocol.actor import ReportActorEnding, ReportActorExit
from minray.protocol.base import Address
from minray.protocol.core_worker import FAILED
from minray.protocol.gcs import GetWorkerDeath, GetWorkerDeathReply

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.01
"""How often an actor that ends looks whether anybody still depends on it."""


class ActorHost:
    """The process of one actor; the surroundings of its receiver."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core

    def run_constructor(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        """This process is the actor's from now on."""
        core = self._core
        actor = core.actor_receiver.actor = ActorProcess(core.platform, core.executor, task, core.actor_receiver.on_executed)

        def on_over(task: ReceivedTask) -> None:
            failed = task.execution is not None and task.execution.status == FAILED and task.execution.error
            if failed and core.config.system_config.report_unseen_errors:  # perhaps nobody will ever call it
                logger.error("the constructor of an actor has failed:\n%s", describe_packed(failed))
            then(task)

        actor.construct(on_over)

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        self._core.cancel_children(task_id, force)

    def ask_about(self, caller: Address) -> None:
        core = self._core

        def on_answer(reply: GetWorkerDeathReply | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if reply is not None and reply.death is not None:
                core.actor_receiver.on_death(caller.worker_id)

        core.gcs.send(GetWorkerDeath(caller.worker_id, caller.node_id), on_answer)

    def announce_end(self, then: Callable[[], None]) -> None:
        """A call has ended the actor: have the gcs know that before the caller."""
        actor = self._core.actor_receiver.actor
        assert actor is not None
        request = ReportActorEnding(actor.actor_id, self._core.config.worker_id)
        self._core.patient.send_to_gcs(request, lambda _reply, _error, _buffers: then())

    def end_actor(self, reason: str) -> None:
        """In an orderly way, and for good."""
        actor = self._core.actor_receiver.actor
        if actor is None or actor.is_ending:
            return
        actor.is_ending = True
        self._core.actor_receiver.stop_beginning()
        name = f"end_actor({short_actor(actor.actor_id)})"
        self._core.background.add(asyncio.get_running_loop().create_task(self._end(actor, reason), name=name))

    async def _end(self, actor: ActorProcess, reason: str) -> None:
        core = self._core
        while actor.constructor.reply is None or not core.actor_receiver.is_idle():
            await asyncio.sleep(LOOK_AGAIN_S)
        if not core.is_through():
            core.waiting.begin_to_end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(core.config.system_config.actor_graceful_shutdown_timeout_ms / 1000):
                while not core.is_through():
                    await asyncio.sleep(LOOK_AGAIN_S)
        shut_down = asyncio.Event()
        actor.shut_down(shut_down.set)
        await shut_down.wait()
        try:
            await core.gcs.call(ReportActorExit(actor.actor_id, core.config.worker_id, reason))
        except PlatformError as error:
            logger.warning("the gcs could not be told that an actor ends: %s", error)
        core.platform.processes.exit(0)
