"""Changes that a dashboard with ``--allow-control`` makes: cancel a task, kill an actor, drain a node.

Ray: has no counterpart; its page changes nothing but jobs

A change is JSON with ids in full. An unknown name or a wrong type is an error, and nothing is changed then.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from minray.common.decoding import MALFORMED
from minray.dashboard.cluster_state import DashboardState, NotFound
from minray.protocol.actor import KillActor
from minray.protocol.core_worker import CancelObject
from minray.protocol.gcs import IDLE_TERMINATION, PREEMPTION, DrainNode

S = TypeVar("S", bound=msgspec.Struct)

KILL_ID_BYTES = 16
"""Length of the random id of a ``KillActor`` request, so that a repetition does not kill the next incarnation."""


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    """Cancels a task or an actor's call, as ``cancel`` does."""

    task_id: str
    force: bool = False
    recursive: bool = True


class Kill(msgspec.Struct, forbid_unknown_fields=True):
    """Kills an actor, as ``kill`` does."""

    actor_id: str
    no_restart: bool = True


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """Makes a node leave, as ``minray drain-node`` does."""

    node_id: str
    message: str = "drained from the dashboard"
    is_preempted: bool = True
    """Whether the node leaves although it is not idle; then its tasks may end first."""
    deadline_remaining_seconds: float = 0.0


class Control:
    """Carries out changes."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state

    async def change(self, kind: str, body: bytes) -> dict[str, Any]:
        """Carry out a change. Raises NotFound, ValueError, and the errors of a question to a process."""
        if kind == "cancel":
            return await self._cancel(_decoded(body, Cancel))
        if kind == "kill":
            return await self._kill(_decoded(body, Kill))
        if kind == "drain":
            return await self._drain(_decoded(body, Drain))
        raise NotFound("there is no such change: there are cancel, kill and drain")

    async def _cancel(self, wanted: Cancel) -> dict[str, Any]:
        object_id, owner = await self._state.owner_of_task(_id(wanted.task_id))
        await self._state.ask(owner, CancelObject(object_id, wanted.force, wanted.recursive))
        return {"done": f"the owner of task {wanted.task_id} was asked to cancel it"}

    async def _kill(self, wanted: Kill) -> dict[str, Any]:
        actor_id = _id(wanted.actor_id)
        if all(info.actor_id != actor_id for info in await self._state.newest_actors()):
            raise NotFound(f"no actor has the id {wanted.actor_id}")
        kill_id = self._state.connection.platform.host.random_bytes(KILL_ID_BYTES)
        reply = await self._state.ask_gcs(KillActor(actor_id, kill_id, wanted.no_restart))
        state = f"; its state is {reply.actor.state}" if reply.actor is not None else ""
        return {"done": f"actor {wanted.actor_id} is being killed{state}"}

    async def _drain(self, wanted: Drain) -> dict[str, Any]:
        node_id = _id(wanted.node_id)
        if all(info.node_id != node_id for info in (await self._state.census()).value.nodes):
            raise NotFound(f"no node has the id {wanted.node_id}")
        remaining_s = wanted.deadline_remaining_seconds
        if not 0 <= remaining_s < 1e9:
            raise ValueError(f"deadline_remaining_seconds must be a number from 0, not {remaining_s}")
        deadline = self._state.connection.platform.host.time() + remaining_s if remaining_s else 0.0
        reason = PREEMPTION if wanted.is_preempted else IDLE_TERMINATION
        reply = await self._state.ask_gcs(DrainNode(node_id, reason, wanted.message, deadline))
        if not reply.is_accepted:
            raise ValueError(f"the node refuses to leave: {reply.rejection}")
        return {"done": f"node {wanted.node_id} is leaving the cluster"}


def _decoded(body: bytes, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except MALFORMED as error:
        raise ValueError(f"the body must be JSON for {kind.__name__.lower()}: {error}") from None


def _id(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ValueError(f"{text[:50]!r} is no id: an id has hexadecimal digits only") from None
