"""One generator that runs in this process: what it has yielded, what has been reported of that, and what came back.

Ray: GeneratorBackpressureWaiter in src/ray/core_worker/generator_waiter.h, and the counters around it

The thread that runs the user's code counts what it has yielded and hands reports over to the loop, the loop counts answers.
Whether the next item may be asked for follows from these numbers. An interrupt is not raised in this file (see
``platform.main_thread``): whatever was put into the object store is reported, and whatever is counted as reported is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, NamedTuple

from minray.common.config import GENERATOR_REPORTS_IN_FLIGHT
from minray.common.ids import item_id
from minray.core_worker.fetching.results import ResultKeeper
from minray.core_worker.records.received_task import Result
from minray.protocol.base import Address
from minray.protocol.core_worker import GeneratorItemReply
from minray.values.serialization import Serialized

if TYPE_CHECKING:
    from minray.core_worker.records.received_task import ReceivedTask

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""


class StreamingTask(NamedTuple):
    """Whose items they are, and what the owner wants of them."""

    task_id: bytes
    attempt: int
    owner: Address
    items_arrived: int
    """So many items the owner has had already."""
    most_unread: int
    """Back-pressure; 0: none."""
    items_lost: Set[int] = frozenset()
    """Those of them that are lost, and have to come again."""
    lender: ReceivedTask | None = None
    """The task, which lends its CPUs while it is held up; None: an actor's call, which does not."""
    call: ReceivedTask | None = None
    """The call, which ends before its next item when it is cancelled; None: a task, which is interrupted."""


class Report(NamedTuple):
    """One message to the owner."""

    number: int
    result: Result | None
    """None: there is no item of this number."""


class OutgoingStream:
    """Each field has one writer."""

    def __init__(
        self, task: StreamingTask, results: ResultKeeper, on_report: Callable[[OutgoingStream, Report], None]
    ) -> None:
        self.task = task
        self._results = results
        self._on_report = on_report
        """Takes a report to the loop."""
        self.yielded = 0
        """Items that the iterator has yielded; the user thread counts."""
        self.reported = 0
        """Reports that were made of them, that of the end included; the user thread counts."""
        self.answered = 0
        """Reports that are over, one way or the other; the loop counts."""
        self.read = 0
        """Items that the reader has, as far as is known here; the loop learns it from the owner."""
        self.is_unwanted = False
        """Once True, nothing more is reported; the loop learns it."""
        self.queue: deque[Report] = deque()
        """Reports that have not left; the loop's."""
        self.is_lending = False
        """The first of them waits for tickets; the loop's."""
        self.is_asking = False
        """The owner was asked to say when enough is read; the loop's."""
        self.wake: tuple[Callable[[], bool], Callable[[], None]] | None = None
        """What the user's code waits for, and how to let it go; the loop's."""
        self.end_loan: Callable[[], None] | None = None
        """How to take back the CPUs that are lent while it is held up; the loop's."""

    # --- in the thread that runs the user's code

    def is_next_wanted(self) -> bool:
        """The iterator has yielded: whether its item must be reported."""
        self.yielded += 1
        is_missing = self.yielded > self.task.items_arrived or self.yielded in self.task.items_lost
        return is_missing and not self.is_unwanted

    def report(self, value: Serialized) -> None:
        """Keep the item that was yielded last, and report it."""
        task = self.task
        object_id = item_id(task.task_id, self.yielded)
        self._report(Report(self.yielded, self._results.keep(object_id, task.attempt, value, task.owner)))

    def report_end(self) -> None:
        """The iterator yields no more."""
        self._report(Report(self.yielded + 1, None))

    def _report(self, report: Report) -> None:
        self.reported += 1
        self._on_report(self, report)

    # --- conditions, in any thread

    def is_cancelled(self) -> bool:
        return self.task.call is not None and self.task.call.cancelled

    def may_go_on(self) -> bool:
        """Whether the iterator may be asked for another item, or left."""
        if self.is_unwanted or self.is_cancelled():
            return True
        return self.reported - self.answered < GENERATOR_REPORTS_IN_FLIGHT and not self.is_held_up()

    def is_held_up(self) -> bool:
        """By back-pressure."""
        return 0 < self.task.most_unread <= self.yielded - self.read

    def is_settled(self) -> bool:
        return self.answered == self.reported

    # --- on the loop

    def on_answer(self, reply: GeneratorItemReply | None) -> None:
        """The owner has said something; nothing, if it never will."""
        if reply is None or reply.is_unwanted:
            self.is_unwanted = True
        else:
            self.read = max(self.read, reply.read)

    def enough_read(self) -> int:
        """How many items must be read before a stream that is held up may go on."""
        return self.yielded - self.task.most_unread + 1

    def discard(self, report: Report) -> None:
        """It is not wanted any more."""
        if report.result is not None and report.result.stored.place is not None:
            self._results.discard([item_id(self.task.task_id, report.number)], self.task.attempt)
