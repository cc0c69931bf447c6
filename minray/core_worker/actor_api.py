"""What user threads may do with actors: create, find, call and kill them.

Ray: the methods of CoreWorker around actors that python/ray/_raylet.pyx calls

Creating an actor without a name asks nobody: the gcs hears of it while the program goes on. One with a name is registered
before its handle exists, because the name may be taken (G31). An interrupt is not raised in this file, but where it waits
(see ``platform.main_thread``), so that what is registered is also created.
"""

from __future__ import annotations

from typing import Any

from minray.common.ids import actor_of, task_of
from minray.core_worker.actor_task_submitter import ActorClient
from minray.core_worker.named_actors import HeldActor
from minray.core_worker.task_manager import PreparedTemplate
from minray.core_worker.user_api import UserApi
from minray.exceptions import ActorDiedError
from minray.object_ref import ObjectRef
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

KILL_ID_BYTES = 16


class ActorApi:
    """The actors' side of one ``UserApi``; safe in any thread but the loop's."""

    def __init__(self, api: UserApi) -> None:
        self._api = api
        self._core = api.core

    def create(
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
        """A new actor, the reference that keeps it alive, True; or the one that has the name, its reference, False."""
        core = self._core
        task, _held = self._api.make_task(prepared, args, kwargs)
        actor_id = actor_of(task.task_id)
        info = ActorInfo(
            actor_id,
            DEPENDENCIES_UNREADY,
            spec.class_name,
            name,
            namespace,
            core.address,
            detached,
            max_restarts,
            0,
            encode(spec),
        )
        if not name:
            self._api.post(core.actors.create, task, info, placement, False)
            return info, ObjectRef(task.task_id + b"\0\0\0\1", core.address, core.drop_ref), True
        try:
            held: HeldActor = self._api.run_on_loop(lambda: core.named_actors.register(info))
        except BaseException:  # cancelled, perhaps: it may be registered, and nobody will have a handle
            self._api.post(core.actors.abandon, actor_id)
            raise
        if held.refused:
            raise ActorDiedError(actor_id=actor_id.hex(), reason=held.refused)
        is_new = held.info is info
        if is_new:
            self._api.post(core.actors.create, task, info, placement, True)
        return held.info, held.ref, is_new

    def client(self, actor_id: bytes, owner: Address, in_order: bool) -> ActorClient:
        return self._core.actors.client(actor_id, owner, in_order)

    def named(self, name: str, namespace: str) -> HeldActor | None:
        """A living actor by its name, with the reference that keeps it alive."""
        held: HeldActor | None = self._api.run_on_loop(lambda: self._core.named_actors.find(name, namespace))
        return held

    def get(self, actor_id: bytes, owner: Address) -> ActorInfo | None:
        reply = self._api.run_on_loop(lambda: self._core.gcs.call(GetActor(actor_id, owner)))
        info: ActorInfo | None = reply.actor
        return info

    def all(self) -> list[ActorInfo]:
        """All that the gcs knows, dead ones too."""
        reply = self._api.run_on_loop(lambda: self._core.gcs.call(ListActors()))
        infos: list[ActorInfo] = reply.actors
        return infos

    def end_own(self, reason: str) -> None:
        """The actor that lives here ends, when its running calls have; a forked copy of its process decides nothing."""
        core = self._core
        if not core.platform.processes.is_copy:
            core.executor.ask_to_exit(reason)
            self._api.post(core.host.end_actor, reason)

    def kill(self, actor_id: bytes, no_restart: bool) -> None:
        """Returns when the gcs has done it; calls that are made here later know of it."""
        core = self._core
        kill_id = core.platform.host.random_bytes(KILL_ID_BYTES)

        async def ask() -> None:
            reply = await core.gcs.call(KillActor(actor_id, kill_id, no_restart))
            if reply.actor is not None and reply.actor.state == DEAD:
                core.actors.on_info(reply.actor)

        self._api.run_on_loop(ask)

    def why(self, actor_id: bytes, owner: Address) -> str:
        """What an actor does, or what its creation waits for."""
        lines: list[str] = self._api.run_on_loop(lambda: self._core.explainer.explain_actor_in_time(actor_id, owner))
        return " <- ".join(lines)

    def namespace(self) -> str:
        return self._core.namespace

    def is_call(self, ref: ObjectRef[Any]) -> bool:
        """Whether a value of ours is made by an actor's call that has not ended."""

        async def look() -> bool:
            task = self._core.tasks.tasks.get(task_of(ref._id))
            return task is not None and task.prepared.client is not None

        found: bool = self._api.run_on_loop(look)
        return found
