"""What a driver shows of its workers' lines; the whole way from a task's print is in tests/real/test_output.py."""

from __future__ import annotations

import io
import sys

import pytest

from minray.protocol.core_worker import PrintLines
from minray.worker_output import LinePrinter


def lines(sequence: int, *texts: str) -> PrintLines:
    return PrintLines(b"n" * 16, "127.0.0.1", 7, False, [("f", text) for text in texts], sequence)


class Closed(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_batch_is_shown_once_and_repeated_lines_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    printer = LinePrinter(5.0, lambda: now)
    printer.show(lines(1, "a", "b"))
    printer.show(lines(1, "a", "b"))
    printer.show(lines(2, "a"))
    now = 6.0
    printer.show(lines(3, "c"))
    assert capsys.readouterr().out == "(f pid=7) a\n(f pid=7) b\n(f pid=7) c\n(repeated 1 more time by other workers) a\n"


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
