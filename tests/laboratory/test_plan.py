"""Plans: a workload is placed by HEFT, which knows the speeds of nodes, and the simulation carries the plan out."""

from __future__ import annotations

from typing import Any

import pytest

from minray.laboratory.cost_model import CostModel
from minray.laboratory.experiment import simulate
from minray.laboratory.plan import planned
from minray.laboratory.report import summarise, text
from minray.laboratory.setup import Machine, Setup, node_names
from minray.laboratory.workload import NodeFailure, TraceActor, TraceError, TraceTask, Workload
from tests.laboratory.worlds import load, workload

MACHINES = (Machine(cpus=1), Machine(cpus=1, speed=2.0), Machine(cpus=1, speed=0.5))
COSTS = CostModel(node_bytes_per_s=1e7, worker_start_s=0.0)


def setup(**changes: Any) -> Setup:
    return Setup(**{"machines": MACHINES, "costs": COSTS, "plan": "heft", **changes})


def test_a_chain_runs_on_the_fastest_node() -> None:
    chain = load("chain:depth=3,duration=10,output=1e6")
    assert list(planned(chain, setup()).nodes.items()) == [("0.0", 1), ("0.1", 1), ("0.2", 1)]
    record = simulate(chain, setup(), seed=0)
    assert {run.node for run in record.executions} == {"n1"} and not record.pairs
    assert record.makespan_s == pytest.approx(15, abs=0.1)


@pytest.mark.parametrize("shape", ["tree:width=2,depth=3", "map-reduce:width=4,depth=2", "fft:width=4", "fan-out:width=5"])
def test_a_plan_is_carried_out_in_its_time_on_unequal_nodes(shape: str) -> None:
    trace = load(f"{shape},duration=20,durations=uniform,output=2e6")
    plan, record = planned(trace, setup()), simulate(trace, setup(), seed=0)
    names = node_names(setup())
    assert {run.task: run.node for run in record.executions} == {task: names[node] for task, node in plan.nodes.items()}
    assert record.makespan_s == pytest.approx(plan.makespan_s, rel=0.05), "transfers that share a link make it longer"
    assert record.planned_s == plan.makespan_s


def test_a_plan_that_knows_the_speeds_is_faster_than_policies_that_do_not() -> None:
    trace = load("tree:width=2,depth=4,duration=20,output=2e6")
    by_plan, by_policy = (simulate(trace, setup(plan=plan), seed=0).makespan_s for plan in ("heft", ""))
    assert by_plan < 0.9 * by_policy


def test_a_result_is_fetched_once_for_each_node_that_needs_it() -> None:
    trace = load("map-reduce:width=4,depth=2,duration=20,output=2e6")
    nodes = planned(trace, setup()).nodes
    needed = {(source, nodes[task.id]) for task in trace.tasks for source, _ in task.inputs}
    travels = [source for source, node in needed if nodes[source] != node]
    assert sum(simulate(trace, setup(), seed=0).pairs.values()) == pytest.approx(2e6 * len(travels), rel=0.01)


def test_the_report_has_the_planned_makespan_beside_the_other_one() -> None:
    figures = summarise(simulate(load("chain:depth=2,duration=10"), setup(), seed=0))
    assert figures["planned_s"] == 10.0 and "; planned: 10.000 s" in text(figures)
    assert summarise(simulate(load("single"), setup(plan=""), seed=0))["planned_s"] is None


@pytest.mark.parametrize(
    ("trace", "complaint"),
    [
        (workload(TraceTask("a", 1.0, arrival_s=2.0)), "task 'a' has arrival_s=2 and resources={}"),
        (workload(TraceTask("a", 1.0, resources={"CPU": 0.5})), "task 'a' has arrival_s=0 and resources={'CPU': 0.5}"),
        (workload(TraceTask("a", 1.0, actor="x"), actors=(TraceActor("x"),)), "test has actors or failures of nodes"),
        (workload(TraceTask("a", 1.0), failures=(NodeFailure(1, 1.0),)), "test has actors or failures of nodes"),
    ],
)
def test_what_heft_cannot_plan_is_an_error_with_the_remedy(trace: Workload, complaint: str) -> None:
    with pytest.raises(TraceError, match="leave out the plan") as caught:
        simulate(trace, setup(), seed=0)
    assert str(caught.value).startswith(complaint)


def test_a_plan_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TraceError, match="there is no plan 'cpop'; write 'heft'"):
        simulate(load("single"), setup(plan="cpop"), seed=0)
