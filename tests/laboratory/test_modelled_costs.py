"""Shared links and disks: who waits for whom, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from minray.laboratory.cost_model import CostModel
from minray.laboratory.modelled_costs import ModelledCosts
from minray.platform.transport.queued_channel import CALL, Message
from minray.simulation.costs import READ, WRITE
from minray.simulation.loop import TICKS_PER_SECOND, SimLoop, SimProcess

MODEL = CostModel(write_s=0.0, node_bytes_per_s=100.0, rack_nodes=2, rack_bytes_per_s=50.0, memory_bytes_per_s=1000.0)


class World:
    """Processes on four nodes in two racks, which are never run."""

    def __init__(self, shrink: int = 1, model: CostModel = MODEL) -> None:
        self.costs = ModelledCosts(model, {f"n{number}": number for number in range(4)}, shrink)
        self.loop = SimLoop()
        self.processes = [self.loop.add_process(f"p{number}", f"n{number}", 0) for number in range(4)]

    def process(self, number: int) -> SimProcess:
        return self.processes[number]

    def send(self, source: int, target: int, size: int) -> float:
        message = Message(CALL, method="ReadChunk", payload=b"12345", buffers=(memoryview(bytes(size)),) if size else ())
        return self.costs.carry_s(self.process(source), self.process(target), message)


@pytest.fixture
def new_world() -> Iterator[Callable[..., World]]:
    """A function that makes worlds, whose loops are closed in the end."""
    with ExitStack() as stack:

        def make(shrink: int, model: CostModel = MODEL) -> World:
            made = World(shrink, model)
            stack.callback(made.loop.close)
            return made

        yield make


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    return new_world(1)


def test_latency_depends_on_the_racks(world: World) -> None:
    far = [world.costs.latency_s(world.process(0), world.process(target)) for target in range(4)]
    assert far == [MODEL.local_latency_s, MODEL.rack_latency_s, MODEL.core_latency_s, MODEL.core_latency_s]


def test_a_process_writes_to_one_connection_after_the_other_and_once_to_each(new_world: Callable[..., World]) -> None:
    world = new_world(1, CostModel(write_s=1.0, rack_latency_s=10.0))
    times = [world.costs.latency_s(world.process(0), world.process(target)) for target in (1, 2, 1, 2)]
    assert times == [11.0, 12.0, 11.0, 12.0], "messages to one target are one write"
    assert world.costs.latency_s(world.process(3), world.process(1)) == 11.0, "another process writes meanwhile"
    world.loop.ticks += TICKS_PER_SECOND
    assert world.costs.latency_s(world.process(0), world.process(1)) == 12.0, "the writes of a second ago end first"


def test_values_queue_for_a_link_and_control_does_not(world: World) -> None:
    assert [world.send(0, 1, 200), world.send(0, 1, 100), world.send(0, 1, 0)] == [2.0, 3.0, 0.0]
    assert world.send(1, 0, 100) == 1.0, "the other direction is free"
    assert world.send(0, 0, 500) == 0.5, "memory, not the link"


def test_two_senders_share_the_link_of_the_receiver(world: World) -> None:
    assert [world.send(0, 1, 100), world.send(2, 1, 100)] == [1.0, 2.0]


def test_the_racks_link_limits_what_leaves_it(world: World) -> None:
    assert [world.send(0, 2, 100), world.send(1, 3, 100)] == [2.0, 4.0]
    assert world.costs.links["rack", 0, "up"] == world.costs.links["rack", 1, "down"] == 200


def test_a_disk_serves_one_access_after_the_other(world: World) -> None:
    model = CostModel(disk_seek_s=1.0, disk_read_bytes_per_s=100.0, disk_write_bytes_per_s=50.0)
    costs = ModelledCosts(model, {"n0": 0, "n1": 1})
    times = [costs.disk_s(world.process(0), what, 100) for what in (WRITE, READ)]
    assert [*times, costs.disk_s(world.process(1), READ, 100)] == [3.0, 5.0, 2.0]
    assert costs.disks == {("n0", WRITE): 100, ("n0", READ): 100, ("n1", READ): 100}
    assert costs.disk_busy_s == {"n0": 5.0, "n1": 2.0}, "the seeks are in it, and the waits are not"


def test_counts(world: World) -> None:
    world.send(0, 1, 200)
    world.send(0, 0, 200)
    assert world.costs.messages == {"ReadChunk": 2}
    assert (world.costs.pairs, world.costs.control_bytes) == ({("n0", "n1"): 200}, 5)
    world.costs.forget_bytes()
    assert (world.costs.pairs, world.costs.links, world.costs.control_bytes) == ({}, {}, 0)


def test_shrunk_values_count_and_take_as_much_as_whole_ones(new_world: Callable[..., World]) -> None:
    shrunk = new_world(10)
    assert shrunk.send(0, 1, 20) == 2.0
    assert shrunk.costs.pairs["n0", "n1"] == 200
