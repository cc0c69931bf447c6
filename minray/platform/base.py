"""The seam: everything that minray asks of the outside world, as a handful of small protocols.

Ray: there is no one counterpart; src/ray/rpc, src/ray/util/process and plasma's fling.cc play these parts.

Protocol code (gcs, raylet, core_worker, ...) receives one ``Platform`` as its first constructor argument and touches
the world through it alone. Each part exists twice: real (``sockets``, ``grpc``, ``processes``, ``user_code``,
``main_thread``, ``storage``, ``memory``, ``disk`` beside this file) and simulated (``minray.simulation``). One contract
suite runs over all.

Rules
  * The clock is the event loop: ``asyncio.sleep``, ``asyncio.timeout`` and ``loop.time()``; there is no clock object.
  * Foreign exceptions are mapped here: above this line only the exceptions of this file appear.
  * Every callback is called on the loop of the process it belongs to, never re-entrantly from the call that takes it.

The network contract, stated once
  * Messages on one channel arrive in order, or the channel breaks. A message with buffers is the exception: it arrives
    when its buffers are complete, so that later messages may overtake it.
  * After a break any suffix of what was sent may be lost; what was sent before it may still arrive late.
  * A request may have run although no reply came. Dead and unreachable look the same.
  * A channel leads to exactly the incarnation it was opened for, or it does not open.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

PROTOCOL_VERSION = 1
MAX_RECORD_BYTES = 64 * 1024 * 1024
"""The largest record a transport carries, and the largest frame it accepts; more than this is a broken or hostile peer."""
CHUNK_BYTES = 5 * 1024 * 1024
"""Out-of-band buffers travel in pieces of at most this size, so that a gigabyte never delays a cancel or a heartbeat."""

Buffer = bytes | bytearray | memoryview


class PlatformError(Exception):
    """What can go wrong at the seam; the base of everything below."""


class ChannelBroken(PlatformError):
    """The channel closed before the reply came; the request may or may not have run."""


class ConnectFailed(PlatformError):
    """No channel could be opened: a timeout or an address that cannot be reached. Trying again may help."""


class ConnectRefused(ConnectFailed):
    """Nobody listens at this endpoint: the process has ended or has not started to listen yet."""


class WrongIncarnation(ConnectRefused):
    """Somebody else listens at this endpoint now; the incarnation that was meant is gone for good."""


class AuthenticationFailed(ConnectFailed):
    """One side did not prove that it knows the cluster token, or spoke another protocol version."""


class RecordTooLarge(PlatformError):
    """The caller tried to send more than ``MAX_RECORD_BYTES`` in one record; nothing was sent, the channel goes on."""


def check_size(word: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
    """What every transport refuses to send; ``word`` names the record in the error. Raises RecordTooLarge."""
    size = len(payload) + 9 * len(buffers)
    if size > MAX_RECORD_BYTES:
        raise RecordTooLarge(f"{word} of {size} bytes is larger than {MAX_RECORD_BYTES}; send buffers beside it")


class RemoteFailure(PlatformError):
    """The peer received the request and refused it: unknown method, malformed record, or an exception in its handler.

    ``kind`` is a short stable word (``bad-request``, ``unknown-method``, ``internal``), ``message`` is for people.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class SpawnFailed(PlatformError):
    """No process could be started: out of processes or memory."""


class StorageFailed(PlatformError):
    """A durable write did not happen (full disk, damaged file). Nothing of the batch may be acknowledged."""


class DiskFailed(PlatformError):
    """A file could not be written, or not be read."""

    def __init__(self, message: str, checksums: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.checksums = list(checksums)
        """Of a file that was being written: of those first pieces that are in it all the same."""


class DiskBusy(DiskFailed):
    """It could not even be tried, for want of a thread, memory or a descriptor: what is in files is as it was."""


class DiskFull(DiskFailed):
    """There is no room for more; what is in files already is safe."""


class MemoryFailed(PlatformError):
    """No arena could be made or mapped: out of memory or of descriptors, or whoever handed it out has gone."""


# --- Network -----------------------------------------------------------------------------------------------------------

OnReply = Callable[[PlatformError | None, bytes, Sequence[Buffer]], None]
"""Receives the end of one call: ``(None, payload, buffers)`` or ``(ChannelBroken | RemoteFailure, b"", ())``."""


class Incoming(Protocol):
    """One request or notification that has arrived."""

    method: str
    payload: bytes
    buffers: Sequence[Buffer]
    peer: bytes
    """The incarnation at the other end, as it named itself in the handshake; proven only to know the token."""

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Answer. Ignored for notifications and once the channel is gone."""

    def fail(self, failure: RemoteFailure) -> None:
        """Refuse; the caller's ``on_reply`` receives this failure."""


OnIncoming = Callable[[Incoming], None]


class Channel(Protocol):
    """One open, ordered, authenticated connection. Calls may be many and concurrent."""

    peer: bytes
    closed: bool

    def call(
        self,
        method: str,
        payload: bytes,
        buffers: Sequence[Buffer],
        on_reply: OnReply,
        into: Sequence[memoryview] = (),
    ) -> None:
        """Send a request; ``on_reply`` is called exactly once, with ``ChannelBroken`` if the channel ends first.

        ``buffers`` are not copied before they are written: the caller leaves them unchanged until the reply.

        If ``into`` is given, the reply's buffers are not new memory: the i-th is written into ``into[i]``, a writable view
        of bytes that nobody else uses until ``on_reply`` is called; ``on_reply`` receives read-only views of what was
        written, and afterwards nothing is written there. A reply with more buffers, or longer ones, breaks the channel.
        """

    def notify(self, method: str, payload: bytes) -> None:
        """Send something that has no reply; it may be lost if the channel breaks."""

    def close(self) -> None:
        """End the channel. Messages sent before are still written if the peer lives; open calls end broken."""


class Listener(Protocol):
    """An open endpoint."""

    endpoint: str
    """The endpoint as peers reach it (a TCP port 0 has become a number)."""

    async def close(self) -> None:
        """Stop listening and close every channel that came in."""


class Network(Protocol):
    """Endpoints are strings: ``unix:/path``, ``tcp:host:port``, ``sim:name``."""

    counters: Counters

    async def listen(self, endpoint: str, identity: bytes, on_incoming: OnIncoming) -> Listener:
        """Listen as ``identity``; raises ``PlatformError`` naming the endpoint (port in use, path too long, ...)."""

    async def connect(self, endpoint: str, target: bytes, identity: bytes, on_close: Callable[[], None]) -> Channel:
        """Open a channel to the incarnation ``target`` (empty: whoever is there); raises ``ConnectFailed``.

        ``on_close`` is called once when the channel ends for any reason but our own ``close``.
        """


@dataclass(slots=True)
class Counters:
    """What this process has sent, counted where it happens; the figures behind "requests and frames per task"."""

    requests: int = 0
    """Calls and notifications sent."""
    replies: int = 0
    frames: int = 0
    """Writes of coalesced messages; one frame may carry many records."""
    bytes: int = 0


# --- Processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: one of ``code`` and ``signal`` is set."""

    code: int | None
    signal: int | None


OnOutput = Callable[[str, str], None]
"""Receives ``("stdout" | "stderr", line)`` of a child, without the newline, in order."""


class Process(Protocol):
    """A child, as its parent sees it."""

    pid: int
    marks: memoryview
    """64 bytes shared with the child and readable after its death; see ``Processes.marks``."""

    async def wait(self) -> ExitStatus:
        """Return once it has ended *and* all that it had written was given to ``on_output``."""

    def kill(self) -> None:
        """SIGKILL; harmless when it has ended."""


class Processes(Protocol):
    """Children, and this process itself."""

    pid: int
    marks: memoryview
    """64 bytes that the parent can read even after ``kill -9`` of this process."""
    is_copy: bool
    """Whether user code has forked, and this is the child: its connections are its parent's."""

    async def spawn(self, role: str, name: str, config: bytes, on_output: OnOutput) -> Process:
        """Start a process that runs ``role`` (``"worker"``) with ``config``; raises ``SpawnFailed``."""

    def exit(self, code: int) -> None:
        """End this process now, without unwinding (after flushing standard output)."""


# --- User code ---------------------------------------------------------------------------------------------------------


WOULD_BLOCK = (
    "this would block minray's own thread, where callbacks of futures run: await references there,"
    " and do what waits in a thread of your own"
)
"""What ``UserCode.parker`` says there."""


class Parker(Protocol):
    """Blocks one user thread until the loop (or another thread) releases it."""

    def wait(self, timeout_s: float | None) -> bool:
        """Block; False if the time passed first. KeyboardInterrupt passes through."""

    def release(self) -> None:
        """Let it go, now or when it comes to wait. May be called more than once, from any thread."""

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """The same, but ``wait`` raises this: what the thread waits for will not come."""


class Threads(Protocol):
    """Threads beside the main user thread."""

    def run(self, work: Callable[..., None], then: Callable[..., None], *args: Any) -> None:
        """From the loop: run ``work(*args)`` in one of them, when one has nothing else to do; ``then(*args)`` follows on the
        loop."""


class UserCode(Protocol):
    """The border between the loop and threads that run code which may block."""

    def run(self, work: Callable[..., None], then: Callable[..., None] | None = None, *args: Any) -> None:
        """From the loop: queue ``work(*args)`` for the main user thread; first in, first out. ``work`` must not raise.

        ``then(*args)`` is called on the loop when ``work`` has returned, which costs less than a ``post`` at its end.
        """

    def threads_beside(self, limit: int) -> Threads:
        """From the loop: threads of their own for work of one kind, no more than ``limit``."""

    def follow(self, then: Callable[..., None], *args: Any) -> None:
        """From the main user thread: call back on the loop when the work there is over, or before that if it takes long.

        It costs less than a ``post``, which makes somebody listen at once.
        """

    def run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """From the loop: an event loop for user code runs in the main user thread from now on, beside other work.

        ``on_open(event_loop)`` is what is called on it first.
        """

    def run_event_loop_beside(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """The same in a thread of its own."""

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """From any thread: call back on the loop soon, in order. Never blocks; many posts cost one wake-up."""

    def post_later(self, callback: Callable[..., None], *args: Any) -> None:
        """Like ``post``, and in order among its kind, but after what was posted, and sent, before: nobody waits for it."""

    on_dropped: Callable[[Sequence[bytes]], None]
    """Called on the loop with what was given to ``drop``, often much at once. Set before anything is dropped."""

    def drop(self, name: bytes) -> None:
        """Like ``post_later(on_dropped, [name])``, for what there is much of; from destructors too, anywhere."""

    def parker(self) -> Parker:
        """Make a parker for the calling user thread. RuntimeError on the loop, where blocking would be a deadlock:
        callbacks of futures run there, what unpickling calls when a value is awaited, and at times destructors."""

    def future(self) -> concurrent.futures.Future[Any]:
        """For user threads, and their event loops, that wait without a parker: done on the loop. Where the loop may end
        before its threads do, it fails then, as parkers do."""

    def interrupt(self, applies: Callable[[], bool]) -> None:
        """Raise KeyboardInterrupt in the main user thread if ``applies()``, asked in that thread, says so there. (If user
        code has taken SIGINT over, its handler is called instead, and ``applies`` is asked on the loop.)"""

    def collect_later(self) -> None:
        """From any thread: collect garbage soon, though perhaps nothing more is made here, where destructors may block."""

    def collect_garbage(self) -> None:
        """From a user thread that has waited for long: now. What it waits for may need what garbage here keeps."""

    def run_exit_handlers(self) -> None:
        """From a user thread: what user code has registered with ``atexit``, when its process ends in an orderly way."""

    def time(self) -> float:
        """The loop's clock, readable from user threads."""

    def threads(self) -> list[tuple[str, FrameType | None]]:
        """From the loop: all threads of this process by name, with the innermost frame of what each does; None for the one
        that asks. (A member of its own, since a simulated process has threads of this interpreter, but not all of them.)
        """

    def enter_environment(
        self, leading: Sequence[str], sys_path: Sequence[str], working_dir: str | None, env_vars: dict[str, str]
    ) -> None:
        """Make this process fit for a job and runtime environment; raises OSError if the directory is not there.

        Modules are looked for in ``leading`` first, then where the driver does (``sys_path``) and this process does not yet.
        """


# --- Storage, memory, disk, host, entropy ------------------------------------------------------------------------------


class Storage(Protocol):
    """A transactional table store of bytes, for what must outlive the gcs process."""

    durable: bool
    """Whether committed rows outlive this process."""

    def load(self, table: str) -> dict[str, bytes]:
        """All rows of a table, as last committed."""

    def put(self, table: str, key: str, value: bytes) -> None:
        """Stage a row for the next commit."""

    def delete(self, table: str, key: str) -> None:
        """Stage the removal of a row."""

    async def commit(self) -> None:
        """Return when everything staged so far is durable; concurrent commits share one sync.

        ``StorageFailed``: what was to be put is forgotten, and removals are tried again with the next commit.
        """

    def close(self) -> None:
        """Release files."""


class Arena(Protocol):
    """Memory that the processes of one node share, as its creator sees it."""

    view: memoryview
    """All of it, writable; zeros at first."""

    async def close(self) -> None:
        """Hand it out no more. Views stay valid, here and everywhere, until the last one has gone."""


class DiskArena(Arena, Protocol):
    """An arena in a file, for when memory is full. What is written without having been reserved may kill the writer."""

    def reserve(self, start: int, size: int) -> None:
        """Room on the disk for these bytes. Raises ``DiskFull`` or ``DiskFailed``, and then nothing is reserved."""

    def release(self, start: int, size: int) -> None:
        """These bytes are not needed any more: the disk has their room again, if it can take it. Never raises."""


class Memory(Protocol):
    """Arenas, by the endpoints at which they are handed out; each needs its own, since who has attached keeps the first."""

    async def create_arena(self, endpoint: str, size: int) -> Arena:
        """Make an arena of ``size`` bytes and hand it out to processes of this node and user. ``MemoryFailed``."""

    async def create_disk_arena(self, endpoint: str, directory: str, capacity_threshold: float) -> DiskArena:
        """The same, in a file without a name in this directory, as large as its disk may become full.

        Raises ``MemoryFailed``. (A member of its own, since nobody but the store's last resort wants memory that is slow.)
        """

    def attach(self, endpoint: str) -> memoryview:
        """The whole arena, writable: mapped once in a process, the same view each time, also after its creator has gone.

        May be called from any thread, and blocks it until the creator's loop has answered: so never from that loop. Raises
        ``MemoryFailed``, at once if nobody hands it out.
        """


class Disk(Protocol):
    """One directory of files that are written once, read in parts, and removed.

    A checksum is ``zlib.crc32``. Whoever reads compares: nothing else tells whether a disk gives back what it was given.
    """

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        """Make a file of these pieces, one after the other; returns their checksums. The caller leaves them unchanged.

        Raises ``DiskFailed`` or ``DiskFull``; there is no file then, or one of the first pieces, if ``checksums`` has any.
        """

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        """Fill these pieces, one after the other, from this place of the file on; returns their checksums.

        ``DiskFailed`` if the file is not there, or ends before, ``DiskBusy`` if that is not known. Nothing is written into
        the pieces after the end of this call, unless it is cancelled.
        """

    def remove(self, name: str) -> None:
        """Soon there is no such file, if there was one. Never raises."""

    async def close(self) -> None:
        """Forget what has not begun. Files stay: they go with their session."""


class Host(Protocol):
    """The machine, and the two things that are not reproducible: entropy and the wall clock."""

    hostname: str
    cpu_count: int
    memory_bytes: int

    def memory_usage(self) -> tuple[int, int]:
        """Bytes in use and bytes there are, where that is tightest: on the machine, or within a limit on this process."""

    def process_memory(self, pid: int) -> int:
        """Bytes that would be free without this process; 0 if there is none."""

    def random_bytes(self, count: int) -> bytes: ...

    def random(self) -> float:
        """In [0, 1): for jitter and tie-breaking."""

    def time(self) -> float:
        """Wall-clock seconds since the epoch: for people, and for a moment that several machines know (a deadline)."""


Record = Callable[[str, str, str, str], None]
"""The recorder: ``(table, key, old, new)`` for every transition of a state table of this process."""


@dataclass(frozen=True, slots=True)
class Platform:
    """All of the above for one process."""

    name: str
    """What people call it: ``gcs``, ``raylet/head``, ``worker/1f3c``; a fault key and a trace lane."""
    identity: bytes
    """The incarnation: 16 random bytes (a worker's id); never used again after this process."""
    network: Network
    processes: Processes
    user_code: UserCode
    host: Host
    open_storage: Callable[[str], Storage]
    """``""`` opens a store in memory, a path a durable one; raises ``StorageFailed`` for what is not a minray store."""
    memory: Memory
    open_disk: Callable[[str], Disk]
    """Takes the path of a directory that exists, or a URL."""
    record: Record | None = field(default=None)
    bulk: Sequence[Network] = ()
    """Networks for objects on their way between nodes: what they carry holds up nothing on ``network``."""


