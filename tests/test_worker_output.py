"""Lines of workers that a driver shows. The whole way from a task's print is in tests/real/test_output.py."""

from __future__ import annotations

import contextvars
import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from minray.common import progress_bars, shown
from minray.common.ids import TaskIdFactory
from minray.node.notebook import CellOutput
from minray.node.worker_output import BAR_MARK, MOST_BEGUN, LinePrinter, TaskNamedStream
from minray.protocol.core_worker import PrintLines
from minray.protocol.logs import INVITATION, invitation, mark_of
from tests.core_worker.parts import RECEIVED_ID, received, template


def lines(sequence: int, *texts: str, pid: int = 7, is_stderr: bool = False) -> PrintLines:
    return PrintLines(b"n" * 16, "127.0.0.1", pid, is_stderr, [("f", text, "") for text in texts], sequence)


def test_the_printer_tells_of_tasks_that_wait_in_the_debugger(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, str, int]] = []
    printer = LinePrinter(5.0, lambda: 0.0)
    printer.on_breakpoint = lambda *stop: told.append(stop)
    first, second = invitation("f (prog.py:3)", "", "0743922d-1"), invitation("f (prog.py:3)", "E: no", "0743922d-2")
    printer.show(lines(1, "a", first, f"{INVITATION}../../x", f"{INVITATION}", second, is_stderr=True))
    printer.show(lines(2, first))
    assert told == [("0743922d-1", "f", 7), ("0743922d-2", "f", 7)], "nothing else, and nothing of standard output"
    assert "f (prog.py:3) raised E: no and waits in the debugger." in capsys.readouterr().err


class Closed(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_batch_is_shown_once_and_what_several_workers_print_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    printer = LinePrinter(5.0, lambda: now)
    printer.show(lines(1, "a", "b"))
    printer.show(lines(1, "a", "b"))
    printer.show(lines(1, "a", pid=8))
    now = 6.0
    printer.show(lines(2, "c"))
    assert capsys.readouterr().out == "(f pid=7) a\n(f pid=7) b\n(f pid=7) c\n(repeated 1 more time across the cluster) a\n"


def test_what_one_worker_alone_repeats_is_shown_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    printer = LinePrinter(5.0, lambda: 0.0)
    printer.show(lines(1, "tick", "tick"))
    printer.show(lines(2, "tick"))
    printer.show(lines(1, "tick", pid=8))
    printer.show(lines(3, "tick"))
    printer.flush_repetitions()
    assert capsys.readouterr().out == "(f pid=7) tick\n" * 3 + "(repeated 2 more times across the cluster) tick\n"


def test_a_window_that_begins_anew_is_over_later(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    printer = LinePrinter(5.0, lambda: now)
    printer.show(lines(1, "a"))
    now = 1.0
    printer.show(lines(1, "b", pid=8))
    printer.show(lines(1, "a", "b", pid=9))
    now = 5.5
    printer.show(lines(2, "a", pid=9))
    assert capsys.readouterr().out == "(f pid=7) a\n(f pid=8) b\n(f pid=9) a\n"
    now = 6.0
    printer.show(lines(2, "c"))
    assert capsys.readouterr().out == "(f pid=7) c\n(repeated 1 more time across the cluster) b\n"
    now = 10.5
    printer.show(lines(3, "d"))
    assert capsys.readouterr().out == "(f pid=7) d\n(repeated 1 more time across the cluster) a\n"


def test_many_different_lines_are_not_looked_at_again_and_again() -> None:
    class Moment(float):
        comparisons = 0

        def __ge__(self, other: float) -> bool:
            Moment.comparisons += 1
            return float(self) >= other

        def __lt__(self, other: float) -> bool:
            Moment.comparisons += 1
            return float(self) < other

    now = 0.0
    printer = LinePrinter(5.0, lambda: Moment(now))
    for sequence in range(1000):
        now = sequence / 100
        printer.show(lines(sequence, f"line {sequence}"))
    assert Moment.comparisons < 3000


def test_the_streams_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    printer = LinePrinter(5.0, lambda: 0.0)
    printer.show(lines(1, "a"))
    for pid in (7, 8, 9):
        printer.show(lines(1, "a", pid=pid, is_stderr=True))
    printer.flush_repetitions()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("(f pid=7) a\n", "(f pid=7) a\n(repeated 2 more times across the cluster) a\n")


@pytest.mark.parametrize("stream", [Closed(), None], ids=["broken pipe", "closed"])
def test_output_that_nobody_reads_is_no_error(stream: Closed | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if stream is None:
        stream = Closed()
        stream.close()
    printer = LinePrinter(5.0, lambda: 0.0)
    monkeypatch.setattr(sys, "stdout", stream)
    printer.show(lines(1, "a"))
    printer.show(lines(2, "a"))
    printer.flush_repetitions()


def test_what_a_terminal_cannot_show_is_shown_as_well_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    LinePrinter(5.0, lambda: 0.0).show(lines(1, "plain", "a \u2603"))
    assert shown.getvalue() == b"(f pid=7) plain\n(f pid=7) a \\u2603\n"


F = mark_of("f", RECEIVED_ID, 2)
"""The mark of the running task."""


class Runs:
    """Plays an executor, which knows the running task and the thread that prints."""

    current: Any = received(template())

    def __init__(self) -> None:
        self.output = self
        self.unended: set[Any] = set()
        self.is_named = False
        self.forget_names: list[Any] = []

    @property
    def speaker(self) -> tuple[int, bytes]:
        return threading.get_ident(), b""

    def shown_name(self, task: Any) -> str:
        return str(task.header.template.name)


@pytest.fixture
def kept() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def stream(kept: io.StringIO, runs: Runs) -> TaskNamedStream:
    return TaskNamedStream(kept, runs)  # type: ignore[arg-type]


def test_a_thread_writes_whole_lines(stream: TaskNamedStream, kept: io.StringIO) -> None:
    with ThreadPoolExecutor(1) as other:
        for text in ("on", "e"):
            assert stream.write(text) == len(text)
        other.submit(stream.writelines, ["two\nth", "ree"]).result()
        stream.write("\nfo")
        stream.flush()
        assert kept.getvalue() == f"{F}\ntwo\none\nfo"
        other.submit(stream.flush).result()
    stream.write("ur\n")
    assert kept.getvalue() == f"{F}\ntwo\none\nfothreeur\n"


def test_a_line_ends_before_another_task_speaks(stream: TaskNamedStream, kept: io.StringIO, runs: Runs) -> None:
    stream.write("half")
    stream.flush()
    runs.current = None
    stream.write("of nobody\n")
    assert kept.getvalue() == f"{F}\nhalf\n\x1e\nof nobody\n"


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_line_that_a_task_has_begun_ends_with_it(
    is_flushed: bool, stream: TaskNamedStream, kept: io.StringIO, runs: Runs
) -> None:
    stream.write("whole\nbegun")
    if is_flushed:
        stream.flush()
    with ThreadPoolExecutor(1) as other:
        other.submit(stream.write, "by another").result()
        ending = [end for speaker, end in runs.unended if speaker == runs.speaker]
        assert len(ending) == 1 and len(runs.unended) == 2
        runs.current = None
        ending[0](runs.speaker, Runs.current)
        assert kept.getvalue() == f"{F}\nwhole\nbegun\n"
        ending[0](runs.speaker, Runs.current)
        assert kept.getvalue() == f"{F}\nwhole\nbegun\n"
        assert len(runs.unended) == 1
        other.submit(stream.write, "\n").result()
    assert not runs.unended
    assert kept.getvalue() == f"{F}\nwhole\nbegun\n\x1e\nby another\n"


def test_a_name_is_forgotten_when_another_task_begins_but_not_within_a_line(
    stream: TaskNamedStream, kept: io.StringIO, runs: Runs
) -> None:
    (forget,) = runs.forget_names
    forget()
    stream.write("one\n")
    assert runs.is_named
    forget()
    forget()
    stream.write("two")
    stream.flush()
    forget()
    stream.write("\n")
    assert kept.getvalue() == f"{F}\none\n\x1e\n{F}\ntwo\n"


def test_a_long_beginning_of_a_line_is_not_held_back(stream: TaskNamedStream, kept: io.StringIO) -> None:
    stream.write("x" * (MOST_BEGUN - 1))
    assert not kept.getvalue()
    stream.write("x")
    assert kept.getvalue() == f"{F}\n" + "x" * MOST_BEGUN


def test_nothing_that_threads_have_begun_is_lost_at_the_end() -> None:
    class Pipe(io.StringIO):
        def close(self) -> None:
            ended.append(self.getvalue())

    ended: list[str] = []
    stream = TaskNamedStream(Pipe(), Runs())  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as other:
        other.submit(stream.write, "one").result()
    stream.write("two")
    stream.close()
    assert ended in ([f"{F}\nonetwo"], [f"{F}\ntwoone"])


def test_only_text_is_written(stream: TaskNamedStream) -> None:
    with pytest.raises(TypeError, match=r"write\(\) argument must be str, not bytes"):
        stream.write(b"x")  # type: ignore[arg-type]


# --- Progress bars, and cells of a notebook ---


def test_the_state_of_a_bar_is_a_line_of_its_own(stream: TaskNamedStream, kept: io.StringIO) -> None:
    stream.write_bar("{1}")
    stream.write("begun")
    stream.flush()
    stream.write_bar("{2}")
    stream.write("whole\n")
    assert kept.getvalue() == f"{F}\n{BAR_MARK}{{1}}\nbegun\n{BAR_MARK}{{2}}\nwhole\n"


def test_bars_are_drawn_in_their_turn_and_ended_with_the_driver(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bars, "_bars", None)
    monkeypatch.setattr(shown, "around_lines", shown.around_lines)
    bar = progress_bars.Bar(3, "load", 1, 4)
    printer = LinePrinter(5.0, lambda: 0.0)
    state = BAR_MARK + msgspec.json.encode(bar).decode()
    printer.show(lines(1, "before", state, "behind", f"{BAR_MARK}forged", is_stderr=True))
    printer.end_bars()
    shown_lines = capsys.readouterr().err.split("\n")
    assert [line.partition("|")[0] for line in shown_lines] == [
        "(f pid=7) before", "(f pid=7) load:  25%", "(f pid=7) behind", f"(f pid=7) {BAR_MARK}forged",
        "(f pid=7) load:  25%", "",
    ]  # fmt: skip


class Events:
    """The events of IPython's shell."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[..., None]]] = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, event: str, callback: Callable[..., None]) -> None:
        self.callbacks[event].append(callback)

    def unregister(self, event: str, callback: Callable[..., None]) -> None:
        self.callbacks[event].remove(callback)


class Shell:
    def __init__(self) -> None:
        self.events = Events()
        self.parent: Any = {"metadata": {"cellId": "1"}}
        self.cell: contextvars.ContextVar[str] = contextvars.ContextVar("cell")

    def get_parent(self) -> Any:
        return self.parent

    def begin(self, cell: str) -> None:
        self.cell.set(cell)
        for callback in self.events.callbacks["pre_run_cell"]:
            callback(None)


def test_the_number_of_a_task_leads_to_the_cell_that_submitted_it() -> None:
    ids, shell = TaskIdFactory(b"w" * 16, b"job1"), Shell()
    cells = CellOutput(shell, LinePrinter(5.0, lambda: 0.0), ids.next, lambda: None)
    shell.cell.set("zero")
    before = ids.next().hex()
    cells.start()
    tasks = [ids.next().hex()]
    for cell, parent in (("one", shell.parent), ("two", {}), ("three", None), ("four", shell.parent)):
        shell.parent = parent
        shell.begin(cell)
        tasks.append(ids.next().hex())
    foreign, forged = TaskIdFactory(b"v" * 16, b"job1").next().hex(), "no number" + tasks[0]
    found = [cells.context_of(task)[shell.cell] for task in (before, *tasks, foreign, "", forged)]
    assert found == ["four", "zero", "one", "four", "four", "four", "four", "four", "four"]
    cells.stop()
    assert shell.events.callbacks == {"pre_run_cell": [], "post_run_cell": []}
    cells.stop()
