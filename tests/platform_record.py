"""The ``Platform`` record that a part is made with in a test, and fakes of its smallest members.

Whatever a test does not give is not there, so a part that reaches for it fails.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from minray.platform.base import Platform


def platform_record(**parts: Any) -> Platform:
    """Make a real record that has only these parts."""
    absent = dict.fromkeys(field.name for field in fields(Platform))
    values: dict[str, Any] = {**absent, "name": "test", "identity": b"test".ljust(16), "bulk": (), **parts}
    return Platform(**values)


class FakeHost:
    """Plays ``base.Host``: a test sets the wall clock, and the number that is drawn."""

    def __init__(self, time_s: float = 0.0, chance: float = 0.0) -> None:
        self._time_s = time_s
        self._chance = chance

    def time(self) -> float:
        return self._time_s

    def random(self) -> float:
        return self._chance

    def random_bytes(self, count: int) -> bytes:
        return b"r" * count


class FakeProcesses:
    """Plays ``base.Processes`` for a process without children: it writes down the codes with which it was ended."""

    def __init__(self) -> None:
        self.pid = 7
        self.marks = memoryview(bytearray(64))
        self.is_copy = False
        self.codes: list[int] = []

    def exit(self, code: int) -> None:
        self.codes.append(code)
