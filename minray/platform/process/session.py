"""Session directories: which node owns one, whether it is alive, and how all of it is cleaned up.

Ray: python/ray/_private/node.py, python/ray/_private/services.py (its session_latest link and find_gcs_addresses)

A session directory holds the sockets, the token, the lock and the logs of one node. The file ``lock`` contains the pid of
the node's zygote, which keeps it locked (flock) as long as it lives. A free lock means that the session is over, however it
ended.

Rules
  * The lock gets its name only after it is held, so that no process sweeps a session that is just beginning.
  * Every process of a session, also one that a task starts, has ``MINRAY_SESSION_DIR`` in its environment. By this variable
    processes are found that outlive a killed zygote. A process that clears its environment is not found.
  * Non-empty logs of the last ``MOST_FINISHED`` sessions are kept. Everything else is removed.
  * Spilled objects may be in other places. The session has a link to each of their directories. The link is made before the
    directory, so that the directory is found however the session ends. A file beside the link records the directory's
    inode, so that another directory in its place is not removed.
  * The arena may be in shared memory. It is found by the file of its socket, and so goes before the sockets.

Left out: macOS has no /proc, so there processes that outlive a killed zygote are not found.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from minray.platform.storage.external_storage import check_external, is_external
from minray.platform.storage.private_paths import PrivateDirectory, remove_tree, resolve
from minray.platform.storage.shared_memory import remove_segments

LOCK = "lock"
LOGS = "logs"
SOCKETS = "sockets"
"""The session's folder of unix sockets."""
SPILL = "spill"
"""The session's folder of directories for spilled objects; it has links to directories in other places."""
INODE = ".inode"
"""Suffix of the file, named after its link, with the inode of a spill directory in another place."""
SESSION_PATTERN = "session_*"
SESSION_VARIABLE = "MINRAY_SESSION_DIR"
"""The environment variable that names the session directory in all processes of a session."""
TOKEN_VARIABLES = ("MINRAY_TOKEN", "RAY_TOKEN")
"""Environment variables that may contain a cluster's token. No process of a session inherits them, since a task that prints
its environment would reveal the token."""
BEGINNING_S = 60.0
"""Seconds after which a directory without a lock is swept; before that, its zygote may still be starting."""
MOST_FINISHED = 8
"""Number of newest finished sessions whose logs are kept: enough to examine the last failures. Each start of a node looks at
all of them, so more would slow it down."""


def hold_lock(session_dir: str) -> int:
    """Lock the session for the life of the calling process; returns the descriptor that must stay open."""
    beginning = os.path.join(session_dir, f"{LOCK}.{os.getpid()}")
    descriptor = os.open(beginning, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    _lock(descriptor)
    os.write(descriptor, b"%d\n" % os.getpid())
    os.rename(beginning, os.path.join(session_dir, LOCK))
    return descriptor


def make_spill_directories(session_dir: str, places: Sequence[str]) -> list[str]:
    """Make a spill directory in each of these places, or without places one in the session; return their paths and URLs.

    Places need not exist yet. A place where another user could replace the new directory is refused
    (``private_paths.Exposed``). For a URL nothing is made: the session's name is appended to it. Raises OSError.
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


def renew_spill_directories(session_dir: str, directories: Sequence[str]) -> None:
    """Make the spill directories of a dead raylet again, empty, for the raylet that takes its place. Raises OSError."""
    remove_spilled(session_dir)
    folder = Path(session_dir, SPILL)
    for number, own in enumerate(directories):
        if not is_external(own):
            os.mkdir(own, 0o700)
            if (folder / str(number)).is_symlink():
                (folder / f"{number}{INODE}").write_text(str(PrivateDirectory(own).inode))


def remove_spilled(session_dir: str) -> None:
    """Remove the spilled objects of a dead raylet, as far as possible. Never raises."""
    with suppress(OSError):
        for directory in Path(session_dir, SPILL).iterdir():
            if directory.is_symlink():
                _remove_elsewhere(directory)
            else:
                remove_tree(str(directory))


def remove_shared_memory(session_dir: str) -> None:
    """Unlink the arena of a dead raylet, if it was a segment of shared memory. Never raises."""
    remove_segments(os.path.join(session_dir, SOCKETS))


def _remove_elsewhere(link: Path) -> None:
    """Remove the directory that the link was made for, if it still has its inode. Without a recorded inode, remove it only
    if it is empty."""
    with suppress(OSError, ValueError):
        own = os.readlink(link)
        record = Path(f"{link}{INODE}")
        if record.exists():
            remove_tree(own, int(record.read_text()))
        else:  # The process was killed before it recorded the inode, and so before anything was written.
            os.rmdir(own)


def remove_session(session_dir: str) -> None:
    """Remove everything of a session except non-empty logs, then the logs of the oldest sessions. Never raises.

    What cannot be removed stays.
    """
    logs = Path(session_dir, LOGS)
    remove_spilled(session_dir)
    remove_shared_memory(session_dir)  # before the sockets, by which it is found
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
    """Remove finished sessions, of which only logs are left, except the newest ``MOST_FINISHED``."""
    for session_dir in [session_dir for session_dir in _sessions(root) if _is_finished(session_dir)][:-MOST_FINISHED]:
        remove_tree(session_dir)


def kill_strays(session_dir: str) -> list[int]:
    """Send SIGKILL to every process of this session except the caller, when the zygote cannot because it is dead.

    Returns the pids.
    """
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
    """Return the pids of the zygotes of living sessions below ``root``, by session directory, oldest first.

    SIGTERM to the zygote ends its session.
    """
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
    """Clean up after sessions whose processes were all killed at once; return their directories."""
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


def _lock(descriptor: int) -> None:
    import fcntl  # Windows, which lacks this module, has no sessions.

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _acquire(descriptor: int) -> bool:
    try:
        _lock(descriptor)
    except OSError:
        return False
    return True


def _is_abandoned(session_dir: str) -> bool:
    """Whether the session never had a zygote and will have none. One with only logs left is finished, not abandoned."""
    try:
        return not _is_finished(session_dir) and time.time() - os.stat(session_dir).st_mtime > BEGINNING_S
    except OSError:
        return False


def _is_finished(session_dir: str) -> bool:
    """Whether only logs are left of the session. (One that is just beginning has its sockets' directory first.)"""
    try:
        return os.listdir(session_dir) == [LOGS]
    except OSError:
        return False
