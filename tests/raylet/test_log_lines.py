"""Lines of one task or actor, and lines that contain a text, are chosen from pieces of a file in any cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minray.protocol.logs import LogChoice, Mark, mark_of, read_mark
from minray.raylet.log_lines import LineChooser, count_lines, start_of_last

ONE, TWO, ACTOR = b"1" * 24, b"2" * 24, b"a" * 16
FILE = "\n".join(
    [
        "before any task",
        mark_of("f", ONE, 0),
        "one",
        "child of one",
        mark_of("f", TWO, 0),
        "two",
        mark_of(""),
        "of nobody",
        mark_of("f", ONE, 1),
        "One again",
        mark_of("A.m", TWO, 0, ACTOR),
        "actor",
        mark_of(""),
        "a thread of the actor",
        "",
    ]
).encode()


def chosen(choice: LogChoice, has_marks: bool = True) -> list[str]:
    return LineChooser(choice, has_marks).choose(FILE).decode().split("\n")[:-1]


def test_marks_say_whose_a_line_is() -> None:
    assert read_mark(mark_of("a  name\nin \x1e lines", ONE, 3, ACTOR)) == Mark("a name in lines", ONE.hex(), 3, ACTOR.hex())
    assert read_mark(mark_of("")) == Mark("") and read_mark("\x1e") == Mark("")
    assert read_mark("\x1eforged\x1e.x.\x1e") == Mark("forged", "", 0, "\x1e")


def test_lines_of_a_task_are_its_own() -> None:
    assert chosen(LogChoice(task_id=ONE.hex())) == ["one", "child of one", "One again"]
    assert chosen(LogChoice(task_id=ONE.hex(), attempt=1)) == ["One again"]
    assert chosen(LogChoice(task_id=ONE.hex(), search="ONE AGAIN")) == ["One again"]
    assert chosen(LogChoice(task_id=b"3".hex())) == []


def test_lines_of_an_actor_begin_with_its_first_and_never_end() -> None:
    assert chosen(LogChoice(actor_id=ACTOR.hex())) == ["actor", "a thread of the actor"]


def test_nobody_sees_marks_but_in_files_that_have_none() -> None:
    assert len(chosen(LogChoice())) == 8 and len(chosen(LogChoice(search="TWO"))) == 1
    assert LineChooser(LogChoice(), False).choose(FILE) == FILE
    assert chosen(LogChoice(search="\x1e"), has_marks=False)[0].startswith("\x1ef")


CHOICES = st.sampled_from(
    [
        LogChoice(),
        LogChoice(task_id=ONE.hex()),
        LogChoice(task_id=TWO.hex(), attempt=0),
        LogChoice(actor_id=ACTOR.hex()),
        LogChoice(search="one"),
    ]
)


@given(CHOICES, st.sets(st.integers(0, FILE.count(b"\n"))))
def test_the_cut_into_pieces_changes_nothing(choice: LogChoice, cuts: set[int]) -> None:
    """A reader that goes on later, with the mark of its position alone, chooses the same lines."""
    lines = FILE.splitlines(keepends=True)
    bounds = [0, *sorted(cuts), len(lines)]
    mark, found = "", b""
    for start, end in zip(bounds, bounds[1:], strict=False):
        chooser = LineChooser(choice, True, mark)
        found += chooser.choose(b"".join(lines[start:end]))
        mark = chooser.mark
    assert found == LineChooser(choice, True).choose(FILE)


@given(st.lists(st.sampled_from(["", "a", "\x1e", "\x1ef\x1e1.0.", "bc"]), max_size=8), st.booleans(), st.integers(1, 8))
def test_the_last_lines_are_counted_without_marks(lines: list[str], is_ended: bool, wanted: int) -> None:
    block = ("\n".join(lines) + ("\n" if is_ended and lines else "")).encode()
    if not block:
        return
    whole = [line for line in block.split(b"\n") if not line.startswith(b"\x1e")]
    if block.endswith(b"\n"):
        whole = whole[:-1]
    assert count_lines(block, True) == len(whole)
    if wanted <= len(whole):
        rest = LineChooser(LogChoice(), True).choose(block[start_of_last(block, wanted) :])
        assert rest.removesuffix(b"\n").split(b"\n") == whole[-wanted:]
