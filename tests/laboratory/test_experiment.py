"""Simulated runs of workloads: times, bytes, failures, and that a seed decides all of it."""

from __future__ import annotations

import pytest

from minray.laboratory import program
from minray.laboratory.cost_model import CostModel
from minray.laboratory.experiment import simulate
from minray.laboratory.report import summarise, task_rows, to_csv, to_json
from minray.laboratory.setup import Machine, Setup
from minray.laboratory.workload import NodeFailure, TraceActor, TraceError, TraceTask
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


def test_neighbours_in_a_tree_run_on_one_node_because_a_node_gets_its_requests_together() -> None:
    tree = load("tree:width=2,depth=4,duration=4,output=2e6")
    together, fast, in_turn = (
        sum(run(tree, nodes=3, warm=True, costs=CostModel(write_s=write_s)).pairs.values()) for write_s in (1e-5, 1e-7, 0.0)
    )
    assert round(together / MB) == round(fast / MB) == 8 < in_turn / MB, "four values, as on real nodes (docs/laboratory.md)"


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


def test_tasks_that_fail_are_an_error_and_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(task: str, *_: object) -> None:
        raise OSError(f"{task} has no disk")

    monkeypatch.setattr(program, "perform", broken)
    with pytest.raises(TraceError, match="^task '0.1' of chain has failed: OSError: 0.0 has no disk\\n"):
        run(load("chain:depth=2"))


def test_a_failure_of_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(TraceError, match="node 4 fails, but the last of 4 nodes is 3"):
        simulate(workload(TraceTask("a", 1.0), failures=(NodeFailure(4, 1.0),)), Setup(), 0)


def test_a_task_takes_less_time_on_a_faster_node() -> None:
    machines = (Machine(cpus=1), Machine(cpus=1, speed=4), Machine(cpus=1, speed=0.5))
    record = run(load("single:count=3,duration=8"), machines=machines, costs=CostModel(worker_start_s=0.0))
    assert {each.node: round(each.end_s - each.start_s, 3) for each in record.executions} == {"head": 8, "n1": 2, "n2": 16}
    figures = summarise(record)
    assert figures["nodes_and_cpus"] == [3, 3] and figures["lower_bound_s"] == pytest.approx(24 / 5.5)
    shares = {spot["node"]: spot["utilisation"] for spot in figures["hot_spots"]["nodes"]}
    assert shares["n2"] == pytest.approx(1.0, abs=0.01) and shares["n1"] == pytest.approx(1 / 8, abs=0.01)


def test_each_node_has_what_its_machine_has() -> None:
    machines = (Machine(cpus=1), Machine(count=2, cpus=3, resources={"disk": 1}), Machine(cpus=0, resources={"GPU": 2}))
    tasks = [TraceTask(f"wide {number}", 1.0, resources={"CPU": 3}) for number in range(2)]
    tasks += [TraceTask("gpus", 1.0, resources={"CPU": 0, "GPU": 2}), TraceTask("disk", 1.0, resources={"disk": 1})]
    record = run(workload(*tasks), machines=machines)
    places = {each.task: each.node for each in record.executions}
    assert {places["wide 0"], places["wide 1"]} == {"n1", "n2"} and places["gpus"] == "n3" and places["disk"] != "head"


def test_a_machine_that_comes_up_again_is_what_it_was() -> None:
    machines = (Machine(cpus=1), Machine(cpus=2, speed=2))
    failures = (NodeFailure(1, 1.0, 5.0), NodeFailure(1, 6.0, 20.0))
    record = run(workload(TraceTask("a", 8.0, resources={"CPU": 2}), failures=failures), machines=machines)
    (done,) = record.executions
    assert done.node == "n1" and done.start_s > 20 and done.end_s - done.start_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"CPU": 9}, "'a' of test needs 9 CPU, and a node has 8"),
        ({"CPU": 8, "GPU": 1}, "'a' of test needs 8 CPU and 1 GPU on one node, and no kind of node has all of that"),
        ({"CPU": 1, "memory": 2e9}, None),
    ],
)
def test_a_task_must_fit_a_kind_of_node(resources: dict[str, float], reason: str | None) -> None:
    machines = (Machine(cpus=1, resources={"GPU": 1}), Machine(cpus=8, resources={"memory": 1e9}))
    whole = workload(TraceTask("a", 1.0, resources=resources))
    if reason is None:
        assert run(whole, machines=machines).executions[0].node == "head", "whose memory is not said"
        return
    with pytest.raises(TraceError, match=reason):
        run(whole, machines=machines)


def test_calls_of_an_actor_run_one_after_the_other_on_its_node() -> None:
    calls = [TraceTask(f"call {number}", 2.0, actor="counter") for number in range(3)]
    others = [TraceTask(f"task {number}", 3.0) for number in range(2)]
    actor = TraceActor("counter", start_s=4.0, resources={"CPU": 1})
    record = run(workload(*calls, *others, actors=(actor,)), costs=CostModel(worker_start_s=0.0))
    of_actor = [each for each in record.executions if each.task.startswith("call")]
    assert len({each.node for each in of_actor}) == 1
    assert [each.start_s for each in of_actor] == pytest.approx([4, 6, 8], abs=0.1)
    assert summarise(record)["workload"]["actors"] == 1 and len(record.executions) == 5


def test_an_actor_with_several_threads_runs_several_calls() -> None:
    calls = [TraceTask(f"call {number}", 2.0, actor="pool") for number in range(4)]
    record = run(workload(*calls, actors=(TraceActor("pool", concurrency=4),)), costs=CostModel(worker_start_s=0.0))
    assert record.makespan_s == pytest.approx(2.0, abs=0.1)
    assert summarise(record)["workload"]["work_cpu_s"] == 0, "it has no CPU, as in Ray"


def test_an_actor_gives_its_resources_back_after_its_last_call() -> None:
    actors = tuple(TraceActor(name, resources={"CPU": 2}) for name in "abc")
    calls = [TraceTask(f"{name}{number}", 1.0, actor=name) for name in "abc" for number in range(2)]
    record = run(workload(*calls, actors=actors), nodes=1)
    assert record.makespan_s > 6 and len(record.executions) == 6


def test_an_actor_whose_node_fails_begins_again_elsewhere() -> None:
    calls = [TraceTask(f"call {number}", 5.0, actor="one") for number in range(3)]
    # Only the machines from number 1 on have room for it.
    machines = (Machine(cpus=1), Machine(count=2, cpus=2))
    whole = workload(*calls, actors=(TraceActor("one", resources={"CPU": 2}),))
    first = run(whole, machines=machines).executions[0].node
    struck = workload(*calls, actors=whole.actors, failures=(NodeFailure(int(first[1:]), 7.0),))
    record = run(struck, machines=machines)
    assert [each.task for each in record.executions] == ["call 0", "call 1", "call 2"]
    assert record.executions[0].node == first != record.executions[1].node == record.executions[2].node


def test_reduces_that_share_their_arguments_run_side_by_side() -> None:
    """The limit for arguments (G86) is 70 MB here. It holds those of both reduces, if what they share counts once."""
    record = run(load("map-reduce:width=8,depth=2,output=5e6,duration=3"), cpus=4.0, store_bytes=100 * MB, shrink=20)
    one, other = (each for each in record.executions if each.task in ("0.8", "0.9"))
    assert abs(one.start_s - other.start_s) < 0.5


def test_links_are_beside_the_mean_of_all_directions() -> None:
    record = run(load("fan-out:width=8,output=50e6,duration=5"), shrink=50, nodes=4, cpus=1.0, costs=CostModel(rack_nodes=2))
    spots = summarise(record)["hot_spots"]
    uses = [size / record.makespan_s / (1.25e9 if level == "node" else 5e9) for (level, _, _), size in record.links.items()]
    assert spots["links"][0]["utilisation"] == pytest.approx(max(uses), abs=1e-6)
    of_all = sum(uses) / 12  # four nodes and two racks, up and down
    assert spots["mean_utilisation"]["links"] == pytest.approx(of_all, abs=1e-6)
    assert spots["mean_utilisation"]["disks"] == 0 and spots["disks"] == []


def test_a_node_without_cpus_is_not_in_the_mean() -> None:
    record = run(load("single:count=2,duration=8"), machines=(Machine(cpus=0), Machine(cpus=1), Machine(cpus=1)))
    spots = summarise(record)["hot_spots"]
    assert {node["node"] for node in spots["nodes"]} == {"n1", "n2"} and spots["mean_utilisation"]["nodes"] > 0.8
