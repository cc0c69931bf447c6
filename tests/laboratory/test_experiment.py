"""Simulated runs of workloads: times, bytes, failures, and that a seed decides all of it."""

from __future__ import annotations

import pytest

from minray.laboratory.cost_model import CostModel
from minray.laboratory.experiment import Setup, simulate
from minray.laboratory.report import summarise, task_rows, to_csv, to_json
from minray.laboratory.workload import NodeFailure, TraceError, TraceTask
from tests.laboratory.worlds import load, run, workload

MB = 1_000_000


def test_a_chain_takes_the_sum_of_its_durations_and_a_start() -> None:
    record = run(load("chain:depth=3,duration=10"), costs=CostModel(worker_start_s=0.5))
    assert 30.0 < record.makespan_s < 31.0
    assert [each.task for each in record.executions] == ["0.0", "0.1", "0.2"]


def test_workers_of_a_warm_cluster_need_not_be_started() -> None:
    costs = CostModel(worker_start_s=5.0)
    cold, warm = (run(load("single:count=4"), costs=costs, warm=is_warm) for is_warm in (False, True))
    assert cold.makespan_s > 5.9 and warm.makespan_s < 1.1
    assert len(warm.executions) == 4, "the tasks of the warm-up are not counted"


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    text = "map-reduce:width=4,depth=2,output=200e3,arrivals=poisson,durations=exponential,count=2"
    reports = []
    for seed in (5, 5, 6):
        record = run(load(text, seed), seed)
        reports.append(to_json(summarise(record)) + to_csv(task_rows(record)).encode())
    assert reports[0] == reports[1] != reports[2]


def test_open_load_arrives_whether_or_not_there_is_room() -> None:
    record = run(load("single:count=12,duration=4,arrivals=regular,rate=2"), nodes=1)
    assert list(record.submitted_s.values()) == pytest.approx([index / 2 for index in range(12)], abs=0.01)
    delays = [row.queueing_delay_s or 0.0 for row in task_rows(record)]
    assert delays[2] > 2.5 and delays[-1] > 10  # two CPUs serve half a task in a second, and two arrive


def test_transfers_take_the_time_of_the_link() -> None:
    fan_out = load("fan-out:width=8,output=50e6,duration=5")
    costs = [CostModel(node_bytes_per_s=speed, worker_start_s=0.0) for speed in (1e12, 1e7)]
    fast, slow = (run(fan_out, shrink=50, costs=cost) for cost in costs)
    assert sum(fast.pairs.values()) >= 50 * MB
    home = fast.executions[0].node
    first_elsewhere = [min(each.start_s for each in record.executions if each.node != home) for record in (fast, slow)]
    assert first_elsewhere == pytest.approx([5.0, 10.0], abs=0.2)


def test_a_lost_node_costs_the_runs_that_were_on_it() -> None:
    tasks = load("single:count=8,duration=20").tasks
    calm = run(workload(*tasks))
    struck = run(workload(*tasks, failures=(NodeFailure(1, 5.0, 30.0),)))
    figures = summarise(struck)
    assert figures["tasks"] == {"ended": 8, "lost": 0, "runs_again": 0}
    assert struck.makespan_s > calm.makespan_s + 10
    there = [each.start_s for each in struck.executions if each.node == "n1"]
    assert there and min(there) >= 30, "what it had begun before was lost, and the new machine has work"


def test_values_can_be_shrunk_without_another_result() -> None:
    text = "map-reduce:width=4,depth=2,output=8e6"
    whole, shrunk = (run(load(text), shrink=shrink) for shrink in (1, 20))
    assert sum(shrunk.pairs.values()) == pytest.approx(sum(whole.pairs.values()), rel=0.02)
    assert shrunk.makespan_s == pytest.approx(whole.makespan_s, rel=0.02)


def test_a_full_store_spills() -> None:
    record = run(load("fan-out:width=1,count=8,output=20e6"), nodes=1, store_bytes=64 * MB, shrink=20)
    bytes_of = summarise(record)["bytes"]
    assert bytes_of["spilled"] > 20 * MB


def test_the_system_config_reaches_the_cluster() -> None:
    used = []
    for threshold in (1.0, 0.0):
        record = run(load("single:count=2"), nodes=4, system_config={"scheduler_spread_threshold": threshold})
        used.append(len({each.node for each in record.executions}))
    assert used[0] < used[1]
    with pytest.raises(ValueError, match="has no entry 'colour'"):
        run(load("single"), system_config={"colour": 1})


@pytest.mark.parametrize(
    ("task", "setup", "reason"),
    [
        (TraceTask("a", 1.0, resources={"CPU": 3}), {}, "'a' of test needs 3 CPU, and a node has 2"),
        (TraceTask("a", 1.0, resources={"disk": 1}), {}, "needs 1 disk, and a node has 0"),
        (TraceTask("a", 1.0), {"cpus": 0.5}, "needs 1 CPU, and a node has 0.5"),
    ],
)
def test_a_task_that_no_node_can_run_is_refused(task: TraceTask, setup: dict[str, float], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        run(workload(task), **setup)


def test_a_failure_of_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(TraceError, match="node 4 fails, but the last of 4 nodes is 3"):
        simulate(workload(TraceTask("a", 1.0), failures=(NodeFailure(4, 1.0),)), Setup(), 0)
