"""Errors of the system that name the limit behind them, and how to raise it."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading

import pytest

from minray.platform.process import limits


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (errno.EMFILE, "allow more with: ulimit -n 8192"),
        (errno.ENFILE, "/proc/sys/fs/file-max"),
        (errno.EAGAIN, "pids.max"),
        (errno.ENOMEM, "no memory left"),
        (errno.ENOSPC, "the file system is full"),
        (errno.EDQUOT, "quota"),
    ],
)
def test_a_limit_is_named(number: int, named: str) -> None:
    said = limits.describe_os_error(OSError(number, os.strerror(number), "/a/file"))
    assert said.startswith(f"{os.strerror(number)}: /a/file (") and named in said


def test_other_errors_are_described_as_they_are() -> None:
    assert limits.describe_os_error(PermissionError(errno.EACCES, "Permission denied", "/a")) == "Permission denied: /a"
    assert limits.describe_os_error(OSError("no number")) == "no number"
    assert "no memory left" in limits.describe_os_error(MemoryError())


def test_the_process_limit_is_named_unless_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (77, 77))
    assert "this user may have 77 processes and threads (ulimit -u)" in limits.describe_process_limit()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert "ulimit" not in limits.describe_process_limit()


def test_a_thread_that_the_system_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    thread = threading.Thread()
    monkeypatch.setattr(thread, "start", refuse)
    with pytest.raises(RuntimeError, match=r"can't start new thread: .*pids.max"):
        limits.start_thread(thread)


def test_a_process_that_has_nearly_all_files_open_says_so() -> None:
    program = (
        "import os, resource; from minray.platform.process import limits;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); print(limits.shortage());"
        "opened = [os.open('/dev/null', 0) for _ in range(33)]; print(limits.shortage());"
        "opened += [os.open('/dev/null', 0) for _ in range(4)]; print(limits.shortage())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, nearly, full = done.stdout.splitlines()
    assert before == "" and nearly.startswith("the raylet has 37 files open: a process may open 40 files at most")
    assert full == "a process may open 40 files at most; allow more with: ulimit -n 8192"
