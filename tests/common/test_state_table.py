"""State machines as tables: known steps are recorded, unknown ones raise."""

from __future__ import annotations

import pytest

from minray.common.state_table import NEW, InvalidTransition, StateMachine

DOORS = {NEW: ("OPEN",), "OPEN": ("CLOSED", NEW), "CLOSED": ("OPEN",)}
A, B = b"\x0a", b"\x0b"


@pytest.fixture
def seen() -> list[tuple[str, str, str, str]]:
    return []


@pytest.fixture
def doors(seen: list[tuple[str, str, str, str]]) -> StateMachine:
    return StateMachine("door", DOORS, lambda *step: seen.append(step))


def test_steps_of_the_table_are_taken_and_recorded(doors: StateMachine, seen: list[tuple[str, str, str, str]]) -> None:
    doors.set(A, "OPEN")
    doors.set(A, "CLOSED")
    assert doors.get(A) == "CLOSED" and doors.get(B) == NEW
    assert seen == [("door", "0a", NEW, "OPEN"), ("door", "0a", "OPEN", "CLOSED")]


@pytest.mark.parametrize(
    ("path", "wrong", "complaint"),
    [
        ([], "CLOSED", "door 0a: new -> CLOSED"),
        (["OPEN"], "OPEN", "door 0a: OPEN -> OPEN"),
        (["OPEN", "CLOSED"], NEW, "door 0a: CLOSED -> forgotten"),
        (["OPEN"], "AJAR", "door 0a: OPEN -> AJAR"),
    ],
)
def test_unknown_steps_raise_and_change_nothing(
    doors: StateMachine, seen: list[tuple[str, str, str, str]], path: list[str], wrong: str, complaint: str
) -> None:
    for step in path:
        doors.set(A, step)
    before = doors.get(A)
    with pytest.raises(InvalidTransition, match=complaint):
        doors.set(A, wrong)
    assert doors.get(A) == before and len(seen) == len(path)


def test_what_is_forgotten_leaves_nothing_and_may_begin_anew(doors: StateMachine) -> None:
    doors.set(A, "OPEN")
    doors.set(A, NEW)
    assert len(doors) == 0 and doors.items() == []
    doors.set(A, "OPEN")
    assert doors.items() == [(A, "OPEN")]


def test_states_are_counted(doors: StateMachine) -> None:
    for key in (A, B):
        doors.set(key, "OPEN")
    doors.set(B, "CLOSED")
    assert (doors.count("OPEN"), doors.count("CLOSED"), len(doors)) == (1, 1, 2)


def test_nobody_has_to_listen() -> None:
    quiet = StateMachine("door", DOORS, None, show=lambda key: "a door")
    quiet.set(A, "OPEN")
    with pytest.raises(InvalidTransition, match="door a door"):
        quiet.set(A, "OPEN")
