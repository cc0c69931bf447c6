"""The table of the cluster's actors: their states, owners and names, and whether they are restarted.

Ray: src/ray/gcs/actor/gcs_actor_manager.h

    DEPENDENCIES_UNREADY -> PENDING_CREATION -> ALIVE
    PENDING_CREATION, ALIVE or RESTARTING -> RESTARTING -> ALIVE
    each of these -> DEAD -> forgotten

Pure, like the other tables of the gcs: a decision (``..._row``) returns the row to store, ``on_committed`` enters it. The
messages and deaths that lead to a decision come to ``actor_service``. ``actor_scheduler`` brings an incarnation to life.

Rules
  * An actor's incarnations are counted by ``restarts``. Each restart uses up one of ``max_restarts`` (G35), except one
    that is due to a preempted node (G21). News of a worker other than the present one changes nothing (S3).
  * An actor is restarted when its worker or node died. It is not restarted when it ended itself, was killed for good, was
    about to end, or its constructor raised (G34). A confirmed death is never taken back (G39b).
  * Unless it is detached, an actor dies with its owner (G25), when no handle is left (G24), and with its job. A job lasts
    as long as its last detached actor. Until its owner has sent ``CreateActor``, a detached actor dies with it, too.
  * An actor that must end before its registration arrives (late, or repeated) is entered as dead, as if it had existed.
  * A name belongs to one actor that is not dead, in its namespace (G31). An actor that is about to end has no name.
  * The last dead actors are kept for late callers and the state API; of older ones only the ids.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from minray.common.ids import job_of_actor, short_actor
from minray.common.state_table import NEW, StateMachine
from minray.common.tombstones import remember
from minray.exceptions import quoted
from minray.gcs.effects import Publication
from minray.platform.base import Record as Recorder
from minray.protocol.actor import (
    ALIVE,
    DEAD,
    DEPENDENCIES_UNREADY,
    OUT_OF_MEMORY,
    PENDING_CREATION,
    RESTARTING,
    WORKER_DIED,
    ActorCreation,
    ActorInfo,
    DeathCause,
    actors_channel,
)
from minray.protocol.base import Address, Record

TRANSITIONS = {
    NEW: (DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING, DEAD),
    DEPENDENCIES_UNREADY: (PENDING_CREATION, DEAD),
    PENDING_CREATION: (ALIVE, RESTARTING, DEAD),
    ALIVE: (RESTARTING, DEAD),
    RESTARTING: (ALIVE, RESTARTING, DEAD),
    DEAD: (NEW,),
}
"""Transitions of an actor's state. NEW leads to any state because a restarted gcs loads actors from its tables."""


class ActorKill(Record, frozen=True):
    """A request to kill an incarnation, after which the next one may begin."""

    kill_id: bytes
    lease_id: bytes
    """Lease of the incarnation; empty: there was no process to kill."""


class ActorRow(Record, frozen=True):
    """An actor as the gcs stores it."""

    info: ActorInfo
    creation: ActorCreation | None = None
    """Call of the constructor; None before its arguments were there, and when the actor is dead."""
    lease_id: bytes = b""
    """Lease of the present incarnation, also while it is being requested; empty: there is none, or it was given back."""
    raylet: Address | None = None
    """Raylet that has, or is asked for, that lease."""
    kill: ActorKill | None = None
    """Last request to kill an incarnation."""

    def is_to_be_killed(self) -> bool:
        """Tell whether the last kill was meant for the present incarnation."""
        return self.kill is not None and bool(self.lease_id) and self.kill.lease_id == self.lease_id

    def needs_owner(self) -> bool:
        """Tell whether the actor ends with its owner; a detached one does so until its owner has sent ``CreateActor``."""
        return not self.info.detached or self.info.state == DEPENDENCIES_UNREADY


class GcsActorManager:
    """Holds the table of actors, and decides each change of it."""

    def __init__(self, record: Recorder | None, max_dead_actors: int) -> None:
        self._max_dead = max_dead_actors
        self._states = StateMachine("actor", TRANSITIONS, record, short_actor)
        self._rows: dict[bytes, ActorRow] = {}
        self._named: dict[tuple[str, str], bytes] = {}
        """Actor ids by (namespace, name), of actors that are neither dead nor about to end."""
        self._of_worker: dict[bytes, bytes] = {}
        """Actor ids by the worker id of their process."""
        self._dead: dict[bytes, None] = {}
        """Ids of dead actors, in the order of their deaths."""
        self._forgotten: OrderedDict[bytes, None] = OrderedDict()
        self._kills: OrderedDict[bytes, None] = OrderedDict()
        """Ids of kill requests that were stored, so that a repetition does not kill the next incarnation."""
        self._outbid: OrderedDict[bytes, ActorInfo] = OrderedDict()
        """Actors that were refused, each with the actor that had its name.

        It is not stored: an answered question is not asked again, and a repeated message reaches the same gcs."""

    def load(self, rows: Iterable[ActorRow], forgotten: Iterable[bytes] = ()) -> list[Publication]:
        """Enter the rows that an earlier gcs has stored, and the ids of those that it has deleted, after a restart."""
        for actor_id in forgotten:
            remember(self._forgotten, actor_id, None)
        in_order = sorted(rows, key=lambda row: (row.info.end_time, row.info.actor_id))
        return [publication for row in in_order for publication in self.on_committed(row)]

    # --- Decisions -------------------------------------------------------------------------------------------------------

    def ending_row(self, row: ActorRow) -> ActorRow | None:
        """Return the row of an actor that is about to end, of itself or without a handle; None if it is dead or ending."""
        if row.info.state == DEAD or row.info.is_ending:
            return None
        return msgspec.structs.replace(row, info=msgspec.structs.replace(row.info, is_ending=True))

    def namesake(self, actor: ActorInfo, instead_of: bytes = b"") -> ActorInfo | None:
        """Return another actor that has the name, or had it at the first request: a repetition gets the same answer.

        ``instead_of``: the actor that the earlier answer named. The caller has learned from its owner that the name is free.
        """
        outbid_by = self._outbid.get(actor.actor_id)
        if outbid_by is not None and outbid_by.actor_id == instead_of:
            del self._outbid[actor.actor_id]
        row = self.named(actor.name, actor.namespace) if actor.name else None
        if actor.actor_id not in self._outbid and row is not None and row.info.actor_id != actor.actor_id:
            remember(self._outbid, actor.actor_id, row.info)
        return self._outbid.get(actor.actor_id)

    def registered_row(self, actor: ActorInfo, now: float) -> ActorRow | None:
        """Return the row of a new actor; None if it is registered, or was."""
        if actor.actor_id in self._rows or actor.actor_id in self._forgotten:
            return None
        return ActorRow(msgspec.structs.replace(actor, state=DEPENDENCIES_UNREADY, restarts=0, start_time=now))

    def doomed_row(self, actor_id: bytes, cause: DeathCause, now: float) -> ActorRow | None:
        """Return the row that marks an unregistered actor as dead; None if the actor was registered."""
        if actor_id in self._rows or actor_id in self._forgotten:
            return None
        nobody = Address(b"", b"", "", "")
        return ActorRow(ActorInfo.of_dead(actor_id, nobody, cause, end_time=now))

    def created_row(self, actor_id: bytes, creation: ActorCreation) -> ActorRow | None:
        """Return the row of an actor whose constructor's arguments are there; None if it is created already."""
        row = self._rows.get(actor_id)
        if row is None or row.info.state != DEPENDENCIES_UNREADY:
            return None
        return msgspec.structs.replace(row, info=_with(row.info, PENDING_CREATION), creation=creation)

    def leased_row(self, actor_id: bytes, restarts: int, lease_id: bytes, raylet: Address | None) -> ActorRow | None:
        """Return the row with the lease that is about to be requested; None if this incarnation is over."""
        row = self.pending(actor_id, restarts)
        return None if row is None else msgspec.structs.replace(row, lease_id=lease_id, raylet=raylet)

    def alive_row(self, actor_id: bytes, restarts: int, address: Address, pid: int) -> ActorRow | None:
        """Return the row of an incarnation whose constructor has returned; None if it is over."""
        row = self.pending(actor_id, restarts)
        if row is None:
            return None
        return msgspec.structs.replace(row, info=_with(row.info, ALIVE, address=address, raylet=row.raylet, pid=pid))

    def killed_row(self, actor_id: bytes, kill_id: bytes) -> ActorRow | None:
        """Return the row with a kill of the present incarnation; None if it is a repetition, or the actor is dead."""
        row = self._rows.get(actor_id)
        if row is None or row.info.state == DEAD or self.is_known_kill(kill_id):
            return None
        return msgspec.structs.replace(row, kill=ActorKill(kill_id, row.lease_id))

    def lost_row(self, row: ActorRow, cause: DeathCause, now: float) -> ActorRow:
        """Return the row after the present incarnation's death: a restart if the actor may, else its end."""
        info = row.info
        if row.creation is None or info.is_ending or not info.may_restart(cause.preempted):
            return self.ended_row(row, cause, now)
        preemptions = info.preemptions + cause.preempted
        restarts = info.restarts + 1
        begun = _with(
            info, RESTARTING, restarts=restarts, preemptions=preemptions, address=None, raylet=None, pid=0, death=cause
        )
        return ActorRow(begun, row.creation, kill=row.kill)

    def ended_row(self, row: ActorRow, cause: DeathCause, now: float) -> ActorRow:
        """Return the row of an actor that dies for good. The lease stays in the row until it was given back."""
        info = _with(row.info, DEAD, death=cause, end_time=now)
        return ActorRow(info, None, row.lease_id, row.raylet)

    def returned_row(self, actor_id: bytes, lease_id: bytes) -> ActorRow | None:
        """Return the row of a dead actor without its lease, which was given back."""
        row = self._rows.get(actor_id)
        if row is None or row.info.state != DEAD or row.lease_id != lease_id:
            return None
        return msgspec.structs.replace(row, lease_id=b"", raylet=None)

    # --- Entering decisions that are durable -----------------------------------------------------------------------------

    def on_committed(self, row: ActorRow) -> list[Publication]:
        """Enter a row that is durable, and return the publications. The oldest dead actor may be dropped."""
        info = row.info
        actor_id = info.actor_id
        if actor_id in self._forgotten:
            return []  # The actor was dropped while the return of its lease was being stored.
        old = self._rows.get(actor_id)
        if old is None or old.info.state != info.state or info.state == RESTARTING and old.info != info:
            self._states.set(actor_id, info.state)
        if old is not None and old.info.address is not None and old.info.address != info.address:
            self._of_worker.pop(old.info.address.worker_id, None)
        self._rows[actor_id] = row
        if row.kill is not None:
            remember(self._kills, row.kill.kill_id, None)
        if info.state == DEAD:
            return self._on_dead(row, old)
        if info.is_ending:
            self._forget_name(info)
        elif info.name:
            self._named[info.namespace, info.name] = actor_id
        if info.address is not None:
            self._of_worker[info.address.worker_id] = actor_id
        return [] if old is not None and old.info == info else [self._publication(info)]

    def _on_dead(self, row: ActorRow, old: ActorRow | None) -> list[Publication]:
        info = row.info
        if old is not None and old.info == info:
            return []
        if info.address is not None:
            self._of_worker.pop(info.address.worker_id, None)
        self._forget_name(info)
        self._dead[info.actor_id] = None
        publications = [self._publication(info)]
        if len(self._dead) > self._max_dead:
            publications.append(self._forget(next(iter(self._dead))))
        return publications

    def _forget_name(self, info: ActorInfo) -> None:
        if self._named.get((info.namespace, info.name)) == info.actor_id:
            del self._named[info.namespace, info.name]

    def _forget(self, actor_id: bytes) -> Publication:
        self._states.set(actor_id, NEW)
        del self._dead[actor_id], self._rows[actor_id]
        remember(self._forgotten, actor_id, None)
        return Publication(actors_channel(job_of_actor(actor_id)), actor_id, None)

    @staticmethod
    def _publication(info: ActorInfo) -> Publication:
        return Publication(actors_channel(job_of_actor(info.actor_id)), info.actor_id, info)

    # --- Questions -------------------------------------------------------------------------------------------------------

    def get(self, actor_id: bytes) -> ActorRow | None:
        return self._rows.get(actor_id)

    def is_forgotten(self, actor_id: bytes) -> bool:
        return actor_id in self._forgotten

    def doom_of(self, actor_id: bytes) -> DeathCause | None:
        """Return why an actor must not be registered any more; None if it may be, or was."""
        row = self._rows.get(actor_id)
        return None if row is None or row.info.start_time else row.info.death

    def named(self, name: str, namespace: str) -> ActorRow | None:
        actor_id = self._named.get((namespace, name))
        return None if actor_id is None else self._rows[actor_id]

    def is_known_kill(self, kill_id: bytes) -> bool:
        """Tell whether this kill request was carried out, or will be."""
        return kill_id in self._kills

    def of_worker(self, worker_id: bytes) -> ActorRow | None:
        """Return the actor that lives in this process."""
        actor_id = self._of_worker.get(worker_id)
        return None if actor_id is None else self._rows[actor_id]

    def pending(self, actor_id: bytes, restarts: int) -> ActorRow | None:
        """Return the row of an incarnation that is being created; None when that is over."""
        row = self._rows.get(actor_id)
        if row is None or row.info.state not in (PENDING_CREATION, RESTARTING) or row.info.restarts != restarts:
            return None
        return row

    def on_node(self, node_id: bytes) -> list[ActorRow]:
        """Return the actors that live on a node."""
        return [row for row in self.living() if row.info.address is not None and row.info.address.node_id == node_id]

    def owned_by(self, worker_or_node_id: bytes) -> list[ActorRow]:
        """Return the actors that end with this process, or with the processes of this node, because it owns them."""
        owned = [row for row in self.living() if worker_or_node_id in (row.info.owner.worker_id, row.info.owner.node_id)]
        return [row for row in owned if row.needs_owner()]

    def of_job(self, job_id: bytes) -> list[ActorRow]:
        """Return the living actors of a job, including detached ones."""
        return [row for row in self.living() if job_of_actor(row.info.actor_id) == job_id]

    def living(self) -> list[ActorRow]:
        """Return all actors that are not dead."""
        return [row for row in self._rows.values() if row.info.state != DEAD]

    def rows(self) -> list[ActorRow]:
        return list(self._rows.values())


def describe(info: ActorInfo) -> str:
    """Describe an actor for users: its class, its name if it has one, and its short id."""
    name = f" {info.name!r}" if info.name else ""
    return f"actor {info.class_name}{name} ({short_actor(info.actor_id)})"


def _with(info: ActorInfo, state: str, **changes: object) -> ActorInfo:
    return msgspec.structs.replace(info, state=state, **changes)


def worker_died(pid: int, node_id: bytes, cause: str, last_words: Sequence[str], for_memory: bool) -> DeathCause:
    """Build the cause of death of an actor whose process has died."""
    text = f"its worker (pid={pid}, node={node_id.hex()[:12]}) died: {cause}{quoted(last_words)}"
    return DeathCause(OUT_OF_MEMORY if for_memory else WORKER_DIED, text)
