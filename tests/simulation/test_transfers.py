"""Objects that move between simulated nodes, in chunks of a thousand bytes: what is sent by whom, and what faults do to it.

``judged`` looks for what is left: memory, pins, pulls, messages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minray
from minray.common.bounds import BOUNDS
from minray.platform.transport.queued_channel import CALL
from minray.protocol.base import decode
from minray.protocol.object_store import GET, TASK_ARGUMENTS, WAIT, PinObjects, ReadChunk
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.interference import watch_sends
from tests.simulation.judge import judged, outcome_of
from tests.simulation.roles import Cluster

CHUNK, CHUNKS = 1000, 40
CONFIG = {"max_direct_call_object_size": 100, "object_manager_default_chunk_size": CHUNK}
SEEDS = seeds(3)


@minray.remote(max_retries=0)
def make(number: int = 1, size: int = (CHUNKS - 1) * CHUNK) -> Any:
    """Number of chunks; the last one has a few bytes."""
    return np.full(size, number, np.uint8)


@minray.remote(max_retries=0)
def read(array: Any) -> int:
    return int(array[0]) if array.min() == array.max() else -1


@minray.remote(max_retries=0)
def get_and_read(refs: list[Any]) -> int:
    """Runs where the object is not yet, while the raylet brings the arguments of ``read`` before it begins."""
    return int(minray.get(refs[0])[0])


@minray.remote
def wake() -> None:
    """Have a worker ready, so that tasks begin at the same time."""


def living_raylets(cluster: Cluster) -> list[Any]:
    return [process for process in cluster.world.loop.processes if process.alive and process.name.startswith("raylet/")]


def node(name: str, **options: Any) -> dict[str, Any]:
    return {"num_cpus": 2, "resources": {name: 2}, **options}


def on(name: str, function: Any) -> Any:
    return function.options(resources={name: 1})


class Chunks:
    """Which chunks were sent from where to where, and what happens when one is."""

    def __init__(self, strike: Callable[[Cluster, Chunks], None] | None = None) -> None:
        self.sent: Counter[tuple[str, str]] = Counter()
        """By the nodes of sender and receiver."""
        self.asked: Counter[tuple[str, int]] = Counter()
        """How often a node has asked for the chunk that begins there."""
        self.channels: dict[Any, Counter[str]] = {}
        """Requests of the second node's raylet to others, by channel."""
        self._strike = strike
        """Called before each chunk that is sent."""

    def watch(self, cluster: Cluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            if word == "ReadChunk" and message.kind == CALL:
                self.asked[end.pipe.source.node, decode(ReadChunk, message.payload).start] += 1
            if message.kind == CALL and end.pipe.target.name.startswith("raylet/") and end.pipe.source.name == "raylet/n2":
                self.channels.setdefault(end, Counter())[word] += 1
            if word == "ReadChunk reply" and message.buffers:
                self.sent[end.pipe.source.node, end.pipe.target.node] += 1
                if self._strike is not None:
                    self._strike(cluster, self)
            return bool(end.pipe.source.alive)

        watch_sends(cluster, on_send)

    def sent_by(self, name: str) -> int:
        return sum(count for (source, _), count in self.sent.items() if source == name)


def moved(body: Any, chunks: Chunks, *names: str, **options: Any) -> Any:
    """The result of a body on a head and nodes with these names as resources (``n1``, ``n2``, ...)."""
    nodes = [{"num_cpus": 2}, *(node(name) for name in names)]
    result, cluster = judged(body, chunks.watch, nodes=nodes, system_config=CONFIG, **options)
    for process in living_raylets(cluster):
        raylet = cluster.raylets[process.node]
        assert not raylet.objects._pulls and not len(raylet.objects.pulls) and not raylet.objects.pushes.bytes_in_flight
    return result


# --- without faults


def test_g88_every_chunk_is_asked_for_and_sent_once() -> None:
    def body() -> list[int]:
        made = on("a", make).remote()
        return minray.get([on("b", read).remote(made) for _ in range(3)])

    chunks = Chunks()
    assert moved(body, chunks, "a", "b") == [1] * 3
    assert chunks.sent == {("n1", "n2"): CHUNKS}
    assert set(chunks.asked.values()) == {1}


@pytest.mark.parametrize("receivers", [2, 5])
def test_one_object_to_many_nodes_leaves_the_first_once(receivers: int) -> None:
    """Each node that wants it at once reads it from the one before: nobody sends more than it would to one."""
    names = "bcdef"[:receivers]

    def body() -> list[int]:
        minray.get([on(name, wake).remote() for name in names])
        made = on("a", make).remote()
        return minray.get([on(name, read).remote(made) for name in names])

    chunks = Chunks()
    assert moved(body, chunks, "a", *names) == [1] * receivers
    assert chunks.sent.total() == receivers * CHUNKS
    assert max(chunks.sent_by(name) for name in ("n1", "n2", "n3")) == CHUNKS


def test_of_many_copies_the_latest_is_read() -> None:
    """So the first one is not asked by all who come one after the other."""

    def body() -> list[int]:
        made = on("a", make).remote()
        return [minray.get(on(name, read).remote(made)) for name in "bcdef"]

    chunks = Chunks()
    assert moved(body, chunks, *"abcdef") == [1] * 5
    assert chunks.sent == {(f"n{number}", f"n{number + 1}"): CHUNKS for number in range(1, 6)}


def test_chunks_have_connections_of_their_own() -> None:
    """So they hold up nothing else between the two raylets, and several are copied at once."""

    def body() -> int:
        return minray.get(on("b", read).remote(on("a", make).remote()))

    chunks = Chunks()
    assert moved(body, chunks, "a", "b") == 1
    lanes = [words for words in chunks.channels.values() if "ReadChunk" in words]
    assert [words.total() for words in lanes] == [CHUNKS // 2] * 2


def test_without_lanes_chunks_go_the_way_of_all_messages() -> None:
    """Here because the node that is asked cannot listen for them."""

    def body() -> int:
        return minray.get(on("b", read).remote(on("a", make).remote()))

    class Occupied(Chunks):
        def watch(self, cluster: Cluster) -> None:
            super().watch(cluster)
            cluster.world.wire.listeners["sim:n1/bulk-1"] = cluster.world.wire.listeners["sim:n1/raylet"]

    chunks = Occupied()
    assert moved(body, chunks, "a", "b") == 1
    assert [words for words in chunks.channels.values() if "ReadChunk" in words] == [
        Counter({"OpenLanes": 1, "ReadChunk": CHUNKS})
    ]


def test_g87_a_get_that_times_out_again_and_again_gets_its_object() -> None:
    """A pull goes on while nobody waits for it, so that a reader that polls does not begin anew each time."""

    def body() -> int:
        made = on("a", make).remote(size=1 << 20)
        tries = 0
        while True:
            tries += 1
            try:
                array = minray.get(made, timeout=0.003)
            except minray.exceptions.GetTimeoutError:
                continue
            return -1 if tries == 1 else int(array[0])

    chunks = Chunks()
    assert moved(body, chunks, "a") == 1
    assert set(chunks.asked.values()) == {1}


def test_g87_raylets_are_told_what_objects_are_wanted_for() -> None:
    def body() -> int:
        waited, gotten, passed = [on("a", make).remote(number) for number in range(3)]
        minray.wait([waited])
        return minray.get(on("b", read).remote(passed)) + int(minray.get(gotten)[0])

    purposes = Counter[tuple[str, int]]()

    class Purposes(Chunks):
        def watch(self, cluster: Cluster) -> None:
            def on_send(end: Any, message: Any, word: str) -> bool:
                if word == "PinObjects":
                    purposes[end.pipe.source.node, decode(PinObjects, message.payload).purpose] += 1
                return True

            watch_sends(cluster, on_send)

    assert moved(body, Purposes(), "a", "b") == 3
    assert purposes == {("head", WAIT): 1, ("head", GET): 1, ("n2", TASK_ARGUMENTS): 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_g87_bundles_that_do_not_fit_together_come_one_after_the_other(seed: int) -> None:
    """Two tasks with two arguments each, of which three do not fit: they would wait for each other's memory."""

    def body() -> list[int]:
        made = [on("a", make).remote(number, 100_000) for number in range(4)]
        minray.wait(made, num_returns=4, fetch_local=False)
        both = minray.remote(lambda first, second: int(first[0]) + int(second[0]))
        return minray.get([on("b", both).remote(*made[:2]), on("b", both).remote(*made[2:])])

    nodes = [{"num_cpus": 2}, node("a"), node("b", object_store_memory=250_000)]
    plan = FaultPlan({"delay": 0.3, "preempt": 0.1})
    result, _ = judged(body, nodes=nodes, system_config=CONFIG, seed=seed, faults=plan)
    assert result == [1, 5]


# --- with faults


def killing(name: str, at: int, to: str = "") -> Callable[[Cluster, Chunks], None]:
    """A raylet dies when it is about to send that chunk (counted for one receiver, if named)."""

    def strike(cluster: Cluster, chunks: Chunks) -> None:
        sent = chunks.sent[name, to] if to else chunks.sent_by(name)
        if sent == at and name in {process.node for process in living_raylets(cluster)}:
            cluster.raylet(name).kill()

    return strike


@pytest.mark.parametrize("at", [1, CHUNKS // 2, CHUNKS - 1])
def test_g66_when_a_source_dies_the_rest_comes_from_another_copy(at: int) -> None:
    """Chunks that have come are kept: only those on their way are asked for again."""

    def body() -> int:
        made = on("a", make).remote()
        minray.get(on("b", read).remote(made))
        return minray.get(on("c", read).remote(made))

    def strike(cluster: Cluster, chunks: Chunks) -> None:
        if len(living_raylets(cluster)) == 4:
            killing("n1", at, "n3")(cluster, chunks)
            killing("n2", at, "n3")(cluster, chunks)

    chunks = Chunks(strike)
    assert moved(body, chunks, "a", "b", "c") == 1
    assert chunks.sent["n1", "n3"] and chunks.sent["n2", "n3"]
    at_once = sum(count - 1 for (name, _), count in chunks.asked.items() if name == "n3")
    assert at_once <= BOUNDS.object_manager_chunks_at_once


def test_g66_a_chain_of_receivers_mends_when_one_of_them_dies() -> None:
    def body() -> list[Any]:
        minray.get([on(name, wake).remote() for name in "bcd"])
        made = on("a", make).remote()
        return [outcome_of(ref) for ref in [on(name, get_and_read).remote([made]) for name in "bcd"]]

    chunks = Chunks(killing("n3", CHUNKS // 2))
    first, second, third = moved(body, chunks, *"abcd")
    assert [first, second, third].count(1) == 2


def test_when_the_only_source_dies_the_object_is_lost() -> None:
    def body() -> Any:
        return outcome_of(on("a", make).remote())

    assert moved(body, Chunks(killing("n1", CHUNKS // 2)), "a") == "ObjectReconstructionFailedError"


@pytest.mark.parametrize("is_repeated", [False, True])
def test_g112_a_receiver_that_never_began_does_not_keep_the_owner_waiting(is_repeated: bool) -> None:
    """The receiver has no room; when the only copy is lost afterwards, no node has another.

    Nor if the question where the copy is comes again when it is long over.
    """

    def strike(cluster: Cluster) -> None:
        questions: list[tuple[Any, Any]] = []

        def on_send(end: Any, message: Any, word: str) -> bool:
            if word == "GetObjectLocations" and end.pipe.source.node == "n2":
                questions.append((end, message))
            if word == "PushTask reply" and end.pipe.source.node == "n2":
                cluster.after(3).raylet("n1").kill()
                for asking, question in questions[:is_repeated]:
                    cluster.world.loop.world.call_later(1, asking.pipe.put, question)
            return True

        watch_sends(cluster, on_send)

    def body() -> list[Any]:
        made = on("a", make).remote()
        failed = outcome_of(on("b", read).remote(made))
        time.sleep(10)
        return [failed, outcome_of(made, timeout=100)]

    nodes = [{"num_cpus": 2}, node("a"), node("b", object_store_memory=CHUNK)]
    result, _ = judged(body, strike, nodes=nodes, system_config={**CONFIG, "automatic_object_spilling_enabled": False})
    assert "ObjectStoreFullError" in result[0]
    assert result[1] == "ObjectReconstructionFailedError"


def test_g62_when_the_owner_dies_in_the_middle_nothing_is_left() -> None:
    @minray.remote(max_retries=0)
    def own() -> list[Any]:
        return [on("a", make).remote()]

    def body() -> Any:
        (made,) = minray.get(on("b", own).remote())
        minray.wait([made], fetch_local=False)
        return outcome_of(made)

    def strike(cluster: Cluster, chunks: Chunks) -> None:
        if chunks.sent.total() == CHUNKS // 2:
            for worker in cluster.workers("n2"):
                worker.exit(None, 9)

    assert moved(body, Chunks(strike), "a", "b") in (1, "OwnerDiedError")


def test_g59_what_is_freed_in_the_middle_is_not_read_to_its_end() -> None:
    def body() -> None:
        made = on("a", make).remote(size=CHUNK * 1000)
        minray.wait([made], fetch_local=False)
        minray.wait([made], timeout=0.002)
        del made

    chunks = Chunks()
    moved(body, chunks, "a")
    assert 0 < chunks.sent.total() < 1000


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("trouble", ["break", "repeat"])
def test_g112_chunks_that_are_lost_or_asked_for_twice(trouble: str, seed: int) -> None:
    words = ["ReadChunk", "GetObjectLocations", "UpdateObjectLocations", "FreeObjects"]

    class Troubled(Chunks):
        def watch(self, cluster: Cluster) -> None:
            super().watch(cluster)
            if trouble == "break":
                cluster.when(*words, *(f"{word} reply" for word in words)).break_channels(at_most=12, one_in=5)
            else:
                cluster.when(*words).replay()

    def body() -> list[int]:
        made = [on("a", make).remote(number) for number in range(2)]
        return minray.get([on(name, read).remote(ref) for ref in made for name in "bc"])

    plan = FaultPlan({"delay": 0.3, "preempt": 0.1, "long_delay": 0.002}, budget=1)
    assert moved(body, Troubled(), "a", "b", "c", seed=seed, faults=plan) == [0, 0, 1, 1]
