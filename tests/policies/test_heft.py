"""HEFT against the example of its paper, and how much of a schedule a program can carry out."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minray
from minray.policies.heft import heft, upward_ranks
from minray.simulation.cluster import SimCluster
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


@minray.remote
def step(seconds: float, *needed: object) -> tuple[str, float, float]:
    begin = time.time()
    time.sleep(seconds)
    return minray.get_runtime_context().get_node_id(), begin, time.time()


def test_a_program_carries_out_the_places_of_a_schedule() -> None:
    schedule = heft(COSTS, TRANSFERS)

    def program() -> tuple[list[str], dict[int, tuple[str, float, float]]]:
        nodes = [node["NodeID"] for node in minray.nodes()]
        refs: dict[int, object] = {}
        for task, slot in sorted(schedule.items(), key=lambda each: each[1].start):
            strategy = NodeAffinitySchedulingStrategy(nodes[slot.processor], soft=False)
            needed = [refs[before] for before, after in TRANSFERS if after == task]
            refs[task] = step.options(scheduling_strategy=strategy).remote(COSTS[task][slot.processor], *needed)
        return nodes, dict(zip(refs, minray.get(list(refs.values())), strict=True))

    with SimCluster([{"num_cpus": 1}] * 3, seed=1) as cluster:
        nodes, ran = cluster.run(program)
    assert all(ran[task][0] == nodes[slot.processor] for task, slot in schedule.items())
    took = max(end for _, _, end in ran.values()) - min(begin for _, begin, _ in ran.values())
    assert 0 < took < 80, "the simulated network sends these small results in less time than the paper assumes"
    in_order = sorted(schedule, key=lambda task: schedule[task].start)
    for processor in range(3):
        planned = [task for task in in_order if schedule[task].processor == processor]
        assert sorted(planned, key=lambda task: ran[task][1]) == planned
