"""Tasks of drivers and workers that are gone, as another driver sees them: ``list_tasks``, ``get_task``, ``timeline``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.simulation import SimCluster
from minray.util.state import get_task, list_tasks, summarize_tasks
from minray.util.state.common import TaskState


@minray.remote(max_retries=0)
def work(seconds: float = 0.0) -> None:
    time.sleep(seconds)


@minray.remote(max_retries=0)
def fail(message: str = "no such thing") -> None:
    raise KeyError(message)


@minray.remote(max_retries=0)
def crash() -> None:
    os._exit(3)


@minray.remote
class Clerk:
    def serve(self) -> int:
        return os.getpid()

    def delegate(self) -> None:
        minray.wait([fail.remote("delegated")])


def cluster_of(nodes: int = 1, **system_config: Any) -> SimCluster:
    return SimCluster([{"num_cpus": 2}] * nodes, show_output=False, system_config=system_config, storage="gcs.db")


def tell(cluster: SimCluster, question: Callable[[], Any] = lambda: list_tasks(limit=10_000)) -> Any:
    """Another driver's view, a second after the others."""

    def body() -> Any:
        time.sleep(1)
        return question()

    return cluster.run(body)


def by_name(rows: list[TaskState]) -> dict[str, TaskState]:
    assert len({row.task_id for row in rows}) == len(rows)
    return {row.name: row for row in rows}


def test_tasks_of_a_driver_that_has_left() -> None:
    def body() -> Any:
        minray.get(work.remote())
        minray.wait([fail.remote()])
        clerk = Clerk.remote()
        return minray.get(clerk.serve.remote()), minray.get_runtime_context().get_job_id()

    with cluster_of() as cluster:
        pid, job_id = cluster.run(body)
        rows = by_name(tell(cluster))
        sums = tell(cluster, summarize_tasks)["cluster"]["summary"]
        again = tell(cluster, lambda: get_task(rows["fail"].task_id))
    assert {name: row.state for name, row in rows.items()} == {
        "work": "FINISHED",
        "fail": "FAILED",
        "Clerk.__init__": "FINISHED",
        "Clerk.serve": "FINISHED",
    }
    assert {row.job_id for row in rows.values()} == {job_id}
    assert rows["Clerk.serve"].worker_pid == pid and rows["Clerk.serve"].type == "ACTOR_TASK"
    failed = rows["fail"]
    assert failed.error_type == "TASK_EXECUTION_EXCEPTION" and "KeyError: 'no such thing'" in str(failed.error_message)
    assert again == failed and sums["fail"]["state_counts"] == {"FAILED": 1}


def test_what_its_driver_did_not_wait_for_has_failed() -> None:
    def body() -> Any:
        refs = [work.options(name="running").remote(100), work.options(name="waiting", num_gpus=1).remote()]
        time.sleep(1)
        return len(refs)

    with cluster_of() as cluster:
        cluster.run(body)
        rows = by_name(tell(cluster))
    assert {name: (row.state, row.error_type) for name, row in rows.items()} == {
        "running": ("FAILED", "WORKER_DIED"),
        "waiting": ("FAILED", "WORKER_DIED"),
    }
    assert rows["running"].error_message == (
        "Job finishes (00000001) as driver exits. Marking all non-terminal tasks as failed."
    )


def test_the_gcs_knows_why_a_worker_was_lost_and_a_cancelled_task() -> None:
    def body() -> None:
        cancelled = work.options(name="cancelled").remote(100)
        time.sleep(1)
        minray.cancel(cancelled)
        minray.wait([cancelled, crash.remote()], num_returns=2)

    with cluster_of() as cluster:
        cluster.run(body)
        rows = by_name(tell(cluster))
    assert {name: (row.state, row.error_type) for name, row in rows.items()} == {
        "cancelled": ("FAILED", "TASK_CANCELLED"),
        "crash": ("FAILED", "WORKER_DIED"),
    }


def test_errors_outlive_the_references_to_them() -> None:
    def body() -> Any:
        minray.wait([fail.remote()])
        time.sleep(3)
        return list_tasks(filters=[("state", "=", "FAILED")])

    with cluster_of() as cluster:
        (row,) = cluster.run(body)
    assert "no such thing" in row.error_message


def test_of_a_killed_driver_the_failed_tasks_and_all_that_its_workers_have_run_are_kept() -> None:
    def body() -> None:
        minray.get(work.remote())
        minray.wait([fail.remote()])
        time.sleep(3)
        minray.wait([fail.options(name="late").remote("late")])
        time.sleep(0.1)
        minray.get(work.options(name="endless").remote(1000))

    with cluster_of() as cluster:
        cluster.start_driver(body, "victim")
        cluster.settle(4)
        cluster.kill("victim")
        cluster.settle(3)
        rows = by_name(tell(cluster))
    assert {name: row.state for name, row in rows.items()} == {"work": "FINISHED", "fail": "FAILED", "late": "FAILED"}
    assert "no such thing" in str(rows["fail"].error_message)
    assert rows["late"].error_message is None, "only its worker knows of it"


def test_failed_tasks_of_workers_are_kept_too() -> None:
    def body() -> None:
        clerk = Clerk.remote()
        minray.get(clerk.delegate.remote())
        del clerk
        time.sleep(0.5)

    with cluster_of() as cluster:
        cluster.run(body)
        rows = by_name(tell(cluster))
    assert "delegated" in str(rows["fail"].error_message) and rows["fail"].parent_task_id == rows["Clerk.delegate"].task_id


@pytest.mark.parametrize("kills", [False, True])
def test_a_timeline_has_what_dead_workers_have_run(kills: bool) -> None:
    def body() -> Any:
        clerk = Clerk.remote()
        pid = minray.get(clerk.serve.remote())
        minray.get(work.remote(0.25))
        if kills:
            minray.kill(clerk)
        living = {event["name"]: event for event in minray.timeline() if event["ph"] == "X"}
        return pid, living

    with cluster_of() as cluster:
        _, living = cluster.run(body)
        events = {event["name"]: event for event in tell(cluster, minray.timeline) if event["ph"] == "X"}
    assert events.keys() == {"Clerk.__init__", "Clerk.serve", "work"}
    assert abs(events["work"]["dur"] - 250_000) < 50_000 and events["work"]["args"] == living["work"]["args"]
    assert abs(events["work"]["ts"] - living["work"]["ts"]) < 1000


def test_a_gcs_that_starts_again_knows_no_ended_tasks() -> None:
    with cluster_of() as cluster:
        cluster.run(lambda: minray.wait([fail.remote()]))
        assert len(tell(cluster)) == 1
        cluster.kill("gcs")
        cluster.start_gcs()
        cluster.settle(5)
        assert tell(cluster) == []


def test_the_gcs_keeps_a_limited_number_and_says_so() -> None:
    def body() -> None:
        minray.get([work.remote() for _ in range(20)])
        minray.wait([fail.remote()])

    with cluster_of(task_events_max_num_task_in_gcs=5) as cluster:
        cluster.run(body)

        def question() -> Any:
            with pytest.warns(RuntimeWarning, match="older tasks of ended processes are not kept any more"):
                rows = list_tasks()
            with pytest.warns(RuntimeWarning, match="not kept any more"):
                minray.timeline()
            return rows

        rows = tell(cluster, question)
        assert len(rows) <= 5 and by_name(rows)["fail"].error_type == "TASK_EXECUTION_EXCEPTION"
        assert cluster.gcs is not None and cluster.gcs.tasks.tasks <= 5


def test_nothing_is_kept_if_no_reports_are_wanted() -> None:
    def body() -> None:
        minray.wait([work.remote(), fail.remote()], num_returns=2)

    with cluster_of(task_events_report_interval_ms=0) as cluster:
        cluster.run(body)
        assert tell(cluster) == []
        assert not [event for event in tell(cluster, minray.timeline) if event["ph"] == "X"]


def test_what_is_not_to_be_recorded_is_not_kept() -> None:
    def body() -> None:
        minray.wait([fail.options(enable_task_events=False).remote(), work.options(enable_task_events=False).remote()])
        time.sleep(1)

    with cluster_of() as cluster:
        cluster.run(body)
        assert tell(cluster) == []


def test_what_ran_on_a_node_that_has_left_in_order_is_kept() -> None:
    def body() -> Any:
        minray.get(work.remote())
        raylet = cluster.raylets["n1"]
        cluster.processes["raylet/n1"].create_task(raylet.close("asked to shut down"), name="close")
        time.sleep(5)
        return minray.timeline()

    with SimCluster([{"num_cpus": 0}, {"num_cpus": 2}], show_output=False) as cluster:
        events = [event["name"] for event in cluster.run(body) if event["ph"] == "X"]
    assert events == ["work"]
