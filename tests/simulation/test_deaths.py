"""The watch sees wrong news of deaths, raylets that do not relieve their memory, and memory that is given out wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from minray.object_store.allocator import ALIGNMENT, Allocator
from minray.protocol.actor import ALIVE, DEAD, RESTARTING, WORKER_DIED, ActorInfo, DeathCause
from minray.protocol.base import Address, encode
from minray.protocol.gcs import GetWorkerDeath, ReportWorkerDeath, WorkerDeath
from minray.raylet.memory_monitor import MemoryMonitor
from minray.simulation import SimCluster
from minray.simulation.cluster import HEAD
from tests.simulation.deaths import Deaths
from tests.simulation.invariants import Watch
from tests.simulation.objects import Objects

WORKER, NODE, ACTOR = b"w" * 16, b"n" * 16, b"a" * 16
HOST = Address(WORKER, NODE, "sim:w")
THERE = ActorInfo(ACTOR, ALIVE, "A", "", "", HOST, address=HOST)
LOST = DeathCause(WORKER_DIED, "exit code 1")


@dataclass
class Living:
    """A process or a node."""

    name: str = ""
    alive: bool = True


@dataclass
class Loop:
    processes: list[Living]


class Publisher:
    """The gcs's publisher, which tells nobody."""

    def publish(self, *change: Any) -> None:
        """Tell a change."""


class Health:
    """The gcs's health checks, which watch nobody."""

    def watch(self, *node: Any) -> None:
        """Begin to check a node."""


@dataclass
class Gcs:
    its_node: Living
    _publisher: Publisher = field(default_factory=Publisher)
    _health: Health = field(default_factory=Health)

    def node(self, node_id: bytes) -> Living:
        return self.its_node


@dataclass
class Sent:
    """A message."""

    payload: bytes


@dataclass
class Death:
    is_certain: bool


@dataclass
class Peer:
    death: Death | None = None


@dataclass
class Peers:
    _peers: dict[bytes, Peer]


@dataclass
class Core:
    peers: Peers


class Queue:
    """A queue that decides nothing."""

    def __init__(self) -> None:
        self.decided: list[Callable[..., None]] = []

    def add_request(self, creation: str, on_created: Callable[..., None], now: float) -> None:
        self.decided.append(on_created)


class Scene:
    """``Deaths`` of a cluster with one worker, which lives at first, and one gcs, which says what the test lets it say."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.worker, self.node = Living(f"worker/{WORKER.hex()[:8]}"), Living()
        loop: Any = Loop([self.worker])
        self.deaths = Deaths(lambda prop, _: self.problems.append(prop), loop)
        self.gcs = Gcs(self.node)
        self.deaths.add_gcs(self.gcs)

    def tell(self, info: ActorInfo) -> None:
        self.gcs._publisher.publish("actors:1", info.actor_id, encode(info))


def test_l6_only_a_worker_that_has_ended_is_reported_dead() -> None:
    scene = Scene()
    report = Sent(encode(ReportWorkerDeath(WorkerDeath(WORKER, NODE, 1, "exit code 1"))))
    scene.deaths.on_send(None, report, "ReportWorkerDeath")
    assert scene.problems == ["L6"]
    scene.worker.alive = False
    scene.deaths.on_send(None, report, "ReportWorkerDeath")
    assert scene.problems == ["L6"]


@pytest.mark.parametrize(("is_certain", "expected"), [(True, ["L5"]), (False, [])])
def test_l5_nobody_asks_about_a_death_that_is_certain(is_certain: bool, expected: list[str]) -> None:
    scene, question = Scene(), Sent(encode(GetWorkerDeath(WORKER, NODE)))
    peer = Peer()
    core = Core(Peers({WORKER: peer}))
    scene.deaths.on_send(core, question, "GetWorkerDeath")
    assert scene.problems == []
    peer.death = Death(is_certain)
    scene.deaths.on_send(core, question, "GetWorkerDeath")
    assert scene.problems == expected


@pytest.mark.parametrize(
    ("worker_lives", "node_lives", "expected"), [(True, True, ["L6"]), (False, True, []), (True, False, [])]
)
@pytest.mark.parametrize("state", [DEAD, RESTARTING])
def test_l6_an_actor_has_lost_its_worker_only_if_that_has_ended(
    state: str, worker_lives: bool, node_lives: bool, expected: list[str]
) -> None:
    scene = Scene()
    scene.worker.alive, scene.node.alive = worker_lives, node_lives
    scene.tell(THERE)
    scene.tell(msgspec.structs.replace(THERE, state=state, address=None, death=LOST))
    assert scene.problems == expected


def test_s3_an_actor_begins_one_incarnation_after_the_other() -> None:
    scene = Scene()
    for restarts in (0, 1, 1, 2):
        scene.tell(msgspec.structs.replace(THERE, restarts=restarts))
    assert scene.problems == []
    scene.tell(msgspec.structs.replace(THERE, restarts=4))
    scene.tell(msgspec.structs.replace(THERE, restarts=3))
    assert scene.problems == ["S3", "S3"]


def short_of_memory() -> list[str]:
    """Problems of an idle cluster whose head has no memory for a second."""
    with SimCluster([{"num_cpus": 1}], 1, system_config={"memory_monitor_refresh_ms": 50}) as cluster:
        watch, node = Watch(cluster), cluster.world.nodes[HEAD]
        node.memory_used = node.memory_bytes * 97 // 100
        cluster.settle(1.0)
        return watch.problems


def test_g89_a_raylet_without_memory_kills_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert short_of_memory() == []
    relieve = MemoryMonitor._relieve

    def late(self: MemoryMonitor, used: int, total: int) -> None:
        if used == total:
            relieve(self, used, total)

    monkeypatch.setattr(MemoryMonitor, "_relieve", late)
    assert any(problem.startswith("G89") for problem in short_of_memory())


def test_s6_free_memory_between_two_copies_is_one_piece() -> None:
    problems: list[str] = []
    objects, allocator = Objects(lambda prop, _: problems.append(prop)), Allocator(10 * ALIGNMENT)
    blocks = [allocator.allocate(ALIGNMENT) for _ in range(4)]
    allocator.free(blocks[1] or 0)
    objects._expect_joined("head", allocator)
    assert problems == []
    allocator._blocks.pop(blocks[2] or 0)
    objects._expect_joined("head", allocator)
    allocator._add(blocks[2] or 0, ALIGNMENT)
    objects._expect_joined("head", allocator)
    assert problems == ["S6", "S6"]


def test_g79_requests_for_memory_are_decided_in_their_order() -> None:
    problems: list[str] = []
    queue = Queue()
    Objects(lambda prop, _: problems.append(prop))._watch_queue("head", queue)
    for request in ("first", "second", "third"):
        queue.add_request(request, lambda *_: None, 0.0)
    queue.decided[0](None, True)
    assert problems == []
    queue.decided[2](None, True)
    queue.decided[1](None, True)
    assert problems == ["G79"]
