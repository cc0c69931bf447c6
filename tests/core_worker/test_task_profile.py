"""What a process has run: noted by one clock, told by another."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from minray.common.task_spec import ActorOptions
from minray.core_worker import task_profile
from minray.core_worker.task_profile import Note, TaskProfile
from minray.protocol.core_worker import CANCELLED, FAILED, OK
from minray.protocol.state import ProfileEvent, ProfileEvents
from tests.core_worker.parts import OWN, id_of, template

TASK, ACTOR = id_of("task"), id_of("actor")


def told(profile: TaskProfile, wall_s: float = 0.0) -> ProfileEvents:
    """What it answers, when the wall clock says this."""
    host = SimpleNamespace(time=lambda: wall_s)
    config = SimpleNamespace(node_id=OWN.node_id, node_ip="10.0.0.7", worker_id=OWN.worker_id)
    core: Any = SimpleNamespace(platform=SimpleNamespace(host=host, processes=SimpleNamespace(pid=7)), config=config)
    return profile.events(core)


def note(name: str = "f", began: int = 0, took_us: int = 5, status: int = OK, **fields: Any) -> Note:
    return template(name, **fields), TASK, 2, b"", began, took_us, status


def test_a_process_says_who_it_is() -> None:
    assert told(TaskProfile()) == ProfileEvents(OWN.node_id, "10.0.0.7", OWN.worker_id, 7, [])


def test_times_are_told_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 9_000_000_000)
    profile = TaskProfile()
    profile.note(note(began=7_000_123_456, took_us=5))
    (event,) = told(profile, wall_s=1_000_000.0).events
    assert event == ProfileEvent(TASK, 2, "f", "NORMAL_TASK", b"", 999_998_000_123, 5, "FINISHED")


def test_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_profile, "MOST_EVENTS", 3)
    profile = TaskProfile()
    for number in range(5):
        profile.note(note(f"f{number}"))
    assert [event.name for event in told(profile).events] == ["f2", "f3", "f4"]


def test_tasks_constructors_and_calls_and_how_they_have_ended() -> None:
    profile = TaskProfile()
    made = template("A.__init__", actor=ActorOptions())
    profile.note(note(status=FAILED))
    profile.note((made, TASK, 0, ACTOR, 0, 0, OK))
    profile.note((template("A.f", method="f"), TASK, 0, ACTOR, 0, 0, CANCELLED))
    assert [(event.kind, event.actor_id, event.state) for event in told(profile).events] == [
        ("NORMAL_TASK", b"", "FAILED"),
        ("ACTOR_CREATION_TASK", ACTOR, "FINISHED"),
        ("ACTOR_TASK", ACTOR, "CANCELLED"),
    ]
