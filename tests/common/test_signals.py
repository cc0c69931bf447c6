"""Signals by number, on every system."""

from __future__ import annotations

import signal
from enum import IntEnum

import pytest

from minray.common.signals import EVERYWHERE, SIGKILL, signal_name


class SignalsOfWindows(IntEnum):
    """Plays ``signal.Signals`` of Windows."""

    SIGINT = 2
    SIGILL = 4
    SIGFPE = 8
    SIGSEGV = 11
    SIGTERM = 15
    SIGBREAK = 21
    SIGABRT = 22


@pytest.mark.parametrize(
    ("number", "name"),
    [(9, "SIGKILL"), (11, "SIGSEGV"), (signal.SIGBUS, "SIGBUS"), (signal.SIGRTMIN + 1, "signal 35"), (1000, "signal 1000")],
)
def test_a_signal_has_its_name_or_its_number(number: int, name: str) -> None:
    assert signal_name(number) == name


def test_the_table_says_what_this_system_says() -> None:
    assert EVERYWHERE == {number: signal.Signals(number).name for number in EVERYWHERE} and SIGKILL == signal.SIGKILL


def test_simulated_processes_die_of_the_same_signals_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "Signals", SignalsOfWindows)
    assert [signal_name(number) for number in (6, 9, 10)] == ["SIGABRT", "SIGKILL", "signal 10"]
