"""Tasks that a process has run: noted by one clock, reported by another."""

from __future__ import annotations

import pytest

from minray.common.clock import Clock
from minray.common.ids import UNIQUE_ID_BYTES
from minray.common.task_rows import LABEL_BYTES, TaskRow, read_journal, rows_of
from minray.common.task_spec import ActorOptions, TaskTemplate
from minray.core_worker.execution import task_profile
from minray.core_worker.execution.task_profile import TaskProfile
from minray.core_worker.records.received_task import Execution
from minray.platform.base import JOURNAL_BYTES
from minray.protocol.core_worker import CANCELLED, FAILED, OK
from minray.protocol.state import GetProfileEvents, ProfileEvent, ProfileEvents
from tests.core_worker.parts import OWN, RECEIVED_ID, received, template
from tests.core_worker.process_record import process_record
from tests.platform_record import FakeHost, FakeProcesses, platform_record

ACTOR = b"a" * UNIQUE_ID_BYTES


class Journal(FakeProcesses):
    """The process that notes; what is left of it is its journal."""

    def __init__(self, size: int = JOURNAL_BYTES) -> None:
        super().__init__()
        self.journal = memoryview(bytearray(size))

    def left(self) -> tuple[int, list[TaskRow], int]:
        """Return the used part as its raylet reads it."""
        zero_us, rows, lost = read_journal(self.journal[: int.from_bytes(self.journal[:8], "little")])
        return zero_us, rows_of(rows), lost


def new_profile(processes: FakeProcesses | None = None, wall_s: float = 0.0) -> TaskProfile:
    """A profile of a process, at this time of the wall clock; without a journal if no process is given."""
    return TaskProfile(platform_record(processes=processes or FakeProcesses(), host=FakeHost(wall_s)))


def told(profile: TaskProfile) -> ProfileEvents:
    return profile.events(process_record(), GetProfileEvents())


def note(profile: TaskProfile, made: TaskTemplate, actor_id: bytes = b"", began: int = 0, status: int = OK) -> None:
    profile.note(received(made, actor_id=actor_id), began, Execution(status, [], b"", 5, False))


def test_a_process_says_who_it_is() -> None:
    assert told(new_profile()) == ProfileEvents(OWN.node_id, "10.0.0.9", OWN.worker_id, 7, 0, [])


def test_times_are_told_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "perf_counter_ns", lambda: 9_000_000_000)
    profile = new_profile(wall_s=1_000_000.0)
    note(profile, template("f"), began=7_000_123_456)
    (event,) = told(profile).events
    assert event == ProfileEvent(RECEIVED_ID, 2, "f", "NORMAL_TASK", b"", 999_998_000_123, 5, "FINISHED")


def test_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_profile, "MOST_EVENTS", 3)
    profile = new_profile()
    for number in range(5):
        note(profile, template(f"f{number}"), began=1000 * number)
    assert [event.name for event in told(profile).events] == ["f2", "f3", "f4"]


def test_of_more_tasks_than_are_asked_for_those_that_ended_last_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_profile, "MOST_EVENTS", 4)
    profile = new_profile()
    for number, began in enumerate([1, 2, 3, 9, 8, 7]):  # The ring begins again in the middle.
        note(profile, template(f"f{number}"), began=1000 * began)
    answer = profile.events(process_record(), GetProfileEvents(2))
    assert ([event.name for event in answer.events], answer.total) == (["f5", "f4"], 4)


def test_tasks_constructors_and_calls_and_how_they_have_ended() -> None:
    profile = new_profile()
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
    profile = new_profile()
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
    profile = new_profile()
    note(profile, template("f"), began=1000)
    note(profile, template("g"), began=2000)
    profile._templates[1] = None
    assert [event.name for event in told(profile).events] == ["f"]


# --- what outlives the process


def test_of_a_dead_process_its_rows_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "perf_counter_ns", lambda: 2_000_000)
    process = Journal()
    profile = new_profile(process, wall_s=5.0)
    assert process.left() == (0, [], 0)
    note(profile, template("A.__init__", actor=ActorOptions()), ACTOR, began=3_000_000)
    note(profile, template("mine", function_name="f"), began=4_000_000, status=FAILED)
    zero_us, rows, lost = process.left()
    assert (zero_us, lost) == (4_998_000, 0)
    assert rows == [
        TaskRow(RECEIVED_ID, ACTOR, 3_000_000, 5, 2, OK, "ACTOR_CREATION_TASK", "A.__init__", ""),
        TaskRow(RECEIVED_ID, b"", 4_000_000, 5, 2, FAILED, "NORMAL_TASK", "mine", "f"),
    ]


@pytest.mark.parametrize(
    ("notes", "expected", "lost"), [(2, ["f0", "f1"], 0), (3, ["f0", "f1", "f2"], 0), (5, ["f2", "f3", "f4"], 2)]
)
def test_the_newest_rows_are_left_in_order_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch, notes: int, expected: list[str], lost: int
) -> None:
    monkeypatch.setattr(task_profile, "MOST_EVENTS", 3)
    process = Journal()
    profile = new_profile(process)
    for number in range(notes):
        note(profile, template(f"f{number}"))
    _, rows, missing = process.left()
    assert ([row.name for row in rows], missing) == (expected, lost)


def test_a_long_name_loses_its_end_when_its_process_is_dead() -> None:
    process = Journal()
    profile = new_profile(process)
    note(profile, template("n" * 100))
    ((_, (row,), _), (event,)) = process.left(), told(profile).events
    assert (row.name, event.name) == ("n" * LABEL_BYTES, "n" * 100)


def test_the_used_part_grows_by_blocks() -> None:
    process = Journal()
    profile = new_profile(process)
    for _ in range(task_profile.BLOCK + 1):
        note(profile, template("f"))
    used = int.from_bytes(process.journal[:8], "little")
    assert used < 3 * task_profile.BLOCK * 128 and len(process.left()[1]) == task_profile.BLOCK + 1
