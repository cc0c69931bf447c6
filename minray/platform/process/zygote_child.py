"""The first and the last moment of a forked child: it drops all resources of the zygote, runs its role, and ends.

Ray: src/ray/util/process.h and python/ray/_private/workers/default_worker.py play these parts

Rules
  * A child holds no descriptors except its own: standard input from /dev/null, line-buffered output to where its parent
    wants it, its readiness pipe and its control link.
  * A child leads its process group and dies with its zygote: the kernel sends it SIGKILL. A child with a control link (the
    raylet) gets no signal. It sees the end of the link, and has a moment to clean up after a zygote that was killed.
  * Signals are as in a fresh Python process; SIGUSR1 writes the stacks of all threads to standard error.
  * The process ends without unwinding when the role returns, so Python runs no exit handlers.
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

import msgspec

from minray.platform.threads.user_code import close_output

READY_PAYLOAD_BYTES = 64 * 1024
INTERCEPTED_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
"""Signals that the zygote handles, and blocks around its forks."""
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None)


class ChildEnds(msgspec.Struct):
    """The resources that connect a forked child with other processes."""

    name: str
    session_dir: str
    marks: memoryview
    """The child's own 64 bytes, which its parent can read after its death."""
    all_marks: memoryview
    """The marks of all children, by slot; for children that spawn others."""
    journal: memoryview
    """The child's own journal (``Processes.journal``)."""
    all_journals: memoryview
    """The journals of all children, by slot; empty if there are none."""
    control: socket.socket | None
    """The link to the zygote, if it was spawned with one."""
    ready_descriptor: int | None

    def ready(self, payload: bytes) -> None:
        """Tell the process that spawned this child that it is ready, or why it will not be. May be called once."""
        assert self.ready_descriptor is not None, "spawned without ready"
        assert len(payload) <= READY_PAYLOAD_BYTES
        with io.FileIO(self.ready_descriptor, "w") as pipe, suppress(BrokenPipeError):
            unsent = memoryview(payload)
            while unsent:
                unsent = unsent[pipe.write(unsent) or 0 :]
        self.ready_descriptor = None


RunRole = Callable[[str, bytes, ChildEnds], None]
"""Runs ``(role, config, ends)`` in the child; the child ends when it returns."""


class Birth(msgspec.Struct, frozen=True):
    """The data that a forked child takes out of the zygote's loop."""

    role: str
    config: bytes
    ends: ChildEnds


def become(birth: Birth, zygote_pid: int, standard: tuple[int, int, int]) -> None:
    """Become a process of its own, with ``standard`` as descriptors 0, 1, 2. Called in the forked child, signals blocked."""
    if birth.ends.control is None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote_pid:
        os._exit(1)  # The zygote died before the death signal was set.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERCEPTED_SIGNALS)
    os.setsid()
    set_name(birth.role)
    for target, source in enumerate(standard):
        os.dup2(source, target)
    _close_all_others(birth.ends)
    # Make new objects, because the old ones remember what kind of file the zygote's output is.
    sys.stdout = sys.__stdout__ = _line_buffered(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _line_buffered(2)  # type: ignore[misc]
    gc.enable()


def live(birth: Birth, run_role: RunRole) -> None:
    """Run the role and end the process with it. The ``random`` module has seeded itself anew at the fork."""
    code = 1
    try:
        run_role(birth.role, birth.config, birth.ends)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        try:
            traceback.print_exc()
        except Exception:  # An exception that user code has chained to this one cannot be printed.
            traceback.print_tb(error.__traceback__)
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        close_output()
        os._exit(code)


def prctl(option: int, value: object) -> None:
    """Call Linux's ``prctl``; on other systems do nothing."""
    if sys.platform == "linux":
        _libc.prctl(option, value, 0, 0, 0)


def set_name(role: str) -> None:
    """Show this process as ``minray:<role>`` in lists of processes."""
    prctl(PR_SET_NAME, ctypes.create_string_buffer(f"minray:{role}".encode()[:15]))


def _line_buffered(descriptor: int) -> io.TextIOWrapper:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _close_all_others(ends: ChildEnds) -> None:
    kept = {0, 1, 2, ends.ready_descriptor, ends.control.fileno() if ends.control is not None else None}
    for descriptor in [int(name) for name in os.listdir("/dev/fd")]:
        if descriptor not in kept:
            with suppress(OSError):  # The list contains the descriptor of the listing itself, which is closed by now.
                os.close(descriptor)


def trim_memory() -> None:
    """Give freed memory back to the system; do nothing where the C library cannot."""
    with suppress(AttributeError):
        _libc.malloc_trim(0)
