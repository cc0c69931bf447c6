"""The actors of the cluster: which there are, in what state, whose they are, and whether they begin anew.

Ray: src/ray/gcs/actor/gcs_actor_manager.h

    DEPENDENCIES_UNREADY -> PENDING_CREATION -> ALIVE -> DEAD -> forgotten
                                      |          |  ^
                                      +-> RESTARTING

Pure, like the other tables of the gcs: a decision returns the row to store, ``on_committed`` makes it true.

Rules
  * An actor's incarnations are counted by ``restarts``; each uses up one of ``max_restarts`` (G35), but for those that
    begin because a node is preempted (G21). What is heard of a worker that is not the present one changes nothing (S3).
  * It begins anew when its worker or node died, not when it wanted to end, was killed for good, or its constructor raised
    (G34), or was about to end when it died. Dead is dead: a confirmed death is never taken back (G39b).
  * Unless it is detached, it dies with its owner (G25), when nobody has a handle (G24), and with its job, which lasts as
    long as its last detached actor. A detached one dies with its owner as long as he has not said how it is made.
  * What shall end before it is registered, because that has to be asked again, is dead from then on, as if it had been.
  * A name belongs to one actor that is not dead, in its namespace (G31). An actor that is about to end has none.
  * The last dead actors are kept for callers that come late and for people; of older ones only the ids.
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

MAX_DEAD_ACTORS = 1000
"""So many dead actors are remembered whole."""

TRANSITIONS = {
    NEW: (DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING, DEAD),
    DEPENDENCIES_UNREADY: (PENDING_CREATION, DEAD),
    PENDING_CREATION: (ALIVE, RESTARTING, DEAD),
    ALIVE: (RESTARTING, DEAD),
    RESTARTING: (ALIVE, RESTARTING, DEAD),
    DEAD: (NEW,),
}
"""New and something else than DEPENDENCIES_UNREADY: an actor of the tables that a restarted gcs has loaded."""


class Kill(Record, frozen=True):
    """A wish to end an incarnation, after which the next one may begin."""

    kill_id: bytes
    lease_id: bytes
    """That of the incarnation; empty: there was no process that could be killed."""


class ActorRow(Record, frozen=True):
    """An actor as the gcs stores it."""

    info: ActorInfo
    creation: ActorCreation | None = None
    """None before its arguments were there, and when it is dead."""
    lease_id: bytes = b""
    """The lease of the present incarnation, also while it is asked for; empty when there is none, or it was given back."""
    raylet: Address | None = None
    """Where that lease is."""
    kill: Kill | None = None
    """The last one that was wished."""

    def is_to_be_killed(self) -> bool:
        """Whether that was wished for the present incarnation."""
        return self.kill is not None and bool(self.lease_id) and self.kill.lease_id == self.lease_id

    def needs_owner(self) -> bool:
        """Whether it ends with him: a detached actor only as long as nobody else knows how it is made."""
        return not self.info.detached or self.info.state == DEPENDENCIES_UNREADY


class ActorManager:
    """The table of actors."""

    def __init__(self, record: Recorder | None, max_dead_actors: int = MAX_DEAD_ACTORS) -> None:
        self._max_dead = max_dead_actors
        self._states = StateMachine("actor", TRANSITIONS, record, short_actor)
        self._rows: dict[bytes, ActorRow] = {}
        self._named: dict[tuple[str, str], bytes] = {}
        """(namespace, name) of those that are not dead nor about to end."""
        self._of_worker: dict[bytes, bytes] = {}
        """Worker id to the actor that lives there."""
        self._dead: dict[bytes, None] = {}
        """Ids of dead ones, the one that died first coming first."""
        self._forgotten: OrderedDict[bytes, None] = OrderedDict()
        self._kills: OrderedDict[bytes, None] = OrderedDict()
        """Wishes to kill that are stored, or were: a repeated wish spares the next incarnation."""
        self._outbid: OrderedDict[bytes, ActorInfo] = OrderedDict()
        """Actors that were not registered, because these had their names. Not stored: what was answered is not asked again,
        and what comes twice comes to the same gcs."""

    def load(self, rows: Iterable[ActorRow]) -> list[Publication]:
        """After a restart."""
        in_order = sorted(rows, key=lambda row: (row.info.end_time, row.info.actor_id))
        return [publication for row in in_order for publication in self.on_committed(row)]

    # --- Decisions -------------------------------------------------------------------------------------------------------

    def begin_to_end(self, row: ActorRow) -> ActorRow | None:
        """No handle is left, or it wants to end; None if it is dead, or that is known."""
        if row.info.state == DEAD or row.info.is_ending:
            return None
        return msgspec.structs.replace(row, info=msgspec.structs.replace(row.info, is_ending=True))

    def namesake(self, actor: ActorInfo, instead_of: bytes = b"") -> ActorInfo | None:
        """Another one that has the name, or had it when this was first asked: a repeated question has the same answer.

        ``instead_of``: the earlier answer, of which the asker has learnt that it has given the name up.
        """
        outbid_by = self._outbid.get(actor.actor_id)
        if outbid_by is not None and outbid_by.actor_id == instead_of:
            del self._outbid[actor.actor_id]
        row = self.named(actor.name, actor.namespace) if actor.name else None
        if actor.actor_id not in self._outbid and row is not None and row.info.actor_id != actor.actor_id:
            remember(self._outbid, actor.actor_id, row.info)
        return self._outbid.get(actor.actor_id)

    def register(self, actor: ActorInfo, now: float) -> ActorRow | None:
        """The row of a new actor; None if it is registered, or was."""
        if actor.actor_id in self._rows or actor.actor_id in self._forgotten:
            return None
        return ActorRow(msgspec.structs.replace(actor, state=DEPENDENCIES_UNREADY, restarts=0, start_time=now))

    def doom(self, actor_id: bytes, cause: DeathCause, now: float) -> ActorRow | None:
        """The row of one that shall end and has not been registered; None if it was."""
        if actor_id in self._rows or actor_id in self._forgotten:
            return None
        nobody = Address(b"", b"", "", "")
        return ActorRow(ActorInfo(actor_id, DEAD, "", "", "", nobody, False, 0, 0, b"", death=cause, end_time=now))

    def create(self, actor_id: bytes, creation: ActorCreation) -> ActorRow | None:
        """The arguments are there."""
        row = self._rows.get(actor_id)
        if row is None or row.info.state != DEPENDENCIES_UNREADY:
            return None
        return msgspec.structs.replace(row, info=_with(row.info, PENDING_CREATION), creation=creation)

    def lease(self, actor_id: bytes, restarts: int, lease_id: bytes, raylet: Address | None) -> ActorRow | None:
        """A worker is about to be asked for; None if this incarnation is over."""
        row = self.pending(actor_id, restarts)
        return None if row is None else msgspec.structs.replace(row, lease_id=lease_id, raylet=raylet)

    def alive(self, actor_id: bytes, restarts: int, address: Address, pid: int) -> ActorRow | None:
        """The constructor has returned."""
        row = self.pending(actor_id, restarts)
        if row is None:
            return None
        return msgspec.structs.replace(row, info=_with(row.info, ALIVE, address=address, raylet=row.raylet, pid=pid))

    def kill(self, actor_id: bytes, kill_id: bytes) -> ActorRow | None:
        """Its present incarnation is to end; None if that has been wished before."""
        row = self._rows.get(actor_id)
        if row is None or row.info.state == DEAD or self.is_known_kill(kill_id):
            return None
        return msgspec.structs.replace(row, kill=Kill(kill_id, row.lease_id))

    def lose(self, row: ActorRow, cause: DeathCause, now: float) -> ActorRow:
        """Its present incarnation has died: it begins anew if it may."""
        info = row.info
        if row.creation is None or info.is_ending or not info.may_restart(cause.preempted):
            return self.end(row, cause, now)
        preemptions = info.preemptions + cause.preempted
        restarts = info.restarts + 1
        begun = _with(
            info, RESTARTING, restarts=restarts, preemptions=preemptions, address=None, raylet=None, pid=0, death=cause
        )
        return ActorRow(begun, row.creation, kill=row.kill)

    def end(self, row: ActorRow, cause: DeathCause, now: float) -> ActorRow:
        """It dies for good. The lease stays in the row until it was given back."""
        info = _with(row.info, DEAD, death=cause, end_time=now)
        return ActorRow(info, None, row.lease_id, row.raylet)

    def returned(self, actor_id: bytes, lease_id: bytes) -> ActorRow | None:
        """A dead actor's lease was given back."""
        row = self._rows.get(actor_id)
        if row is None or row.info.state != DEAD or row.lease_id != lease_id:
            return None
        return msgspec.structs.replace(row, lease_id=b"", raylet=None)

    # --- Made true -------------------------------------------------------------------------------------------------------

    def on_committed(self, row: ActorRow) -> list[Publication]:
        """The row is durable: from now on it is true. May make the table forget its oldest dead actor."""
        info = row.info
        actor_id = info.actor_id
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
        """Why it must not be registered any more."""
        row = self._rows.get(actor_id)
        return None if row is None or row.info.start_time else row.info.death

    def named(self, name: str, namespace: str) -> ActorRow | None:
        actor_id = self._named.get((namespace, name))
        return None if actor_id is None else self._rows[actor_id]

    def is_known_kill(self, kill_id: bytes) -> bool:
        """Whether this wish was fulfilled, or will be."""
        return kill_id in self._kills

    def of_worker(self, worker_id: bytes) -> ActorRow | None:
        """The actor that lives in this process."""
        actor_id = self._of_worker.get(worker_id)
        return None if actor_id is None else self._rows[actor_id]

    def pending(self, actor_id: bytes, restarts: int) -> ActorRow | None:
        """The row of an incarnation that is being created; None when that is over."""
        row = self._rows.get(actor_id)
        if row is None or row.info.state not in (PENDING_CREATION, RESTARTING) or row.info.restarts != restarts:
            return None
        return row

    def on_node(self, node_id: bytes) -> list[ActorRow]:
        """Those that live there."""
        return [row for row in self.living() if row.info.address is not None and row.info.address.node_id == node_id]

    def owned_by(self, worker_or_node_id: bytes) -> list[ActorRow]:
        """Those that end with this process, or with a process of this node."""
        owned = [row for row in self.living() if worker_or_node_id in (row.info.owner.worker_id, row.info.owner.node_id)]
        return [row for row in owned if row.needs_owner()]

    def of_job(self, job_id: bytes) -> list[ActorRow]:
        """Those of a job that are not dead, detached ones too."""
        return [row for row in self.living() if job_of_actor(row.info.actor_id) == job_id]

    def living(self) -> list[ActorRow]:
        """All that are not dead."""
        return [row for row in self._rows.values() if row.info.state != DEAD]

    def rows(self) -> list[ActorRow]:
        return list(self._rows.values())


def describe(info: ActorInfo) -> str:
    """For people: the class, and the name if there is one."""
    name = f" {info.name!r}" if info.name else ""
    return f"actor {info.class_name}{name} ({short_actor(info.actor_id)})"


def _with(info: ActorInfo, state: str, **changes: object) -> ActorInfo:
    return msgspec.structs.replace(info, state=state, **changes)


def worker_died(pid: int, node_id: bytes, cause: str, last_words: Sequence[str], for_memory: bool) -> DeathCause:
    """What is said of an actor whose process has died."""
    text = f"its worker (pid={pid}, node={node_id.hex()[:12]}) died: {cause}{quoted(last_words)}"
    return DeathCause(OUT_OF_MEMORY if for_memory else WORKER_DIED, text)
