"""Real processes: starting a zygote, spawning children through it, and ending this process.

Ray: src/ray/raylet/worker_pool.h (starting workers), src/ray/util/process.h, src/ray/util/pipe_logger.h (their output)

The process that starts a node (a driver, or ``minray start``) owns its zygote (``start_zygote``, blocking). The raylet
spawns workers through its control link (``ZygoteProcesses``, on its loop). Workers (``ChildlessProcesses``) and drivers
(``PlainProcesses``) spawn no processes.

Rules
  * Only the zygote can wait for children, so an exit status always comes as a message of the zygote. A raylet whose zygote
    is dead can do nothing more: it kills the rest of the session, empties its directory, and ends.
  * A child's end is reported after all of its output. If a grandchild keeps the pipes open, it is reported after
    ``DRAIN_S``.
  * Marks and the used part of the journal are copied when the child ends, and its slot is released. Read ``process.marks``
    anew each time.
  * A forked copy of an owner must not end the cluster of its parent: in the copy ``close`` does nothing.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from minray.common.package import DIRECTORY
from minray.platform.base import JOURNAL_BYTES, ExitStatus, OnOutput, SpawnFailed
from minray.platform.process.limits import describe_file_limit
from minray.platform.process.session import LOGS, SESSION_VARIABLE, TOKEN_VARIABLES, kill_strays, remove_session
from minray.platform.process.zygote_link import (
    MARK_BYTES,
    MAX_CONFIG_BYTES,
    Detach,
    Exited,
    KillChild,
    Link,
    Message,
    NotSpawned,
    Ready,
    Release,
    Spawn,
    Spawned,
)
from minray.platform.threads.user_code import close_output, open_standard_streams

if TYPE_CHECKING:
    from minray.platform.process.zygote_child import ChildEnds  # which drivers have no use for

MAX_LINE_BYTES = 64 * 1024
"""Longer lines of output are cut into pieces of this size."""
PIPE_BYTES = 64 * 1024
"""Bytes that the kernel keeps in a pipe, and that are read at once."""
TAIL_LINES = 20
DRAIN_S = 0.2
"""Seconds to wait for the end of a dead child's output while a grandchild keeps its pipes open."""
END_S = 5.0
"""Seconds that a zygote may take to kill and reap all its children."""
ZYGOTE_LOG = "zygote.log"


# --- The owner's side ---------------------------------------------------------------------------------------------------


class ChildEnd(msgspec.Struct, frozen=True):
    """A child of the owner has ended."""

    pid: int
    name: str
    status: ExitStatus


class _OwnedChild(msgspec.Struct):
    """The owner's record of one child."""

    request: Spawn
    slot: int
    ready: bytes | None = None
    """The payload that the child sent when it was ready; None before."""
    status: ExitStatus | None = None
    """How the child ended; None while it lives."""


def start_zygote(
    argv_tail: list[str], session_dir: str, env_vars: Mapping[str, str] | None = None, told: bytes = b""
) -> OwnedZygote:
    """Start ``python *argv_tail DESCRIPTOR SESSION_DIR`` as the zygote of a session.

    The program calls ``zygote.serve(int(DESCRIPTOR), ..., session_dir=SESSION_DIR)``. A failure of the zygote shows at the
    first ``spawn``, so that booting and spawning are one wait. ``env_vars`` are set for the zygote and its children. The
    program reads ``told`` from its standard input, because the system limits the length of arguments. Raises OSError, and
    ValueError for an impossible name or value in ``env_vars``.
    """
    logs = Path(session_dir, LOGS)
    logs.mkdir(mode=0o700, exist_ok=True)
    open_standard_streams()
    ours, theirs = socket.socketpair()
    try:
        with theirs, open(logs / ZYGOTE_LOG, "ab", opener=_open_private) as log, _without_debugger():
            process = subprocess.Popen(
                [sys.executable, *argv_tail, str(theirs.fileno()), session_dir],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env={**environment_of_children(session_dir), **(env_vars or {})},
                start_new_session=True,  # So the terminal's Ctrl-C does not reach it.
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(told)
    except BaseException:
        ours.close()
        raise
    return OwnedZygote(process, Link(ours), session_dir)


def _without_debugger() -> AbstractContextManager[object]:
    """Let processes start without pydevd, the debugger of debugpy and PyCharm. In a zygote it would have threads, which a
    fork does not copy."""
    skip = getattr(sys.modules.get("pydevd"), "skip_subprocess_arg_patch", nullcontext)
    return skip()


class OwnedZygote:
    """The zygote as its owner sees it. Calls block; one thread may call at a time. The zygote ends with this process."""

    def __init__(self, process: subprocess.Popen[bytes], link: Link, session_dir: str) -> None:
        self.pid = process.pid
        self.session_dir = session_dir
        self._owner_pid = os.getpid()
        self._process = process
        self._link = link
        self._log_path = os.path.join(session_dir, LOGS, ZYGOTE_LOG)
        self._ended = False
        """Whether the zygote's end of the link is closed."""
        self._trouble = ""
        """The zygote's message why it could not begin."""
        self._last_request_id = 0
        self._requests: dict[int, Spawn] = {}
        """All requests by id, also answered ones: a respawned child is reported under the id of its request."""
        self._answer: Spawned | NotSpawned | None = None
        """The answer to the last request; None until it has come."""
        self._children: dict[int, _OwnedChild] = {}
        """All children, ended ones too, by pid; an owner has a handful."""
        self._ends: list[ChildEnd] = []
        """Ends that ``poll_exits`` has not returned yet."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when ``poll_exits`` has something to read, or the zygote has ended."""
        return self._link.fileno()

    @property
    def ended(self) -> bool:
        """Whether the zygote is known to have ended; ``poll_exits`` notices that."""
        return self._ended

    def spawn(
        self,
        role: str,
        name: str,
        config: bytes,
        *,
        log_path: str = "",
        ready: bool = False,
        control: bool = False,
        essential: bool = False,
        respawn: bool = False,
        timeout_s: float = 10.0,
    ) -> int:
        """Fork a child and return its pid; see ``zygote_link.Spawn`` for the options. Raises ``SpawnFailed``."""
        _check_config(name, config)
        self._last_request_id += 1
        request_id = self._last_request_id
        request = Spawn(
            request_id,
            role,
            name,
            config,
            log_path=log_path,
            ready=ready,
            control=control,
            essential=essential,
            respawn=respawn,
        )
        self._requests[request_id] = request
        self._answer = None
        self._link.send(request)
        deadline = time.monotonic() + timeout_s
        while self._answer is None:
            self._pump_until(deadline, f"{name} could not be started")
        if isinstance(self._answer, NotSpawned):
            raise SpawnFailed(self._answer.reason)
        return self._answer.pid

    def wait_ready(self, pid: int, timeout_s: float) -> bytes:
        """Wait until the child is ready and return the payload it sent.

        Raises ``SpawnFailed``, with the end of the child's log, if the child ends before or the time passes.
        """
        child = self._children[pid]
        deadline = time.monotonic() + timeout_s
        while child.ready is None:
            if child.status is not None:
                how = f"{child.request.name} ended with {_describe(child.status)} before it was ready"
                raise SpawnFailed(how + _tail(child.request.log_path))
            self._pump_until(deadline, f"{child.request.name} did not get ready", child.request.log_path)
        return child.ready

    def poll_exits(self, timeout_s: float = 0.0) -> list[ChildEnd]:
        """Return the children that have ended since the last call. Waits up to ``timeout_s`` for the first one."""
        deadline = time.monotonic() + timeout_s
        while not self._ended and self._pump(0 if self._ends else deadline - time.monotonic()):
            pass
        ends, self._ends = self._ends, []
        return ends

    def living(self) -> dict[int, str]:
        """Return the names of living children by pid, as far as the zygote has reported. A respawned one has a new pid."""
        while not self._ended and self._pump(0):
            pass
        return {pid: child.request.name for pid, child in self._children.items() if child.status is None}

    def latest(self, name: str) -> int | None:
        """Return the pid of the child of this name that was started last, be it alive or not; None if there is none."""
        return next((pid for pid, child in reversed(self._children.items()) if child.request.name == name), None)

    def status_of(self, pid: int) -> ExitStatus | None:
        """Return how a child has ended, as far as the zygote has reported; None if it lives."""
        return self._children[pid].status

    def wait_end(self, pid: int, timeout_s: float | None) -> None:
        """Wait until a child has ended, or the zygote has. Raises ``subprocess.TimeoutExpired``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._children[pid].status is None and not self._ended:
            if not self._pump(END_S if deadline is None else deadline - time.monotonic()) and deadline is not None:
                raise subprocess.TimeoutExpired(self._children[pid].request.name, timeout_s or 0.0)

    def kill(self, pid: int, for_good: bool = False) -> None:
        """Send SIGKILL to a child of the owner; does nothing when it has ended. ``for_good``: do not fork it again."""
        self._link.send(KillChild(pid, for_good))

    def detach(self) -> None:
        """Let the zygote live on when this process ends. Raises ``SpawnFailed`` if it is dead or does not answer."""
        self._link.send(Detach())
        deadline = time.monotonic() + END_S
        while not self._ended:
            self._pump_until(deadline, "the zygote does not answer")
        if self._process.poll() is not None:
            raise SpawnFailed(f"the zygote has ended{_tail(self._log_path)}")
        self._process.returncode = 0  # Otherwise Popen would warn that the process still runs.
        self._link.close()

    def disown(self) -> None:
        """In a forked copy of the owner: leave the zygote to the owner. Python would warn that it still runs."""
        self._process.returncode = 0
        self._link.close()

    def close(self) -> None:
        """End the zygote and its children and wait until nothing is left. May be called again."""
        if os.getpid() != self._owner_pid or self._link.fileno() < 0:
            return
        self._link.shut_down()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ended = True
        self._link.close()
        if self._process.returncode != 0:  # The zygote was killed or has failed, and has not cleaned up.
            kill_strays(self.session_dir)
        remove_session(self.session_dir)

    def _pump_until(self, deadline: float, what: str, log_path: str = "") -> None:
        """Pump once; raises ``SpawnFailed`` when the deadline has passed or the zygote has ended."""
        if self._ended:
            raise SpawnFailed(f"{what}: {self._trouble or 'the zygote has ended' + _tail(self._log_path)}")
        if not self._pump(deadline - time.monotonic()):
            raise SpawnFailed(f"{what}: nothing was heard in time{_tail(log_path)}")

    def _pump(self, timeout_s: float) -> bool:
        """Read and handle messages of the zygote; return False if none came in time."""
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN | (select.POLLOUT if self._link.wants_write else 0))
        if not poll.poll(max(0.0, timeout_s) * 1000):
            return False
        self._link.flush()
        try:
            for message, _ in self._link.receive():
                self._on_message(message)
        except EOFError:
            self._ended = True
        return True

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Spawned):
            self._children[message.pid] = _OwnedChild(self._requests[message.request_id], message.slot)
            if message.request_id == self._last_request_id:
                self._answer = message
        elif isinstance(message, NotSpawned):
            if message.request_id == 0:
                self._trouble = message.reason
            elif message.request_id == self._last_request_id:
                self._answer = message
        elif isinstance(message, Ready):
            self._children[message.pid].ready = message.payload
        else:
            assert isinstance(message, Exited), message
            child = self._children[message.pid]
            child.status = ExitStatus(message.code, message.signal)
            self._ends.append(ChildEnd(message.pid, child.request.name, child.status))
            if not child.request.respawn:
                self._link.send(Release(child.slot))


# --- The raylet's side --------------------------------------------------------------------------------------------------


class _ThisProcess:
    """The common part of all real ``Processes``: this process itself."""

    def __init__(self, marks: memoryview, journal: memoryview) -> None:
        self.pid = os.getpid()
        self.marks = marks
        self.journal = journal
        self.is_copy = False

    def exit(self, code: int) -> None:
        """End this process now, without unwinding."""
        close_output()
        os._exit(code)


class PlainProcesses(_ThisProcess):
    """``Processes`` for drivers: no children, and no process reads the marks."""

    def __init__(self) -> None:
        super().__init__(memoryview(bytearray(MARK_BYTES)), memoryview(b""))

    async def spawn(self, role: str, name: str, config: bytes, on_output: OnOutput) -> ZygoteProcess:
        raise SpawnFailed(f"{name}: only a raylet spawns processes")


class ChildlessProcesses(PlainProcesses):
    """``Processes`` for workers and the gcs: no children. A worker's marks are read by its raylet."""

    def __init__(self, ends: ChildEnds) -> None:
        super().__init__()
        self.marks, self.journal = ends.marks, ends.journal
        os.register_at_fork(after_in_child=self._become_copy)

    def _become_copy(self) -> None:
        self.is_copy = True


class ZygoteProcesses(_ThisProcess):
    """``Processes`` for the raylet: children through its control link. Must be made on the running loop."""

    def __init__(self, ends: ChildEnds) -> None:
        super().__init__(ends.marks, ends.journal)
        assert ends.control is not None, "spawned without a control link"
        self._loop = asyncio.get_running_loop()
        self._link = Link(ends.control)
        self._all_marks, self._all_journals = ends.all_marks, ends.all_journals
        self._session_dir = ends.session_dir
        self._last_request_id = 0
        self._requests: dict[int, asyncio.Future[ZygoteProcess]] = {}
        """Spawn requests that the zygote has not answered, by id."""
        self._children: dict[int, ZygoteProcess] = {}
        """Children whose end the zygote has not reported, by pid."""
        self._loop.add_reader(self._link.fileno(), self._on_readable)

    async def spawn(self, role: str, name: str, config: bytes, on_output: OnOutput) -> ZygoteProcess:
        """Fork a child whose lines of output go to ``on_output``."""
        _check_config(name, config)
        self._last_request_id += 1
        answer: asyncio.Future[ZygoteProcess] = self._loop.create_future()
        self._requests[self._last_request_id] = answer
        self._send(Spawn(self._last_request_id, role, name, config, pipes=True))
        process = await answer
        process.start_reading(on_output)
        return process

    def close(self) -> None:
        """Let go of the zygote, which kills all children. A raylet need not call it before it ends."""
        self._loop.remove_reader(self._link.fileno())
        self._loop.remove_writer(self._link.fileno())
        self._link.close()

    def _send(self, message: Message) -> None:
        self._link.send(message)
        if self._link.wants_write:
            self._loop.add_writer(self._link.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        self._link.flush()
        if not self._link.wants_write:
            self._loop.remove_writer(self._link.fileno())

    def _on_readable(self) -> None:
        try:
            for message, descriptors in self._link.receive():
                self._on_message(message, descriptors)
        except EOFError:
            # The zygote was killed, so it has not cleaned up, and no process can start or reap children any more.
            kill_strays(self._session_dir)
            remove_session(self._session_dir)
            self.exit(1)

    def _on_message(self, message: Message, descriptors: list[int]) -> None:
        if isinstance(message, Spawned):
            self._on_spawned(message, descriptors)
        elif isinstance(message, NotSpawned):
            answer = self._requests.pop(message.request_id)
            if not answer.done():
                answer.set_exception(SpawnFailed(message.reason))
        else:
            assert isinstance(message, Exited), message
            process = self._children.pop(message.pid)
            process.on_exit(ExitStatus(message.code, message.signal))
            self._send(Release(process.slot))

    def _on_spawned(self, message: Spawned, descriptors: list[int]) -> None:
        marks = self._all_marks[message.slot * MARK_BYTES :][:MARK_BYTES]
        process = ZygoteProcess(self, message.pid, message.slot, marks, descriptors)
        process.journal = self._all_journals[message.slot * JOURNAL_BYTES :][:JOURNAL_BYTES]
        self._children[message.pid] = process
        answer = self._requests.pop(message.request_id)
        if answer.done():  # The caller was cancelled.
            process.abandon()
        elif len(descriptors) < 2:
            process.abandon()
            answer.set_exception(SpawnFailed(f"the pipes of a new process could not be received: {describe_file_limit()}"))
        else:
            answer.set_result(process)

    def kill_child(self, pid: int) -> None:
        """Send SIGKILL if ``pid`` is still a child: the system may give the pid to another process later."""
        if pid in self._children:
            self._send(KillChild(pid))


class ZygoteProcess:
    """One child of the raylet, with its output."""

    def __init__(self, parent: ZygoteProcesses, pid: int, slot: int, marks: memoryview, descriptors: list[int]) -> None:
        self.pid = pid
        self.slot = slot
        self.marks = marks
        """The child's 64 bytes: shared while it lives, a copy afterwards."""
        self.journal = memoryview(b"")
        """The child's journal: shared while it lives, a copy of its used part afterwards."""
        self._parent = parent
        self._loop = asyncio.get_running_loop()
        self._descriptors = descriptors
        """The read ends of stdout and stderr until ``start_reading``."""
        self._pipes: list[_OutputPipe] = []
        self._status: ExitStatus | None = None
        self._over: asyncio.Future[ExitStatus] = self._loop.create_future()
        """Done when the child has ended and its output is delivered."""

    async def wait(self) -> ExitStatus:
        return await asyncio.shield(self._over)

    def kill(self) -> None:
        self._parent.kill_child(self.pid)

    def start_reading(self, on_output: OnOutput) -> None:
        """Deliver lines from the loop's next turn on, so that the caller of ``spawn`` knows the process first."""

        stdout, stderr = self._descriptors
        self._pipes.append(_OutputPipe(stdout, partial(on_output, "stdout"), self._maybe_over))
        self._pipes.append(_OutputPipe(stderr, partial(on_output, "stderr"), self._maybe_over))
        self._descriptors = []
        if self._status is not None:
            self._loop.call_later(DRAIN_S, self._stop_reading)

    def abandon(self) -> None:
        """Kill the process and close its pipes: its caller does not want it any more."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        self.kill()

    def on_exit(self, status: ExitStatus) -> None:
        self.marks = memoryview(bytes(self.marks))
        self.journal = memoryview(bytes(self.journal[: int.from_bytes(self.journal[:8], "little")]))
        self._status = status
        if self._pipes:
            self._loop.call_later(DRAIN_S, self._stop_reading)
            self._maybe_over()

    def _stop_reading(self) -> None:
        for pipe in self._pipes:
            pipe.drain()

    def _maybe_over(self) -> None:
        if self._status is not None and all(pipe.closed for pipe in self._pipes) and not self._over.done():
            self._over.set_result(self._status)


class _OutputPipe:
    """Reads one pipe on the loop and cuts it into lines."""

    def __init__(self, descriptor: int, on_line: Callable[[str], None], on_close: Callable[[], None]) -> None:
        os.set_blocking(descriptor, False)
        self.closed = False
        self._descriptor = descriptor
        self._on_line = on_line
        self._on_close = on_close
        self._splitter = LineSplitter()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read_some)

    def _read_some(self) -> None:
        """Read one piece only, so that a child with much output does not hold up the loop."""
        try:
            data = os.read(self._descriptor, PIPE_BYTES)
        except BlockingIOError:
            return
        for line in self._splitter.feed(data) if data else self._splitter.end():
            self._on_line(line)
        if not data:
            self._close()

    def drain(self) -> None:
        """Read what the pipe contains and close it, although a grandchild may still write."""
        if not self.closed:
            self._read_some()  # The kernel keeps no more than one piece.
        if not self.closed:
            for line in self._splitter.end():
                self._on_line(line)
            self._close()

    def _close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.closed = True
        self._on_close()


class LineSplitter:
    """Turns pieces of bytes into lines of text. A carriage return also ends a line, as in a progress bar."""

    def __init__(self) -> None:
        self._rest = b""
        """The beginning of a line whose end has not come yet."""
        self._after_return = False
        """Whether a line has just ended with a carriage return, so that a newline now only completes it."""

    def feed(self, data: bytes) -> list[str]:
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        pieces = (self._rest + data).splitlines(keepends=True)
        self._after_return = bool(pieces) and pieces[-1].endswith(b"\r") and pieces[-1] != b"\r"
        self._rest = b"" if not pieces or pieces[-1].endswith((b"\r", b"\n")) else pieces.pop()
        # Skip the empty line of a progress bar that begins with a carriage return.
        lines = [piece.rstrip(b"\r\n") for piece in pieces if piece != b"\r"]
        if len(self._rest) >= MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return [text for line in lines for text in _decode(line)]

    def end(self) -> list[str]:
        """Return the last line if it had no end."""
        rest, self._rest = self._rest, b""
        return _decode(rest) if rest else []


def _decode(line: bytes) -> list[str]:
    starts = range(0, len(line) or 1, MAX_LINE_BYTES)
    return [line[start : start + MAX_LINE_BYTES].decode(errors="replace") for start in starts]


def _describe(status: ExitStatus) -> str:
    return f"exit code {status.code}" if status.signal is None else f"signal {status.signal}"


def _check_config(name: str, config: bytes) -> None:
    if len(config) > MAX_CONFIG_BYTES:
        raise SpawnFailed(f"{name}: a config of {len(config)} bytes, more than {MAX_CONFIG_BYTES}")


def environment_of_children(session_dir: str) -> dict[str, str]:
    """Return the zygote's environment: this process's without tokens, with the session directory, and with a PYTHONPATH that
    leads to the running minray."""
    environment = {name: value for name, value in os.environ.items() if name not in TOKEN_VARIABLES}
    environment[SESSION_VARIABLE] = session_dir
    root = Path(DIRECTORY).resolve().parent
    if root.name not in ("site-packages", "dist-packages"):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return environment


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _tail(path: str) -> str:
    """Return the last lines of a log, indented, to append to an error message."""
    with suppress(OSError):
        lines = Path(path).read_bytes()[-TAIL_LINES * 200 :].decode(errors="replace").splitlines()[-TAIL_LINES:]
        return "".join(f"\n  {line}" for line in lines)
    return ""
