"""State of one generator that runs in this process: items yielded, items reported to the owner, answers received.

Ray: GeneratorBackpressureWaiter in src/ray/core_worker/generator_waiter.h, and the counters around it

The thread that runs the user's code counts items and hands reports over to the core worker's loop; the loop counts answers.
These numbers decide whether the iterator may be asked for its next item. No interrupt is raised in this file (see
``platform.threads.main_thread``). Hence every item put into the object store is reported, and the counts match the reports.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from minray.common.ids import item_id
from minray.core_worker.fetching.results import ResultKeeper
from minray.core_worker.records.received_task import ReceivedTask, Result
from minray.protocol.core_worker import GeneratorItemReply
from minray.values.serialization import Serialized

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""


class Report(NamedTuple):
    """One message to the owner: an item, or the end of the stream."""

    number: int
    result: Result | None
    """The item; None: the stream has ended before this number."""


class OutgoingStream:
    """Counts the items, reports and answers of one generator. Each field is written by one thread only."""

    def __init__(
        self,
        task: ReceivedTask,
        results: ResultKeeper,
        on_report: Callable[[OutgoingStream, Report], None],
        max_in_flight: int,
    ) -> None:
        self.task = task
        self._most_unread = task.header.template.most_unread
        """Back-pressure: number of unread items at which the generator is held up; 0: no limit."""
        self._items_lost = frozenset(task.rerun.items_lost)
        """Numbers of items of earlier attempts that are lost and must be reported again."""
        self._results = results
        self._on_report = on_report
        """Function that takes a report to the loop."""
        self._max_in_flight = max_in_flight
        self.yielded = 0
        """Number of items that the iterator has yielded; written by the user thread."""
        self.reported = 0
        """Number of reports made, including that of the end; written by the user thread."""
        self.answered = 0
        """Number of reports that were answered, failed or were discarded; written by the loop."""
        self.read = 0
        """Number of items that the reader has taken, by the owner's latest answer; written by the loop."""
        self.is_unwanted = False
        """Whether the owner wants no more items; written by the loop."""
        self.queue: deque[Report] = deque()
        """Reports that have not been sent; written by the loop."""
        self.is_lending = False
        """Whether the first queued report waits for tickets (notes of borrowers) from other owners; written by the loop."""
        self.is_asking = False
        """Whether the owner was asked to answer when enough items are read; written by the loop."""
        self.wake: tuple[Callable[[], bool], Callable[[], None]] | None = None
        """The condition that the user's code waits for, and the function that wakes it; written by the loop."""
        self.end_loan: Callable[[], None] | None = None
        """Function that takes back the CPUs lent while the generator is held up; written by the loop."""

    # --- in the thread that runs the user's code

    def count_item(self) -> bool:
        """Count an item that the iterator has yielded, and return whether it must be reported."""
        self.yielded += 1
        is_missing = self.yielded > self.task.rerun.items_arrived or self.yielded in self._items_lost
        return is_missing and not self.is_unwanted

    def report(self, value: Serialized) -> None:
        """Store the item that was yielded last, and report it to the owner."""
        task = self.task
        object_id = item_id(task.task_id, self.yielded)
        self._report(Report(self.yielded, self._results.keep_result(object_id, task.attempt, value, task.header.owner)))

    def report_end(self) -> None:
        """Report to the owner that the iterator has ended."""
        self._report(Report(self.yielded + 1, None))

    def _report(self, report: Report) -> None:
        self.reported += 1
        self._on_report(self, report)

    # --- conditions, in any thread

    def is_cancelled(self) -> bool:
        """Whether this is a cancelled actor call, which ends before its next item. A task is interrupted instead."""
        return self.task.cancelled and bool(self.task.actor_id)

    def may_go_on(self) -> bool:
        """Whether the user's code may continue: ask for the next item, or end a cancelled call."""
        if self.is_unwanted or self.is_cancelled():
            return True
        return self.reported - self.answered < self._max_in_flight and not self.is_held_up()

    def is_held_up(self) -> bool:
        """Whether back-pressure forbids to ask for the next item."""
        return 0 < self._most_unread <= self.yielded - self.read

    def is_settled(self) -> bool:
        return self.answered == self.reported

    # --- on the loop

    def on_answer(self, reply: GeneratorItemReply | None) -> None:
        """Take note of the owner's answer; None means that no answer will come."""
        if reply is None or reply.is_unwanted:
            self.is_unwanted = True
        else:
            self.read = max(self.read, reply.read)

    def enough_read(self) -> int:
        """Return how many items must be read in total before a stream that is held up may go on."""
        return self.yielded - self._most_unread + 1

    def discard(self, report: Report, then: Callable[[], None]) -> None:
        """Delete the item of a report that is not sent because the owner wants no more items, then call ``then``."""
        if report.result is not None and report.result.stored.place is not None:
            self._results.discard_result(item_id(self.task.task_id, report.number), self.task.attempt, then)
        else:
            then()
