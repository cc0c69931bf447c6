"""Leftovers that a run of minray must not leave behind: processes, sockets, files and shared memory.

Logs stay, where their owner can find them; nothing else does. Used at the end of every test run (conftest.py) and of
continuous integration (``make leak-check``, which is ``python -m tests.leaks``; it looks where this user's sessions are, or
into the directories that it is given).

A process belongs to a directory of sessions if it names it on its command line or in its environment. Shared memory has
no owner that can be asked, so entries count if they are ours by name, or new since ``shared_memory`` was called first. Those
of test processes beside this one do not count: a socket of theirs names the segment, or a process of theirs has mapped it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
LOGS = "logs"
SESSIONS = f"/tmp/minray-test-{os.getpid()}" if "pytest" in sys.modules else ""
"""The directory of this test process's sessions (``conftest.py``); empty when this is no test."""
SOCKETS = ("session_*/sockets/*", "*/session_*/sockets/*")
"""Where sockets are below a directory of sessions, or below one of its folders."""


def processes(directory: Path) -> list[psutil.Process]:
    """The processes of the sessions in ``directory``, and all descendants of this process; zombies among them."""
    own_line = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = {child.pid: child for child in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid not in own_line and _mentions(process, str(directory)):
            found[process.pid] = process
    return [found[pid] for pid in sorted(found)]


def _mentions(process: psutil.Process, directory: str) -> bool:
    try:
        words = [*process.cmdline(), *process.environ().values()]
    except (psutil.Error, OSError):
        return False
    return any(word == directory or f"{directory}/" in word for word in words)


def files(directory: Path) -> list[Path]:
    """All in ``directory`` that is neither a directory nor below one named ``logs``."""
    found = []
    for folder, subfolders, names in os.walk(directory):
        if LOGS in subfolders:
            subfolders.remove(LOGS)
        found += [Path(folder, name) for name in names]
    return sorted(found)


def shared_memory() -> frozenset[str]:
    """The names in shared memory that minray or Python's multiprocessing gave and this user owns, but for others' runs."""
    if not SHARED_MEMORY.is_dir():
        return frozenset()
    others = _segments_of_others()  # before and after the names are read: either may be just beginning, or ending
    names = set()
    for entry in SHARED_MEMORY.iterdir():
        try:
            ours = entry.stat().st_uid == os.getuid()
        except FileNotFoundError:
            continue
        if ours and ("minray" in entry.name or entry.name.startswith("psm_")):
            names.add(entry.name)
    return frozenset(names - others - _segments_of_others() - _mapped_by_others(names)) if names else frozenset()


def _segments_of_others() -> set[str]:
    """Names of the segments that raylets of other sessions of this machine hand out, or did before they died."""
    from minray.platform.storage.shared_memory import name_of_segment

    roots = [root for root in Path("/tmp").glob("minray-*") if str(root) != SESSIONS]
    # The function of ``glob`` passes over folders that vanish meanwhile; the method of ``Path`` raises FileNotFoundError.
    return {name_of_segment(path) for root in roots for depth in SOCKETS for path in glob.glob(f"{root}/{depth}")}


def _mapped_by_others(names: set[str]) -> set[str]:
    """Those of ``names`` that a process maps which does not belong to this test process's sessions."""
    if not SESSIONS:
        return set()
    own = {os.getpid(), *(process.pid for process in processes(Path(SESSIONS)))}
    found: set[str] = set()
    for pid in psutil.pids():
        if pid not in own:
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
                found |= {name for name in names if f"{SHARED_MEMORY}/{name}" in maps}
    return found


def describe(directory: Path, shared_memory_before: frozenset[str] = frozenset()) -> list[str]:
    """One line for each thing that should not be there."""
    return [
        *(f"process {process.pid} {_summary(process)}" for process in processes(directory)),
        *(f"file {path}" for path in files(directory)),
        *(f"shared memory {name}" for name in sorted(shared_memory() - shared_memory_before)),
    ]


def _summary(process: psutil.Process) -> str:
    try:
        return f"({process.status()}): {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return "(ending)"


def main(directories: list[str]) -> int:
    """Print what is left of the sessions in ``directories``; the exit status is 1 if there is anything."""
    if not directories:
        from minray.node.discovery import runtime_roots

        directories = [str(root) for root in runtime_roots()]

    def left() -> Iterator[str]:
        for directory in directories:
            yield from describe(Path(directory))

    lines = sorted(set(left()))
    print("\n".join(["left behind:", *lines] if lines else [f"nothing is left in {', '.join(directories)}"]))
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
