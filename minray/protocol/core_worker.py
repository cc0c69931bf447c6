"""Messages that a core worker understands; every driver and every worker has one.

Ray: src/ray/protobuf/core_worker.proto

``PushTask`` carries exactly one task (the transport coalesces many into a frame). References that travel inside values
are ``RefInfo`` records. Before a process sends a reference, the owner notes a ticket: it registers the receiver as a
borrower. The receiver gives the ticket back when it drops the reference; so an object in flight is never freed.
"""

from __future__ import annotations

from minray.common.task_spec import TaskTemplate
from minray.protocol.base import Address, Count, Done, Finite, Record, Request
from minray.protocol.object_store import MOST_ENTRIES, Place

OK, FAILED, CANCELLED, NOT_STARTED, ENVIRONMENT_FAILED, ARGUMENT_FAILED = range(6)
"""Outcomes of a pushed task. FAILED: user code raised. ENVIRONMENT_FAILED, ARGUMENT_FAILED: it did not run."""


class RefInfo(Record, frozen=True):
    """A reference inside a value that travels."""

    object_id: bytes
    owner: Address
    ticket: bytes
    """Ticket that the owner has noted for the receiver; empty when the sender keeps the reference alive meanwhile."""


class Value(Record, frozen=True):
    """A serialised value; large buffers travel out of band, beside the record."""

    data: bytes
    """The pickle stream; empty when it is large and travels as the first out-of-band buffer."""
    is_error: bool = False
    """Whether ``data`` is a packed exception instead."""
    inline_buffers: tuple[bytes, ...] = ()
    """Pickle-5 buffers of a small value."""
    buffer_count: int = 0
    """Number of the message's out-of-band buffers that belong to this value, in order."""
    nested: tuple[RefInfo, ...] = ()
    """References inside the value, in the order in which the pickle stream numbers them."""
    place: Place | None = None
    """Place in the object store of a large value; then ``data`` is empty."""


class Argument(Record, frozen=True):
    """A top-level argument that was a reference: its value if small, else its place, or the owner to ask (G11)."""

    value: Value | None
    object_id: bytes
    owner: Address
    place: Place | None = None
    """Place in the object store as the caller knows it, if the value has no references inside; it may be out of date."""


class PushTaskReply(Record, frozen=True):
    status: int
    values: tuple[Value, ...]
    """One value per return value. If the task failed: the items a generator has yielded, and an error for all others."""
    duration_us: int
    retryable: bool = False
    """FAILED: whether ``retry_exceptions`` covers the exception."""
    worker_exiting: bool = False
    """Whether this was the worker's last task (``max_calls``)."""
    missing: tuple[bytes, ...] = ()
    """NOT_STARTED: arguments that are lost and being reconstructed."""


class TaskHeader(Record, frozen=True):
    """The part that many pushed tasks share; encoded once by the submitter, decoded once by the worker."""

    template: TaskTemplate
    owner: Address
    """Submitter of the task, which owns the results."""


class Rerun(Record, frozen=True):
    """Results that a task need not make again when it does not run for the first time."""

    unwanted: list[int]
    """Numbers (from 1) of results that need not be made: they exist already, or nobody needs them."""
    items_arrived: int
    """Streaming: number of items that the owner has from an earlier attempt; they are not reported again."""
    items_lost: list[int]
    """Streaming: numbers of the items among these that are lost and must be reported again."""


FIRST_RUN = Rerun([], 0, [])
"""Rerun record that makes every result, as in a first run."""


class PushTask(Request[PushTaskReply], frozen=True):
    """Runs one task. A repetition (same task, same attempt) gets the same reply; the task runs once."""

    task_id: bytes
    attempt: int
    lease_id: bytes
    sequence: int
    """Position within the lease, from 1; tasks run in this order."""
    acknowledged: int
    """Position up to which the owner has all replies of the lease, so that the worker may forget them."""
    header: bytes
    """Encoded TaskHeader."""
    depth: int
    """Nesting depth of the task: 0 when a driver submits it."""
    args: bytes
    """Pickled ``(args, kwargs)`` with numbers in place of references; empty: no arguments."""
    arguments: tuple[Argument, ...] = ()
    nested: tuple[RefInfo, ...] = ()
    inline_buffers: tuple[bytes, ...] = ()
    gpu_ids: tuple[int, ...] = ()
    actor_id: bytes = b""
    """Actor of which the task is the constructor; the worker becomes that actor's process. Empty: an ordinary task."""
    rerun: Rerun | None = None
    """Results that need not be made; None: all are to be made."""


class GeneratorItemReply(Record, frozen=True):
    read: int
    """Number of items that the reader has taken so far."""
    is_unwanted: bool
    """Whether nobody reads any more, or another attempt runs; then the executor need not report or wait."""


class ReportGeneratorItem(Request[GeneratorItemReply], frozen=True):
    """From an executor to the owner: reports an item of a streaming generator. A repetition changes nothing."""

    task_id: bytes
    attempt: int
    number: int
    """Number of the item, from 1."""
    value: Value | None
    """The item; None: the iterator has ended, so there is no item with this number."""


class WaitForReader(Request[GeneratorItemReply], frozen=True):
    """From an executor that back-pressure holds up: answered when ``count`` items were read, or nobody reads any more."""

    task_id: bytes
    attempt: int
    count: int


class CancelTaskReply(Record, frozen=True):
    found: bool
    """Whether the task is here; False: not yet, or no longer."""
    was_running: bool


class CancelTask(Request[CancelTaskReply], frozen=True):
    """From the owner to the worker: removes a pushed task, or interrupts it if it runs."""

    task_id: bytes
    attempt: int
    force: bool
    """Whether a worker that runs the task ends itself; it cancels the task's children first."""
    recursive: bool


class ReclaimTasks(Request[Done], frozen=True):
    """From the owner: takes back the tasks of a lease that have not begun (replies NOT_STARTED); another worker is idle."""

    lease_id: bytes


class CancelObject(Request[Done], frozen=True):
    """From a borrower to the owner: cancels the task that makes an object (G47)."""

    object_id: bytes
    force: bool
    recursive: bool


PENDING, READY, LARGE, FREED = range(4)


class ObjectReply(Record, frozen=True):
    status: int
    value: Value | None = None
    """READY: the value. LARGE means that the value exists, but is larger than ``inline_limit``."""
    place: Place | None = None
    """LARGE: place of the primary copy, if it is in the object store."""


class GetObject(Request[ObjectReply], frozen=True):
    """To the owner: asks for an object; answered when it exists, or after ``timeout_s`` with PENDING (ask again)."""

    object_id: bytes
    requester: Address
    inline_limit: int
    """Largest size, in bytes, at which the value itself is sent; -1: any size."""
    timeout_s: Finite
    question: bytes
    """Id of this question. Its repetitions get the same tickets, so that a lost answer leaves no ticket behind."""


class ObjectQuestion(Record, frozen=True):
    """One question of ``GetObjects``; the fields are those of ``GetObject``."""

    object_id: bytes
    inline_limit: int
    question: bytes


class ObjectReplies(Record, frozen=True):
    replies: list[ObjectReply]
    """One reply for each question, in order; their large buffers travel beside the record, too."""


class GetObjects(Request[ObjectReplies], frozen=True):
    """Asks one owner for many objects; answered at once, with PENDING for objects that do not exist yet."""

    requester: Address
    questions: list[ObjectQuestion]


class Loan(Record, frozen=True):
    """One ticket of one object."""

    object_id: bytes
    ticket: bytes


class AddBorrowerReply(Record, frozen=True):
    missing: list[Loan]
    """Tickets that were not noted: their objects are freed, or the borrower or the lender counts as dead."""


class AddBorrower(Request[AddBorrowerReply], frozen=True):
    """To the owner: notes tickets that keep objects alive for ``borrower``, before ``lender`` sends it the references."""

    borrower: Address
    lender: Address
    loans: list[Loan]


class RemoveBorrower(Request[Done], frozen=True):
    """To the owner: gives tickets back. It may arrive before a late repetition of their AddBorrower."""

    borrower_id: bytes
    loans: list[Loan]


class CheckTicketsReply(Record, frozen=True):
    missing: list[Loan]
    """Tickets that the borrower does not hold, and never will."""


class CheckTickets(Request[CheckTicketsReply], frozen=True):
    """From the owner to a borrower: asks which of these tickets have not arrived, because their lender is dead."""

    lender_id: bytes
    loans: list[Loan]


KNOWN, UNKNOWN, LOST, NOT_MADE, INLINED = range(5)


class ObjectLocations(Record, frozen=True):
    status: int
    """State of the object's copies.

    UNKNOWN: the owner has freed it. LOST: there is an error instead of a copy. NOT_MADE: its task is running, perhaps to
    reconstruct it. INLINED: it is small, and with its owner."""
    attempt: int = 0
    size: int = 0
    """KNOWN, INLINED: size of the value in bytes."""
    raylets: list[Address] = []
    """KNOWN: nodes that have a copy, the primary copy's node first."""
    receivers: list[Address] = []
    """KNOWN: nodes that are receiving the object and asked before this one, in the order of their questions."""
    turn: int = 0
    """KNOWN: turn of the asking raylet among all receivers; greater than the turns of ``receivers``."""


class GetObjectLocations(Request[ObjectLocations], frozen=True):
    """To the owner: asks where copies of an object are. Senders are raylets that pull it, and tools that inspect it."""

    object_id: bytes
    receiver: Address | None = None
    """Asking raylet, which counts as a receiver from now on; None: the question is for information only."""
    number: int = 0
    """Number of the question among this raylet's, so that a late repetition of an old one changes nothing."""


class LocationChange(Record, frozen=True):
    """Says that a node has got, or has evicted, a copy."""

    object_id: bytes
    attempt: int
    is_here: bool
    number: int = 0
    """Number up to which the raylet's GetObjectLocations are over; 0: this change says nothing about them."""


class UpdateObjectLocations(Request[Done], frozen=True):
    """From a raylet to the owner: reports new and evicted copies. The owner frees a copy that it does not need."""

    raylet: Address
    number: int
    """Number of this update among the raylet's; a repetition that arrives after a later update is ignored."""
    changes: list[LocationChange]


class DeleteObjects(Request[Done], frozen=True):
    """To the owner: deletes values at the user's request, even if references to them exist."""

    object_ids: list[bytes]


NIL = "NIL"
"""The status of the task of an object that no task of the asked process makes."""
UNKNOWN_SIZE = -1
"""The size of a value that the asked process does not have."""


class ObjectRefInfo(Record, frozen=True):
    """One process's knowledge of one object, for the state API."""

    object_id: bytes
    owner_id: bytes
    """Worker id of the owner."""
    local: int
    submitted: int
    contained: int
    borrowers: int
    """Owner only: number of processes that have tickets."""
    is_pickled: bool
    """Whether the user pickled the reference; the object is then kept as long as this process lives."""
    size: int
    """Size of the value in bytes; -1 if it is not known here."""
    task_status: str
    """Owner only: state of the task that makes the object; NIL elsewhere, and for an object that was put."""
    attempt: int
    call_site: str
    """Line of the user's code that made the reference."""


class CoreWorkerStats(Record, frozen=True):
    """The references of one driver or worker."""

    worker_id: bytes
    node_id: bytes
    pid: int
    is_driver: bool
    total: int
    """Number of references; ``references`` has the largest ones."""
    references: list[ObjectRefInfo]


class GetCoreWorkerStats(Request[CoreWorkerStats], frozen=True):
    """Asks a driver or worker for its references: all of them, or those to ``object_ids``."""

    limit: Count = MOST_ENTRIES
    object_ids: list[bytes] | None = None


class Explanation(Record, frozen=True):
    lines: list[str]


class Explain(Request[Explanation], frozen=True):
    """To the owner: asks why an object is not ready."""

    object_id: bytes
    depth: int
    """Number of hops that this chain of explanations has taken already."""


class ExplainRun(Request[Explanation], frozen=True):
    """To the worker that runs a task: asks what the task waits for. No lines: nothing that the worker knows of."""

    task_id: bytes
    depth: int


class RevokeLeases(Request[Done], frozen=True):
    """From a raylet where requests wait: asks an owner to return its idle leases."""

    node_id: bytes


class LocalGC(Request[Done], frozen=True):
    """From the raylet: asks a process to collect garbage soon: leases or objects wait, perhaps for what it keeps."""


class RayletEnds(Request[Done], frozen=True):
    """To the drivers of a node, from its raylet: why it ends. From the gcs: why it has declared the node dead."""

    reason: str
    is_decided: bool = False
    """Whether the gcs says so: the driver does not wait until its raylet, which may hang, has ended."""


class LeaveNode(Request[Done], frozen=True):
    """From a raylet whose node is preempted: tells an owner to push nothing more to the workers that it leased there.

    Tasks that are lost with the node use up no retries (G21). A node that leaves because it is idle has no leases.
    """

    node_id: bytes


class ExitWorkerReply(Record, frozen=True):
    agreed: bool
    """Whether the worker ends; False: it owns objects or has work, and stays (G64)."""


class ExitWorker(Request[ExitWorkerReply], frozen=True):
    """From the raylet: asks an idle worker to end."""

    force: bool


TASK_NAME_MARK = "\x1e"
"""Mark that begins a line of a worker's output which names the task that prints from there on; no name: no task."""


class PrintLines(Request[Done], frozen=True):
    """From a raylet to a driver: passes on output of one of its workers, in order."""

    node_id: bytes
    node_ip: str
    pid: int
    is_stderr: bool
    lines: list[tuple[str, str, str]]
    """Task name (may be empty), text, and the task's id in hexadecimal (empty: not known, or no task)."""
    sequence: int
    """Number that increases with every message of a node; repetitions are dropped."""
