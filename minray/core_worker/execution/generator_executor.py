"""The executor's side of streaming generators: drives the iterator and reports each item to the owner as it is yielded.

Ray: execute_streaming_generator_sync and _async in python/ray/_raylet.pyx, CoreWorker::ReportGeneratorItemReturns

``run`` and ``run_async`` belong to the thread that runs the user's code and take any iterator; the rest runs on the loop.
Items leave in order, each in a message of its own, and nobody waits for an answer (G91), but for three things:

  * There are at most ``GENERATOR_REPORTS_IN_FLIGHT`` unanswered reports: an owner that is slow slows its generator down.
  * With back-pressure n, the next item is not asked for while n items are unread. The owner says with each answer how
    many were read; a generator that is held up asks it to say so when there are enough (``WaitForReader``), and lends its
    CPUs meanwhile, which the reader may need for what he does with an item. Ray lends nothing, and withholds the answer to
    the report instead; then a task could not end before its last items were read.
  * The task ends when the owner has answered everything, so that its own answer never overtakes an item. Before that the
    owner is told how many items there were.

If the reader has gone, or a later attempt has taken this one's place, the iterator is driven on and its items are not even
pickled (G97). Items that the owner has from an earlier attempt are not reported again, unless they were lost since. A call
of an actor is not interrupted when it is cancelled: its iterator is closed where it has yielded (G48).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from minray.common.ids import short
from minray.core_worker.execution.outgoing_stream import OutgoingStream, Report, StreamingTask
from minray.core_worker.fetching.results import ResultKeeper
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.records.user_calls import call_for
from minray.core_worker.records.values import to_value
from minray.platform.base import Platform, PlatformError
from minray.protocol.core_worker import GeneratorItemReply, RefInfo, ReportGeneratorItem, WaitForReader
from minray.rpc.patient_caller import PatientCaller
from minray.values import serialization

if TYPE_CHECKING:
    from minray.core_worker.records.received_task import ReceivedTask


class GeneratorExecutor:
    """All generators that run in one process."""

    def __init__(
        self,
        platform: Platform,
        patient: PatientCaller,
        borrowing: Borrowing,
        results: ResultKeeper,
        lend_soon: Callable[[ReceivedTask], Callable[[], None]],
    ) -> None:
        """``lend_soon``: see ``WaitingThreads``."""
        self._user_code = platform.user_code
        self._patient = patient
        self._borrowing = borrowing
        self._results = results
        self._lend_soon = lend_soon
        self._lending: set[asyncio.Task[None]] = set()
        self._waiting: dict[tuple[bytes, int], OutgoingStream] = {}
        """By task and attempt: streams whose user's code waits."""

    # --- in the thread that runs the user's code

    def run(self, task: StreamingTask, iterator: Iterator[Any]) -> None:
        """Drive the iterator to its end; raises what it raises, when everything before that has been answered."""
        stream = self._stream(task)
        try:
            for value in iterator:
                if stream.is_next_wanted():
                    stream.report(serialization.serialize(value))
                del value
                self._wait(stream, stream.may_go_on)
                if stream.is_cancelled():
                    _close(iterator)
                    raise asyncio.CancelledError
            stream.report_end()
        finally:
            self._wait(stream, stream.is_settled)

    async def run_async(self, task: StreamingTask, iterator: AsyncIterator[Any]) -> None:
        """The same for an asynchronous iterator, on the user's own loop."""
        stream = self._stream(task)
        try:
            async for value in iterator:
                if stream.is_next_wanted():
                    stream.report(serialization.serialize(value))
                del value
                await self._wait_async(stream, stream.may_go_on)
            stream.report_end()
        finally:
            await self._wait_async(stream, stream.is_settled)

    def _stream(self, task: StreamingTask) -> OutgoingStream:
        return OutgoingStream(task, self._results, partial(self._user_code.post, self._on_report))

    def _wait(self, stream: OutgoingStream, condition: Callable[[], bool]) -> None:
        while not condition():
            parker = self._user_code.parker()
            self._user_code.post(call_for, parker, self._wake_when, stream, condition, parker.release)
            parker.wait(None)

    async def _wait_async(self, stream: OutgoingStream, condition: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        while not condition():
            woken = asyncio.Event()
            self._user_code.post(self._wake_when, stream, condition, partial(loop.call_soon_threadsafe, woken.set))
            await woken.wait()

    # --- on the loop

    def _wake_when(self, stream: OutgoingStream, condition: Callable[[], bool], release: Callable[[], None]) -> None:
        stream.wake = condition, release
        self._waiting[stream.task.task_id, stream.task.attempt] = stream
        self._on_change(stream)

    def on_cancelled(self, task: ReceivedTask) -> None:
        """A call of an actor: if it is held up, it goes on to its end."""
        stream = self._waiting.get((task.task_id, task.attempt))
        if stream is not None:
            self._on_change(stream)

    def _on_change(self, stream: OutgoingStream) -> None:
        """Let the user's code go on if it may; else see to it that it may in the end. Answers to reports come unasked."""
        if stream.wake is None:
            return
        condition, release = stream.wake
        if condition():
            stream.wake = None
            self._waiting.pop((stream.task.task_id, stream.task.attempt), None)
            if stream.end_loan is not None:
                stream.end_loan()
                stream.end_loan = None
            release()
        elif condition == stream.may_go_on and stream.is_held_up():
            if stream.end_loan is None and stream.task.lender is not None:
                stream.end_loan = self._lend_soon(stream.task.lender)
            if not stream.is_asking:
                self._ask_reader(stream)

    def _ask_reader(self, stream: OutgoingStream) -> None:
        def on_answer(reply: GeneratorItemReply | None, _error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            stream.is_asking = False
            stream.on_answer(reply)
            self._on_change(stream)

        stream.is_asking = True
        task = stream.task
        self._patient.send(task.owner, WaitForReader(task.task_id, task.attempt, stream.enough_read()), on_answer)

    def _on_report(self, stream: OutgoingStream, report: Report) -> None:
        stream.queue.append(report)
        if not stream.is_lending:
            self._send_queued(stream)

    def _send_queued(self, stream: OutgoingStream) -> None:
        """In order: behind an item whose references need tickets from other owners everything waits."""
        while stream.queue:
            report = stream.queue[0]
            refs = report.result.refs if report.result is not None and not stream.is_unwanted else ()
            lent = self._borrowing.lend_now([(ref._id, ref._owner) for ref in refs], stream.task.owner) if refs else []
            if lent is None:
                stream.is_lending = True
                name = f"lend_item({short(stream.task.task_id)}, {report.number})"
                lending = asyncio.get_running_loop().create_task(self._lend_and_send(stream), name=name)
                self._lending.add(lending)
                lending.add_done_callback(self._lending.discard)
                return
            self._send_first(stream, lent)

    async def _lend_and_send(self, stream: OutgoingStream) -> None:
        result = stream.queue[0].result
        assert result is not None
        lent = await self._borrowing.lend([(ref._id, ref._owner) for ref in result.refs], stream.task.owner)
        stream.is_lending = False
        self._send_first(stream, lent)
        self._send_queued(stream)

    def _send_first(self, stream: OutgoingStream, lent: list[RefInfo]) -> None:
        report = stream.queue.popleft()

        def on_answer(reply: GeneratorItemReply | None, _error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            stream.answered += 1
            stream.on_answer(reply)
            self._on_change(stream)

        if stream.is_unwanted and not lent:
            stream.discard(report)
            on_answer(None, None, ())
            return
        task = stream.task
        beside: list[Any] = []
        value = None if report.result is None else to_value(report.result.stored, lent, beside)
        message = ReportGeneratorItem(task.task_id, task.attempt, report.number, value)
        self._patient.send(task.owner, message, on_answer, beside)


def _close(iterator: Iterator[Any]) -> None:
    """What the user's code cleans up is cleaned up before the call has ended."""
    if (close := getattr(iterator, "close", None)) is not None:
        close()


def as_iterator(result: Any, name: str) -> Iterator[Any]:
    """What a call with ``num_returns="streaming"`` has returned. Raises ValueError if it is something else."""
    if not isinstance(result, Iterator):
        raise ValueError(
            f'task {name} has num_returns="streaming", but returned one object of type {type(result).__name__};'
            " it must be a generator function, or return an iterator"
        )
    return result


async def as_async_iterator(result: Any, name: str) -> AsyncIterator[Any]:
    """The same on an event loop, where a plain iterator will do, too; it gives way to others after each item."""
    if isinstance(result, AsyncIterator):
        async for value in result:
            yield value
    else:
        for value in as_iterator(result, name):
            yield value
            await asyncio.sleep(0)
