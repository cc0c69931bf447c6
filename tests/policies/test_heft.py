"""HEFT against the example of its paper, and how much of a schedule a program can carry out."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minray
from minray.laboratory.cost_model import CostModel
from minray.laboratory.modelled_costs import ModelledCosts
from minray.platform.transport.queued_channel import Message
from minray.policies.heft import heft, times_on, upward_ranks
from minray.simulation.cluster import SimCluster
from minray.simulation.costs import Costs
from minray.simulation.loop import SimProcess
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

COSTS = {
    1: (14, 16, 9), 2: (13, 19, 18), 3: (11, 13, 19), 4: (13, 8, 17), 5: (12, 13, 10),
    6: (13, 16, 9), 7: (7, 15, 11), 8: (5, 11, 14), 9: (18, 12, 20), 10: (21, 7, 16),
}  # fmt: skip
TRANSFERS = {
    (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23,
    (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
}  # fmt: skip
"""The graph of figure 1 of the paper, on three processors."""


def test_the_ranks_of_the_paper() -> None:
    ranks = {task: round(rank, 3) for task, rank in upward_ranks(COSTS, TRANSFERS).items()}
    assert ranks == {
        1: 108, 2: 77, 3: 80, 4: 80, 5: 69, 6: 63.333, 7: 42.667, 8: 35.667, 9: 44.333, 10: 14.667,
    }  # fmt: skip


def test_the_schedule_of_the_paper_takes_80() -> None:
    schedule = heft(COSTS, TRANSFERS)
    assert max(slot.finish for slot in schedule.values()) == 80
    assert [task for task, slot in sorted(schedule.items(), key=lambda each: each[1].start) if slot.processor == 2] == [
        1, 3, 5, 7,
    ]  # fmt: skip


def test_processors_of_one_node_exchange_data_for_nothing() -> None:
    chain, split = {("a", "b"): 9.0, ("a", "c"): 9.0}, {"a": (1, 1), "b": (5, 5), "c": (5, 5)}
    assert max(slot.finish for slot in heft(split, chain).values()) == 11
    assert max(slot.finish for slot in heft(split, chain, nodes=["x", "x"]).values()) == 6


def test_a_task_goes_into_a_gap() -> None:
    costs = {"a": (4, 4), "b": (4, 40), "c": (40, 6), "d": (3, 30)}
    schedule = heft(costs, {("a", "b"): 1, ("a", "c"): 1, ("c", "b"): 1})
    assert schedule["d"].start < schedule["b"].start and schedule["d"].processor == schedule["b"].processor


@pytest.mark.parametrize(
    ("transfers", "complaint"),
    [({("a", "b"): 1.0, ("b", "a"): 1.0}, r"\['a', 'b'\] need each other in a circle"), ({("a", "z"): 1.0}, "'a' to 'z'")],
)
def test_a_graph_that_is_none_is_an_error(transfers: dict[tuple[str, str], float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        heft({"a": (1,), "b": (1,)}, transfers)


COST = st.floats(0.1, 10)
GRAPHS = st.integers(1, 7).flatmap(
    lambda size: st.tuples(
        st.fixed_dictionaries({task: st.tuples(COST, COST, COST) for task in range(size)}),
        st.dictionaries(st.tuples(*[st.integers(0, size - 1)] * 2).filter(lambda arrow: arrow[0] < arrow[1]), COST)
        if size > 1
        else st.just({}),
    )
)


@settings(max_examples=40)
@given(GRAPHS)
def test_a_schedule_keeps_arrows_and_runs_one_task_at_a_time(
    graph: tuple[dict[int, tuple[float, float, float]], dict[tuple[int, int], float]],
) -> None:
    costs, transfers = graph
    schedule = heft(costs, transfers)
    assert schedule.keys() == costs.keys()
    for (before, after), transfer in transfers.items():
        is_sent = schedule[before].processor != schedule[after].processor
        assert schedule[after].start >= schedule[before].finish + (transfer if is_sent else 0)
    for processor in range(3):
        slots = sorted(slot for slot in schedule.values() if slot.processor == processor)
        assert all(one.finish <= other.start for one, other in zip(slots, slots[1:], strict=False))


def test_a_processor_of_twice_the_speed_takes_half_the_time() -> None:
    times = times_on({"a": 6.0, "b": 1.0}, speeds=(1.0, 2.0, 0.5))
    assert times == {"a": (6.0, 3.0, 12.0), "b": (1.0, 0.5, 2.0)}
    assert [slot.processor for slot in heft(times, {("a", "b"): 0.1}).values()] == [1, 1]


@pytest.mark.parametrize("speed", [0.0, -1.0, math.inf, math.nan])
def test_a_speed_that_is_none_is_an_error(speed: float) -> None:
    with pytest.raises(ValueError, match="speeds must be finite numbers above 0"):
        times_on({"a": 1.0}, (1.0, speed))


BYTES_PER_S = 100_000
"""Bytes that travel in a time unit of the paper. Each result is then large enough to be an object of its own."""


class PapersCosts(Costs):
    """The links that the paper assumes: one for each transfer, as fast as if it were alone."""

    def carry_s(self, source: SimProcess, target: SimProcess, message: Message) -> float:
        size_bytes = sum(buffer.nbytes for buffer in message.buffers)
        return 0.0 if source.node == target.node else size_bytes / BYTES_PER_S


@minray.remote
def step(seconds: float, sizes: Sequence[int], *needed: object) -> Any:
    """Take a task's time, and return when that was, and a result for each task that follows."""
    begin = time.time()
    time.sleep(seconds)
    ran = minray.get_runtime_context().get_node_id(), begin, time.time()
    return (ran, *[numpy.zeros(size, numpy.uint8) for size in sizes]) if sizes else ran


@minray.remote(num_cpus=0)
def fetch(result: object) -> None:
    """Bring a result to the node of this task."""


def papers_program() -> tuple[list[str], dict[int, tuple[str, float, float]]]:
    """Carry out the schedule of the paper's graph; return the nodes, and the node, start and end of each task."""
    schedule, nodes = heft(COSTS, TRANSFERS), [node["NodeID"] for node in minray.nodes()]
    places = {task: NodeAffinitySchedulingStrategy(nodes[slot.processor], soft=False) for task, slot in schedule.items()}
    ends: dict[int, Any] = {}
    results: dict[tuple[int, int], Any] = {}
    for task in sorted(schedule, key=lambda task: schedule[task].start):
        followers = [after for before, after in TRANSFERS if before == task]
        sizes = [TRANSFERS[task, after] * BYTES_PER_S for after in followers]
        needed = [results[arrow] for arrow in TRANSFERS if arrow[1] == task]
        options = step.options(scheduling_strategy=places[task], num_returns=1 + len(sizes))
        returned = options.remote(COSTS[task][schedule[task].processor], sizes, *needed)
        ends[task], *made = returned if sizes else [returned]
        for after, result in zip(followers, made, strict=True):
            results[task, after] = result
            if schedule[after].processor != schedule[task].processor:
                fetch.options(scheduling_strategy=places[after]).remote(result)
    return nodes, dict(zip(ends, minray.get(list(ends.values())), strict=True))


def carried_out(costs: Costs) -> tuple[list[str], dict[int, tuple[str, float, float]]]:
    """Run the paper's program on three simulated nodes; times count from the first start."""
    with SimCluster([{"num_cpus": 1}] * 3, seed=1, costs=costs) as cluster:
        nodes, ran = cluster.run(papers_program)
    begin = min(start for _, start, _ in ran.values())
    return nodes, {task: (node, start - begin, end - begin) for task, (node, start, end) in ran.items()}


def test_a_cluster_carries_out_the_schedule_of_the_paper_in_80() -> None:
    schedule = heft(COSTS, TRANSFERS)
    nodes, ran = carried_out(PapersCosts())
    for task, slot in schedule.items():
        assert ran[task][0] == nodes[slot.processor]
        assert ran[task][1:] == pytest.approx((slot.start, slot.finish), abs=0.1), task
    assert max(end for _, _, end in ran.values()) == pytest.approx(80, abs=0.1)


def test_links_that_transfers_share_make_the_schedule_longer() -> None:
    shared = ModelledCosts(CostModel(node_bytes_per_s=BYTES_PER_S, worker_start_s=0.0), {"head": 0, "n1": 1, "n2": 2})
    _, ran = carried_out(shared)
    assert max(end for _, _, end in ran.values()) > 100, "three results of the first task leave its node one by one"
