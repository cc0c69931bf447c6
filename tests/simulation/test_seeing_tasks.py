"""``minray.util.state`` of actors, tasks, nodes, workers and jobs, against what a program knows it has made."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.api import calls as worker
from minray.observability.state_reader import StateReader
from minray.platform.base import RemoteFailure
from minray.simulation import SimCluster, run
from minray.util import placement_group
from minray.util.metrics import Counter, Gauge, Histogram, metrics_text
from minray.util.state import (
    get_actor,
    get_job,
    get_node,
    get_placement_group,
    get_task,
    get_worker,
    list_actors,
    list_jobs,
    list_nodes,
    list_placement_groups,
    list_tasks,
    list_workers,
    summarize_actors,
    summarize_tasks,
)
from minray.util.state.exception import RayStateApiException
from tests.util.exposition import parse


@minray.remote
class Clerk:
    def serve(self, seconds: float = 0) -> int:
        time.sleep(seconds)
        return os.getpid()

    def fail(self) -> None:
        raise KeyError("no such thing")


@minray.remote
class Other:
    pass


@minray.remote(max_retries=0)
def rest(seconds: float, *needed: Any) -> float:
    time.sleep(seconds)
    return seconds


@minray.remote(max_retries=0)
def parent(seconds: float) -> Any:
    return minray.get(rest.options(name="child").remote(seconds))


def states(**filters: Any) -> dict[str, int]:
    """How many tasks there are in each state."""
    counts: dict[str, int] = {}
    for task in list_tasks(filters=[(name, "=", value) for name, value in filters.items()]):
        counts[task.state] = counts.get(task.state, 0) + 1
    return counts


def seen(body: Callable[[], Any], nodes: Any = 1, **options: Any) -> Any:
    with SimCluster([{"num_cpus": 2}] * nodes if isinstance(nodes, int) else nodes, show_output=False, **options) as cluster:
        result = cluster.run(body)
        cluster.settle()
    return result


def test_actors_in_all_states() -> None:
    def body() -> Any:
        alive, dead = Clerk.options(name="alive", lifetime="detached").remote(), Clerk.remote()
        minray.get([alive.serve.remote(), dead.serve.remote()])
        minray.kill(dead)
        waiting = Other.options(num_gpus=1).remote()
        unready = Other.remote()
        time.sleep(1)
        by_state = {actor.state: actor for actor in list_actors()}
        pid = minray.get(alive.serve.remote())
        found = get_actor(alive._actor_id.hex())
        assert found["state"] == found.get("state") == "ALIVE" and found.get("anything", 1) == 1
        assert found == by_state["ALIVE"] == list_actors(filters=[("class_name", "=", "Clerk"), ("state", "!=", "dead")])[0]
        summary = summarize_actors()["cluster"]
        del waiting, unready
        return by_state, pid, summary

    by_state, pid, summary = seen(body)
    alive, dead, pending = by_state["ALIVE"], by_state["DEAD"], by_state["PENDING_CREATION"]
    assert (alive.class_name, alive.name, alive.pid, alive.is_detached) == ("Clerk", "alive", pid, True)
    assert alive.death_cause is None and dead.death_cause["message"] == "it was killed by minray.kill"
    assert (pending.class_name, pending.pid) == ("Other", 0)
    assert summary["summary"]["Clerk"]["state_counts"] == {"ALIVE": 1, "DEAD": 1} and summary["total_actors"] == 4


def test_tasks_from_their_submission_to_their_end() -> None:
    def body() -> Any:
        running = [rest.remote(5) for _ in range(2)]
        queued = rest.remote(1)
        waiting = rest.remote(1, running[0])
        time.sleep(1)
        before = states(), states(state="RUNNING"), get_task(queued.task_id().hex())
        minray.get([*running, queued, waiting])
        return *before, states(), summarize_tasks()["cluster"]

    now, filtered, queued, later, summary = seen(body)
    assert now == {"RUNNING": 2, "PENDING_NODE_ASSIGNMENT": 1, "PENDING_ARGS_AVAIL": 1} and filtered == {"RUNNING": 2}
    assert queued is not None and (queued.name, queued.type, queued.worker_pid) == ("rest", "NORMAL_TASK", None)
    assert later == {"FINISHED": 4} and summary["total_tasks"] == 4
    assert summary["summary"]["rest"] == {"func_or_class_name": "rest", "type": "NORMAL_TASK", "state_counts": later}


def test_a_task_with_a_name_of_its_own_is_still_one_of_its_function() -> None:
    def body() -> Any:
        clerk = Clerk.remote()
        resting = rest.options(name="waits").remote(5)
        minray.get([rest.options(name=f"rests {number}").remote(0) for number in range(2)])
        minray.get(clerk.serve.options(name="serves").remote())
        tasks, summary = list_tasks(), summarize_tasks()["cluster"]["summary"]
        minray.get(resting)
        return tasks, summary, minray.timeline()

    tasks, summary, events = seen(body)
    names = {"rests 0": "rest", "rests 1": "rest", "waits": "rest", "serves": "Clerk.serve"}
    assert {task.name: task.func_or_class_name for task in tasks} == {**names, "Clerk.__init__": "Clerk"}
    assert summary.keys() == {"rest", "Clerk.serve", "Clerk"}
    known = {event["name"]: event["args"]["func_or_class_name"] for event in events if event["ph"] == "X"}
    assert known == {**names, "Clerk.__init__": "Clerk"}


def test_calls_of_an_actor_and_its_creation() -> None:
    def body() -> Any:
        clerk = Clerk.remote()
        refs = [clerk.serve.remote(5), clerk.serve.remote(), clerk.fail.remote()]
        time.sleep(1)
        before = {task.state: task for task in list_tasks()}
        pid = minray.get(refs[1])
        minray.wait(refs, num_returns=3)
        failed = list_tasks(filters=[("state", "=", "FAILED")])
        return before, pid, clerk._actor_id.hex(), failed

    before, pid, actor_id, (failed,) = seen(body)
    running, waiting, created = before["RUNNING"], before["PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"], before["FINISHED"]
    assert (running.type, running.name, running.actor_id, running.worker_pid) == ("ACTOR_TASK", "Clerk.serve", actor_id, pid)
    assert waiting.worker_pid == pid and (created.type, created.func_or_class_name) == ("ACTOR_CREATION_TASK", "Clerk")
    assert failed.name == "Clerk.fail" and "no such thing" in failed.error_message


def test_tasks_of_tasks_know_their_parents_and_are_seen_from_other_processes() -> None:
    @minray.remote(num_cpus=0)
    def look() -> Any:
        return list_tasks(filters=[("state", "=", "RUNNING")])

    def body() -> Any:
        ref = parent.remote(5)
        time.sleep(1)
        return ref.task_id().hex(), minray.get(look.options(name="look").remote())

    parent_id, rows = seen(body, nodes=2)
    by_name = {row.name: row for row in rows}
    assert sorted(by_name) == ["child", "look", "parent"]
    assert by_name["child"].parent_task_id == parent_id and by_name["parent"].parent_task_id == ""
    assert len({row.worker_pid for row in rows}) == 3


def events_of(trace: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Events of a timeline, by name."""
    return {event["name"]: event for event in trace if event["ph"] == "X"}


def test_a_timeline_has_what_has_run_and_when() -> None:
    def body() -> Any:
        began = time.time()
        clerk = Clerk.remote()
        call, task = clerk.serve.remote(2), rest.options(name="task").remote(3)
        minray.wait([clerk.fail.remote(), call, task], num_returns=3)
        return began, clerk._actor_id.hex(), task.task_id().hex(), minray.timeline()

    began, actor_id, task_id, trace = seen(body)
    events = events_of(trace)
    task, call, failed, made = (events[name] for name in ("task", "Clerk.serve", "Clerk.fail", "Clerk.__init__"))
    assert task["args"]["task_id"] == task_id and task["args"]["actor_id"] is None and 3_000_000 <= task["dur"] < 3_010_000
    assert made["args"]["func_or_class_name"] == "Clerk" and 2_000_000 <= call["dur"] < 2_010_000
    assert call["args"]["actor_id"] == made["args"]["actor_id"] == actor_id
    assert (call["args"]["state"], failed["args"]["state"]) == ("FINISHED", "FAILED")
    assert began * 1e6 <= made["ts"] <= call["ts"] and call["ts"] + call["dur"] <= failed["ts"] <= (began + 10) * 1e6
    assert made["tid"] == call["tid"] == failed["tid"] != task["tid"]


def test_clocks_of_nodes_may_differ_and_a_timeline_is_of_the_wall_clock() -> None:
    def body() -> Any:
        for node in ("a", "b"):
            minray.get(rest.options(name=node, resources={node: 1}).remote(1))
        return minray.timeline()

    events = events_of(seen(body, nodes=[{"num_cpus": 1, "resources": {name: 1}} for name in ("a", "b")]))
    first, second = events["a"], events["b"]
    assert first["pid"] != second["pid"] and 0 <= second["ts"] - first["ts"] - first["dur"] < 1_000_000


def test_attempts_and_cancelled_calls_are_in_a_timeline_and_what_is_not_to_be_recorded_is_not() -> None:
    class Fickle:
        def __init__(self) -> None:
            self.times = 0

        async def wait(self) -> None:
            self.times += 1
            if self.times == 1:
                raise ValueError
            await asyncio.sleep(100)

        @minray.method(enable_task_events=True)
        def loud(self) -> None: ...

    def body() -> Any:
        fickle = minray.remote(Fickle).remote()
        waiting = fickle.wait.options(max_task_retries=1, retry_exceptions=True).remote()
        time.sleep(5)
        minray.cancel(waiting)
        minray.wait([waiting])
        quiet = minray.remote(Fickle).options(enable_task_events=False).remote()
        minray.get([rest.options(name="secret", enable_task_events=False).remote(0), quiet.loud.remote()])
        fickle.loud.options(name="quiet", enable_task_events=False).remote()
        minray.wait([quiet.wait.remote(), fickle.__ray_ready__.remote()], num_returns=2)
        return minray.timeline()

    found = [(event["name"], event["args"]) for event in seen(body) if event["ph"] == "X"]
    told = sorted((name, args["attempt_number"], args["state"]) for name, args in found)
    assert told == [
        ("Fickle.__init__", 0, "FINISHED"),
        ("Fickle.__ray_ready__", 0, "FINISHED"),
        ("Fickle.loud", 0, "FINISHED"),
        ("Fickle.wait", 0, "FAILED"),
        ("Fickle.wait", 1, "CANCELLED"),
    ]


def test_a_worker_that_is_silent_is_named_and_the_others_are_in_the_timeline() -> None:
    def body() -> Any:
        minray.get([rest.options(name=name, resources={name: 1}).remote(0) for name in ("here", "there")])
        cluster.world.wire.cut("head", "n1", 100)
        with pytest.warns(RuntimeWarning, match="node n1 does not answer"):
            return minray.timeline()

    nodes = [{"num_cpus": 2, "resources": {"here": 1}}, {"num_cpus": 2, "resources": {"there": 1}}]
    with SimCluster(nodes, show_output=False) as cluster:
        assert list(events_of(cluster.run(body))) == ["here"]


def stacks_here() -> Any:
    api = worker.current_api()
    return api.run_on_loop(lambda: worker.state_reader(api).stacks(5))


def test_what_everybody_does_right_now() -> None:
    class Waiting:
        async def wait(self) -> None:
            await asyncio.sleep(100)

    def body() -> Any:
        actor, clerk = minray.remote(Waiting).remote(), Clerk.options(max_concurrency=2).remote()
        going_on = [parent.remote(100), clerk.serve.remote(100), *(actor.wait.remote() for _ in range(3))]
        time.sleep(1)
        found = stacks_here()
        for ref in going_on[:1]:
            minray.cancel(ref)
        minray.kill(actor)
        minray.kill(clerk)
        return found, os.getpid()

    found, own_pid = seen(body)
    by_running = {tuple(process.running): process for process in found.processes}
    assert found.silent == [] and by_running[()].is_driver and by_running[()].pid == own_pid
    lines = {
        (running, stack.name, stack.is_coroutine, stack.count): [
            frame.source for frame in stack.frames if frame.filename == __file__
        ]
        for running, process in by_running.items()
        for stack in process.stacks
    }
    assert {key: sources[0] for key, sources in lines.items() if sources and key[0]} == {
        (("parent",), "MainThread", False, 1): "return minray.get(rest.options(name=\"child\").remote(seconds))",
        (("child",), "MainThread", False, 1): "time.sleep(seconds)",
        (("Clerk.serve",), "minray-call", False, 1): "time.sleep(seconds)",
        (("Waiting.wait",) * 3, "Waiting.wait", True, 3): "await asyncio.sleep(100)",
    }
    assert any("found = stacks_here()" in sources for key, sources in lines.items() if not key[0])


def test_what_processes_have_measured_is_theirs() -> None:
    @minray.remote
    def work(pages: Counter, seconds: float) -> None:
        pages.inc(2, tags={"site": "there"})
        Histogram("took", boundaries=[1.0, 10.0]).observe(seconds)
        time.sleep(seconds)

    def body() -> Any:
        pages = Counter("pages", "What was read.", ("site",)).set_default_tags({"site": "here"})
        pages.inc()
        minray.get([work.remote(pages, seconds) for seconds in (1, 2)])
        Gauge("height").set(3)
        return parse(metrics_text()), minray.get_runtime_context().get_worker_id()

    found, driver_id = seen(body)
    pages = found["ray_pages_total"]
    assert (pages.kind, pages.help) == ("counter", "What was read.")
    assert pages.value("ray_pages_total", WorkerId=driver_id, site="here", Component="core_worker") == 1
    there = [value for (_, labels), value in pages.samples.items() if ("site", "there") in labels]
    assert there == [2, 2], "each worker has counted for itself"
    assert found["ray_height"].value("ray_height", WorkerId=driver_id) == 3
    took = found["ray_took"].samples
    assert sorted(value for (name, labels), value in took.items() if name == "ray_took_sum") == [1, 2]
    assert driver_id not in {text for _, labels in took for name, text in labels}


def test_gauges_end_with_their_process() -> None:
    def body() -> Any:
        clerk = Clerk.remote()
        minray.get(clerk.__ray_call__.remote(lambda actor: Gauge("height").set(1)))
        before = metrics_text()
        minray.kill(clerk)
        time.sleep(5)
        return before, metrics_text()

    before, after = seen(body)
    assert "ray_height{" in before and after == ""


def test_nodes_workers_and_jobs() -> None:
    def body() -> Any:
        pid = minray.get(Clerk.remote().serve.remote())
        time.sleep(3)
        nodes, jobs, workers = list_nodes(), list_jobs(), list_workers()
        assert get_node(nodes[0].node_id) == nodes[0] and get_job(jobs[0].job_id) == jobs[0]
        assert get_worker(workers[0].worker_id) == workers[0]
        return pid, os.getpid(), nodes, jobs, workers

    pid, own_pid, nodes, (job,), workers = seen(body, nodes=2)
    assert [(node.state, node.is_head_node, node.resources_total["CPU"]) for node in nodes] == [
        ("ALIVE", True, 2.0),
        ("ALIVE", False, 2.0),
    ]
    assert (job.status, job.type, job.driver_info["pid"]) == ("RUNNING", "DRIVER", str(own_pid))
    (driver,) = [one for one in workers if one.worker_type == "DRIVER"]
    (gone,) = [one for one in workers if one.pid == pid]
    assert driver.is_alive and driver.pid == own_pid and len(workers) >= 5
    assert (gone.is_alive, gone.exit_type, gone.exit_detail) == (False, "INTENDED_SYSTEM_EXIT", "exit code 0")


def test_a_dead_node_stays_in_the_list() -> None:
    def body() -> Any:
        minray.get(rest.options(resources={"there": 1}).remote(0))
        cluster.processes["raylet/n1"].exit(None, 9)
        time.sleep(5)
        return list_nodes(filters=[("state", "=", "DEAD")]), list_tasks()

    with SimCluster([{"num_cpus": 2}, {"num_cpus": 2, "resources": {"there": 1}}], show_output=False) as cluster:
        (dead,), tasks = cluster.run(body)
    assert dead.node_name == "n1" and dead.state_message and [task.state for task in tasks] == ["FINISHED"]


def test_ended_tasks_are_remembered_for_a_while() -> None:
    def body() -> Any:
        minray.get([rest.remote(0) for _ in range(1500)])
        first = rest.remote(0)
        minray.get(first)
        found = get_task(first.task_id().hex())
        assert found is not None and found.state == "FINISHED"
        return len(list_tasks(limit=10_000)), len(list_tasks(limit=7))

    assert seen(body) == (1000, 7)


def test_who_is_silent_is_an_error_unless_parts_are_enough() -> None:
    def body() -> Any:
        ref = rest.options(resources={"there": 1}).remote(1000)
        time.sleep(1)
        cluster.world.wire.cut("head", "n1", 20)
        with pytest.raises(RayStateApiException, match="node n1 does not answer"):
            list_tasks(timeout=2)
        rows = list_tasks(timeout=2, raise_on_missing_output=False)
        minray.cancel(ref, force=True)
        return [row.state for row in rows]

    with SimCluster([{"num_cpus": 2}, {"num_cpus": 2, "resources": {"there": 1}}], show_output=False) as cluster:
        assert cluster.run(body) == ["SUBMITTED_TO_WORKER"]


def test_a_gcs_that_cannot_answer_is_an_error_of_these_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> Any:
        raise RemoteFailure("too-large", "a reply of 9 bytes")

    def body() -> Any:
        monkeypatch.setattr(StateReader, "actors", fail)
        with pytest.raises(RayStateApiException, match="too-large: a reply of 9 bytes"):
            list_actors()

    run(body, nodes=1)


def test_an_id_may_be_written_in_capitals() -> None:
    def body() -> Any:
        (node,), (job,) = list_nodes(), list_jobs()
        assert node.node_id != node.node_id.upper()
        return get_node(node.node_id.upper()) == node, get_job(job.job_id.upper()) == job

    assert run(body, nodes=1) == (True, True)


def test_unknown_ids() -> None:
    def body() -> Any:
        with pytest.raises(ValueError, match="'not hexadecimal' is no id"):
            get_task("not hexadecimal")
        return get_actor("ab"), get_task("ab"), get_node("ab"), get_worker("ab"), get_job("ab")

    assert run(body, nodes=1) == (None,) * 5


def test_placement_groups() -> None:
    def body() -> Any:
        there = placement_group([{"CPU": 1}, {"CPU": 1}], name="there", strategy="STRICT_SPREAD")
        waiting = placement_group([{"GPU": 1}])
        assert there.wait(10)
        time.sleep(1)
        rows = {row.state: row for row in list_placement_groups()}
        assert get_placement_group(there.id.hex()) == rows["CREATED"]
        return rows, minray.why(there), minray.why(waiting)

    rows, there, waiting = seen(body, nodes=2)
    assert rows["CREATED"].name == "there" and len({bundle["node_id"] for bundle in rows["CREATED"].bundles}) == 2
    assert rows["PENDING"].bundles == [{"bundle_index": 0, "unit_resources": {"GPU": 1.0}, "node_id": None}]
    assert "is CREATED" in there and "is PENDING, 0 of its 1 bundles have a place" in waiting and "GPU" in waiting
