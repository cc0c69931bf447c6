"""The tables of the gcs by themselves: decisions, and what follows when they are committed."""

from __future__ import annotations

import msgspec
import pytest

from minray.common.state_table import InvalidTransition
from minray.gcs.effects import Publication
from minray.gcs.gcs_node_manager import GcsNodeManager
from minray.gcs.job_manager import JobManager
from minray.gcs.kv_manager import KvManager
from minray.gcs.worker_manager import WorkerManager
from minray.protocol.gcs import (
    DRAINED_PREEMPTED,
    IDLE_TERMINATION,
    JOBS,
    NODES,
    PREEMPTION,
    RESOURCES,
    UNEXPECTED_TERMINATION,
    WORKER_DEATHS,
    JobConfig,
    JobInfo,
    NodeDrain,
    WorkerDeath,
)
from tests.gcs.world import id_of, node_info, register_job, resources

OURS, FOREIGN = b"o" * 16, b"f" * 16


def nodes_with(*names: str) -> GcsNodeManager:
    nodes = GcsNodeManager(OURS, None)
    nodes.load(node_info(name) for name in names)
    return nodes


def test_a_decision_changes_nothing_until_it_is_committed() -> None:
    nodes = nodes_with("a")
    dead = nodes.bury(id_of("a"), "tired")
    assert dead is not None and not dead.alive
    assert nodes.refusal(id_of("a")) == "" and nodes.death_cause(id_of("a")) is None
    assert nodes.on_committed(dead) == [Publication(NODES, id_of("a"), dead)]
    assert nodes.death_cause(id_of("a")) == "tired" and nodes.living() == []


def test_g108_a_dead_node_is_refused_for_ever() -> None:
    nodes = nodes_with("a", "b")
    dead = nodes.bury(id_of("a"), "tired")
    assert dead is not None
    nodes.on_committed(dead)
    assert "declared dead (tired)" in nodes.refusal(id_of("a"))
    assert "declared dead" in nodes.refusal_to_join(id_of("a"), b"")
    assert nodes.bury(id_of("a"), "again") is None
    with pytest.raises(InvalidTransition):
        nodes.on_committed(node_info("a"))
    restarted = GcsNodeManager(OURS, None)
    restarted.load([dead])
    assert "declared dead" in restarted.refusal_to_join(id_of("a"), OURS)


@pytest.mark.parametrize(
    ("name", "cluster_id", "refusal"),
    [
        ("new", b"", None),
        ("known", b"", None),
        ("known", OURS, None),
        ("new", OURS, "unknown to this gcs"),
        ("new", FOREIGN, "belongs to cluster"),
        ("known", FOREIGN, "belongs to cluster"),
    ],
)
def test_who_may_join(name: str, cluster_id: bytes, refusal: str | None) -> None:
    refused = nodes_with("known").refusal_to_join(id_of(name), cluster_id)
    assert refused == "" if refusal is None else refusal in refused


def test_g112_the_first_registration_of_a_node_stands() -> None:
    nodes = nodes_with("a")
    assert nodes.register(node_info("a", hostname="elsewhere")) is None
    new = nodes.register(node_info("b", alive=False, death_cause="claims to be dead"))
    assert new is not None and new.alive and not new.death_cause


def test_g112_an_older_report_is_ignored_and_death_removes_the_last() -> None:
    nodes = nodes_with("a")
    newest = resources("a", 3)
    assert nodes.on_report(newest) == [Publication(RESOURCES, id_of("a"), newest)]
    assert nodes.on_report(resources("a", 2)) is nodes.on_report(resources("a", 3)) is None
    dead = nodes.bury(id_of("a"), "tired")
    assert dead is not None
    assert Publication(RESOURCES, id_of("a"), None) in nodes.on_committed(dead)


def test_a_report_without_news_is_published_only_while_requests_wait_on_its_node() -> None:
    nodes = nodes_with("a")
    nodes.on_report(resources("a", 1))
    assert nodes.on_report(resources("a", 2)) == []
    waiting = msgspec.structs.replace(resources("a", 3), pending=[({"CPU": 1}, 1)])
    for report in (waiting, msgspec.structs.replace(waiting, version=4)):
        assert nodes.on_report(report) == [Publication(RESOURCES, id_of("a"), report)]
    assert nodes.on_report(resources("a", 4)) is None, "number 4 has come already"


def test_a_node_is_told_to_leave_once_for_each_wish_and_not_when_it_is_dead() -> None:
    nodes = nodes_with("a")
    wish = NodeDrain(PREEMPTION, "soon", 5.0)
    draining = nodes.drain(id_of("a"), wish)
    assert draining is not None and draining.drain == wish and nodes.open_nodes() == nodes.living() != []
    nodes.on_committed(draining)
    assert nodes.open_nodes() == [] and nodes.living() == [draining] and nodes.refusal(id_of("a")) == ""
    assert nodes.drain(id_of("a"), wish) is None and nodes.drain(id_of("b"), wish) is None
    assert nodes.drain(id_of("a"), NodeDrain(IDLE_TERMINATION, "idle")) is not None
    dead = nodes.bury(id_of("a"), "tired", wish)
    assert dead is not None and dead.death_reason == DRAINED_PREEMPTED
    nodes.on_committed(dead)
    assert nodes.drain(id_of("a"), NodeDrain(IDLE_TERMINATION, "idle")) is None


@pytest.mark.parametrize(
    ("drain", "reason", "cause"),
    [
        (None, UNEXPECTED_TERMINATION, "silent"),
        (NodeDrain(PREEMPTION, "spot", 5.0), DRAINED_PREEMPTED, "spot (preempted: silent)"),
        (NodeDrain(PREEMPTION, "spot", 10.0), UNEXPECTED_TERMINATION, "silent"),
        (NodeDrain(PREEMPTION, "spot"), UNEXPECTED_TERMINATION, "silent"),
        (NodeDrain(IDLE_TERMINATION, "idle", 5.0), UNEXPECTED_TERMINATION, "silent"),
    ],
    ids=["was not to leave", "had to be gone by now", "had more time", "had no end", "was idle"],
)
def test_g21_why_a_node_that_is_found_dead_has_died(drain: NodeDrain | None, reason: int, cause: str) -> None:
    nodes = GcsNodeManager(OURS, None)
    nodes.load([node_info("a", drain=drain)])
    dead = nodes.bury_lost(id_of("a"), "silent", now=7.0)
    assert dead is not None and (dead.death_reason, dead.death_cause, dead.drain) == (reason, cause, drain)
    nodes.on_committed(dead)
    assert nodes.bury_lost(id_of("a"), "silent", now=8.0) is None


def test_every_transition_of_a_node_and_a_job_is_recorded() -> None:
    seen: list[tuple[str, str, str]] = []
    nodes = GcsNodeManager(OURS, lambda table, key, old, new: seen.append((table, old, new)))
    nodes.load([node_info("a")])
    dead = nodes.bury(id_of("a"), "tired")
    assert dead is not None
    nodes.on_committed(dead)
    jobs = JobManager(lambda table, key, old, new: seen.append((table, old, new)), max_finished_jobs=0)
    finish(jobs, commit(jobs, "d"))
    assert seen[:2] == [("node", "", "ALIVE"), ("node", "ALIVE", "DEAD")]
    assert seen[2:] == [("job", "", "RUNNING"), ("job", "RUNNING", "FINISHED"), ("job", "FINISHED", "")]


def commit(jobs: JobManager, driver: str) -> JobInfo:
    job = jobs.register(register_job(driver, "n"), now=1.0)
    jobs.on_committed(job)
    return job


def finish(jobs: JobManager, job: JobInfo, now: float = 2.0, kept: bool = False) -> list[Publication]:
    finished = jobs.finish(job.job_id, now, kept)
    assert finished is not None
    return jobs.on_committed(finished)


def test_g112_a_driver_has_one_job_and_it_ends_once() -> None:
    jobs = JobManager(None)
    job = commit(jobs, "d")
    assert jobs.of_driver(id_of("d")) == job
    finish(jobs, job)
    assert jobs.finish(job.job_id, 3.0) is None
    late = jobs.of_driver(id_of("d"))
    assert late is not None and (late.job_id, late.end_time) == (job.job_id, 2.0)
    assert jobs.finish(b"none", 3.0) is None


def test_job_numbers_are_never_used_again() -> None:
    jobs = JobManager(None)
    jobs.register(register_job("refused", "n"), now=1.0)
    job = commit(jobs, "d")
    assert job.job_id == b"\0\0\0\2"
    restarted = JobManager(None)
    restarted.load([], jobs.last_number)
    assert restarted.register(register_job("e", "n"), now=1.0).job_id == b"\0\0\0\3"


def test_the_oldest_finished_jobs_are_forgotten_also_after_a_restart() -> None:
    jobs = JobManager(None, max_finished_jobs=2)
    running, *others = [commit(jobs, name) for name in "abcd"]
    publications = [finish(jobs, job, now) for job, now in zip(others, (3.0, 2.0, 4.0), strict=True)]
    assert publications[2][1] == Publication(JOBS, others[0].job_id, None)
    assert jobs.get(others[0].job_id) is None and jobs.of_driver(id_of("b")) is None
    restarted = JobManager(None, max_finished_jobs=1)
    restarted.load([running, *jobs.finished()], 4)
    assert [job.end_time for job in restarted.finished()] == [4.0]
    assert [job.job_id for job in restarted.running()] == [running.job_id]


def test_g26_a_job_of_which_something_is_kept_is_forgotten_only_after_that_has_gone() -> None:
    jobs = JobManager(None, max_finished_jobs=1)
    kept, first, second = [commit(jobs, name) for name in "abc"]
    for job in (kept, first, second):
        finish(jobs, job, kept=job is kept)
    assert jobs.get(first.job_id) is None and [job.job_id for job in jobs.finished()] == [kept.job_id, second.job_id]
    released = jobs.release(kept.job_id)
    assert released is not None and not released.kept and released.end_time
    assert [publication.record for publication in jobs.on_committed(released)] == [released, None]
    assert jobs.finished() == [released] and jobs.release(kept.job_id) is None


def test_the_setup_hook_of_a_job_is_forgotten_when_the_job_is_over() -> None:
    """As long as something is kept, new workers need it: a detached actor begins anew."""
    jobs = JobManager(None)
    for kept in (False, True):
        request = register_job("kept" if kept else "d", "n")
        job = jobs.register(msgspec.structs.replace(request, config=JobConfig([], "", "", "", b"hook")), now=1.0)
        jobs.on_committed(job)
        finish(jobs, job, kept=kept)
        ended = jobs.get(job.job_id)
        assert ended is not None and ended.config.setup_hook == (b"hook" if kept else b"") and ended.is_over() != kept
    released = jobs.release(job.job_id)
    assert released is not None and released.config.setup_hook == b"" and released.is_over()


def test_g112_a_repeated_put_is_told_what_the_first_was_told() -> None:
    values = KvManager()
    assert not values.is_kept("n", b"k", b"1", overwrite=False)
    values.on_put("n", b"k", b"1")
    assert not values.is_kept("n", b"k", b"1", overwrite=False)
    assert values.is_kept("n", b"k", b"2", overwrite=False)
    assert not values.is_kept("n", b"k", b"2", overwrite=True)


def test_keys_belong_to_their_namespace() -> None:
    values = KvManager()
    values.load([("n", b"ab", b"1"), ("n", b"aa", b"2"), ("n", b"b", b""), ("m", b"ac", b"4")])
    assert values.keys("n", b"a") == [b"aa", b"ab"] and values.keys("n", b"") == [b"aa", b"ab", b"b"]
    assert values.get("n", b"b") == b"" and values.get("m", b"b") is None
    values.on_deleted("m", b"ac")
    values.on_deleted("m", b"ac")
    assert values.keys("m", b"") == []
    assert sorted(values.drop_namespace("n")) == [b"aa", b"ab", b"b"]
    assert values.keys("n", b"") == values.drop_namespace("n") == []


def test_the_first_certificate_stands_and_the_oldest_is_forgotten() -> None:
    workers = WorkerManager(max_worker_deaths=2)
    first = [WorkerDeath(id_of(name), id_of("n"), 1, "exit code 1") for name in "abc"]
    assert workers.on_death(first[0]) == [Publication(WORKER_DEATHS, id_of("a"), first[0])]
    assert workers.on_death(WorkerDeath(id_of("a"), id_of("n"), 1, "signal SIGKILL")) == []
    workers.on_death(first[1])
    assert workers.on_death(first[2])[1] == Publication(WORKER_DEATHS, id_of("a"), None)
    assert [workers.get(id_of(name)) for name in "abc"] == [None, first[1], first[2]]


def test_a_namespace_that_was_dropped_is_over_whether_it_had_anything_or_not() -> None:
    values = KvManager()
    values.on_put("n", b"1", b"value")
    assert not values.is_dropped("n")
    for namespace in "nm":
        values.drop_namespace(namespace)
    assert values.is_dropped("n") and values.is_dropped("m") and not values.is_dropped("o")


def test_of_a_namespace_without_keys_nothing_is_left() -> None:
    values = KvManager()
    for key in (b"1", b"2"):
        values.on_put("n", key, b"value")
    values.on_deleted("n", b"1")
    assert values.keys("n", b"") == [b"2"] and values._namespaces.keys() == {"n"}
    values.on_deleted("n", b"2")
    values.on_deleted("n", b"2")
    values.on_deleted("m", b"1")
    assert values._namespaces == {}
