"""The output of workers: it is kept in files, and forwarded in order to the driver of their job.

Ray: python/ray/_private/log_monitor.py

Each worker has two files, ``worker-<id>-<job>-<pid>.out`` and ``.err``. Lines that a worker writes once it is bound to a
job go to the job's driver as ``PrintLines``. They are collected per turn of the loop and sent in their order, with few
batches under way at a time. If a driver reads slowly, lines wait here, up to a limit. Lines beyond it are counted, and the
driver is told how many it has missed. When the driver is gone, nothing is forwarded.

A worker marks the lines of a task: a line before them names the task (``minray/protocol/logs.py``). Marks are not
forwarded. A mark is kept together with the first line after it, in one write, and stands at the beginning of each file of a
rotation. So the lines of one task can be found later (``log_service``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from minray.common.ids import JOB_ID_BYTES
from minray.common.log_files import LogSink, OpenLog
from minray.platform.base import Buffer, PlatformError
from minray.protocol.base import Address, Done
from minray.protocol.core_worker import TASK_NAME_MARK, PrintLines
from minray.protocol.logs import read_mark
from minray.rpc.connection import Peers

logger = logging.getLogger(__name__)

MAX_LINES_PER_BATCH = 500
"""Most lines in one ``PrintLines``."""
MAX_CHARACTERS_PER_BATCH = 1 << 20
"""Most characters in one ``PrintLines`` that has more than one line."""
MAX_UNACKNOWLEDGED_BATCHES = 16
"""Most ``PrintLines`` to one driver that are under way at a time."""
MAX_WARNINGS = 100
"""Most warnings of a raylet to one job; each is kept, so that it is not repeated."""
MAX_WAITING_LINES = 20_000
"""Most lines that wait for one job's driver; lines beyond are not forwarded (they are in the files)."""


NO_JOB = b"\xff" * JOB_ID_BYTES
"""Job in the name of a file whose worker has printed before it had a job."""


class _WorkerStream(msgspec.Struct, eq=False):
    """Standard output or standard error of one worker."""

    worker_id: bytes
    is_stderr: bool
    task_name: str = ""
    task_id: str = ""
    """Id of the task that prints, in hexadecimal; empty: no task."""
    mark: str = ""
    """The mark that holds now, with its newline; empty: no task prints, and none has printed before."""
    kept_mark: str = ""
    """The last mark in the file."""
    sink: LogSink | None = None
    """Open file; None until the first line is kept."""
    early: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """Lines, each with its mark, that came before the worker's pid, and with it the file's name, was known."""


class _Source(msgspec.Struct, eq=False):
    """The two streams of one worker."""

    stdout: _WorkerStream
    stderr: _WorkerStream
    pid: int = 0
    job_id: bytes = b""
    """Job of the worker; empty until its first lease."""


class _Outbox(msgspec.Struct, eq=False):
    """Lines that wait for one job's driver."""

    driver: Address | None = None
    """Address of the driver; None until the gcs has told about the job."""
    lines: deque[tuple[int, _WorkerStream, str, str, str]] = msgspec.field(default_factory=deque)
    """Waiting lines: pid, stream, task name, text, task id."""
    unacknowledged: int = 0
    dropped: int = 0
    """Number of lines dropped since the driver was last told about dropped lines."""
    dropped_of: tuple[int, _WorkerStream] | None = None
    """Pid and stream of the last dropped line."""
    gone: bool = False
    """Whether the driver is dead or the job over, so that nothing is forwarded any more."""
    is_scheduled: bool = False
    warnings: set[str] = msgspec.field(default_factory=set)
    """Warnings that the driver has been told."""
    waiters: list[asyncio.Future[None]] = msgspec.field(default_factory=list)
    """Futures that are resolved when no line waits and no batch is under way."""


_RAYLET = _Source(_WorkerStream(b"", False, "raylet"), _WorkerStream(b"", True, "raylet"))
"""Source of the raylet's own lines to drivers; it has no process id, and its lines are in the raylet's log already."""


class LogMonitor:
    """Keeps and forwards all output of the workers of one node."""

    def __init__(self, peers: Peers, node_id: bytes, node_ip: str, log_dir: str, open_log: OpenLog | None) -> None:
        self._peers = peers
        self._node_id = node_id
        self._node_ip = node_ip
        self._log_dir = log_dir
        self._open_log = open_log
        self._sources: dict[bytes, _Source] = {}
        self._outboxes: dict[bytes, _Outbox] = {}
        self._batch_count = 0
        """Number of batches of all streams together; a pid may be used again, so it could not identify a batch."""
        self._unkept = 0
        """Number of lines that could not be written to a file; the first one is logged."""

    # --- Workers -------------------------------------------------------------------------------------------------------

    def on_output(self, worker_id: bytes, stream_name: str, line: str) -> None:
        source = self._source(worker_id)
        stream = source.stderr if stream_name == "stderr" else source.stdout
        if line.startswith(TASK_NAME_MARK):
            stream.task_name, stream.task_id, _, _ = read_mark(line)
            stream.mark = line + "\n"
            return
        self._keep(source, stream, line, stream.mark)
        if source.job_id:
            self._queue(source, stream, line)

    def on_started(self, worker_id: bytes, pid: int) -> None:
        source = self._source(worker_id)
        source.pid = pid
        for stream in (source.stdout, source.stderr):
            early, stream.early = stream.early, []
            for mark, line in early:
                self._keep(source, stream, line, mark)

    def on_bound(self, worker_id: bytes, job_id: bytes) -> None:
        """Note the job to which a worker's output belongs from now on."""
        self._source(worker_id).job_id = job_id

    def on_exit(self, worker_id: bytes) -> None:
        source = self._sources.pop(worker_id, None)
        for stream in (source.stdout, source.stderr) if source is not None else ():
            if stream.sink is not None:
                with suppress(OSError):
                    stream.sink.close()

    def warn(self, job_id: bytes, text: str) -> None:
        """Tell a job's driver about its own requests, once for each text."""
        outbox = self._outboxes.setdefault(job_id, _Outbox())
        if text not in outbox.warnings and len(outbox.warnings) < MAX_WARNINGS:
            outbox.warnings.add(text)
            self._queue(_RAYLET, _RAYLET.stderr, text, job_id)

    def task_name(self, worker_id: bytes) -> str:
        """Return the task that the worker named last; empty if it has named none."""
        source = self._sources.get(worker_id)
        return source.stdout.task_name if source is not None else ""

    def _source(self, worker_id: bytes) -> _Source:
        source = self._sources.get(worker_id)
        if source is None:
            source = _Source(_WorkerStream(worker_id, False), _WorkerStream(worker_id, True))
            self._sources[worker_id] = source
        return source

    def _keep(self, source: _Source, stream: _WorkerStream, line: str, mark: str) -> None:
        if self._open_log is None:
            return
        if not source.pid:
            stream.early.append((mark, line))
            return
        try:
            if stream.sink is None:
                job_id, suffix = source.job_id or NO_JOB, "err" if stream.is_stderr else "out"
                stream.sink = self._open_log(f"worker-{stream.worker_id.hex()}-{job_id.hex()}-{source.pid}.{suffix}")
            stream.sink.write(f"{line}\n" if mark == stream.kept_mark else f"{mark}{line}\n", mark)
            stream.kept_mark = mark
        except OSError as error:
            if self._unkept == 0:
                logger.error("the output of workers cannot be kept in %s: %s", self._log_dir, error)
            self._unkept += 1

    # --- Drivers -------------------------------------------------------------------------------------------------------

    def on_job(self, job_id: bytes, driver: Address, is_running: bool) -> None:
        outbox = self._outboxes.setdefault(job_id, _Outbox())
        outbox.driver = driver
        if is_running:
            self._pump(outbox)
        else:
            self._drop(outbox)

    def forget_job(self, job_id: bytes) -> None:
        """Drop the state of a job that was over long ago."""
        self._outboxes.pop(job_id, None)

    async def flush(self, job_id: bytes) -> None:
        """Return when all that the job's workers are known to have written has reached its driver, or cannot."""
        await asyncio.sleep(0)  # Output that has arrived at this process is read in this turn of the loop.
        outbox = self._outboxes.get(job_id)
        if outbox is not None and (outbox.lines or outbox.unacknowledged):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            outbox.waiters.append(waiter)
            await waiter

    def _queue(self, source: _Source, stream: _WorkerStream, line: str, job_id: bytes = b"") -> None:
        outbox = self._outboxes.setdefault(job_id or source.job_id, _Outbox())
        if outbox.gone or len(outbox.lines) >= MAX_WAITING_LINES:
            outbox.dropped += 1
            outbox.dropped_of = source.pid, stream
            return
        outbox.lines.append((source.pid, stream, stream.task_name, line, stream.task_id))
        if not outbox.is_scheduled:
            outbox.is_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump, outbox)

    def _pump(self, outbox: _Outbox) -> None:
        outbox.is_scheduled = False
        while outbox.driver is not None and outbox.lines and outbox.unacknowledged < MAX_UNACKNOWLEDGED_BATCHES:
            batch = self._next_batch(outbox)
            self._note_dropped(outbox)
            outbox.unacknowledged += 1

            def on_answer(reply: Done | None, error: PlatformError | None, buffers: Sequence[Buffer]) -> None:
                outbox.unacknowledged -= 1
                if error is not None:
                    self._drop(outbox)
                self._pump(outbox)

            self._peers.to(outbox.driver).send(batch, on_answer)
        if not outbox.unacknowledged and not outbox.lines:
            waiters, outbox.waiters = outbox.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _note_dropped(self, outbox: _Outbox) -> None:
        """Queue a line that says how many lines were dropped, because there is room for lines again."""
        if outbox.dropped and outbox.dropped_of is not None:
            note = f"[{outbox.dropped} lines were not forwarded; they are in {self._log_dir}]"
            outbox.lines.append((*outbox.dropped_of, "", note, ""))
            outbox.dropped, outbox.dropped_of = 0, None

    def _next_batch(self, outbox: _Outbox) -> PrintLines:
        """Take the longest run of lines of one stream from the front of the queue, within limits."""
        pid, stream, *_ = outbox.lines[0]
        lines: list[tuple[str, str, str]] = []
        characters = 0
        while outbox.lines and outbox.lines[0][1] is stream and len(lines) < MAX_LINES_PER_BATCH:
            _, _, task_name, text, task_id = outbox.lines[0]
            characters += len(text)
            if lines and characters > MAX_CHARACTERS_PER_BATCH:
                break
            lines.append((task_name, text, task_id))
            outbox.lines.popleft()
        self._batch_count += 1
        return PrintLines(
            node_id=self._node_id,
            node_ip=self._node_ip,
            pid=pid,
            is_stderr=stream.is_stderr,
            lines=lines,
            sequence=self._batch_count,
        )

    def _drop(self, outbox: _Outbox) -> None:
        """Drop all lines of a job whose driver is gone."""
        if outbox.lines:
            logger.info("%d lines were not forwarded: their driver is gone", len(outbox.lines))
        outbox.gone = True
        outbox.dropped += len(outbox.lines)
        outbox.lines.clear()
        self._pump(outbox)
