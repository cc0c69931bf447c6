"""Figures of a process for the system metrics: its tasks by state, its actor, and what its node keeps of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from minray.common.task_spec import ActorOptions
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.introspection.metric_registry import MetricDefinition, MetricRegistry, of_context, registry
from minray.core_worker.introspection.process_metrics import ProcessFigures
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.records import ended_tasks
from minray.core_worker.records.ended_tasks import CountsByName
from minray.core_worker.records.pending_task import FAILED, FINISHED, PUSHED, QUEUED
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.gcs import JobConfig, JobInfo
from minray.protocol.object_store import Place
from minray.protocol.state import MetricFamily, MetricSample
from tests.core_worker.parts import JOB, OWN, address, object_id, pending, prepare, received, submit, template
from tests.core_worker.process_record import process_record

COUNTED, SET = MetricDefinition("counter", "counted", ""), MetricDefinition("gauge", "set", "")


class NoActor:
    """Plays the receiver of an actor's calls in a process without an actor."""

    actor: Any = None


class OneActor:
    """Plays the receiver of an actor's calls: all that is asked of it is its constructor."""

    def __init__(self, constructor: ReceivedTask) -> None:
        self.actor: Any = self
        self.constructor = constructor


class Tables:
    """A core worker of which there are only the tables."""

    def __init__(self) -> None:
        self.store, self.tasks, self.received = MemoryStore(), TaskManager(None), list[ReceivedTask]()
        self.receiver: Any = NoActor()
        self.context = JobContext(OWN.worker_id)
        self.context.enter(JobInfo(JOB, OWN, 1, JobConfig([], "", "", ""), 0.0))
        self.figures = ProcessFigures(
            process=process_record(),
            context=self.context,
            tasks=self.tasks,
            store=self.store,
            actor_receiver=self.receiver,
            unanswered=lambda: self.received,
        )

    def told(self, name: str = "tasks") -> dict[tuple[str, ...], float]:
        """Values of one metric, by its labels in their order."""
        values = [value for value in self.figures.metrics().system if value.name == name]
        found = {tuple(value.labels.values()): value.value for value in values}
        assert len(found) == len(values), "no series stands twice"
        return found


@pytest.fixture
def tables() -> Generator[Tables, None, None]:
    token = of_context.set(MetricRegistry())
    yield Tables()
    of_context.reset(token)


def test_tasks_count_by_state_and_name_and_ended_ones_for_good(tables: Tables) -> None:
    for _ in range(2):
        submit(tables.tasks, pending(prepare("f")), QUEUED)
        submit(tables.tasks, pending(prepare("f")), QUEUED, PUSHED, FINISHED)
    retried = submit(tables.tasks, pending(prepare("g")), QUEUED, PUSHED)
    retried.attempt = 1
    tables.tasks.move(retried, FAILED)
    assert tables.told() == {
        (QUEUED, "f", "owner", "0"): 2,
        (FINISHED, "f", "owner", "0"): 2,
        (FAILED, "g", "owner", "1"): 1,
    }


def test_a_running_task_counts_once_over_owner_and_executor(tables: Tables) -> None:
    submit(tables.tasks, pending(prepare("f")), QUEUED, PUSHED)
    task = received(template("f"))
    task.attempt = 0
    task.claim()
    tables.received.append(task)
    assert tables.told() == {
        (PUSHED, "f", "owner", "0"): 1,
        ("RUNNING", "f", "executor", "0"): 1,
        (PUSHED, "f", "executor", "0"): -1,
    }


def test_a_constructor_that_runs_counts_as_running_alone(tables: Tables) -> None:
    made = {"name": "A.__init__", "actor": ActorOptions()}
    submit(tables.tasks, pending(prepare(**made)), QUEUED, PUSHED)
    task = received(template(**made))
    task.claim()
    tables.received.append(task)
    sums = dict[str, float]()
    for (state, *_), value in tables.told().items():
        sums[state] = sums.get(state, 0.0) + value
    assert sums == {FINISHED: 0, "RUNNING": 1}


@pytest.mark.parametrize(("is_running", "state"), [(True, "ALIVE_RUNNING_TASKS"), (False, "ALIVE_IDLE")])
def test_an_actor_is_told_with_what_it_does(tables: Tables, is_running: bool, state: str) -> None:
    task = received(template("A.__init__", actor=ActorOptions()))
    tables.figures._actor_receiver = OneActor(task)  # type: ignore[assignment]
    call = received(template("A.f", method="f"))
    tables.received.append(call)
    if is_running:
        call.claim()
    assert tables.told("actors") == {(state, "A", "executor"): 1}


def test_only_values_in_this_process_count_as_its_memory(tables: Tables) -> None:
    tables.store.put(object_id("x"), StoredObject(b"12345", (b"678",), False, ()))
    tables.store.put(object_id("y"), StoredObject(b"", (), False, (), place=Place(0, 5000, address("raylet"))))
    assert tables.told("object_store_memory") == {("WORKER_HEAP", ""): 8}


def test_what_lasts_are_counters_and_ended_tasks(tables: Tables) -> None:
    registry().record(COUNTED, {}, 2.0)
    registry().record(SET, {}, 2.0)
    submit(tables.tasks, pending(prepare("f")), QUEUED)
    submit(tables.tasks, pending(prepare("f")), QUEUED, PUSHED, FINISHED)
    lasting = tables.figures.lasting()
    assert lasting.families == [MetricFamily("counted", "counter", "", [], [MetricSample({}, 2.0, [])])]
    assert [(value.labels["State"], value.value) for value in lasting.system] == [(FINISHED, 1)]
    assert (lasting.worker_id, lasting.job_id, lasting.node_ip) == (OWN.worker_id, JOB, "10.0.0.9")
    assert [family.name for family in tables.figures.metrics().families] == ["counted", "set"]


def test_names_that_a_program_makes_up_are_bounded_and_every_task_counts(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_tasks, "MOST_NAMES", 10)
    counts = CountsByName()
    for number in range(100):
        counts[f"task {number}"] += 1
    assert len(counts) <= 11 and sum(counts.values()) == 100 and counts["task 99"] == 1
