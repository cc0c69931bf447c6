"""Who holds which object: distributed reference counting by ownership.

Ray: src/ray/core_worker/reference_counter.h; Wang et al., "Ownership: a distributed futures system for fine-grained
tasks", NSDI 2021, section 4.2

Pure: events in, effects (``Effects``) out. One entry for every object that this process owns or knows.

A process *holds* an object while it has a local ``ObjectRef``, a task of its own that has not finished and takes the
object as an argument (``submitted``), or another held value that contains it (``contained``). The owner frees an object
when it does not hold it itself and no *ticket* is out. A ticket is a name for one passing-on: before a reference leaves
a process for another, the owner notes a ticket for the receiver; the receiver gives all tickets back when it holds the
object no longer. Since a ticket is noted before the reference travels, an object on its way is never freed, whichever
message is late (G58, G65, S7). Tickets have names and spent ones leave a tombstone, so repetitions change nothing (G112).

A ticket also names its *lender*, the process that passes the reference on (the owner or another borrower). When the
borrower dies, the ticket is void. When the lender dies, it is doubtful, for the message may not have left: the owner asks
the borrower, who hears nothing of that lender any more once he has answered.

Arguments of a task need no tickets: the submitter holds them until the task's reply (``submitted``), and the worker asks
for tickets of its own for whatever it still holds then (``keep_after_task``).

An open question to an owner holds its object too (``asked``), even when nobody here wants the value any more: its answer
comes with tickets for what is inside, and if it is lost, only the same question can fetch them, from an object that lives.

A finished task that may have to run again needs its arguments (``lineage``). One that could be made again itself need not
keep its value for that: when nobody holds it, the value is freed, and the entry stays. One that could not (``obstacle``: it
was put, or belongs to somebody else) is held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from minray.common.tombstones import remember
from minray.exceptions import ReconstructionFailure
from minray.protocol.base import Address
from minray.protocol.core_worker import Loan, RefInfo

MAX_HELD_TICKETS = 100
"""A borrower of one object that has more of them gives the older ones back: one is enough."""


class Reference(msgspec.Struct, eq=False, gc=False):
    """What this process knows of one object."""

    owner: Address | None
    """None: this process."""
    local: int = 0
    """ObjectRef instances in this process."""
    submitted: int = 0
    """Unfinished tasks of this process that take it as an argument, and running tasks that were given it."""
    contained: int = 0
    """Held values here that contain it."""
    asked: int = 0
    """Borrower only: open questions to its owner for the value."""
    lent: dict[bytes, tuple[Address, Address]] | None = None
    """Owner only: tickets that are out, each with its borrower and its lender."""
    held_tickets: list[bytes] | None = None
    """Borrower only: tickets to give back."""
    nested: tuple[bytes, ...] = ()
    """Objects inside its value, once the value is here."""
    pinned: bool = False
    """Pickled by the user, out of our sight: never freed while this process lives."""
    lineage: int = 0
    """Finished tasks of this process that would take it as an argument again."""
    obstacle: ReconstructionFailure | None = ReconstructionFailure.PUT
    """Why it could not be made again, if it were lost; None: its task is remembered. Set when that task has ended."""

    def is_held(self) -> bool:
        return self.asked > 0 or self.is_wanted()

    def is_wanted(self) -> bool:
        """Held by more than questions."""
        if self.local or self.submitted or self.contained or self.pinned:
            return True
        return self.lineage > 0 and self.obstacle is not None

    def is_in_scope(self) -> bool:
        """Whether its value is needed, here or elsewhere."""
        return bool(self.local or self.lent or self.asked) or self.is_wanted()


class Effects:
    """What follows from an event; the shell carries it out."""

    __slots__ = ("freed", "give_back", "doubtful")

    def __init__(self) -> None:
        self.freed: list[bytes] = []
        """Forget the values of these; those without an entry are gone for good."""
        self.give_back: list[tuple[bytes, Address, list[bytes]]] = []
        """Tell the owner that these tickets are spent."""
        self.doubtful: dict[tuple[Address, bytes], list[Loan]] = {}
        """Ask these borrowers which of these loans of a dead lender (its worker id) have reached them."""


class ReferenceCounter:
    """The table of one process."""

    def __init__(self) -> None:
        self._references: dict[bytes, Reference] = {}
        self._spent: OrderedDict[bytes, None] = OrderedDict()
        """Tickets that came back: a late AddBorrower with one of these is void."""
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        """Workers and nodes that are known to be dead: nothing is lent to them any more, nor by them."""

    def __len__(self) -> int:
        return len(self._references)

    def get(self, object_id: bytes) -> Reference | None:
        return self._references.get(object_id)

    def is_in_scope(self, object_id: bytes) -> bool:
        """Whether anybody needs the value of this object, as far as this process knows."""
        reference = self._references.get(object_id)
        return reference is not None and reference.is_in_scope()

    def items(self) -> list[tuple[bytes, Reference]]:
        return list(self._references.items())

    def owns_borrowed(self) -> bool:
        """Whether other processes depend on this one's life (G63, G64)."""
        return any(reference.lent for reference in self._references.values())

    # --- holding

    def add_owned(self, object_id: bytes) -> Reference:
        """A new object of this process, with one local reference."""
        reference = self._references[object_id] = Reference(None)
        reference.local = 1
        return reference

    def add_local(self, object_id: bytes, owner: Address | None) -> bool:
        """An ObjectRef was made here; True if the object was unknown until now."""
        reference = self._references.get(object_id)
        if reference is None:
            reference = self._references[object_id] = Reference(owner)
            reference.local = 1
            return True
        reference.local += 1
        return False

    def remove_local(self, object_ids: Iterable[bytes], effects: Effects) -> None:
        for object_id in object_ids:
            reference = self._references[object_id]
            reference.local -= 1
            assert reference.local >= 0, "an ObjectRef was dropped twice"
            if not reference.local:
                self._maybe_free(object_id, reference, effects)

    def add_submitted(self, object_ids: Iterable[bytes], owners: Iterable[Address | None]) -> None:
        """A task that takes these objects was submitted here (or, on a worker, arrived here)."""
        for object_id, owner in zip(object_ids, owners, strict=True):
            reference = self._references.get(object_id)
            if reference is None:
                reference = self._references[object_id] = Reference(owner)
            reference.submitted += 1

    def remove_submitted(self, object_ids: Iterable[bytes], effects: Effects) -> None:
        for object_id in object_ids:
            reference = self._references[object_id]
            reference.submitted -= 1
            assert reference.submitted >= 0, "a task let go of an argument twice"
            self._maybe_free(object_id, reference, effects)

    def on_value(self, object_id: bytes, nested: Iterable[RefInfo], own_id: bytes, effects: Effects) -> bool:
        """The value of an object has arrived with these references inside; False if nobody here wants it any more."""
        reference = self._references.get(object_id)
        is_needed = reference is not None and reference.is_in_scope()
        wanted = is_needed and reference is not None and not reference.nested
        contained: list[bytes] = []
        for info in nested:
            inner = self._references.get(info.object_id)
            if inner is None:
                inner = self._references[info.object_id] = Reference(None if info.owner.worker_id == own_id else info.owner)
            if wanted:
                inner.contained += 1
                contained.append(info.object_id)
            self._receive_ticket(info.object_id, inner, info.ticket, effects)
        if reference is not None and wanted:
            reference.nested = tuple(contained)
        return is_needed

    def forget_value(self, object_id: bytes, effects: Effects) -> None:
        """The value that was known is gone, and with it what was inside; another one may come."""
        for inner_id, inner in self._take_nested(self._references[object_id]):
            self._maybe_free(inner_id, inner, effects)

    def add_lineage(self, object_ids: Iterable[bytes]) -> None:
        """A finished task is remembered that takes these."""
        for object_id in object_ids:
            self._references[object_id].lineage += 1

    def remove_lineage(self, object_ids: Iterable[bytes], effects: Effects) -> None:
        """It is forgotten."""
        for object_id in object_ids:
            reference = self._references[object_id]
            reference.lineage -= 1
            assert reference.lineage >= 0, "a finished task was forgotten twice"
            self._maybe_free(object_id, reference, effects)

    def add_question(self, object_id: bytes) -> None:
        """Borrower: the value is being asked for."""
        self._references[object_id].asked += 1

    def remove_question(self, object_id: bytes, effects: Effects) -> None:
        """Borrower: the question was answered, or there is nobody to answer it."""
        reference = self._references[object_id]
        reference.asked -= 1
        self._maybe_free(object_id, reference, effects)

    def is_wanted(self, object_id: bytes) -> bool:
        """Whether a question for this object is worth being asked again."""
        reference = self._references.get(object_id)
        return reference is not None and reference.is_wanted()

    def pin(self, object_id: bytes) -> None:
        """It was pickled by other means; nothing, if it belongs to a cluster that this process has left."""
        reference = self._references.get(object_id)
        if reference is not None:
            reference.pinned = True

    # --- lending

    def lend(self, object_id: bytes, borrower: Address, ticket: bytes, lender: Address) -> bool:
        """Owner: ``lender`` is about to pass a reference on to ``borrower``. False, if the object is freed already."""
        reference = self._references.get(object_id)
        if reference is None or not reference.is_in_scope() or ticket in self._spent:
            return False
        if self._dead and any(self._is_dead(party) for party in (borrower, lender)):
            return False
        if reference.lent is None:
            reference.lent = {}
        reference.lent[ticket] = borrower, lender
        return True

    def _is_dead(self, address: Address) -> bool:
        return address.worker_id in self._dead or address.node_id in self._dead

    def take_back(self, object_id: bytes, tickets: Iterable[bytes], effects: Effects) -> None:
        """Owner: a borrower has given tickets back."""
        reference = self._references.get(object_id)
        for ticket in tickets:
            remember(self._spent, ticket, None)
            if reference is not None and reference.lent is not None:
                reference.lent.pop(ticket, None)
        if reference is not None:
            self._maybe_free(object_id, reference, effects)

    def on_death(self, worker_or_node_id: bytes, effects: Effects) -> None:
        """A process (or a whole node) is gone: as borrower its tickets are void, as lender they are doubtful."""
        remember(self._dead, worker_or_node_id, None)
        for object_id, reference in list(self._references.items()):
            if reference.lent:
                void: list[bytes] = []
                for ticket, (borrower, lender) in reference.lent.items():
                    if worker_or_node_id in (borrower.worker_id, borrower.node_id):
                        void.append(ticket)
                    elif worker_or_node_id in (lender.worker_id, lender.node_id):
                        effects.doubtful.setdefault((borrower, lender.worker_id), []).append(Loan(object_id, ticket))
                if void:
                    self.take_back(object_id, void, effects)

    # --- borrowing

    def receive_ticket(self, info: RefInfo, effects: Effects) -> None:
        """Borrower: a ticket has come for a reference that was here before it (and may be gone by now)."""
        reference = self._references.get(info.object_id)
        if reference is not None:
            self._receive_ticket(info.object_id, reference, info.ticket, effects)
        else:
            effects.give_back.append((info.object_id, info.owner, [info.ticket]))

    def _receive_ticket(self, object_id: bytes, reference: Reference, ticket: bytes, effects: Effects) -> None:
        if ticket:
            if reference.owner is None:
                self.take_back(object_id, [ticket], effects)
                return
            if reference.held_tickets is None:
                reference.held_tickets = []
            elif len(reference.held_tickets) >= MAX_HELD_TICKETS:
                effects.give_back.append((object_id, reference.owner, reference.held_tickets))
                reference.held_tickets = []
            reference.held_tickets.append(ticket)
        self._maybe_free(object_id, reference, effects)

    def holds_ticket(self, loan: Loan) -> bool:
        """Borrower: whether this ticket has arrived and was not given back."""
        reference = self._references.get(loan.object_id)
        return reference is not None and loan.ticket in (reference.held_tickets or ())

    def needs_ticket(self, object_id: bytes) -> bool:
        """Borrower: whether only somebody else's hold keeps this object alive for us."""
        reference = self._references.get(object_id)
        return reference is not None and reference.owner is not None and not reference.held_tickets and reference.is_held()

    def keep_after_task(self, object_ids: Iterable[bytes]) -> list[tuple[bytes, Address]]:
        """Worker: which arguments of a task are still held here beside the task itself, without a ticket."""
        kept: list[tuple[bytes, Address]] = []
        for object_id in object_ids:
            reference = self._references.get(object_id)
            if reference is None or reference.owner is None or reference.held_tickets:
                continue
            others = reference.submitted > 1 or reference.local or reference.contained or reference.asked
            if others or reference.pinned or reference.lineage:
                kept.append((object_id, reference.owner))
        return kept

    # --- freeing

    def _maybe_free(self, object_id: bytes, reference: Reference, effects: Effects) -> None:
        """Forget what nobody needs, and what was held only by that (a chain of any length)."""
        unneeded: list[tuple[bytes, Reference]] = []
        while True:
            if not reference.is_in_scope() and self._references.get(object_id) is reference:
                if not reference.lineage:
                    del self._references[object_id]
                effects.freed.append(object_id)
                if reference.held_tickets and reference.owner is not None:
                    effects.give_back.append((object_id, reference.owner, reference.held_tickets))
                if reference.nested:
                    unneeded += self._take_nested(reference)
            if not unneeded:
                return
            object_id, reference = unneeded.pop()

    def _take_nested(self, reference: Reference) -> list[tuple[bytes, Reference]]:
        """Let go of what is inside a value; returns that."""
        inside = [(inner_id, self._references[inner_id]) for inner_id in reference.nested]
        for _, inner in inside:
            inner.contained -= 1
        reference.nested = ()
        return inside
