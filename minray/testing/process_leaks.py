"""Finds what a test leaves in its own process and on its machine: threads, processes, files, shared memory.

Ray: has no counterpart

``ProcessState`` is taken before a test. ``left_since`` compares it with the state after the test, when the test's cluster
has ended. A line names each thing, and says how to end it.

What is not counted: threads and processes of pytest, its plugins and debuggers (``OTHERS``), and daemon threads, except
those that workers of an in-process cluster have started. Under pytest-xdist the shared memory of other workers cannot be
told from a test's own, so shared memory is not counted there.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from minray.common.clock import Clock
from minray.common.thread_frames import frames_of_other_threads

PATIENCE_S = 2.0
"""Seconds that threads and processes of an ended cluster get to end."""
POLL_S = 0.002
OTHERS = ("asyncio_", "AnyIO", "pytest", "pytest_timeout", "Dummy-", "pydevd", "debugpy", "execnet", "ptvsd", "IPython")
"""Beginnings of the names of threads that live as long as the test run."""
WORKERS = ("worker/", "minray")
"""Beginnings of the names of threads of an in-process cluster."""
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Helpers of Python that live as long as the program that has started them."""
SHARED_MEMORY = Path("/dev/shm")
LOGS = "logs"


@dataclass(frozen=True)
class ProcessState:
    """The threads and children of this process, and the names of its user's shared memory."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    shared_memory: frozenset[str]

    @classmethod
    def now(cls) -> ProcessState:
        return cls(frozenset(threading.enumerate()), frozenset(child_pids()), shared_memory())


def left_since(
    before: ProcessState, directories: list[str], patience_s: float = PATIENCE_S, counts_workers: bool = True
) -> list[str]:
    """Return a line for each thing that came since ``before`` and does not go within ``patience_s`` seconds.

    ``directories``: those of the sessions of clusters that have ended since. ``counts_workers``: whether threads of workers
    count, because no cluster runs in this process any more.
    """
    deadline = Clock.monotonic() + patience_s
    pause = threading.Event()
    while (left := _left(before, directories, counts_workers)) and Clock.monotonic() < deadline:
        pause.wait(POLL_S)
    return [describe() for describe in left]


def _left(before: ProcessState, directories: list[str], counts_workers: bool) -> list[Callable[[], str]]:
    """Return a function for each thing that is left, which makes its line."""
    started = [thread for thread in threading.enumerate() if thread not in before.threads]
    children = [pid for pid in child_pids() if pid not in before.children]
    return [
        *(partial(_thread_line, thread) for thread in started if _counts(thread, counts_workers)),
        *(partial(str, line) for line in map(_process_line, children) if line),
        *(partial(_file_line, path) for path in files(directories)),
        *(partial(_memory_line, name) for name in sorted(shared_memory() - before.shared_memory)),
    ]


def _counts(thread: threading.Thread, counts_workers: bool) -> bool:
    if thread.name.startswith(WORKERS):
        return counts_workers
    return not thread.daemon and not thread.name.startswith(OTHERS)


def _thread_line(thread: threading.Thread) -> str:
    frame = frames_of_other_threads().get(thread.ident or 0)
    stack = [] if frame is None else traceback.extract_stack(frame)
    places = [place for place in stack if not place.filename.startswith("<") and place.filename != threading.__file__]
    where = f", in {places[-1].name} at {places[-1].filename}:{places[-1].lineno}" if places else ""
    return f"thread {thread.name!r} runs{where}: let it end, and join() it"


def child_pids() -> list[int]:
    """Return the pids of the children of this process."""
    found: list[int] = []
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:  # Not Linux, or a thread that has just ended.
        return [child.pid for child in psutil.Process().children()]
    return found


def _process_line(pid: int) -> str:
    """Return the line of a child; empty for one that has ended, or that lives as long as this program."""
    try:
        process = psutil.Process(pid)
        command, status = " ".join(process.cmdline()), process.status()
    except psutil.Error:
        return ""
    if any(helper in command for helper in HELPERS):
        return ""
    if status == psutil.STATUS_ZOMBIE:
        return f"process {pid} has ended, but nothing has waited for it: wait() for it"
    return f"process {pid} runs ({command[:100]}): terminate() it, and wait() for it"


def files(directories: list[str]) -> list[str]:
    """Return the paths of all files below these directories, except logs, which stay for their readers."""
    found = []
    for directory in directories:
        for folder, subfolders, names in os.walk(directory):
            subfolders[:] = [name for name in subfolders if name != LOGS]
            found += [os.path.join(folder, name) for name in names]
    return found


def _file_line(path: str) -> str:
    return f"file {path} of an ended cluster: os.remove() it"


def shared_memory() -> frozenset[str]:
    """Return the names in shared memory that minray or Python's multiprocessing gave, and that this user owns."""
    if "PYTEST_XDIST_WORKER" in os.environ or not SHARED_MEMORY.is_dir():
        return frozenset()
    names = set()
    with os.scandir(SHARED_MEMORY) as entries:
        for entry in entries:
            if entry.name.startswith(("psm_", "minray")):
                try:
                    ours = entry.stat().st_uid == os.getuid()
                except FileNotFoundError:
                    continue
                if ours:
                    names.add(entry.name)
    return frozenset(names)


def _memory_line(name: str) -> str:
    return f"shared memory {name}: unlink() it"
