"""The zygote: one small process per node that has imported everything and forks gcs, raylet and workers.

Ray: python/ray/_private/services.py and src/ray/raylet/worker_pool.h start each process from scratch; no zygote there

Only this process forks. So it stays single-threaded, has no event loop and never imports gRPC. It is a blocking poll loop
over the links of its clients (see ``zygote_link``). A forked child returns out of the loop and runs its role on a clean
stack.

Rules
  * No process outlives the zygote. The kernel sends SIGKILL to children when it dies (a signal tied to the forking thread,
    one more reason for having a single one). The raylet is excepted: its control link ends, and it cleans up. The zygote
    adopts orphaned grandchildren. At its end it kills and reaps all processes and removes the session.
  * The zygote ends when its owner does. It sees that by the end of the owner's link, or by the owner's pidfd, since a
    process that the owner has forked may hold the link open. After ``Detach`` it ends with an ``essential`` child or by
    SIGTERM.
  * A child with a control link is the parent of the processes it spawns: when the child or the link ends, they are killed.
  * A child leads its process group, and the group is killed with it. A process that a user has put into a session of its
    own stays until the zygote ends.
  * Marks: each child has 64 bytes in memory that all share. Its slot is reused only after its parent has released it.
  * Journals: each slot also has JOURNAL_BYTES. They take memory when they are written, until the slot is free again.

What we do not like yet: macOS has no death signal and no adoption, so there a killed zygote leaves children behind.
"""

from __future__ import annotations

import faulthandler
import gc
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType

import msgspec

from minray.platform.base import JOURNAL_BYTES
from minray.platform.process.limits import describe_os_error
from minray.platform.process.session import hold_lock, remove_session, remove_shared_memory, remove_spilled
from minray.platform.process.zygote_child import (
    INTERCEPTED_SIGNALS,
    PR_SET_CHILD_SUBREAPER,
    READY_PAYLOAD_BYTES,
    Birth,
    ChildEnds,
    RunRole,
    become,
    live,
    prctl,
    set_name,
    trim_memory,
)
from minray.platform.process.zygote_link import (
    MARK_BYTES,
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

NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE, which Python's ``mmap`` does not name: the kernel promises no memory for journals that stay empty."""
MARK_SLOTS = 4096
"""The largest number of children of one zygote, living ones and dead ones whose marks are not released."""
RESPAWN_DELAY_S = 0.1
RESPAWN_DELAY_LIMIT_S = 5.0
STEADY_S = 10.0
"""Seconds: if a ``respawn`` child has lived this long, its next delay begins again at ``RESPAWN_DELAY_S``."""


class ZygoteClient(msgspec.Struct, eq=False):
    """A process that may spawn: the owner, or a child with a control link."""

    link: Link
    closed: bool = False
    """Whether the client is gone: it receives no messages and releases no slots."""
    unreleased: set[int] = msgspec.field(default_factory=set)
    """Slots of dead children whose marks this client may still read."""


class Child(msgspec.Struct, eq=False):
    """A child, from its request until it was reaped for the last time."""

    request: Spawn
    client: ZygoteClient
    slot: int
    pid: int = 0
    """0 between two lives of a ``respawn`` child."""
    control: ZygoteClient | None = None
    ready_descriptor: int | None = None
    """The read end of its readiness pipe, until the child has closed the write end."""
    ready_payload: bytearray = msgspec.field(default_factory=bytearray)
    doomed: bool = False
    """Whether it must not be forked again: its client is gone, or has killed it for good."""
    born_s: float = 0.0
    respawn_delay_s: float = 0.0


def serve(owner_fd: int, run_role: RunRole, *, session_dir: str) -> None:
    """Run the zygote whose owner holds the other end of ``owner_fd``. Returns when no child is left.

    In each child ``run_role(role, config, ends)`` is called, and the process exits after it.
    """
    owner_socket = socket.socket(fileno=owner_fd)
    owner = Link(owner_socket)
    try:
        owner_process = _open_owner(owner_socket)
        lock = hold_lock(session_dir)
    except ProcessLookupError:  # The owner is dead already; perhaps a process that it forked holds the link.
        remove_session(session_dir)
        return
    except OSError as error:
        owner.send(NotSpawned(0, f"the session directory {session_dir} cannot be used: {error}"))
        return
    zygote = Zygote(owner, owner_process, session_dir)
    try:
        birth = zygote.run()
    finally:
        zygote.end()
    if birth is None:
        os.close(lock)
        return
    del zygote, owner, owner_socket
    live(birth, run_role)


class Zygote:
    """The loop of the zygote process. Forked children leave it by ``run`` returning their ``Birth``."""

    def __init__(self, owner: Link, owner_process: int | None, session_dir: str) -> None:
        self._pid = os.getpid()
        self._session_dir = session_dir
        self._owner = ZygoteClient(owner)
        self._owner_process = owner_process
        """The owner's pidfd, readable when that process ends; None where pidfds do not exist, or after ``Detach``."""
        self._ending = False
        self._clients = [self._owner]
        """All clients that are not closed."""
        self._children: dict[int, Child] = {}
        """Living children by pid."""
        self._respawns: list[tuple[float, Child]] = []
        """``respawn`` children that wait to be forked again, as (due time, child)."""
        self._memory = memoryview(mmap.mmap(-1, MARK_BYTES * MARK_SLOTS))
        self._journals = _map_journals()
        """The journals of all slots; None if the system refuses so large a mapping: then no journal outlives its child."""
        self._free_slots = list(range(MARK_SLOTS - 1, -1, -1))
        self._null = os.open(os.devnull, os.O_RDWR)
        self._woken, self._wake = os.pipe()
        """A pipe into which signals write a byte, so that poll returns for them."""
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def run(self) -> Birth | None:
        """Serve until the end and return None. In a forked child, return its Birth."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGINT, self._on_terminate)
        set_name("zygote")
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        # A collection would write to every page with an object on it, and each written page becomes a copy in every child.
        # Garbage that exists now stays: in its holes children would put their first objects, and so write to its pages.
        gc.disable()
        gc.freeze()
        sys._clear_type_cache()  # Each child would replace its entries, and so write to the names in them.
        trim_memory()
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1)  # Writes to descriptor 2, which each child replaces with its own.
        while not self._ending:
            birth = self._turn()
            if birth is not None:
                return birth
        return None

    def end(self) -> None:
        """Kill and reap every descendant, then empty the session directory. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        while True:
            for pid in self._descendants():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                pid, _ = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            _kill_group(pid)
        remove_session(self._session_dir)

    def _turn(self) -> Birth | None:
        poll = select.poll()
        sources: dict[int, Callable[[], Birth | None]] = {self._woken: self._on_signal}
        for client in self._clients:
            sources[client.link.fileno()] = partial(self._on_client, client)
        for child in self._children.values():
            if child.ready_descriptor is not None:
                sources[child.ready_descriptor] = partial(self._read_ready, child)
        if self._owner_process is not None:
            sources[self._owner_process] = self._on_owner_gone
        for source in sources:
            poll.register(source, select.POLLIN)
        for client in self._clients:
            if client.link.wants_write:
                poll.modify(client.link.fileno(), select.POLLIN | select.POLLOUT)
        until_due = min((due - time.monotonic() for due, _ in self._respawns), default=None)
        for source, _ in poll.poll(None if until_due is None else max(0.0, until_due) * 1000):
            birth = sources[source]()
            if birth is not None:
                return birth
        return self._respawn_due()

    # --- What wakes it ---

    def _on_terminate(self, signal_number: int, frame: FrameType | None) -> None:
        self._ending = True

    def _on_owner_gone(self) -> None:
        self._ending = True

    def _on_signal(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:  # Otherwise it was an orphan, adopted from one of the children.
                _kill_group(pid)
                self._on_child_end(child, os.waitstatus_to_exitcode(status))

    def _on_client(self, client: ZygoteClient) -> Birth | None:
        if client.closed:  # It was closed earlier in this turn.
            return None
        client.link.flush()
        try:
            messages = client.link.receive()
        except EOFError:
            self._drop_client(client)
            return None
        for message, _ in messages:
            if client.closed:
                break
            birth = self._handle(client, message)
            if birth is not None:
                return birth
        return None

    def _handle(self, client: ZygoteClient, message: Message) -> Birth | None:
        if isinstance(message, Spawn):
            return self._spawn(client, message)
        if isinstance(message, KillChild):
            child = self._children.get(message.pid)
            if child is not None and child.client is client:
                child.doomed = child.doomed or message.for_good
                os.kill(message.pid, signal.SIGKILL)
        elif isinstance(message, Release):
            if message.slot in client.unreleased:
                client.unreleased.remove(message.slot)
                self._free_slot(message.slot)
        else:
            assert isinstance(message, Detach) and client is self._owner, message
            self._detach()
        return None

    def _read_ready(self, child: Child, to_the_end: bool = False) -> None:
        """Read a child's readiness payload. Relay it once the child has closed its end, or with ``to_the_end`` at once."""
        while child.ready_descriptor is not None:
            try:
                data = os.read(child.ready_descriptor, READY_PAYLOAD_BYTES)
            except BlockingIOError:
                if not to_the_end:
                    return
                data = b""
            child.ready_payload += data
            if not data:
                os.close(child.ready_descriptor)
                child.ready_descriptor = None
                if child.ready_payload:
                    _tell(child.client, Ready(child.pid, bytes(child.ready_payload)))
                    child.ready_payload.clear()

    # --- Ends of children and clients ---

    def _on_child_end(self, child: Child, code: int) -> None:
        self._read_ready(child, to_the_end=True)
        if child.control is not None:
            self._drop_client(child.control)
            child.control = None
            remove_spilled(self._session_dir)
            remove_shared_memory(self._session_dir)
        _tell(child.client, Exited(child.pid, code if code >= 0 else None, -code if code < 0 else None))
        if child.request.essential:
            self._ending = True
        if child.request.respawn and code != 0 and not child.doomed:
            steady = time.monotonic() - child.born_s >= STEADY_S
            doubled = min(child.respawn_delay_s * 2, RESPAWN_DELAY_LIMIT_S)
            child.respawn_delay_s = RESPAWN_DELAY_S if steady or not doubled else doubled
            self._respawns.append((time.monotonic() + child.respawn_delay_s, child))
        elif child.client.closed:
            self._free_slot(child.slot)
        else:
            child.client.unreleased.add(child.slot)

    def _drop_client(self, client: ZygoteClient) -> None:
        if client.closed:
            return
        self._close(client)
        for child in self._children.values():
            if child.client is client:
                child.doomed = True
                os.kill(child.pid, signal.SIGKILL)
        for entry in [entry for entry in self._respawns if entry[1].client is client]:
            self._respawns.remove(entry)
            self._free_slot(entry[1].slot)
        if client is self._owner:
            self._ending = True

    def _detach(self) -> None:
        self._close(self._owner)
        if self._owner_process is not None:
            os.close(self._owner_process)
            self._owner_process = None

    def _close(self, client: ZygoteClient) -> None:
        client.closed = True
        client.link.close()
        self._clients.remove(client)
        for slot in client.unreleased:
            self._free_slot(slot)
        client.unreleased.clear()

    def _free_slot(self, slot: int) -> None:
        """Let another child have a slot, and give the memory of its journal back."""
        self._free_slots.append(slot)
        if self._journals is None:
            return
        if hasattr(mmap, "MADV_REMOVE"):
            self._journals.madvise(mmap.MADV_REMOVE, slot * JOURNAL_BYTES, JOURNAL_BYTES)
        else:
            self._journals[slot * JOURNAL_BYTES : slot * JOURNAL_BYTES + 8] = bytes(8)

    def _descendants(self) -> list[int]:
        """Return the pids of the children, adopted ones included. Grandchildren are adopted when their parents are dead."""
        try:
            with open(f"/proc/self/task/{self._pid}/children") as children:
                return [int(pid) for pid in children.read().split()]
        except FileNotFoundError:
            return list(self._children)

    # --- Births ---

    def _spawn(self, client: ZygoteClient, request: Spawn) -> Birth | None:
        if not self._free_slots:
            client.link.send(NotSpawned(request.request_id, f"more than {MARK_SLOTS} children"))
            return None
        child = Child(request, client, self._free_slots.pop())
        try:
            return self._fork(child)
        except (OSError, MemoryError) as error:
            self._free_slot(child.slot)
            reason = f"{request.name} could not be started: {describe_os_error(error)}"
            client.link.send(NotSpawned(request.request_id, reason))
            return None

    def _respawn_due(self) -> Birth | None:
        for entry in self._respawns:
            if entry[0] <= time.monotonic():
                self._respawns.remove(entry)
                try:
                    return self._fork(entry[1])
                except OSError:
                    self._respawns.append((time.monotonic() + RESPAWN_DELAY_LIMIT_S, entry[1]))
                    return None
        return None

    def _fork(self, child: Child) -> Birth | None:
        """Fork. In the child, become it and return its Birth. After an OSError nothing is left open."""
        request = child.request
        ours: list[int] = []
        theirs: list[int] = []
        control: tuple[socket.socket, socket.socket] | None = None
        child_pid = -1
        try:
            if request.pipes:
                _pipe(ours, theirs)
                _pipe(ours, theirs)
            else:
                theirs += [_open_log(request.log_path)]
            outputs = (theirs[0], theirs[-1])
            if request.ready:
                _pipe(ours, theirs)
            if request.control:
                control = socket.socketpair()
            self._memory[child.slot * MARK_BYTES :][:MARK_BYTES] = bytes(MARK_BYTES)
            signal.pthread_sigmask(signal.SIG_BLOCK, INTERCEPTED_SIGNALS)  # The child's handlers are still the zygote's.
            child_pid = os.fork()
            if child_pid == 0:
                return self._leave(child, outputs, theirs[-1] if request.ready else None, control)
        finally:
            if child_pid != 0:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERCEPTED_SIGNALS)
                for descriptor in theirs if child_pid > 0 else theirs + ours:
                    os.close(descriptor)
                if control is not None:
                    control[1].close()
                    if child_pid < 0:
                        control[0].close()
        self._on_birth(child, child_pid, ours, control[0] if control else None)
        return None

    def _on_birth(self, child: Child, pid: int, ours: list[int], control: socket.socket | None) -> None:
        child.pid = pid
        child.born_s = time.monotonic()
        if child.request.ready:
            child.ready_descriptor = ours.pop()
            os.set_blocking(child.ready_descriptor, False)
        if control is not None:
            child.control = ZygoteClient(Link(control))
            self._clients.append(child.control)
        self._children[pid] = child
        _tell(child.client, Spawned(child.request.request_id, pid, child.slot), tuple(ours))

    def _leave(
        self,
        child: Child,
        outputs: tuple[int, int],
        ready_descriptor: int | None,
        control: tuple[socket.socket, socket.socket] | None,
    ) -> Birth:
        """Stop being the zygote, in the forked child. Never raises, since the exception handlers above are the zygote's."""
        try:
            for client in self._clients:
                client.link.forget()
            if control is not None:
                control[0].detach()
            marks = self._memory[child.slot * MARK_BYTES :][:MARK_BYTES]
            journals = memoryview(b"" if self._journals is None else self._journals)
            child_end = None if control is None else control[1]
            ends = ChildEnds(
                name=child.request.name,
                session_dir=self._session_dir,
                marks=marks,
                all_marks=self._memory,
                journal=journals[child.slot * JOURNAL_BYTES :][:JOURNAL_BYTES],
                all_journals=journals,
                control=child_end,
                ready_descriptor=ready_descriptor,
            )
            birth = Birth(child.request.role, child.request.config, ends)
            become(birth, self._pid, (self._null, *outputs))
            return birth
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _pipe(ours: list[int], theirs: list[int]) -> None:
    read_end, write_end = os.pipe()
    ours.append(read_end)
    theirs.append(write_end)


def _open_log(path: str) -> int:
    return os.open(path or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _map_journals() -> mmap.mmap | None:
    """Map the journals of all slots as memory that forked children share; None if the system refuses to."""
    try:
        return mmap.mmap(-1, JOURNAL_BYTES * MARK_SLOTS, flags=mmap.MAP_SHARED | NO_RESERVE)
    except OSError:
        return None


def _kill_group(pid: int) -> None:
    """Kill the processes that a dead child has left in its group. macOS reports EPERM where only zombies are left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _tell(client: ZygoteClient, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    if not client.closed:
        client.link.send(message, descriptors)


def _open_owner(owner: socket.socket) -> int | None:
    """Return the pidfd of the process that made the link, which is readable when it ends; None where pidfds do not exist.

    Raises ProcessLookupError if it has ended already.
    """
    try:
        pid, _, _ = struct.unpack("3i", owner.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        return None


def _ignore(signal_number: int, frame: FrameType | None) -> None:
    """Do nothing: without a handler, SIGCHLD would not be written to the wake-up descriptor."""
