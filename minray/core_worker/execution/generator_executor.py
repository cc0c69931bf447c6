"""Runs streaming generators: drives the iterator and reports each item to the owner as it is yielded (executor's side).

Ray: execute_streaming_generator_sync and _async in python/ray/_raylet.pyx, CoreWorker::ReportGeneratorItemReturns

``run`` and ``run_async`` belong to the thread that runs the user's code; the rest runs on the core worker's loop. Items
leave in order, each in a message of its own. The iterator does not wait for the owner's answer (G91), with three exceptions:

  * At most ``generator_max_reports_in_flight`` reports are unanswered: a slow owner slows its generator down.
  * With back-pressure n, the next item is not asked for while n items are unread. Each answer of the owner says how many
    items were read. A generator that is held up asks the owner to answer when enough items were read (``WaitForReader``).
    A task lends its CPUs meanwhile, since the reader may need them to process an item. Ray lends nothing and withholds the
    answer to the report instead; then a task could not end before its last items were read.
  * The task ends when the owner has answered every report, so that the task's own answer never overtakes an item. The last
    report tells the owner how many items there were.

If the reader is gone, or a later attempt has replaced this one, the iterator runs on and its items are not even pickled
(G97). Items that the owner has from an earlier attempt are not reported again, unless they have been lost since. A
cancelled actor call is not interrupted: its iterator is closed after its next yield (G48).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from minray.common.ids import short
from minray.common.task_set import TaskSet
from minray.core_worker.execution.outgoing_stream import OutgoingStream, Report
from minray.core_worker.fetching.results import ResultKeeper
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.user_calls import call_for
from minray.core_worker.records.values import to_value
from minray.platform.base import PlatformError
from minray.protocol.core_worker import GeneratorItemReply, RefInfo, ReportGeneratorItem, WaitForReader
from minray.values import serialization


class GeneratorExecutor:
    """Runs the generators of one process and sends their reports to the owners."""

    def __init__(
        self,
        process: Process,
        borrowing: Borrowing,
        results: ResultKeeper,
        lend_soon: Callable[[ReceivedTask], Callable[[], None]],
    ) -> None:
        """Make the executor of one process; ``lend_soon`` is described at ``WaitingThreads``."""
        self._max_in_flight = process.config.system_config.generator_max_reports_in_flight
        self._user_code = process.platform.user_code
        self._patient = process.patient
        self._borrowing = borrowing
        self._results = results
        self._lend_soon = lend_soon
        self._lending = TaskSet()
        self._waiting: dict[tuple[bytes, int], OutgoingStream] = {}
        """Streams whose user thread or coroutine waits, by task id and attempt."""

    # --- in the thread that runs the user's code

    def run(self, task: ReceivedTask, iterator: Iterator[Any]) -> None:
        """Drive the iterator to its end and report its items; return when the owner has answered all reports.

        An exception of the iterator is raised then, too.
        """
        stream = self._stream(task)
        try:
            for value in iterator:
                if stream.count_item():
                    stream.report(serialization.serialize(value))
                del value
                self._wait(stream, stream.may_go_on)
                if stream.is_cancelled():
                    _close(iterator)
                    raise asyncio.CancelledError
            stream.report_end()
        finally:
            self._wait(stream, stream.is_settled)

    async def run_async(self, task: ReceivedTask, iterator: AsyncIterator[Any]) -> None:
        """Do what ``run`` does with an asynchronous iterator, on the user's own event loop."""
        stream = self._stream(task)
        try:
            async for value in iterator:
                if stream.count_item():
                    stream.report(serialization.serialize(value))
                del value
                await self._wait_async(stream, stream.may_go_on)
            stream.report_end()
        finally:
            await self._wait_async(stream, stream.is_settled)

    def _stream(self, task: ReceivedTask) -> OutgoingStream:
        return OutgoingStream(task, self._results, partial(self._user_code.post, self._on_report), self._max_in_flight)

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
        """Let the generator of a cancelled actor call go on if it is held up, so that it can end."""
        stream = self._waiting.get((task.task_id, task.attempt))
        if stream is not None:
            self._on_change(stream)

    def _on_change(self, stream: OutgoingStream) -> None:
        """Wake the user's code if its condition holds; if back-pressure holds it up, lend its CPUs and ask the reader.

        Nothing else needs a question: answers to reports come unasked.
        """
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
            if stream.end_loan is None and not stream.task.actor_id:  # An actor keeps its resources.
                stream.end_loan = self._lend_soon(stream.task)
            if not stream.is_asking:
                self._ask_reader(stream)

    def _ask_reader(self, stream: OutgoingStream) -> None:
        def on_answer(reply: GeneratorItemReply | None, _error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            stream.is_asking = False
            stream.on_answer(reply)
            self._on_change(stream)

        stream.is_asking = True
        task = stream.task
        self._patient.send(task.header.owner, WaitForReader(task.task_id, task.attempt, stream.enough_read()), on_answer)

    def _on_report(self, stream: OutgoingStream, report: Report) -> None:
        stream.queue.append(report)
        if not stream.is_lending:
            self._send_queued(stream)

    def _send_queued(self, stream: OutgoingStream) -> None:
        """Send the queued reports in order.

        All of them wait behind an item whose references need tickets (the notes that owners keep of borrowers) from others.
        """
        while stream.queue:
            report = stream.queue[0]
            refs = report.result.refs if report.result is not None and not stream.is_unwanted else ()
            owner = stream.task.header.owner
            lent = self._borrowing.lend_now([(ref._id, ref._owner) for ref in refs], owner) if refs else []
            if lent is None:
                stream.is_lending = True
                name = f"lend_item({short(stream.task.task_id)}, {report.number})"
                self._lending.begin(self._lend_and_send(stream), name)
                return
            self._send_first(stream, lent)

    async def _lend_and_send(self, stream: OutgoingStream) -> None:
        result = stream.queue[0].result
        assert result is not None
        lent = await self._borrowing.lend([(ref._id, ref._owner) for ref in result.refs], stream.task.header.owner)
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
            stream.discard(report, partial(on_answer, None, None, ()))
            return
        task = stream.task
        beside: list[Any] = []
        value = None if report.result is None else to_value(report.result.stored, lent, beside)
        message = ReportGeneratorItem(task.task_id, task.attempt, report.number, value)
        self._patient.send(task.header.owner, message, on_answer, beside)


def _close(iterator: Iterator[Any]) -> None:
    """Close a generator, so that its ``finally`` blocks run before the call ends."""
    if (close := getattr(iterator, "close", None)) is not None:
        close()


def as_iterator(result: Any, name: str) -> Iterator[Any]:
    """Return the result of a call with ``num_returns="streaming"``; raise ValueError if it is no iterator."""
    if not isinstance(result, Iterator):
        raise ValueError(
            f'task {name} has num_returns="streaming", but returned one object of type {type(result).__name__};'
            " it must be a generator function, or return an iterator"
        )
    return result


async def as_async_iterator(result: Any, name: str) -> AsyncIterator[Any]:
    """Return the result of such a call on an event loop as an asynchronous iterator.

    A plain iterator gives way to other coroutines after each item. Raises ValueError if the result is no iterator.
    """
    if isinstance(result, AsyncIterator):
        async for value in result:
            yield value
    else:
        for value in as_iterator(result, name):
            yield value
            await asyncio.sleep(0)
