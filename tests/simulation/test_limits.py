"""Tables and messages that exceed their bounds are seen."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

import minray
from minray.common.config import SystemConfig
from minray.core_worker.submission.pipelining import Pipelining
from minray.gcs.gcs_task_manager import GcsTaskManager
from minray.gcs.job_manager import JobManager
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import GetObjects, ObjectQuestion
from minray.protocol.gcs import PollReply
from minray.simulation import Deadlock, SimCluster
from tests.simulation.invariants import Watch
from tests.simulation.limits import Messages


@minray.remote(max_retries=0)
def fail() -> None:
    raise ValueError("no")


@minray.remote
def answer() -> int:
    time.sleep(0.02)
    return 1


def work() -> None:
    refs = [fail.remote() for _ in range(3)]
    for _ in range(3):
        minray.get([answer.remote() for _ in range(20)])
    for ref in refs:
        with contextlib.suppress(ValueError):
            minray.get(ref)


SYSTEM = {"task_events_max_num_task_in_gcs": 1, "max_tasks_in_flight_per_worker": 2}


def problems() -> str:
    """Problems that are seen while tasks fail in a cluster with small bounds."""
    with SimCluster([{"num_cpus": 2}], 1, system_config=SYSTEM, show_output=False) as cluster:
        watch = Watch(cluster)
        driver = cluster.start_driver(work)
        with contextlib.suppress(Deadlock):
            cluster.wait_until(driver.done, 20)
        cluster.settle(2)
        return "\n".join(watch.problems)


def test_a_table_that_exceeds_its_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems() == ""
    monkeypatch.setattr(GcsTaskManager, "_keep_bounds", lambda self: None)
    assert "rows of tasks, and may have 1" in problems()
    monkeypatch.undo()
    monkeypatch.setattr(Pipelining, "has_room", lambda self, worker, estimate_us: True)
    assert "tasks on one worker, and may have 2" in problems()


class End:
    """The sender's end of a channel."""

    def __init__(self) -> None:
        self.pipe = self.source = self
        self.name = "worker/1"


class Sent:
    """A message."""

    def __init__(self, record: Any) -> None:
        self.payload = encode(record)


@pytest.mark.parametrize(("count", "is_seen"), [(2, False), (3, True)])
def test_a_message_that_exceeds_its_bound_is_seen(count: int, is_seen: bool) -> None:
    said: list[str] = []
    asker = Address(b"w" * 16, b"n" * 16, "endpoint")
    questions = GetObjects(asker, [ObjectQuestion(b"o" * 28, 100, bytes([number])) for number in range(count)])
    small = SystemConfig.from_overrides({"max_questions_per_message": 2, "publisher_max_reply_bytes": 30})
    for system in (SystemConfig(), small):
        messages = Messages(lambda _, text: said.append(text), system)
        messages.on_send(End(), Sent(questions), "GetObjects")
        assert bool(said) == (is_seen and system is small)
    said.clear()
    news = PollReply(b"epoch", 1, False, [(b"key" * 4, None)] * count)
    messages.on_send(End(), Sent(news), "Poll reply")
    assert bool(said) == is_seen


def test_a_single_piece_of_news_may_be_large() -> None:
    said: list[str] = []
    small = SystemConfig.from_overrides({"publisher_max_reply_bytes": 1})
    messages = Messages(lambda _, text: said.append(text), small)
    messages.on_send(End(), Sent(PollReply(b"epoch", 1, False, [(b"key", b"value")])), "Poll reply")
    assert said == []


def test_the_gcs_forgets_old_jobs_by_its_configuration() -> None:
    """The judge reads a bound where it was set, and not from the class that keeps it."""
    with SimCluster(1, 1, system_config={"maximum_gcs_finished_job_cached_count": 1}, show_output=False) as cluster:
        watch, jobs = Watch(cluster), cluster.gcs._jobs
        assert isinstance(jobs, JobManager)
        jobs._max_finished_jobs = 2
        for _ in range(3):
            cluster.run(lambda: minray.get(answer.remote()))
        cluster.settle(2)
        assert "L2: gcs has 2 finished jobs, and may have 1" in watch.problems
