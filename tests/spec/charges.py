"""Charges each task, call and actor of a run with its own losses only: those of faults that have really struck it.

``Attempts`` notes during a run where each attempt of a task or call was pushed, and which worker each incarnation of an
actor was given. ``Charges`` compares that with the faults that have struck. What follows from a charge is in ``model``,
``fates`` and ``lineage``. Words of this file:

  * The host of an attempt is the worker to which it was pushed. Its source is the process that has pushed it. The gcs is the
    source of an actor's incarnations.
  * The company of an attempt is its host, its source, their raylets, and the gcs. Nobody else can give it up.

| fault | charged to |
|---|---|
| crash, failed start or posthumous message of a worker | the attempts that had this host, as a death |
| crash of a raylet, loss or last words of a node, a node that dies | the attempts whose host was on that node: a death, |
| | and a loss of the values there |
| lack of memory | the attempts whose host was on that node and has ended: a death that uses up no retry |
| a node that has to leave | the attempts whose host was on that node: a preemption, and with a deadline a death |
| stall of more than 5 s, last messages that come so late | the attempts that have this process in their company: |
| | it may count as dead |
| message that is late by more than 5 s | the attempts that have both ends of its link in their company |
| cut, rift | the attempts between whose nodes it was; the head, where the gcs is, is one of these |
| shorter stalls and delays, resets, crash of the gcs, short stalls of the gcs | the same attempts, as a silence: |
| of more than half a second in all, a node lost without a word | nothing was lost, but a call may be given up |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from minray.common.ids import JOB_ID_BYTES, short
from minray.core_worker.records.pending_task import PUSHED
from minray.protocol.base import decode
from minray.protocol.raylet import RequestWorkerLease
from minray.simulation import SimCluster
from minray.simulation.cluster import GCS, HEAD
from minray.simulation.faults import LONG_DELAYS_S, LONG_STALLS_S, POSTHUMOUS_S, STALLS_S, Key
from minray.simulation.loop import current_process
from tests.simulation.interference import watch_sends
from tests.simulation.invariants import Raylets
from tests.spec.moves import Move
from tests.spec.stage import made

PATIENCE_S = 5.0
"""Virtual seconds for which a silent process is not given up."""
GCS_STALLS_S = 0.5
"""Virtual seconds of short stalls of the gcs in all, above which it counts as silent. Callers of actors wait one second."""


class Attempt(NamedTuple):
    """One attempt of a task or call, or one incarnation of an actor, in one worker."""

    name: str
    """The operation that has submitted it, or made the actor."""
    of: bytes
    """Id of the task or of the actor: several may have one name, if their parent runs again."""
    number: int
    host: str
    source: str


class Attempts:
    """Notes all attempts of one cluster; make it before the cluster's first driver."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._noted: dict[Attempt, None] = {}
        self._incarnations: dict[tuple[bytes, int, str], str] = {}
        """Actor, number of restarts and host -> the name that the actor asked for."""
        self._asked: dict[bytes, tuple[bytes, int, str]] = {}
        """Lease that a gcs has asked for -> its actor, with the number of restarts and the name that the actor asked for."""
        cluster.raylets = Raylets(cluster.raylets, self._on_raylet)
        for name, raylet in cluster.raylets.items():
            self._on_raylet(name, raylet)
        for name, core in cluster.cores.items():
            self._watch(name, core)
        self._connect = cluster._connect
        cluster._connect = self._on_core  # type: ignore[method-assign]
        watch_sends(cluster, self._on_send)

    def all(self) -> Iterator[Attempt]:
        """Return all attempts so far. An actor goes by the name that it has asked for, or else by its ``Create``."""
        yield from self._noted
        for (actor_id, number, host), called in self._incarnations.items():
            yield Attempt(made.get(actor_id.hex(), called), actor_id, number, host, GCS)

    def places(self) -> dict[tuple[str, int], set[str]]:
        """Return the processes to which the attempts of tasks were sent, by the task's id (hex) and the attempt's number."""
        found: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for one in self._noted:
            found[one.of.hex(), one.number].add(one.host)
        return dict(found)

    def _on_core(self, core: Any) -> None:
        self._connect(core)
        process = current_process.get()
        assert process is not None
        self._watch(process.name, core)

    def _watch(self, source: str, core: Any) -> None:
        move = core.tasks.move

        def watched_move(task: Any, state: str) -> None:
            move(task, state)
            if state is PUSHED and task.worker is not None:
                host = self._name_of(task.worker.address.worker_id)
                attempt = Attempt(task.prepared.template.name, task.task_id, task.attempt, host, source)
                self._noted[attempt] = None

        core.tasks.move = watched_move

    def _on_send(self, end: Any, message: Any, word: str) -> bool:
        """Note for which actor the gcs asks for a lease."""
        if word == "RequestWorkerLease" and end.pipe.source.name == GCS:
            request, gcs = decode(RequestWorkerLease, message.payload), self._cluster.gcs
            infos = [row.info for row in gcs._actors.rows() if row.info.actor_id == request.actor_id]  # type: ignore[attr-defined]
            self._asked.update((request.lease_id, (info.actor_id, info.restarts, info.name)) for info in infos)
        return True

    def _on_raylet(self, _name: str, raylet: Any) -> None:
        """Note workers that this raylet grants to the gcs, for actors. That gcs may be dead, and hear nothing of it."""
        scheduler = raylet._broker.scheduler
        granted = scheduler.granted

        def watched_grant(entry: Any, worker: Any) -> Any:
            asked = self._asked.get(entry.request.lease_id)
            if asked is not None:
                actor_id, restarts, name = asked
                self._incarnations[actor_id, restarts, self._name_of(worker.worker_id)] = name
            return granted(entry, worker)

        scheduler.granted = watched_grant

    @staticmethod
    def _name_of(worker_id: bytes) -> str:
        return f"worker/{short(worker_id)}"


@dataclass(frozen=True)
class Charge:
    """Losses with which one task, call or actor is charged."""

    deaths: int = 0
    """Number of attempts of one task or actor, at most, whose host was struck or given up, and of those in ``memory``."""
    nodes: bool = False
    """Whether the node of a host was struck."""
    silence: bool = False
    """Whether a process of its company has heard nothing of another for a while."""
    memory: int = 0
    """Number of attempts of one task or actor, at most, whose host the memory monitor may have killed."""
    preemptions: int = 0
    """Number of hosts on nodes that had to leave."""
    has_ended: bool = False
    """Whether the process of a host has really ended."""
    beside: frozenset[str] = frozenset()
    """All that had the same host, itself included."""
    has_lost_source: bool = False
    """Whether a process has ended for which its host has worked. A leased worker ends with the process that leases it."""


NOT_STRUCK = Charge()


@dataclass
class Blows:
    """The faults that have struck, by what they have struck."""

    crashed: set[str] = field(default_factory=set)
    """Processes that a crash, or a failed start, has ended."""
    lost_nodes: set[str] = field(default_factory=set)
    """Nodes whose raylet was struck, with all its processes."""
    preempted_nodes: set[str] = field(default_factory=set)
    """Nodes that had to leave. A worker that dies there, even by itself, uses up no retry."""
    leaving_nodes: set[str] = field(default_factory=set)
    """Nodes that were to leave, or would have if no process had used them."""
    short_of_memory: Counter[str] = field(default_factory=Counter)
    """Node -> the number of times that its memory monitor has found no memory."""
    silent: dict[str, bool] = field(default_factory=dict)
    """Process that stood still, begins anew, or whose last messages come late -> whether others may have given it up."""
    silent_links: dict[frozenset[str], bool] = field(default_factory=dict)
    """Two processes between which messages were late or lost -> whether one may have given up the other."""
    cut_nodes: set[frozenset[str]] = field(default_factory=set)
    """Pairs of nodes between which nothing passed."""
    silent_nodes: set[str] = field(default_factory=set)
    """Nodes that were lost without a word."""

    @classmethod
    def of(cls, answers: Mapping[Key, int], node_of: Mapping[str, str], moves: Iterable[Move]) -> Blows:
        blows = cls()
        stalled_s = sum(STALLS_S[answer] for key, answer in answers.items() if key[:2] == ("stall", GCS))
        if stalled_s > GCS_STALLS_S:
            blows.silent[GCS] = False
        for key, answer in answers.items():
            blows._add(str(key[0]), str(key[1]), answer, node_of)
        for move in moves:
            blows._add_move(move, {node for node in node_of.values() if node != HEAD})
        return blows

    def _add(self, kind: str, place: str, answer: int, node_of: Mapping[str, str]) -> None:
        node, link = node_of.get(place, ""), place.split(">")
        if kind in ("crash", "spawn"):
            self.crashed.add(place)
            self.lost_nodes |= {node} if place.startswith("raylet/") else set()
            if place == GCS:
                self.silent.setdefault(GCS, False)
        elif kind == "node_loss":
            self.lost_nodes.add(node)
            self.silent_nodes.add(node)
        elif kind == "last_words":
            self.lost_nodes.add(node_of[link[0]])
            self.silent_links[frozenset(link)] = True
        elif kind == "posthumous":
            self._add("crash", link[0], answer, node_of)
            self.silent[link[0]] = self.silent.get(link[0], False) or POSTHUMOUS_S[answer] > PATIENCE_S
        elif kind == "memory":
            self.short_of_memory[node] += 1
        elif kind == "long_stall":
            self.silent[place] = self.silent.get(place, False) or LONG_STALLS_S[answer] > PATIENCE_S
        elif kind in ("long_delay", "reset"):
            is_long = kind == "long_delay" and LONG_DELAYS_S[answer] > PATIENCE_S
            self.silent_links[frozenset(link)] = self.silent_links.get(frozenset(link), False) or is_long
        elif kind in ("cut", "rift"):
            self.cut_nodes.add(frozenset(node_of[process] for process in link))

    def _add_move(self, move: Move, others: set[str]) -> None:
        nodes = {move.name()} if move.node else others
        if move.dies:
            self.lost_nodes |= nodes
            self.silent_nodes |= nodes if move.is_silent else set()
        if move.leaves:
            self.leaving_nodes |= nodes
        if move.ends_work():
            self.lost_nodes |= nodes
        if move.leaves and not move.if_idle:
            self.preempted_nodes |= nodes


    def explain_loss_of(self, node: str, process: str = "") -> bool:
        """Whether a node, or ``process`` on it, may have lost its cluster: it was struck, or has not heard of the gcs."""
        company = {process, GCS, f"raylet/{node}"}
        return (
            node in self.lost_nodes
            or any(is_long for place, is_long in self.silent.items() if place in company)
            or any(is_long for link, is_long in self.silent_links.items() if link <= company)
            or frozenset((node, HEAD)) in self.cut_nodes
        )


class Charges:
    """Charges every name of a run with what has struck it."""

    def __init__(
        self, attempts: Iterable[Attempt], blows: Blows, node_of: Mapping[str, str], ended: Collection[str]
    ) -> None:
        """``node_of``: the node of each process; ``ended``: processes that have ended when the run is over."""
        self.blows = blows
        self._node_of = node_of
        self._ended = ended
        self._of: dict[str, list[Attempt]] = {}
        self._in: dict[str, set[str]] = {}
        """Host -> the names that it has hosted."""
        self._sources: dict[str, set[str]] = {}
        """Host -> the processes for which it has worked."""
        self._of_job: dict[bytes, list[Attempt]] = {}
        """Job -> the attempts of all its tasks, calls and actors."""
        self._jobs: dict[str, set[bytes]] = {}
        """Process -> the jobs for which it has submitted something."""
        for attempt in attempts:
            self._of.setdefault(attempt.name, []).append(attempt)
            job = attempt.of[-JOB_ID_BYTES:]  # of the id of a task, or of an actor
            self._of_job.setdefault(job, []).append(attempt)
            self._jobs.setdefault(attempt.source, set()).add(job)
            self._in.setdefault(attempt.host, set()).add(attempt.name)
            self._sources.setdefault(attempt.host, set()).add(attempt.source)
        self._charges: dict[str, Charge] = {}

    def of(self, name: str) -> Charge:
        if name not in self._charges:
            self._charges[name] = self._charge(self._of[name]) if name in self._of else NOT_STRUCK
        return self._charges[name]

    def of_job_of(self, driver: str) -> Charge:
        """Charge all that belongs to a driver together; its attempts are each other's company, since they share values."""
        attempts = [attempt for job in self._jobs.get(driver, ()) for attempt in self._of_job[job]]
        processes = {driver, *(attempt.host for attempt in attempts), *(attempt.source for attempt in attempts)}
        charge, silences = self._charge(attempts), list(self._silences(processes))
        return replace(charge, nodes=charge.nodes or any(silences), silence=charge.silence or bool(silences))

    def _charge(self, attempts: list[Attempt]) -> Charge:
        blows, hosts = self.blows, {attempt.host for attempt in attempts}
        nodes = {host: self._node_of.get(host, "") for host in hosts}
        memory = _most_of_one(one for one in attempts if self._may_lack_memory(one))
        return Charge(
            deaths=_most_of_one(one for one in attempts if self._is_struck(one)) + memory,
            nodes=any(self._node_is_struck(one) for one in attempts),
            silence=any(map(self._is_silent, attempts)),
            memory=memory,
            preemptions=sum(nodes[host] in blows.preempted_nodes for host in hosts),
            has_ended=any(host in self._ended for host in hosts),
            beside=frozenset().union(*(self._in[host] for host in hosts)),
            has_lost_source=any(source in self._ended for host in hosts for source in self._sources[host]),
        )

    def _is_struck(self, attempt: Attempt) -> bool:
        """Whether its host was struck, or may count as dead for one of its company."""
        return attempt.host in self.blows.crashed or self._node_is_struck(attempt)

    def _may_lack_memory(self, attempt: Attempt) -> bool:
        """Whether the memory monitor may have killed its host."""
        return attempt.host in self._ended and self.blows.short_of_memory[self._node_of.get(attempt.host, "")] > 0

    def _node_is_struck(self, attempt: Attempt) -> bool:
        is_lost = self._node_of.get(attempt.host, "") in self.blows.lost_nodes
        return is_lost or any(self._silences({attempt.host, attempt.source}))

    def _is_silent(self, attempt: Attempt) -> bool:
        places = {self._node_of.get(attempt.host, ""), self._node_of.get(attempt.source, "")}
        return not self.blows.silent_nodes.isdisjoint(places) or bool(list(self._silences({attempt.host, attempt.source})))

    def _silences(self, processes: set[str]) -> Iterator[bool]:
        """Go over the silences in the company of these processes. True: one of it may have given up another."""
        blows, places = self.blows, [self._node_of.get(process, "") for process in processes]
        company = {*processes, GCS, *(f"raylet/{place}" for place in places)}
        yield from (is_long for process, is_long in blows.silent.items() if process in company)
        yield from (is_long for link, is_long in blows.silent_links.items() if link <= company)
        yield from (True for pair in blows.cut_nodes if pair <= {HEAD, *places})


def _most_of_one(attempts: Iterable[Attempt]) -> int:
    """Largest number of these attempts that one task, or one actor, has made."""
    counts = Counter(of for of, _ in {(attempt.of, attempt.number) for attempt in attempts})
    return max(counts.values(), default=0)
