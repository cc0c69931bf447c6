"""Progress bars: what a bar says, and where and how often a process draws it."""

from __future__ import annotations

import contextvars
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from minray.common import progress_bars, shown
from minray.common.clock import Clock
from minray.common.progress_bars import MOST_BARS_OF_CELL, Bar, ProgressBars


class FakeTerminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def rows(self) -> list[str]:
        """The lines that a person sees, after the control codes of a bar."""
        rows, row = [""], 0
        text = self.getvalue()
        while text:
            if text.startswith("\x1b["):
                number, _, text = text[2:].partition("A" if text[2:3].isdigit() else "J")
                if number:
                    row -= int(number)
                else:
                    del rows[row + 1 :]
                    rows[row] = ""
            elif text[0] == "\n":
                row += 1
                rows += [""] * (row - len(rows) + 1)
                text = text[1:]
            elif text[0] == "\r":
                text = text[1:]
            else:
                rows[row] += text[0]
                text = text[1:]
        return rows


class StandingClock:
    """A clock whose time a test sets."""

    s = 0.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    monkeypatch.setattr(Clock, "perf_counter_ns", lambda: int(clock.s * 1e9))
    return clock


@pytest.fixture
def bars() -> ProgressBars:
    return ProgressBars()


def bar(done: float = 0, total: float | None = 10, **others: Any) -> Bar:
    return Bar(**{"number": 1, "description": "load", "done": done, "total": total, "elapsed_s": 2.0, **others})


def test_a_line_says_how_far_how_long_and_how_fast() -> None:
    assert bar(5).line(61) == "load:  50%|" + "█" * 9 + "▌" + " " * 9 + "| 5/10 [00:02<00:02, 2.50 it/s]"
    assert bar(5).line(61, in_ascii=True) == "load:  50%|" + "#" * 9 + " " * 10 + "| 5/10 [00:02<00:02, 2.50 it/s]"
    assert bar(5, None, unit="rows").line() == "load: 5 rows [00:02, 2.50 rows/s]"
    assert bar(0, elapsed_s=0.0).counts() == "0/10 [00:00<?, ? it/s]"
    assert bar(10, failed=3, is_ended=True, elapsed_s=3725.0).counts() == "10/10 [1:02:05, 0.00 it/s, 3 failed]"
    assert bar(5).line(30) == "load: 50% 5/10 [00:02<00:02, 2"


@pytest.mark.parametrize(
    ("done", "total", "fraction"), [(0, 0, 1.0), (12, 10, 1.0), (-1, 10, 0.0), (2.5, 10, 0.25), (1, None, None)]
)
def test_the_part_that_is_done_is_from_zero_to_one(done: float, total: float | None, fraction: float | None) -> None:
    assert bar(done, total).fraction() == fraction


def test_text_of_users_is_escaped_and_moves_no_cursor() -> None:
    hostile = bar(5, description="<b>\x1b[2J\n&", unit="<i>")
    assert "\x1b" not in hostile.line() and "\n" not in hostile.line()
    assert "<b>" not in hostile.html() and "&lt;b&gt;" in hostile.html() and "&lt;i&gt;/s" in hostile.html()
    assert 'value="0.5"' in hostile.html() and "value=" not in bar(5, None).html()


def test_a_terminal_shows_running_bars_last_and_ended_ones_above(bars: ProgressBars, now: StandingClock) -> None:
    terminal = FakeTerminal()
    bars.show("a", bar(0, description="a", position=1), terminal)
    bars.show("b", bar(0, description="b"), terminal)
    assert [row[:2] for row in terminal.rows()] == ["b:", "a:"]
    with bars.hidden():
        terminal.write("a line\n")
    assert [row[:2] for row in terminal.rows()] == ["a ", "b:", "a:"]
    bars.show("b", bar(10, description="b", is_ended=True), terminal)
    assert [row[:8] for row in terminal.rows()] == ["a line", "b: 100%|", "a:   0%|"]
    bars.show("a", bar(3, description="a", is_ended=True, is_left=False), terminal)
    assert [row[:7] for row in terminal.rows()] == ["a line", "b: 100%", ""]


def test_a_terminal_is_drawn_on_ten_times_a_second_at_most(bars: ProgressBars, now: StandingClock) -> None:
    terminal = FakeTerminal()
    bars.show("a", bar(0), terminal)
    written = terminal.tell()
    bars.show("a", bar(1), terminal)
    assert terminal.tell() == written
    now.s = 0.2
    bars.show("a", bar(2), terminal)
    assert "2/10" in terminal.rows()[0]
    bars.show("a", bar(3), terminal)
    bars.end_all()
    assert "3/10" in terminal.rows()[0], "the last state is drawn, however soon it came"


def test_more_bars_than_lines_are_counted(
    bars: ProgressBars, now: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setenv("COLUMNS", "80")
    terminal = FakeTerminal()
    for number in range(10):
        bars.show(number, bar(number), terminal)
    assert len(terminal.rows()) == 3 and terminal.rows()[2] == "... and 8 more bars"


def test_elsewhere_a_bar_is_a_line_now_and_then(bars: ProgressBars, now: StandingClock) -> None:
    stream = io.StringIO()
    for done in range(11):
        now.s = float(done)
        bars.show("a", bar(done, elapsed_s=now.s), stream)
    bars.show("a", bar(10, is_ended=True), stream)
    counts = [line.rpartition("| ")[2].partition(" ")[0] for line in stream.getvalue().splitlines()]
    assert counts == ["0/10", "5/10", "10/10", "10/10"]
    assert stream.getvalue().isascii()


class ClosedFile(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class ClosedTerminal(ClosedFile):
    def isatty(self) -> bool:
        return True


def test_a_closed_stream_disturbs_nobody(bars: ProgressBars) -> None:
    for stream in (ClosedTerminal(), ClosedFile()):
        bars.show(id(stream), bar(1), stream)
        bars.show(id(stream), bar(2, is_ended=True), stream)


class FakeShell:
    """A kernel's shell whose output names the cell that it belongs to."""

    kernel = object()
    execution_count = 1

    def __init__(self) -> None:
        self.cell: contextvars.ContextVar[str] = contextvars.ContextVar("cell")
        self.display_pub = self
        self.published: list[tuple[str, str, dict[str, str], bool]] = []

    def publish(self, data: dict[str, str], *, metadata: Any, transient: dict[str, str], update: bool) -> None:
        self.published.append((self.cell.get(), transient["display_id"], data, update))

    def context(self, cell: str) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(self.cell.set, cell)
        return context


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> FakeShell:
    shell = FakeShell()
    monkeypatch.setattr(progress_bars, "running_shell", lambda: shell)
    return shell


def test_a_notebook_has_one_piece_of_output_for_the_bars_of_a_cell(
    bars: ProgressBars, shell: FakeShell, now: StandingClock
) -> None:
    one, two = shell.context("one"), shell.context("two")
    bars.show("a", bar(1, description="a"), context=one)
    bars.show("b", bar(2, description="b"), context=one)
    bars.show("c", bar(3, description="c"), context=two)
    bars.show("a", bar(10, description="a", is_ended=True, is_left=False), context=one)
    assert [(cell, update) for cell, _, _, update in shell.published] == [
        ("one", False), ("one", True), ("two", False), ("one", True),
    ]  # fmt: skip
    assert len({display for _, display, _, _ in shell.published}) == 2
    last = shell.published[-1][2]
    assert last["text/html"].count("<progress") == 2 and last["text/plain"].count("\n") == 1


def test_a_cell_keeps_a_few_ended_bars(bars: ProgressBars, shell: FakeShell, now: StandingClock) -> None:
    one = shell.context("one")
    bars.show("running", bar(1), context=one)
    for number in range(2 * MOST_BARS_OF_CELL):
        bars.show(number, bar(1), context=one)
        bars.show(number, bar(10, is_ended=True), context=one)
    assert shell.published[-1][2]["text/html"].count("<progress") == MOST_BARS_OF_CELL
    assert "1/10" in shell.published[-1][2]["text/plain"].splitlines()[0]


class WorkersStream(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def write_bar(self, state: str) -> None:
        self.sent.append(state)


def test_a_worker_sends_its_bars(bars: ProgressBars, now: StandingClock) -> None:
    stream = WorkersStream()
    bars.show("a", bar(1), stream)
    bars.show("a", bar(2), stream)
    bars.show("a", bar(3), stream, interval_s=0.0001)
    now.s = 1.0
    bars.show("a", bar(4), stream)
    assert [msgspec.json.decode(text, type=Bar).done for text in stream.sent] == [1, 4]
    assert bars.are_drawn_on(stream) and not bars.are_drawn_on(io.StringIO()) and bars.are_drawn_on(FakeTerminal())


@pytest.fixture
def no_bars(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(progress_bars, "_bars", None)
    monkeypatch.setattr(shown, "around_lines", shown.around_lines)
    yield


@pytest.mark.usefixtures("no_bars")
def test_lines_of_workers_are_printed_between_hiding_and_drawing(now: StandingClock) -> None:
    terminal = FakeTerminal()
    progress_bars.progress_bars().show("a", bar(1, is_left=False), terminal)
    with shown.around_lines():
        terminal.write("(f pid=1) a line\n")
    progress_bars.progress_bars().end_all()
    assert terminal.rows() == ["(f pid=1) a line", ""]
