"""Session directories: whose they are, who is alive in them, and how nothing is left behind.

Ray: python/ray/_private/node.py, python/ray/_private/services.py (its session_latest link and find_gcs_addresses)

A session directory holds the sockets, the token, the lock and the logs of one node. The file ``lock`` contains the pid of
the node's zygote and is locked (flock) as long as that lives: a free lock means that the session is over, however it ended.

Rules
  * The lock appears under its name only when it is held, so that nobody sweeps a session that is just beginning.
  * Every process of a session, also what users start from tasks, has ``MINRAY_SESSION_DIR`` in its environment; by that
    word those are found which outlived a killed zygote. A process that clears its environment is not found.
  * Logs that say something are kept, those of the last ``MOST_FINISHED`` sessions; everything else goes, also spilled
    objects, which may be elsewhere: there is a link to each of their directories, made before the directory, so that it goes
    however the session ends. A file beside the link has the directory's inode: another directory in its place stays.

Left out: macOS has no /proc, there nothing outlives a killed zygote but what cannot be found.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from minray.platform.storage.external_storage import check_external, is_external
from minray.platform.storage.private_paths import PrivateDirectory, remove_tree, resolve

LOCK = "lock"
LOGS = "logs"
SPILL = "spill"
"""The directory of directories for spilled objects; of those that are elsewhere there are links in it."""
INODE = ".inode"
"""How the file is called, after its link, that has the inode of a directory elsewhere."""
SESSION_PATTERN = "session_*"
SESSION_VARIABLE = "MINRAY_SESSION_DIR"
"""The environment variable that names the session directory in all processes of a session."""
TOKEN_VARIABLES = ("MINRAY_TOKEN", "RAY_TOKEN")
"""Environment variables that may have a cluster's token. No process of a session inherits them: tasks would show them in
whatever prints an environment."""
BEGINNING_S = 60.0
"""Seconds: a directory without a lock is swept only when it is older than this; before, its zygote may be on its way."""
MOST_FINISHED = 8
"""Number of finished sessions whose logs are kept, the newest: enough to look into the last failures. Each start looks at
all of them, so it would take longer and longer if there were more."""


def hold_lock(session_dir: str) -> int:
    """Lock the session for the life of the calling process; returns the descriptor that must stay open."""
    beginning = os.path.join(session_dir, f"{LOCK}.{os.getpid()}")
    descriptor = os.open(beginning, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(descriptor, b"%d\n" % os.getpid())
    os.rename(beginning, os.path.join(session_dir, LOCK))
    return descriptor


def make_spill_directories(session_dir: str, places: Sequence[str]) -> list[str]:
    """One in each of these places, which need not exist yet, or else one in the session. Raises OSError.

    A place where another user could replace the new directory is refused (``private_paths.Exposed``). A place that is a URL
    is nothing that could be made here: it is told apart by the session's name.
    """
    folder = Path(session_dir, SPILL)
    folder.mkdir(mode=0o700)
    if not places:
        (folder / "0").mkdir(mode=0o700)
        return [str(folder / "0")]
    made: list[str] = []
    for number, place in enumerate(places):
        if is_external(place):
            check_external(place)
            made.append(f"{place.rstrip('/')}/minray_{os.path.basename(session_dir)}_{number}")
            continue
        own = os.path.join(resolve(os.path.abspath(place), make=True), f"minray_{os.path.basename(session_dir)}_{number}")
        (folder / str(number)).symlink_to(own)
        os.mkdir(own, 0o700)
        (folder / f"{number}{INODE}").write_text(str(PrivateDirectory(own).inode))
        made.append(own)
    return made


def remove_spilled(session_dir: str) -> None:
    """Remove objects that were spilled; for when their raylet is dead. Removes what it can; never raises."""
    with suppress(OSError):
        for directory in Path(session_dir, SPILL).iterdir():
            if directory.is_symlink():
                _remove_elsewhere(directory)
            else:
                remove_tree(str(directory))


def _remove_elsewhere(link: Path) -> None:
    """Remove the directory that the link was made for, if it is still that one; an empty one if its inode is not known."""
    with suppress(OSError, ValueError):
        own = os.readlink(link)
        record = Path(f"{link}{INODE}")
        if record.exists():
            remove_tree(own, int(record.read_text()))
        else:  # Killed before there was a record, and before anything was written.
            os.rmdir(own)


def remove_session(session_dir: str) -> None:
    """Remove all but logs that say something, and the oldest of such logs. Removes what it can; never raises."""
    logs = Path(session_dir, LOGS)
    remove_spilled(session_dir)
    with suppress(OSError):
        for entry in list(os.scandir(session_dir)):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != LOGS:
                    remove_tree(entry.path)
            else:
                os.unlink(entry.path)
    with suppress(OSError):
        for log in logs.iterdir():
            if log.is_file() and log.stat().st_size == 0:
                log.unlink()
    for folder in (logs, Path(session_dir)):
        with suppress(OSError):
            folder.rmdir()
    _remove_older(os.path.dirname(session_dir))


def _remove_older(root: str) -> None:
    """Of finished sessions, which have nothing but logs, remove all but the newest ``MOST_FINISHED``."""
    for session_dir in [session_dir for session_dir in _sessions(root) if _is_finished(session_dir)][:-MOST_FINISHED]:
        remove_tree(session_dir)


def kill_strays(session_dir: str) -> list[int]:
    """SIGKILL every process of this session but the caller; for when the zygote, which would do so, is dead."""
    killed: list[int] = []
    word = f"{SESSION_VARIABLE}={session_dir}".encode()
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with suppress(OSError):
                if word in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
                    killed.append(int(name))
    return killed


def live_sessions(root: str) -> dict[str, int]:
    """The sessions below ``root`` that are alive, oldest first, and the pids of their zygotes (SIGTERM ends one)."""
    live: dict[str, int] = {}
    for session_dir in _sessions(root):
        with suppress(OSError, ValueError):
            descriptor = os.open(os.path.join(session_dir, LOCK), os.O_RDONLY)
            try:
                if not _acquire(descriptor):
                    live[session_dir] = int(os.read(descriptor, 32))
            finally:
                os.close(descriptor)
    return live


def sweep_sessions(root: str) -> list[str]:
    """Clean up after sessions whose processes were all killed at once; returns their directories."""
    swept: list[str] = []
    for session_dir in _sessions(root):
        try:
            descriptor = os.open(os.path.join(session_dir, LOCK), os.O_RDONLY)
        except FileNotFoundError:
            if _is_abandoned(session_dir):
                remove_session(session_dir)
                swept.append(session_dir)
            continue
        except OSError:
            continue
        try:
            if _acquire(descriptor):
                kill_strays(session_dir)
                remove_session(session_dir)
                swept.append(session_dir)
        finally:
            os.close(descriptor)
    return swept


def _sessions(root: str) -> Iterator[str]:
    for path in sorted(Path(root).glob(SESSION_PATTERN)):
        if path.is_dir() and not path.is_symlink():
            yield str(path)


def _acquire(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_abandoned(session_dir: str) -> bool:
    """Whether it never had, and will not have, a zygote; what has only logs left is not abandoned but finished."""
    try:
        return not _is_finished(session_dir) and time.time() - os.stat(session_dir).st_mtime > BEGINNING_S
    except OSError:
        return False


def _is_finished(session_dir: str) -> bool:
    """Whether its logs are all that is left of it. One that is just beginning has its sockets' directory first."""
    try:
        return os.listdir(session_dir) == [LOGS]
    except OSError:
        return False
