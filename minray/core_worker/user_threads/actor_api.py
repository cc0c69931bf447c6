"""The calls of user threads about actors: create, find, call and kill them.

Ray: the methods of CoreWorker around actors that python/ray/_raylet.pyx calls

Creating an actor without a name waits for no process: the gcs hears of the actor while the program goes on. An actor with a
name is registered before its handle exists, because the name may be taken (G31). In this file an interrupt is raised only
where a thread waits (see ``platform.threads.main_thread``), so that a registered actor is also created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minray.common.ids import actor_of, task_of
from minray.core_worker.records.pending_task import ActorClient, PreparedTemplate
from minray.errors.tracebacks import hides_from_pytest
from minray.exceptions import ActorDiedError
from minray.protocol.actor import (
    DEAD,
    DEPENDENCIES_UNREADY,
    ActorInfo,
    GetActor,
    HandleSpec,
    KillActor,
    ListActors,
)
from minray.protocol.base import Address, encode
from minray.values.object_ref import ObjectRef

if TYPE_CHECKING:
    from minray.core_worker.submission.named_actors import HeldActor
    from minray.core_worker.user_threads.user_api import UserApi

__tracebackhide__ = hides_from_pytest

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""

KILL_ID_BYTES = 16
"""Length of the random id of a ``KillActor`` request, so that a repetition does not kill the next incarnation."""


class ActorApi:
    """The actors' part of one ``UserApi``; safe in any thread except the loop's."""

    def __init__(self, api: UserApi) -> None:
        self._api = api
        port = self._port = api.port
        self._process = port.process
        self._actors = port.submission.actors

    def create_actor(
        self,
        prepared: PreparedTemplate,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        placement: list[tuple[str, int]],
        spec: HandleSpec,
        *,
        name: str = "",
        namespace: str = "",
        detached: bool = False,
        max_restarts: int = 0,
    ) -> tuple[ActorInfo, ObjectRef[Any] | None, bool]:
        """Create an actor: return it, the reference that keeps it alive, and True.

        If another actor has the name, return that actor, its reference, and False.
        """
        own = self._process.address
        task, _held = self._api.make_task(prepared, args, kwargs)
        actor_id = actor_of(task.task_id)
        info = ActorInfo(
            actor_id=actor_id,
            state=DEPENDENCIES_UNREADY,
            class_name=spec.class_name,
            name=name,
            namespace=namespace,
            owner=own,
            detached=detached,
            max_restarts=max_restarts,
            restarts=0,
            handle=encode(spec),
        )
        if not name:
            self._api.post(self._actors.creator.create_actor, task, info, placement, False)
            return info, ObjectRef(task.task_id + b"\0\0\0\1", own, self._port.drop_ref), True
        try:
            held: HeldActor = self._api.run_on_loop(lambda: self._port.named_actors.register(info))
        except BaseException:  # cancelled, perhaps: the actor may be registered, but no handle of it will exist
            self._api.post(self._actors.creator.abandon, actor_id)
            raise
        if held.refused:
            raise ActorDiedError(actor_id=actor_id.hex(), reason=held.refused)
        is_new = held.info is info
        if is_new:
            self._api.post(self._actors.creator.create_actor, task, info, placement, True)
        return held.info, held.ref, is_new

    def client(self, actor_id: bytes, owner: Address, in_order: bool) -> ActorClient:
        return self._actors.client(actor_id, owner, in_order)

    def named(self, name: str, namespace: str) -> HeldActor | None:
        """Return the living actor that has a name, with the reference that keeps it alive; None if the name is free."""
        held: HeldActor | None = self._api.run_on_loop(lambda: self._port.named_actors.find(name, namespace))
        return held

    def get_info(self, actor_id: bytes, owner: Address) -> ActorInfo | None:
        reply = self._api.run_on_loop(lambda: self._process.gcs.call(GetActor(actor_id, owner)))
        info: ActorInfo | None = reply.actor
        return info

    def all(self) -> list[ActorInfo]:
        """Return all actors that the gcs knows, dead ones too."""
        reply = self._api.run_on_loop(lambda: self._process.gcs.call(ListActors()))
        infos: list[ActorInfo] = reply.actors
        return infos

    def end_own(self, reason: str) -> None:
        """End the actor of this process when its running calls have ended; do nothing in a forked copy of the process."""
        if not self._process.platform.processes.is_copy:
            self._port.execution.executor.ask_to_exit(reason)
            self._api.post(self._port.execution.host.end_actor, reason)

    def kill(self, actor_id: bytes, no_restart: bool) -> None:
        """Kill an actor; return when the gcs has begun it. Calls that this process makes later know of a death."""
        kill_id = self._process.platform.host.random_bytes(KILL_ID_BYTES)

        async def ask() -> None:
            reply = await self._process.gcs.call(KillActor(actor_id, kill_id, no_restart))
            if reply.actor is not None and reply.actor.state == DEAD:
                self._actors.on_info(reply.actor)

        self._api.run_on_loop(ask)

    def why(self, actor_id: bytes, owner: Address) -> str:
        """Explain what an actor does, or what its creation waits for."""
        lines: list[str] = self._api.run_on_loop(lambda: self._port.explainer.explain_actor_in_time(actor_id, owner))
        return " <- ".join(lines)

    def namespace(self) -> str:
        return self._port.context.namespace

    def is_call(self, ref: ObjectRef[Any]) -> bool:
        """Whether a value that this process owns is made by an actor's call that has not ended."""

        async def look() -> bool:
            task = self._port.submission.tasks.tasks.get(task_of(ref._id))
            return task is not None and task.prepared.client is not None

        found: bool = self._api.run_on_loop(look)
        return found
