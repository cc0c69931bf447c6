"""Tasks that a process has run: noted by one clock, reported by another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minray.common.clock import Clock
from minray.common.ids import UNIQUE_ID_BYTES
from minray.common.task_spec import ActorOptions, TaskTemplate
from minray.core_worker.execution import task_profile
from minray.core_worker.execution.task_profile import TaskProfile
from minray.core_worker.records.received_task import Execution
from minray.protocol.core_worker import CANCELLED, FAILED, OK
from minray.protocol.state import ProfileEvent, ProfileEvents
from tests.core_worker.parts import OWN, RECEIVED_ID, received, template
from tests.core_worker.process_record import process_record
from tests.platform_record import FakeHost

ACTOR = b"a" * UNIQUE_ID_BYTES


def told(profile: TaskProfile, wall_s: float = 0.0) -> ProfileEvents:
    """Answer of the profile, when the wall clock says this."""
    process = process_record()
    process.platform = replace(process.platform, host=FakeHost(wall_s))
    return profile.events(process)


def note(profile: TaskProfile, made: TaskTemplate, actor_id: bytes = b"", began: int = 0, status: int = OK) -> None:
    profile.note(received(made, actor_id=actor_id), began, Execution(status, [], b"", 5, False))


def test_a_process_says_who_it_is() -> None:
    assert told(TaskProfile()) == ProfileEvents(OWN.node_id, "10.0.0.9", OWN.worker_id, 7, [])


def test_times_are_told_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "perf_counter_ns", lambda: 9_000_000_000)
    profile = TaskProfile()
    note(profile, template("f"), began=7_000_123_456)
    (event,) = told(profile, wall_s=1_000_000.0).events
    assert event == ProfileEvent(RECEIVED_ID, 2, "f", "NORMAL_TASK", b"", 999_998_000_123, 5, "FINISHED")


def test_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_profile, "MOST_EVENTS", 3)
    profile = TaskProfile()
    for number in range(5):
        note(profile, template(f"f{number}"), began=1000 * number)
    assert [event.name for event in told(profile).events] == ["f2", "f3", "f4"]


def test_tasks_constructors_and_calls_and_how_they_have_ended() -> None:
    profile = TaskProfile()
    made = template("A.__init__", actor=ActorOptions())
    note(profile, template("f"), status=FAILED)
    note(profile, made, ACTOR)
    note(profile, template("A.f", method="f"), ACTOR, status=CANCELLED)
    assert [(event.kind, event.actor_id, event.state) for event in told(profile).events] == [
        ("NORMAL_TASK", b"", "FAILED"),
        ("ACTOR_CREATION_TASK", ACTOR, "FINISHED"),
        ("ACTOR_TASK", ACTOR, "CANCELLED"),
    ]


def test_phases_are_told_with_their_task() -> None:
    profile = TaskProfile()
    for attempt, ends in ((2, [3_000, 5_000]), (1, [9_000])):
        for end in ends:
            task = received(template("f"), attempt=attempt)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Clock, "perf_counter_ns", lambda end=end: end)
                profile.note_phase(task)
    note(profile, template("f"), began=1_000)
    assert [event.phase_ends_us for event in told(profile).events] == [[2, 4]]


def test_what_is_being_noted_is_not_told() -> None:
    """By another thread, while this one answers: its row may be that of another task."""
    profile = TaskProfile()
    note(profile, template("f"), began=1000)
    note(profile, template("g"), began=2000)
    profile._templates[1] = None
    assert [event.name for event in told(profile).events] == ["f"]
