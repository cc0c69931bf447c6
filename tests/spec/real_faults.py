"""Faults of the real tier: their kinds, how a seed draws them, and how ``Wrecker`` does them to a ``RealCluster``.

Rules
  * A fault says when it strikes, and which process or node. Of several workers it picks one by their order of age. A fault
    without a target does not strike.
  * The head's raylet is stopped and cut off for harmless times only, because its death would end all programs. The head
    does not leave, nor does a node where a driver runs.
  * A disk counts as full if the raylet may not make any file longer (its own logs included).
  * All lasting faults end with ``heal``.

| fault | how it is done | takes away |
|---|---|---|
| kill | ``kill -9`` of a worker | an attempt of a task |
| | of a driver, or of a gcs with storage | a driver's history; nothing |
| | of a raylet, a zygote or all processes of a node other than the head | a node |
| stop | SIGSTOP, and SIGCONT after ``LASTS_S``, rarely after a death by silence | nothing; a node, if long |
| reset, reset all | one or all connections of a process are shut down (``real_sockets``) | nothing |
| hold | a proxy, or all of a node, lets nothing pass for a while | nothing; a node, if long |
| cut | a proxy resets what is open, and closes what is opened | nothing; a node, if long |
| last words | all proxies of a node hold, it is killed, and what it has sent arrives later | a node |
| tear | a file of spilled objects loses its second half | its objects |
| fill | the raylet of a node may make no file longer (``RLIMIT_FSIZE``) | room for values |
| leave | a node without drivers is told to leave | a node that costs no retries, if there is a deadline |
| join | new nodes take the places of dead ones | nothing |
"""

from __future__ import annotations

import heapq
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TypeVar

from minray.cluster_utils import ClusterNode
from tests.spec.losses import ROOMY_BYTES
from tests.spec.model import Losses
from tests.spec.real_cluster import HARMLESS_S, PROXY, SILENT_DEATH_S, RealCluster, RealDriver, Shape
from tests.spec.real_sockets import close_connections
from tests.spec.stage import Record

KILL, STOP, RESET, RESET_ALL, HOLD, CUT = "kill", "stop", "reset", "reset all", "hold", "cut"
LAST_WORDS, TEAR, FILL = "last words", "tear", "fill"
"""A node dies, and its last messages arrive later; a spill file loses its end; a disk is full."""
LEAVE, JOIN = "leave", "join"
"""A node is told to leave: when no process needs it any more, or after some time. Nodes join in the place of dead ones."""
WORKER, RAYLET, GCS, ZYGOTE, DRIVER, NODE = "worker", "raylet", "gcs", "zygote", "driver", "node"
Candidate = TypeVar("Candidate")
LASTS_S = (0.02, 0.1, 0.3, HARMLESS_S)
"""Seconds that a stop, a hold or a cut lasts mostly: no process takes them for a death."""
FULL_FOR_S = (0.1, 0.3, 1.0, 5.0)
"""Seconds that a disk is full."""
LONG_S = SILENT_DEATH_S + 2
"""Seconds of a long stop, hold or cut, after which the process or node counts as dead."""
LEAVES_IN_S = (0.0, 0.0, 0.05, 0.3, 1.5)
"""Seconds until the deadline of a node that is told to leave; 0: no deadline."""
JOINS_AFTER_S = (0.05, 0.3, 1.0)
"""Seconds between the end of a node and a join."""
POLL_S = 0.02
"""Seconds after which a join tries again while lasting faults go on: a node that joins needs a gcs that answers."""
ONE_IN_LONG = 15
"""Number of stops, holds and cuts for each that lasts long."""
SPEAKS_S = 0.02
"""Seconds that a node's messages are held before it dies."""
MEANS_AT_S = (0.05, 0.12, 0.4, 1.0)
"""Mean seconds until a fault strikes; a scenario draws one. Programs take from a tenth of a second to many seconds."""


class Fault(Record, frozen=True):
    """One fault, with its time and its target."""

    kind: str
    role: str
    at_s: float
    """Seconds after the program's beginning."""
    node: int = 0
    """Place among the living nodes, modulo their number."""
    pick: float = 0.0
    """Place among several candidates: a number from 0 to less than 1."""
    for_s: float = 0.0
    """Seconds that it lasts; of a leave, until the deadline."""

    @property
    def is_deadly(self) -> bool:
        """Whether a process that works for others may be dead, or count as dead, after this fault."""
        if self.kind in (LEAVE, FILL):
            return self.kind == LEAVE and self.for_s > 0
        is_killed = self.kind == KILL and self.role not in (GCS, DRIVER)
        return is_killed or self.kind == LAST_WORDS or self.for_s > HARMLESS_S

    def one_of(self, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[int(self.pick * len(candidates))]

    def describe(self) -> str:
        place = f"the {self.role} of node {self.node}" if self.role in (RAYLET, GCS, ZYGOTE) else f"a {self.role}"
        place = f"node {self.node}" if self.role == NODE else place
        lasts = f" for {self.for_s:g} s" if self.for_s else ""
        return f"{self.at_s:.3f} s: {self.kind} {place}{lasts}"


def losses(faults: tuple[Fault, ...], shape: Shape) -> Losses:
    """Losses that these faults may cause."""
    deadly = [fault for fault in faults if fault.is_deadly]
    nodes = any(fault.role != WORKER or fault.kind in (HOLD, CUT) for fault in deadly)
    are_stored, files = shape.inline_limit > 0, any(fault.kind == TEAR for fault in faults)
    objects = files or (nodes and are_stored)
    leaving = [fault for fault in faults if fault.kind == LEAVE]
    return Losses(
        len(deadly),
        nodes,
        objects,
        files=files or not shape.lineage,
        silence=bool(faults),
        stored=are_stored,
        spilled=shape.store_bytes > 0,
        preemptions=sum(fault.is_deadly for fault in leaving),
        room=0 < shape.store_bytes < ROOMY_BYTES and any(fault.kind == FILL for fault in faults),
        departures=bool(leaving),
    )


def draw_faults(random: Random, shape: Shape) -> tuple[Fault, ...]:
    """Draw faults of a few kinds, at most two of them deadly."""
    if random.random() < 0.1:
        return ()
    kinds, mean_at_s = random.sample(_kinds(shape), random.choice((1, 2, 3))), random.choice(MEANS_AT_S)
    faults: list[Fault] = []
    for _ in range(random.choice((1, 2, 3, 5, 10))):
        kind, role = random.choice(kinds)
        fault = _draw_fault(random, kind, role, shape, mean_at_s)
        if not fault.is_deadly or sum(other.is_deadly for other in faults) < 2:
            faults.append(fault)
        if fault.role == NODE and fault.kind in (KILL, LEAVE, LAST_WORDS) and random.random() < 0.5:
            faults.append(Fault(JOIN, NODE, round(fault.at_s + fault.for_s + random.choice(JOINS_AFTER_S), 3)))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _kinds(shape: Shape) -> list[tuple[str, str]]:
    kinds = [(KILL, WORKER), (KILL, WORKER), (KILL, DRIVER)]
    kinds += [(kind, role) for kind in (STOP, RESET, RESET_ALL) for role in (WORKER, WORKER, RAYLET, DRIVER, GCS)]
    if len(shape.nodes) > 1:
        kinds += [(KILL, RAYLET), (KILL, RAYLET), (KILL, ZYGOTE), (KILL, NODE), *[(LEAVE, NODE)] * 3]
    if shape.durable:
        kinds += [(KILL, GCS), (KILL, GCS)]
    if shape.wire == PROXY:
        kinds += 2 * [(kind, role) for kind in (HOLD, CUT) for role in (WORKER, RAYLET, GCS, NODE)]
    if shape.wire == PROXY and len(shape.nodes) > 1:
        kinds += 4 * [(LAST_WORDS, NODE)]
    if shape.store_bytes:
        kinds += 6 * [(TEAR, NODE)] + 6 * [(FILL, RAYLET)]
    return kinds


def _draw_fault(random: Random, kind: str, role: str, shape: Shape, mean_at_s: float) -> Fault:
    node = random.randrange(len(shape.nodes)) if role not in (GCS, DRIVER) else 0
    if kind in (LAST_WORDS, LEAVE) or (kind == KILL and role in (RAYLET, ZYGOTE, NODE)):
        node = random.randrange(1, len(shape.nodes))
    may_last = role in (WORKER, DRIVER) or (role in (RAYLET, NODE) and node > 0)
    is_long = random.random() * ONE_IN_LONG < 1 and may_last
    lasts = kind in (STOP, HOLD, CUT, LAST_WORDS)
    for_s = (LONG_S if is_long else random.choice(LASTS_S)) if lasts else 0.0
    if kind in (LEAVE, FILL):
        for_s = random.choice(LEAVES_IN_S if kind == LEAVE else FULL_FOR_S)
    return Fault(kind, role, round(random.expovariate(1 / mean_at_s), 3), node, random.randrange(1000) / 1000, for_s)


class Wrecker:
    """Does the faults of one run, each at its time."""

    def __init__(self, cluster: RealCluster, drivers: list[RealDriver], faults: tuple[Fault, ...]) -> None:
        self._cluster = cluster
        self._drivers = drivers
        self._began = time.monotonic()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._undo: list[Callable[[], None]] = []
        """Actions that end the faults that last now."""
        self._asking: list[threading.Thread] = []
        """Threads that ask nodes to leave."""
        self.struck: list[Fault] = []
        for fault in faults:
            self._at(fault.at_s, lambda fault=fault: self._strike(fault))

    def _at(self, after_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (after_s, len(self._due), action))

    def advance(self) -> None:
        """Put proxies before new listeners, and do the faults that are due."""
        if self._cluster.proxies is not None:
            for node in self._cluster.nodes():
                self._cluster.proxies.put_before_all_of(self._cluster.sockets_of(node))
        while self._due and self._due[0][0] <= time.monotonic() - self._began:
            heapq.heappop(self._due)[2]()

    @property
    def is_lasting(self) -> bool:
        """Whether a fault still lasts; the program may be over before its end."""
        return bool(self._undo)

    def heal(self) -> None:
        self._due.clear()
        for undo in self._undo:
            undo()
        self._undo.clear()
        for thread in self._asking:
            thread.join()
        self._asking.clear()

    def _strike(self, fault: Fault) -> None:
        if fault.kind == JOIN and self.is_lasting:
            self._at(time.monotonic() - self._began + POLL_S, lambda: self._strike(fault))
            return
        undo = next(self._act(fault), None)
        if undo is None:
            return
        self.struck.append(fault)
        if fault.for_s:
            self._undo.append(undo)
            self._at(time.monotonic() - self._began + fault.for_s, lambda: self._end(undo))

    def _end(self, undo: Callable[[], None]) -> None:
        self._undo.remove(undo)
        undo()

    def _act(self, fault: Fault) -> Iterator[Callable[[], None]]:
        """Do a fault, and yield the action that ends it; yield nothing if it has no target."""
        nodes = self._cluster.nodes()
        node = nodes[fault.node % len(nodes)]
        if fault.kind in (HOLD, CUT, LAST_WORDS):
            yield from self._interfere(fault, node)
            return
        if fault.role == NODE:
            yield from self._strike_node(fault, node)
            return
        pid = self._victim(fault, node)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            if fault.kind == KILL:
                self._before_kill(fault, node)
                os.kill(pid, signal.SIGKILL)
                yield _nothing
            elif fault.kind == STOP:
                os.kill(pid, signal.SIGSTOP)
                yield lambda: _continue(pid)
            elif fault.kind == FILL:
                _limit_files(pid, 0)
                yield lambda: _limit_files(pid, resource.RLIM_INFINITY)
            elif close_connections(pid, None if fault.kind == RESET_ALL else fault.pick):
                yield _nothing

    def _strike_node(self, fault: Fault, node: ClusterNode) -> Iterator[Callable[[], None]]:
        if fault.kind == KILL:
            self._cluster.kill_all_of(node)
            yield _nothing
        elif fault.kind == LEAVE:
            if not self._cluster.has_driver(node) and not node.is_head():
                self._asking.append(self._cluster.ask_to_leave(node, fault.for_s))
                yield _nothing
        elif fault.kind == JOIN:
            if self._cluster.replace_dead():
                yield _nothing
        elif files := self._cluster.spilled_on(node):
            path = fault.one_of(files)
            with suppress(FileNotFoundError):
                os.truncate(path, path.stat().st_size // 2)
                yield _nothing

    def _victim(self, fault: Fault, node: ClusterNode) -> int | None:
        if fault.role in (RAYLET, GCS, ZYGOTE):
            return self._cluster.pid_of(fault.role, node)
        if fault.role == WORKER:
            pids = self._cluster.workers_of(node)
            return fault.one_of(pids) if pids else None
        return self._driver(fault)

    def _driver(self, fault: Fault) -> int | None:
        living = [driver for driver in self._drivers if not driver.is_gone]
        if not living:
            return None
        driver = fault.one_of(living)
        driver.is_gone = fault.kind == KILL
        return driver.pid

    def _before_kill(self, fault: Fault, node: ClusterNode) -> None:
        if fault.role == GCS and self._cluster.proxies is not None:
            self._cluster.proxies.step_aside(self._cluster.sockets_of(node) / GCS)

    def _interfere(self, fault: Fault, node: ClusterNode) -> Iterator[Callable[[], None]]:
        proxies = self._cluster.proxies
        assert proxies is not None
        paths = self._paths(fault, proxies.listeners(self._cluster.sockets_of(node)))
        if paths and fault.role != NODE:
            paths = [fault.one_of(paths)]
        for path in paths:
            (proxies.cut if fault.kind == CUT else proxies.hold)(path)
        if fault.kind == LAST_WORDS:
            self._at(time.monotonic() - self._began + SPEAKS_S, lambda: self._cluster.kill_all_of(node))
        if paths:
            yield lambda: proxies.release(paths)

    def _paths(self, fault: Fault, listeners: list[Path]) -> list[Path]:
        if fault.role == NODE:
            return listeners
        if fault.role == WORKER:
            return [path for path in listeners if path.name.startswith("w-")]
        return [path for path in listeners if path.name == fault.role]


def _nothing() -> None:
    """Do nothing: a kill cannot be undone."""


def _limit_files(pid: int, most_bytes: int) -> None:
    """Make writing beyond this size fail (EFBIG) in a process. Existing files stay."""
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
