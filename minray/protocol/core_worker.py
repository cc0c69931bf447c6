"""What a core worker understands: every driver and every worker has one.

Ray: src/ray/protobuf/core_worker.proto

``PushTask`` carries exactly one task (the transport coalesces many into a frame). References that travel inside values
are ``RefInfo`` records: whoever lets a reference leave his process first has the owner write down a ticket for the
receiver, and the receiver gives the ticket back when it drops the reference; so an object in flight is never freed.
"""

from __future__ import annotations

from minray.common.task_spec import TaskTemplate
from minray.protocol.base import Address, Done, Record, Request
from minray.protocol.object_store import MOST_ENTRIES, Place

OK, FAILED, CANCELLED, NOT_STARTED, ENVIRONMENT_FAILED, ARGUMENT_FAILED = range(6)
"""How a pushed task ended: FAILED means that user code raised; with the last two, it did not run."""


class RefInfo(Record, frozen=True):
    """A reference inside a value on its way."""

    object_id: bytes
    owner: Address
    ticket: bytes
    """Written down by the owner for the receiver; empty when the sender keeps the reference alive meanwhile."""


class Value(Record, frozen=True):
    """A serialised value; large buffers travel out of band, beside the record."""

    data: bytes
    """The pickle stream; empty when it is so long that it travels as the first out-of-band buffer."""
    is_error: bool = False
    """``data`` is a packed exception instead."""
    inline_buffers: tuple[bytes, ...] = ()
    """Pickle-5 buffers of a small value."""
    buffer_count: int = 0
    """How many of the message's out-of-band buffers belong to this value, in order."""
    nested: tuple[RefInfo, ...] = ()
    """The references inside, in the order in which the pickle stream names them by number."""
    place: Place | None = None
    """Of a large value: it is in the object store, and ``data`` is empty."""


class Argument(Record, frozen=True):
    """A top-level argument that was a reference: its value if small, else where to get it (G11)."""

    value: Value | None
    object_id: bytes
    owner: Address


class PushTaskReply(Record, frozen=True):
    status: int
    values: tuple[Value, ...]
    """One per return value. If not OK: what a generator has yielded for some of them, and an error for all others."""
    duration_us: int
    retryable: bool = False
    """FAILED with an exception that ``retry_exceptions`` covers."""
    worker_exiting: bool = False
    """This was its last task (``max_calls``)."""
    missing: tuple[bytes, ...] = ()
    """NOT_STARTED because of these arguments, which are lost and being made again."""


class TaskHeader(Record, frozen=True):
    """What many pushed tasks share; encoded once by the submitter, decoded once by the worker."""

    template: TaskTemplate
    owner: Address
    """The submitter: it owns the results."""


class Rerun(Record, frozen=True):
    """What need not be made once more by a task that does not run for the first time."""

    unwanted: list[int]
    """Results (from 1) that are not to be made: they exist already, or nobody needs them."""
    items_arrived: int
    """Streaming: so many items the owner has had from an earlier attempt; they need not come again,"""
    items_lost: list[int]
    """but for these, which are lost."""


FIRST_RUN = Rerun([], 0, [])
"""Everything is to be made."""


class PushTask(Request[PushTaskReply], frozen=True):
    """Run one task. Repeating it (same task, same attempt) runs it once and answers twice."""

    task_id: bytes
    attempt: int
    lease_id: bytes
    sequence: int
    """Position within the lease, from 1; tasks run in this order."""
    acknowledged: int
    """All replies of the lease up to this position have arrived: the worker may forget them."""
    header: bytes
    """An encoded TaskHeader."""
    depth: int
    """How deeply nested the task is: 0 when a driver submits it."""
    args: bytes
    """Pickled ``(args, kwargs)`` with numbers in place of references; empty: no arguments."""
    arguments: tuple[Argument, ...] = ()
    nested: tuple[RefInfo, ...] = ()
    inline_buffers: tuple[bytes, ...] = ()
    gpu_ids: tuple[int, ...] = ()
    actor_id: bytes = b""
    """The task is the constructor of this actor, and the worker its home from now on."""
    rerun: Rerun | None = None
    """None: everything is to be made."""


class GeneratorItemReply(Record, frozen=True):
    read: int
    """How many items the reader has taken by now."""
    is_unwanted: bool
    """Nobody will read any more, or another attempt runs: nothing needs to be reported or waited for."""


class ReportGeneratorItem(Request[GeneratorItemReply], frozen=True):
    """From an executor to the owner: a streaming generator has yielded. The same item, attempt and number change nothing."""

    task_id: bytes
    attempt: int
    number: int
    """From 1."""
    value: Value | None
    """None: there is no such item, the iterator has come to its end."""


class WaitForReader(Request[GeneratorItemReply], frozen=True):
    """From an executor that is held up by back-pressure: answers when so many items were read, or nobody will read."""

    task_id: bytes
    attempt: int
    count: int


class CancelTaskReply(Record, frozen=True):
    found: bool
    """False: the task is not here (any more, or not yet)."""
    was_running: bool


class CancelTask(Request[CancelTaskReply], frozen=True):
    """From the owner to the worker that it pushed to: remove the task, or interrupt it if it runs."""

    task_id: bytes
    attempt: int
    force: bool
    """True: a worker that runs it ends itself (its children are cancelled before)."""
    recursive: bool


class ReclaimTasks(Request[Done], frozen=True):
    """From the owner: answer all tasks of this lease that have not begun with NOT_STARTED (another worker is idle)."""

    lease_id: bytes


class CancelObject(Request[Done], frozen=True):
    """From a borrower to the owner: cancel the task that makes this object (G47)."""

    object_id: bytes
    force: bool
    recursive: bool


PENDING, READY, LARGE, FREED = range(4)


class ObjectReply(Record, frozen=True):
    status: int
    value: Value | None = None
    """READY: the value. LARGE: it exists, but is larger than ``inline_limit``."""
    place: Place | None = None
    """LARGE: where its first copy is, if that is in the object store."""


class GetObject(Request[ObjectReply], frozen=True):
    """To the owner: answers when the object is there, or after ``timeout_s`` with PENDING (ask again)."""

    object_id: bytes
    requester: Address
    inline_limit: int
    """Send the value only up to this size; -1: any size."""
    timeout_s: float
    question: bytes
    """Names this question: its repetitions are answered with the same tickets, so that a lost answer leaves none behind."""


class ObjectQuestion(Record, frozen=True):
    """See ``GetObject``."""

    object_id: bytes
    inline_limit: int
    question: bytes


class ObjectReplies(Record, frozen=True):
    replies: list[ObjectReply]
    """One for each question, in order; their large buffers beside the record, too."""


class GetObjects(Request[ObjectReplies], frozen=True):
    """Many questions to one owner, who answers at once: for what is not there yet with PENDING."""

    requester: Address
    questions: list[ObjectQuestion]


class Loan(Record, frozen=True):
    """One ticket of one object."""

    object_id: bytes
    ticket: bytes


class AddBorrowerReply(Record, frozen=True):
    missing: list[Loan]
    """Those that were not noted: their objects are freed, or one of the two processes counts as dead."""


class AddBorrower(Request[AddBorrowerReply], frozen=True):
    """To the owner: these tickets keep their objects alive for ``borrower``, to whom ``lender`` is about to pass them on."""

    borrower: Address
    lender: Address
    loans: list[Loan]


class RemoveBorrower(Request[Done], frozen=True):
    """To the owner: these tickets are spent. May come before a late repetition of their AddBorrower."""

    borrower_id: bytes
    loans: list[Loan]


class CheckTicketsReply(Record, frozen=True):
    missing: list[Loan]
    """Those that the borrower does not hold, and never will."""


class CheckTickets(Request[CheckTicketsReply], frozen=True):
    """From the owner to a borrower: the lender of these tickets is dead; which of them have not arrived?"""

    lender_id: bytes
    loans: list[Loan]


KNOWN, UNKNOWN, LOST, NOT_MADE, INLINED = range(5)


class ObjectLocations(Record, frozen=True):
    status: int
    """UNKNOWN: the owner has freed it. LOST: there is no copy any more, but an error. NOT_MADE: its task has not ended,
    perhaps not for the first time. INLINED: it is small, and with its owner."""
    attempt: int = 0
    size: int = 0
    """KNOWN, INLINED: of the value, in bytes."""
    raylets: list[Address] = []
    """KNOWN: which nodes have it, the first copy's first."""
    receivers: list[Address] = []
    """KNOWN: which nodes are receiving it, and asked before the one that asks now; the first one's first."""
    turn: int = 0
    """KNOWN: of the one that asks, among all that receive it; greater than theirs."""


class GetObjectLocations(Request[ObjectLocations], frozen=True):
    """To the owner: where is this object? Asked by raylets where somebody wants to read it, and by the curious."""

    object_id: bytes
    receiver: Address | None = None
    """The raylet: from now on it counts among those that are receiving it. None: nobody is."""
    number: int = 0
    """Counts the questions of this raylet, so that one that is over changes nothing when it comes again."""


class LocationChange(Record, frozen=True):
    """A node has got, or has evicted, a copy."""

    object_id: bytes
    attempt: int
    is_here: bool
    number: int = 0
    """The raylet's GetObjectLocations up to this number are over; 0: it says nothing of those."""


class UpdateObjectLocations(Request[Done], frozen=True):
    """From a raylet to the owner. An owner who does not need such a copy answers by freeing it."""

    raylet: Address
    number: int
    """Among all of the raylet; what arrives once more after a later one is of no account."""
    changes: list[LocationChange]


class DeleteObjects(Request[Done], frozen=True):
    """To the owner: the user says that these values are not needed any more, whoever still refers to them."""

    object_ids: list[bytes]


class ObjectRefInfo(Record, frozen=True):
    """What one process knows of one object, for people."""

    object_id: bytes
    owner_id: bytes
    """The owner's worker id."""
    local: int
    submitted: int
    contained: int
    borrowers: int
    """Owner only: how many processes have tickets."""
    is_pickled: bool
    """It was pickled by the user, and is kept as long as this process lives."""
    size: int
    """Of the value; -1 if it is not known here."""
    task_status: str
    """Owner only: of the task that makes it. Else, and for what was put, NIL."""
    attempt: int
    call_site: str
    """Where in the user's code it came to be."""


class CoreWorkerStats(Record, frozen=True):
    """What one driver or worker refers to."""

    worker_id: bytes
    node_id: bytes
    pid: int
    is_driver: bool
    total: int
    """How many references there are; ``references`` has the largest ones."""
    references: list[ObjectRefInfo]


class GetCoreWorkerStats(Request[CoreWorkerStats], frozen=True):
    """What do you refer to, of everything, or of these objects?"""

    limit: int = MOST_ENTRIES
    object_ids: list[bytes] | None = None


class Explanation(Record, frozen=True):
    lines: list[str]


class Explain(Request[Explanation], frozen=True):
    """To the owner: why is this object not ready?"""

    object_id: bytes
    depth: int
    """How many hops of the chain were already taken."""


class ExplainRun(Request[Explanation], frozen=True):
    """To the worker that runs a task: what does the task wait for? No lines: for nothing that the worker knows of."""

    task_id: bytes
    depth: int


class RevokeLeases(Request[Done], frozen=True):
    """From a raylet where others wait: give back leases that linger idle."""

    node_id: bytes


class LocalGC(Request[Done], frozen=True):
    """From its raylet: collect garbage soon. Others wait, perhaps for what that keeps."""


class RayletEnds(Request[Done], frozen=True):
    """To a driver from its raylet, which ends, and with it the driver's cluster: why."""

    reason: str


class LeaveNode(Request[Done], frozen=True):
    """From a raylet whose node is preempted: push nothing more to workers that you have leased there.

    What is lost with the node costs no retries (G21). One that leaves because it is idle has leased nothing.
    """

    node_id: bytes


class ExitWorkerReply(Record, frozen=True):
    agreed: bool
    """False: it owns objects or has work, and stays (G64)."""


class ExitWorker(Request[ExitWorkerReply], frozen=True):
    """From its raylet: you are idle, please end."""

    force: bool


TASK_NAME_MARK = "\x1e"
"""Begins a line of a worker's output that names who speaks from there on; nobody, if the name is empty."""


class PrintLines(Request[Done], frozen=True):
    """From a raylet to a driver: output of one of its workers, in order."""

    node_id: bytes
    node_ip: str
    pid: int
    is_stderr: bool
    lines: list[tuple[str, str]]
    """Task name (may be empty) and text."""
    sequence: int
    """Increases with every message of a node; repetitions are dropped."""
