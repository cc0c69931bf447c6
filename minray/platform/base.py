"""The seam: everything that minray asks of the outside world, as a handful of small protocols.

Ray: there is no one counterpart; src/ray/rpc, src/ray/util/process and plasma's fling.cc play these parts.

Protocol code (gcs, raylet, core_worker, ...) receives one ``Platform`` as its first constructor argument and touches
the world through it alone. Each part exists twice: real (``sockets``, ``grpc``, ``processes``, ``user_code``,
``main_thread``, ``storage``, ``memory``, ``disk`` beside this file) and simulated (``minray.simulation``). One contract
suite runs over all.

Rules
  * The clock is the event loop: ``asyncio.sleep``, ``asyncio.timeout`` and ``loop.time()``; there is no clock object.
  * Foreign exceptions are mapped here: above this line only the exceptions of this file appear.
  * Every callback is called on the event loop of its process, and never from inside the call that registers it.

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
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from minray.common.machine_usage import MachineUsage, ProcessUsage  # which only raylets need

PROTOCOL_VERSION = 1
MAX_RECORD_BYTES = 64 * 1024 * 1024
"""The largest record a transport carries, and the largest frame it accepts; more than this is a broken or hostile peer."""
CHUNK_BYTES = 5 * 1024 * 1024
"""The largest piece, in bytes, in which a large buffer travels. So a gigabyte never delays a cancel or a heartbeat."""

Buffer = bytes | bytearray | memoryview


class PlatformError(Exception):
    """Base class of all failures at the seam."""


class ChannelBroken(PlatformError):
    """The channel closed before the reply came; the request may or may not have run."""


class ConnectFailed(PlatformError):
    """No channel could be opened: a timeout or an address that cannot be reached. Trying again may help."""


class ConnectRefused(ConnectFailed):
    """No process listens at this endpoint: it has ended, or has not started to listen yet."""


class WrongIncarnation(ConnectRefused):
    """Another process listens at this endpoint now; the incarnation that the client asked for is gone for good."""


class AuthenticationFailed(ConnectFailed):
    """One side did not prove that it knows the cluster token, or spoke another protocol version."""


class RecordTooLarge(PlatformError):
    """The caller tried to send more than ``MAX_RECORD_BYTES`` in one record; nothing was sent, the channel goes on."""


def check_size(word: str, payload: bytes, buffers: Sequence[Buffer]) -> None:
    """Raise RecordTooLarge for a record that no transport sends; ``word`` names the record in the error."""
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
    """A file could not be written or read."""

    def __init__(self, message: str, checksums: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.checksums = list(checksums)
        """Checksums of the first pieces that are in the file although writing all of them failed."""


class DiskBusy(DiskFailed):
    """The operation could not begin for lack of a thread, memory or a descriptor; files are unchanged."""


class DiskFull(DiskFailed):
    """The disk has no room for more data; what files already contain is safe."""


class MemoryFailed(PlatformError):
    """No arena could be made or mapped: out of memory or of descriptors, or its creator (the raylet) has ended."""


class ProcessGone(BaseException):
    """Raised out of calls that a process does not survive, where a process is only a part of this interpreter.

    No code of minray catches it. Whatever such a process does afterwards has no effect.
    """


# --- Network -----------------------------------------------------------------------------------------------------------

OnReply = Callable[[PlatformError | None, bytes, Sequence[Buffer]], None]
"""Receives the outcome of one call: ``(None, payload, buffers)`` or ``(ChannelBroken | RemoteFailure, b"", ())``."""


class Incoming(Protocol):
    """One request or notification that has arrived."""

    method: str
    payload: bytes
    buffers: Sequence[Buffer]
    peer: bytes
    """The incarnation that the other end named in the handshake. It has proven only that it knows the token."""

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Send the reply. Does nothing for a notification, or when the channel is gone."""

    def fail(self, failure: RemoteFailure) -> None:
        """Refuse the request; the caller's ``on_reply`` receives this failure."""


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

        ``into`` gives memory for the reply's buffers: buffer i is written into ``into[i]``, a writable view of bytes that
        nobody else uses until ``on_reply`` is called. ``on_reply`` receives read-only views of what was written; afterwards
        nothing is written there. A reply with more or longer buffers than ``into`` breaks the channel.
        """

    def notify(self, method: str, payload: bytes) -> None:
        """Send a notification, which has no reply; it may be lost if the channel breaks."""

    def close(self) -> None:
        """End the channel. Messages sent before are still written if the peer lives; open calls end with ChannelBroken."""


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
        """Open a channel to the incarnation ``target`` (empty: any process that listens); raises ``ConnectFailed``.

        ``on_close`` is called once when the channel ends for any reason except our own ``close``.
        """


class Counters(msgspec.Struct):
    """Counts of what this process has sent; "requests and frames per task" are computed from them."""

    requests: int = 0
    """Calls and notifications sent."""
    replies: int = 0
    frames: int = 0
    """Writes of coalesced messages; one frame may carry many records."""
    bytes: int = 0


# --- Processes ---------------------------------------------------------------------------------------------------------


class ExitStatus(msgspec.Struct, frozen=True):
    """How a process ended: one of ``code`` and ``signal`` is set."""

    code: int | None
    signal: int | None


OnOutput = Callable[[str, str], None]
"""Receives each line of a child's output as ``("stdout" | "stderr", line)``, in order and without the newline."""


JOURNAL_BYTES = 20 * 64 * 1024
"""Bytes of a process's journal; a multiple of every page size, so that its memory can be given back."""


class ChildProcess(Protocol):
    """A child process, as its parent sees it."""

    pid: int
    marks: memoryview
    """64 bytes shared with the child and readable after its death; see ``Processes.marks``."""
    journal: memoryview
    """After the child's death, the part of its journal that it has used; see ``Processes.journal``."""

    async def wait(self) -> ExitStatus:
        """Return once the process has ended *and* all its output was given to ``on_output``."""

    def kill(self) -> None:
        """Send SIGKILL; does nothing when the process has ended."""


class Processes(Protocol):
    """The children of this process, and this process itself."""

    pid: int
    marks: memoryview
    """64 bytes that the parent can read even after ``kill -9`` of this process."""
    journal: memoryview
    """JOURNAL_BYTES that the parent can read even after ``kill -9``; empty if the system has no such memory to give.

    The first eight bytes say how many bytes are used. It holds what a process does too often to report it (which tasks it
    has run), and what must outlive it nevertheless. Only pages that were written take memory."""
    is_copy: bool
    """Whether user code has forked and this process is the child. Its connections belong to its parent."""

    async def spawn(self, role: str, name: str, config: bytes, on_output: OnOutput) -> ChildProcess:
        """Start a process that runs ``role`` (``"worker"``) with ``config``; raises ``SpawnFailed``."""

    def exit(self, code: int) -> None:
        """End this process now, without unwinding (after flushing standard output)."""


# --- User code ---------------------------------------------------------------------------------------------------------


WOULD_BLOCK = (
    "this would block minray's own thread, where callbacks of futures run: await references there,"
    " and do what waits in a thread of your own"
)
"""The text of the RuntimeError that ``UserCode.parker`` raises on the loop."""


class Parker(Protocol):
    """Blocks one user thread until the loop (or another thread) releases it."""

    def wait(self, timeout_s: float | None) -> bool:
        """Block until released; return False if the time passed first. KeyboardInterrupt passes through."""

    def release(self) -> None:
        """Let the thread go, now or when it begins to wait. May be called more than once, from any thread."""

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """Release the thread, but make ``wait`` raise this error: what the thread waits for will not come."""


class Threads(Protocol):
    """Threads beside the main user thread."""

    def run(self, work: Callable[..., None], then: Callable[..., None], *args: Any) -> None:
        """From the loop: run ``work(*args)`` in one of the threads, once one is idle; then call ``then(*args)`` on the
        loop."""


class UserCode(Protocol):
    """The border between the loop and threads that run code which may block."""

    def run(self, work: Callable[..., None], then: Callable[..., None] | None = None, *args: Any) -> None:
        """From the loop: queue ``work(*args)`` for the main user thread; first in, first out. ``work`` must not raise.

        ``then(*args)`` is called on the loop when ``work`` has returned, which costs less than a ``post`` at its end.
        """

    def threads_beside(self, limit: int) -> Threads:
        """From the loop: make a group of at most ``limit`` threads for work of one kind."""

    def follow(self, then: Callable[..., None], *args: Any) -> None:
        """From the main user thread: call back on the loop when the current work is over, or earlier if that takes long.

        It costs less than ``post``, which wakes a thread for the loop at once.
        """

    def run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """From the loop: run an event loop for user code in the main user thread from now on, beside other work.

        ``on_open(event_loop)`` is the first call on that event loop.
        """

    def run_event_loop_beside(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """From the loop: run an event loop for user code in a thread of its own; ``on_open`` is its first call."""

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """From any thread: call back on the loop soon, in order. Never blocks; many posts cost one wake-up."""

    def post_later(self, callback: Callable[..., None], *args: Any) -> None:
        """Like ``post``, for callbacks that nobody waits for. They run in order, after all callbacks posted earlier, and
        after what those have sent is written out."""

    on_dropped: Callable[[Sequence[bytes]], None]
    """Called on the loop with the names given to ``drop``, often many at once. Must be set before the first ``drop``."""

    def drop(self, name: bytes) -> None:
        """Like ``post_later(on_dropped, [name])``, but cheap for many names. May be called anywhere, also by destructors."""

    def parker(self) -> Parker:
        """Make a parker for the calling user thread. Raises RuntimeError on the loop, where blocking would be a deadlock.

        User code that runs on the loop: callbacks of futures, code called by unpickling an awaited value, some destructors.
        """

    def future(self) -> concurrent.futures.Future[Any]:
        """Make a future for user threads, and their event loops, that wait without a parker. The loop sets its result.

        Where the loop may end before its threads do, the future fails then, as parkers do.
        """

    def interrupt(self, applies: Callable[[], bool]) -> None:
        """Raise KeyboardInterrupt in the main user thread if ``applies()``, called in that thread, returns True.

        If user code has its own handler for SIGINT, that handler is called instead, and ``applies`` is called on the loop.
        """

    def collect_later(self, at_once: bool = False) -> None:
        """From any thread: have garbage collected soon, in a thread where destructors may block.

        ``at_once``: somebody waits for what the garbage keeps, so do it now, however long the last collection took.

        Python's own collector runs only while new objects are made, which may not happen here any more.
        """

    def collect_garbage(self) -> None:
        """From a user thread that has waited for long: collect garbage now. What the thread waits for may need resources
        that garbage in this process still holds."""

    def run_exit_handlers(self) -> None:
        """From a user thread: run what user code has registered with ``atexit``, when this process ends in an orderly
        way."""

    def time(self) -> float:
        """The loop's clock, readable from user threads."""

    def threads(self) -> list[tuple[str, FrameType | None]]:
        """From the loop: all threads of this process, as (name, innermost frame); the frame of the calling thread is None.

        It is a member of the seam because a simulated process owns only some of this interpreter's threads.
        """

    def has_directory(self, path: str) -> bool:
        """Tell whether this node has the directory. A simulated node has directories of its own."""

    def unpack(self, archive: Buffer, directory: str, check: Callable[[], None]) -> None:
        """From the main user thread: make the directory from a package, a zip file, unless this node has it.

        ``check`` is called before that; it raises if the package is a wrong one. Raises OSError, ValueError. It is a member
        of the seam because a package brings files that only its node may see.
        """

    def enter_environment(
        self, leading: Sequence[str], sys_path: Sequence[str], working_dir: str | None, env_vars: dict[str, str]
    ) -> None:
        """Set up this process for a job and runtime environment; raises OSError if the directory does not exist.

        Modules are looked for in ``leading`` first, then in the entries of the driver's ``sys_path`` that are missing here.
        """


# --- Storage, memory, disk, host, entropy ------------------------------------------------------------------------------


class Storage(Protocol):
    """A transactional store of tables of bytes, for data that must outlive the gcs process."""

    durable: bool
    """Whether committed rows outlive this process."""

    def load(self, table: str) -> dict[str, bytes]:
        """Return all rows of a table, as last committed."""

    def put(self, table: str, key: str, value: bytes) -> None:
        """Stage a row for the next commit."""

    def delete(self, table: str, key: str) -> None:
        """Stage the removal of a row."""

    async def commit(self) -> None:
        """Return when everything staged so far is durable; concurrent commits share one sync.

        Raises ``StorageFailed``; the staged rows are forgotten then, and removals are tried again with the next commit.
        """

    def close(self) -> None:
        """Release files."""


class Arena(Protocol):
    """Memory that the processes of one node share, as its creator sees it."""

    view: memoryview
    """The whole memory, writable; zeros at first."""

    async def close(self) -> None:
        """Stop handing the arena out. Views stay valid, in every process, until the last one is gone."""


class DiskArena(Arena, Protocol):
    """An arena in a file, for when memory is full. To write to bytes that are not reserved may kill the writer (SIGBUS)."""

    def reserve(self, start: int, size: int) -> None:
        """Reserve room on the disk for these bytes. Raises ``DiskFull`` or ``DiskFailed``; then nothing is reserved."""

    def release(self, start: int, size: int) -> None:
        """Give the room of these bytes back to the disk, where its file system can do that. Never raises."""


class Memory(Protocol):
    """Arenas by the endpoint that hands them out. Each arena needs its own endpoint, since a process that has attached to an
    endpoint keeps the first arena."""

    async def create_arena(self, endpoint: str, size: int) -> Arena:
        """Make an arena of ``size`` bytes and hand it out to processes of this node and user. Raises ``MemoryFailed``."""

    async def create_disk_arena(self, endpoint: str, directory: str, capacity_threshold: float) -> DiskArena:
        """Make an arena in a nameless file in this directory and hand it out. Raises ``MemoryFailed``.

        ``capacity_threshold`` is the share of the disk that may be in use at most; the arena's size is that share of the
        disk. (It is a member of its own because only the store's last resort wants slow memory.)
        """

    def attach(self, endpoint: str) -> memoryview:
        """Return the whole arena as a writable view. It is mapped once per process: later calls return the same view, also
        after its creator is gone.

        May be called from any thread. It blocks until the creator's loop has answered, so never call it on that loop. Raises
        ``MemoryFailed``, at once if no process hands the arena out.
        """

    def copy(self, target: memoryview, source: Buffer) -> None:
        """Copy all bytes of ``source``, which has at least one, to ``target``, which has as many.

        May be called from any thread. (It is a member because real processes copy large values with several threads.)
        """


class Disk(Protocol):
    """One directory of files that are written once, read in parts, and removed.

    A checksum is ``zlib.crc32``. The reader must compare checksums: nothing else tells whether a disk returns what was
    written.
    """

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        """Write these pieces into a new file, one after the other; return their checksums. The caller leaves them unchanged.

        Raises ``DiskFailed`` or ``DiskFull``. If the error has ``checksums``, the file holds that many first pieces;
        otherwise there is no file.
        """

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        """Fill these pieces, one after the other, from byte ``start`` of the file on; return their checksums.

        Raises ``DiskFailed`` if the file does not exist or is too short, ``DiskBusy`` if that could not be found out.
        Nothing is written into the pieces after the end of this call, unless it is cancelled.
        """

    def remove(self, name: str) -> None:
        """Have the file removed soon, if it exists. Never raises."""

    async def close(self) -> None:
        """Forget operations that have not begun. Files stay: they are removed with their session."""


class Host(Protocol):
    """The machine, and the two things that are not reproducible: entropy and the wall clock."""

    hostname: str
    cpu_count: int
    memory_bytes: int

    def memory_usage(self) -> tuple[int, int]:
        """Return (bytes in use, bytes in all) of the machine or of a limit on this process, whichever is fuller."""

    def process_memory(self, pid: int) -> int:
        """Return the bytes that would be free without the process ``pid``; 0 if there is none."""

    def machine_usage(self) -> MachineUsage:
        """Measure the whole machine: a metric of the node, which no part above the seam can know. Raises OSError."""

    def process_usage(self, pid: int) -> ProcessUsage | None:
        """Measure a process of this machine; None if there is none, or if it cannot be measured."""

    def shortage(self) -> str:
        """Return the limit that this process has nearly reached, and how to raise it; empty if there is none."""

    def random_bytes(self, count: int) -> bytes: ...

    def random(self) -> float:
        """Return a number in [0, 1), for jitter and tie-breaking."""

    def time(self) -> float:
        """Return wall-clock seconds since the epoch: for people, and for a deadline that several machines share."""


Record = Callable[[str, str, str, str], None]
"""The recorder: ``(table, key, old, new)`` for every transition of a state table of this process."""


class Platform(msgspec.Struct, frozen=True):
    """All parts of the seam for one process."""

    name: str
    """The process's name for people: ``gcs``, ``raylet/head``, ``worker/1f3c``. Faults and trace lanes use it as their
    key."""
    identity: bytes
    """The incarnation: 16 random bytes (in a worker, its worker id). No later process uses them again."""
    network: Network
    processes: Processes
    user_code: UserCode
    host: Host
    open_storage: Callable[[str], Storage]
    """Opens a store: ``""`` one in memory, a path a durable one. Raises ``StorageFailed`` for a file of another kind."""
    memory: Memory
    open_disk: Callable[[str], Disk]
    """Opens a disk, by the path of an existing directory or by a URL."""
    record: Record | None = None
    bulk: Sequence[Network] = ()
    """Networks for objects that travel between nodes: their traffic delays nothing on ``network``."""
