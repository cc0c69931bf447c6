"""Helpers of all tests: waiting for a condition, and showing what every process was doing when it did not come true.

``wait_for_condition`` is the one place of the test suite that lets time pass; a test that wants to wait states for what.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests import leaks

CHECKOUT = str(Path(__file__).parents[1])
POLL_S = 0.01
STACK_LINES = 80
"""Number of lines of each log that are shown after its process was asked for its stacks."""


def core_worker_of(api: Any) -> Any:
    """The core worker behind a connection (``UserApi``): the object that tells the host of actors whether it is needed."""
    return api.port.execution.host._is_through.__self__


def without_checkout(text: str) -> str:
    """Leave the checkout's own path, also as faulthandler writes it, out of a text: the checkout is often called minray."""
    return text.replace(CHECKOUT, "").replace(CHECKOUT.encode("ascii", "backslashreplace").decode(), "")


async def turn() -> None:
    """Let the loop go round once."""
    gone_round = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(gone_round.set_result, None)
    await gone_round


def wait_for_condition(predicate: Callable[[], object], timeout_s: float = 10, message: str = "") -> None:
    """Return as soon as ``predicate()`` is true; after ``timeout_s`` fail with ``message`` and everybody's stacks."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not predicate():
        if time.monotonic() > deadline:
            what = message or getattr(predicate, "__name__", repr(predicate))
            raise AssertionError(f"not within {timeout_s} s: {what}\n{whereabouts()}")
        pause.wait(POLL_S)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off: objects in cycles stay."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def whereabouts() -> str:
    """The stacks of this process and of every minray process of this test run."""
    parts = ["--- stacks of the test process", _own_stacks()]
    sessions = os.environ.get("MINRAY_TMPDIR")
    if sessions:
        parts += _stacks_of_others(Path(sessions))
    return "\n".join(parts)


def _own_stacks() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=False)  # the waiting thread: a dump of all has a hundred at most
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if "/_pytest/" not in line and "/pluggy/" not in line)


def _stacks_of_others(sessions: Path) -> list[str]:
    """Ask every process that listens to SIGUSR1 for its stacks, which go to its log, and read what the logs gained."""

    def sizes() -> dict[Path, int]:
        return {path: path.stat().st_size for path in sessions.glob(f"*/{leaks.LOGS}/**/*") if path.is_file()}

    before = sizes()
    asked = [process.pid for process in leaks.processes(sessions) if _listens_to_sigusr1(process.pid)]
    for pid in asked:
        os.kill(pid, signal.SIGUSR1)
    parts = [f"--- asked processes {asked} for their stacks"]
    deadline = time.monotonic() + 1
    while sizes() == before and asked and time.monotonic() < deadline:
        threading.Event().wait(POLL_S)
    threading.Event().wait(10 * POLL_S)  # the others, and the rest of the first, are on their way
    for path, size in sizes().items():
        gained = path.read_bytes()[before.get(path, 0) : size].decode(errors="replace").splitlines()
        if gained:
            parts += [f"--- {path}", *gained[-STACK_LINES:]]
    return parts


def _listens_to_sigusr1(pid: int) -> bool:
    """Whether the process has a handler; the default action would end it. Elsewhere than on Linux: no."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)
