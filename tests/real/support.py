"""Messages between tasks and tests on a real cluster. They travel through files, since the processes differ.

Workers import this module by name, so it must not need pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import minray as ray

ON_RAY = ray.__name__ == "ray"
"""`make conformance` runs the tests of the public API on Ray, which is imported as minray there."""
POLL_S = 0.002
PATIENCE_S = 30.0
"""Seconds that no wait in these tests reaches, unless a test has forgotten a task that waits."""


class Signal:
    """A file: one side sets it, another waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def set(self) -> None:
        Path(self.path).touch()

    def is_set(self) -> bool:
        return os.path.exists(self.path)

    def wait(self) -> None:
        """Poll, so that an interrupt is seen at any moment."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.is_set():
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody has set {self.path}")
            threading.Event().wait(POLL_S)


class Journal:
    """A file to which many processes add lines, each at once."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def note(self, line: object = "") -> int:
        """Add a line; returns how many there are now (exact if nobody else writes)."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
        return len(self.lines())

    def lines(self) -> list[str]:
        try:
            return Path(self.path).read_text().splitlines()
        except FileNotFoundError:
            return []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Files:
    """Signals and journals of one test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.signals: dict[str, Signal] = {}

    def signal(self, name: str = "signal") -> Signal:
        return self.signals.setdefault(name, Signal(self._directory / f"{name}.signal"))

    def journal(self, name: str = "journal") -> Journal:
        return Journal(self._directory / f"{name}.journal")

    def set_all(self) -> None:
        """Let go whatever waits."""
        for signal in self.signals.values():
            signal.set()


def api() -> Any:
    """The connection of this process, driver or worker. Who asks for it looks inside minray, which Ray cannot stand."""
    if ON_RAY:
        import pytest

        pytest.skip("looks inside minray")
    from minray.api import calls as worker

    connected = worker.connected_api()
    assert connected is not None
    return connected


def core() -> Any:
    """Core worker of the driver, whose tables tests look at."""
    from tests.helpers import core_worker_of

    return core_worker_of(api())


def left_in_driver() -> list[str]:
    """Entries in the driver's tables that a fresh driver does not have, except pinned references, which are never freed."""
    if ON_RAY:
        return []
    driver: Any = core()
    while True:
        with suppress(RuntimeError):  # its loop changes them meanwhile: a table of many entries is not copied at once
            pinned = {object_id for object_id, reference in driver.references.items() if reference.pinned}
            return [
                *(f"task {task.prepared.template.name}" for task in list(driver.submission.tasks.tasks.values())),
                *(f"reference {key.hex()}" for key, _ in driver.references.items() if key not in pinned),
                *(f"object {key.hex()}" for key in list(driver.store.objects) if key not in pinned),
                *(f"stream of {key.hex()}" for key in list(driver.submission.generators.streams._streams)),
                *(f"waiter of {key.hex()}" for key in list(driver.store._waiters)),
                *(["open requests for objects"] if driver.futures.open_requests() else []),
            ]


def words(pattern: str) -> str | None:
    """Pattern of an error's text; None on Ray, whose texts differ."""
    return None if ON_RAY else pattern


@ray.remote
def hold(started: Signal, release: Signal, result: object = None) -> object:
    """Run until released."""
    started.set()
    release.wait()
    return result


@ray.remote
def echo(value: object) -> object:
    return value


def run_driver(program: str, *arguments: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a process of its own, with ``ray`` imported; its arguments are in ``sys.argv[1:]``."""
    return subprocess.run(
        driver_command(program, *arguments),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environment},
    )


def start_driver(program: str, *arguments: str, start_new_session: bool = False) -> subprocess.Popen[str]:
    """Start a driver without waiting for its end. Its standard input stays open."""
    pipe = subprocess.PIPE
    command = driver_command(program, *arguments)
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=start_new_session)


def driver_command(program: str, *arguments: str) -> list[str]:
    text = "import sys\nimport minray as ray\n" + textwrap.dedent(program)
    return [sys.executable, "-W", "error", "-c", text, *arguments]
