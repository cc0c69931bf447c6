"""Counters and histograms of workers that have ended: their node keeps them until the job is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.api.calls import ask_cluster
from minray.observability.system_metrics import families_of
from minray.simulation import SimCluster
from minray.simulation.trace import SEND
from minray.util.metrics import Counter, Gauge, Histogram, metrics_text
from tests.util.exposition import Family, parse


@minray.remote
def count(value: float = 1.0) -> None:
    """Record values in a worker that may go on."""
    Counter("pages").inc(value)


@minray.remote(max_calls=1)
def count_and_end(value: float = 1.0) -> None:
    """Record values in a worker that ends afterwards."""
    Counter("pages").inc(value)
    Histogram("took", boundaries=[1.0]).observe(value)
    Gauge("height").set(value)


@minray.remote(max_calls=1)
def rest() -> None:
    """Record nothing."""


@minray.remote
class Clerk:
    def count(self) -> str:
        Counter("pages").inc(5)
        return minray.get_runtime_context().get_worker_id()

    def leave(self) -> None:
        minray.actor.exit_actor()


def cluster_of(nodes: int = 1, **system_config: Any) -> SimCluster:
    return SimCluster([{"num_cpus": 2}] * nodes, show_output=False, system_config=system_config, storage="gcs.db")


def seen(body: Callable[[], Any], **system_config: Any) -> Any:
    with cluster_of(**system_config) as cluster:
        return cluster.run(body)


def sums() -> dict[str, float]:
    """The sum of each series' values over all processes."""
    found: dict[str, float] = {}
    for family in parse(metrics_text()).values():
        for (name, _), value in family.samples.items():
            found[name] = found.get(name, 0.0) + value
    return found


def test_values_of_workers_that_have_ended_are_still_in_the_sums() -> None:
    def body() -> Any:
        minray.get([count_and_end.remote(value) for value in (1, 2)])
        time.sleep(5)  # Both workers have ended.
        return sums(), len(parse(metrics_text())["ray_pages_total"].samples)

    found, series = seen(body)
    assert found["ray_pages_total"] == 3 and series == 2, "each worker has a series of its own"
    assert (found["ray_took_sum"], found["ray_took_count"], found["ray_took_bucket"]) == (3, 2, 3)
    assert "ray_height" not in found, "a gauge says how something is now"


def test_an_actor_that_exits_has_told_everything_before() -> None:
    def body() -> Any:
        clerk = Clerk.remote()
        worker_id = minray.get(clerk.count.remote())
        minray.wait([clerk.leave.remote()])
        time.sleep(1)
        return worker_id, parse(metrics_text())

    worker_id, found = seen(body, metrics_report_interval_ms=60_000)
    assert found["ray_pages_total"].value("ray_pages_total", WorkerId=worker_id) == 5


@pytest.mark.parametrize(("interval_ms", "kept"), [(1000, 5.0), (60_000, 0.0), (0, 0.0)])
def test_a_killed_worker_has_told_all_but_the_last_interval(interval_ms: int, kept: float) -> None:
    def body() -> Any:
        clerk = Clerk.remote()
        minray.get(clerk.count.remote())
        time.sleep(2)
        minray.kill(clerk)
        time.sleep(5)
        return sums().get("ray_pages_total", 0.0)

    assert seen(body, metrics_report_interval_ms=interval_ms) == kept


def test_a_living_worker_that_its_node_knows_too_counts_once() -> None:
    def body() -> Any:
        clerk = Clerk.remote()
        minray.get(clerk.count.remote())
        time.sleep(3)  # Its raylet has a report.
        return sums()["ray_pages_total"]

    assert seen(body) == 5


def test_values_go_with_their_job() -> None:
    def body() -> None:
        minray.get(count_and_end.remote())
        time.sleep(3)

    def look() -> Any:
        time.sleep(3)
        return metrics_text()

    with cluster_of() as cluster:
        cluster.run(body)
        assert cluster.run(look) == ""


def test_values_of_a_job_stay_while_a_detached_actor_of_it_lives() -> None:
    def body() -> None:
        minray.get(count_and_end.remote())
        clerk = Clerk.options(name="clerk", namespace="n", lifetime="detached").remote()
        minray.get(clerk.count.remote())
        time.sleep(3)

    def look() -> Any:
        before = sums()["ray_pages_total"]
        minray.kill(minray.get_actor("clerk", namespace="n"))
        time.sleep(3)
        return before, metrics_text()

    with cluster_of() as cluster:
        cluster.run(body)
        assert cluster.run(look) == (6, "")


def test_who_records_nothing_sends_nothing() -> None:
    with cluster_of() as cluster:
        cluster.run(lambda: minray.get([rest.remote() for _ in range(3)]))
        assert not [event for event in cluster.trace.events if event.kind == SEND and "ReportMetrics" in event.details]
        cluster.run(lambda: (minray.get([count.remote() for _ in range(100)]), time.sleep(3)))
        reports = [event for event in cluster.trace.events if event.kind == SEND and "ReportMetrics " in event.details]
        assert len(reports) <= 4, "many values are one report"


def system() -> dict[str, Family]:
    figures = ask_cluster(lambda reader: reader.figures(5.0), "figures are missing")
    return {family.name: family for family in families_of(figures)}  # type: ignore[misc]


def test_every_state_of_a_task_is_counted_and_the_sum_is_right() -> None:
    @minray.remote
    def wait(seconds: float) -> None:
        time.sleep(seconds)

    @minray.remote(max_retries=0)
    def fail() -> None:
        raise KeyError("no such thing")

    def body() -> Any:
        minray.get([rest.remote() for _ in range(3)])
        minray.wait([fail.remote()])
        refs = [wait.remote(10) for _ in range(5)]
        time.sleep(3)
        found = system()
        counts: dict[tuple[str, str], float] = {}
        for _, labels, value in found["ray_tasks"].samples:
            key = labels["Name"].rpartition(".")[2], labels["State"]
            counts[key] = counts.get(key, 0.0) + value
        minray.get(refs)
        return counts, found

    counts, found = seen(body)
    assert {key: count for key, count in counts.items() if count} == {
        ("rest", "FINISHED"): 3,
        ("fail", "FAILED"): 1,
        ("wait", "RUNNING"): 2,
        ("wait", "PENDING_NODE_ASSIGNMENT"): 3,
    }
    used = {s.labels["State"]: s.value for s in found["ray_resources"].samples if s.labels["Name"] == "CPU"}
    assert used == {"USED": 2, "AVAILABLE": 0}
    leases = {s.labels["State"]: s.value for s in found["ray_scheduler_tasks"].samples}
    assert leases["Executing"] == 2 and leases["Dispatched"] >= 1
    assert found["minray_silent_processes"].samples[0].value == 0
