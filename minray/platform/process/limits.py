"""Limits of the operating system that stop a node: which one was reached, how large it is, and how to raise it.

Ray: src/ray/util/process.cc only prints errno; python/ray/_private/services.py (check_ulimits, check_version_info)

An error of the kernel says "too many open files" or "resource temporarily unavailable". A user needs the name of the limit.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress

NEARLY = 0.8
"""Part of a limit in use above which an error of another process mentions it."""


def describe_os_error(error: OSError | MemoryError) -> str:
    """Describe an error, and the limit behind it if it is one of those below."""
    number = getattr(error, "errno", errno.ENOMEM)
    place = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
    text = f"{os.strerror(number)}{place}" if number else str(error)
    advice = {
        errno.EMFILE: describe_file_limit(),
        errno.ENFILE: "the machine has as many files open as /proc/sys/fs/file-max allows",
        errno.EAGAIN: describe_process_limit(),
        errno.ENOMEM: "the machine, or the control group of this process, has no memory left",
        errno.ENOSPC: "the file system is full",
        errno.EDQUOT: "the user's disk quota is used up",
    }.get(number)
    return f"{text} ({advice})" if advice else text


def _limit(name: str) -> int | None:
    """Return this process's limit of that name; None if it has none, as always on Windows."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    most, _ = resource.getrlimit(getattr(resource, name))
    return None if most == resource.RLIM_INFINITY else most


def describe_file_limit() -> str:
    most = _limit("RLIMIT_NOFILE")
    if most is None:
        return "this process has as many files open as its system allows"
    return f"a process may open {most} files at most; allow more with: ulimit -n 8192"


def describe_process_limit() -> str:
    most = _limit("RLIMIT_NPROC")
    of_user = "" if most is None else f"this user may have {most} processes and threads (ulimit -u), and "
    return f"{of_user}a control group or the machine may allow fewer (pids.max, kernel.pid_max)"


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises RuntimeError, which names the limit, if the system allows no more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise RuntimeError(f"{error}: {describe_process_limit()}") from None


def shortage() -> str:
    """Return the limit of open files if this process has nearly reached it, else an empty text."""
    most = _limit("RLIMIT_NOFILE")
    if most is None:
        return ""
    with suppress(OSError):
        count = len(os.listdir("/dev/fd"))
        if count > NEARLY * most:
            return f"the raylet has {count} files open: {describe_file_limit()}"
        return ""
    return describe_file_limit()  # There was no descriptor left to look with.
