"""Counts references across processes, by ownership: it knows which process holds which object.

Ray: src/ray/core_worker/reference_counter.h; Wang et al., "Ownership: a distributed futures system for fine-grained
tasks", NSDI 2021, section 4.2

Pure: events in, effects (``Effects``) out. There is one entry for every object that this process owns or knows.

A process *holds* an object while it has a local ``ObjectRef``, or another held value that contains it (``contained``). It
also holds the arguments of its unfinished tasks (``submitted``). The owner frees an object when it does not hold it itself
and every *ticket* was given back or is void.

A ticket is the owner's note of one borrow. Before a reference is sent to another process, the owner notes a ticket for the
receiver. The receiver gives all its tickets back when it does not hold the object any more. Since a ticket is noted before
the reference is sent, an object on its way is never freed, whichever message is late (G58, G65, S7). Tickets have names, and
those given back leave a tombstone; hence repeated messages change nothing (G112).

A ticket also names its *lender*, the process that sends the reference (the owner or another borrower). When the borrower
dies, the ticket is void. When the lender dies, the ticket is doubtful, because the message may not have been sent. The owner
then asks the borrower, which ignores that lender once it has answered.

Arguments of a task need no tickets: the submitter holds them until the task's reply (``submitted``). If the worker still
holds some of them then, it asks for tickets of its own (``keep_after_task``).

An open question to an owner holds its object too (``asked``), even when no part here wants the value any more. Its answer
comes with tickets for the references inside. If the answer is lost, only the same question can fetch these tickets. So the
owner notes a ticket for the object itself, named after the question, and beside it the value that it sends. Until this
ticket comes back, the same question gets the same answer (``answer_to``), even if all others have dropped the object, or if
its value was freed or made again.

A finished task that may have to run again needs its arguments (``lineage``). An argument that can itself be made again need
not keep its value for that: when it is not held otherwise, the value is freed and the entry stays. An argument that cannot
be made again (``obstacle``: it was put, or another process owns it) is held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from minray.common.bounds import BOUNDS
from minray.common.tombstones import remember
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import ReconstructionFailure
from minray.protocol.base import Address
from minray.protocol.core_worker import Loan, RefInfo


class Reference(msgspec.Struct, eq=False, gc=False):
    """One object, as this process knows it."""

    owner: Address | None
    """Address of the owner; None: this process."""
    local: int = 0
    """Number of ObjectRef instances in this process."""
    submitted: int = 0
    """Number of this process's unfinished tasks that take the object, and of received tasks here that were given it."""
    contained: int = 0
    """Number of held values here that contain the object."""
    asked: int = 0
    """Number of open questions to the owner for the value; borrower only."""
    lent: dict[bytes, tuple[Address, Address, StoredObject | None]] | None = None
    """Tickets that were not given back yet, each with its borrower and its lender; owner only.

    The third part is the value that was sent, if the ticket is that of a question."""
    held_tickets: list[bytes] | None = None
    """Tickets to give back; borrower only."""
    nested: tuple[bytes, ...] = ()
    """Ids of the objects inside the value, once the value is here."""
    pinned: bool = False
    """Whether the user has pickled the reference. Its copies cannot be counted then: it is held while this process lives."""
    lineage: int = 0
    """Number of this process's finished tasks that would take the object again."""
    obstacle: ReconstructionFailure | None = ReconstructionFailure.PUT
    """Why the object cannot be made again; None: its task is remembered. Decided when the task ends, and PUT until then."""

    def is_held(self) -> bool:
        return self.asked > 0 or self.is_wanted()

    def is_wanted(self) -> bool:
        """Whether the object is held by anything except questions."""
        if self.local or self.submitted or self.contained or self.pinned:
            return True
        return self.lineage > 0 and self.obstacle is not None

    def is_in_scope(self) -> bool:
        """Whether the object's value is needed, here or in another process."""
        return bool(self.local or self.lent or self.asked) or self.is_wanted()


class Effects:
    """Consequences of an event, which ``Borrowing`` carries out."""

    __slots__ = ("freed", "give_back", "doubtful")

    def __init__(self) -> None:
        self.freed: list[bytes] = []
        """Ids of objects whose values must be dropped, each before those inside it; without an entry they are gone for good.

        An id is named twice if its value goes before its entry (``lineage``)."""
        self.give_back: list[tuple[bytes, Address, list[bytes]]] = []
        """Tickets to give back: object id, its owner, the tickets."""
        self.doubtful: dict[tuple[Address, bytes], list[Loan]] = {}
        """Loans to be checked, by borrower and dead lender (its worker id): the borrower is asked which have reached it."""


class ReferenceCounter:
    """The table of one process's references."""

    def __init__(self, max_held_tickets: int = BOUNDS.max_borrower_tickets) -> None:
        self._max_held_tickets = max_held_tickets
        self._references: dict[bytes, Reference] = {}
        self._spent: OrderedDict[bytes, None] = OrderedDict()
        """Tickets that were given back: a late AddBorrower with one of these is void."""
        self._replaced: OrderedDict[bytes, None] = OrderedDict()
        """Tickets that this borrower has given back because it had a later one; one that arrives again is void."""
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        """Ids of workers and nodes that are known to be dead: no reference is lent to them, or by them, any more."""

    def __len__(self) -> int:
        return len(self._references)

    def reference_of(self, object_id: bytes) -> Reference | None:
        return self._references.get(object_id)

    def is_in_scope(self, object_id: bytes) -> bool:
        """Whether any process needs the value of this object, as far as this process knows."""
        reference = self._references.get(object_id)
        return reference is not None and reference.is_in_scope()

    def items(self) -> list[tuple[bytes, Reference]]:
        return list(self._references.items())

    def owns_borrowed(self) -> bool:
        """Whether other processes depend on this one's life (G63, G64)."""
        return any(reference.lent for reference in self._references.values())

    # --- holding

    def add_owned(self, object_id: bytes) -> Reference:
        """Enter a new object of this process, with one local reference."""
        reference = self._references[object_id] = Reference(None)
        reference.local = 1
        return reference

    def add_local(self, object_id: bytes, owner: Address | None) -> bool:
        """Count an ObjectRef that was made here; True if the object was unknown until now."""
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
        """Hold the objects that a task takes, which was submitted here (or, on a worker, arrived here)."""
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
        """Note the references inside a value that has arrived; False if the value is not needed any more."""
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
        """Release the references inside a value that is gone; another value may come."""
        for inner_id, inner in self._take_nested(self._references[object_id]):
            self._maybe_free(inner_id, inner, effects)

    def add_lineage(self, object_ids: Iterable[bytes]) -> None:
        """Count a remembered finished task that takes these objects."""
        for object_id in object_ids:
            self._references[object_id].lineage += 1

    def remove_lineage(self, object_ids: Iterable[bytes], effects: Effects) -> None:
        """Stop counting a finished task that takes these objects and is forgotten."""
        for object_id in object_ids:
            reference = self._references[object_id]
            reference.lineage -= 1
            assert reference.lineage >= 0, "a finished task was forgotten twice"
            self._maybe_free(object_id, reference, effects)

    def add_question(self, object_id: bytes) -> None:
        """Count, as the borrower, an open question for the value of an object."""
        self._references[object_id].asked += 1

    def remove_question(self, object_id: bytes, effects: Effects) -> None:
        """Stop counting, as the borrower, a question that was answered or whose owner is gone."""
        reference = self._references[object_id]
        reference.asked -= 1
        self._maybe_free(object_id, reference, effects)

    def is_wanted(self, object_id: bytes) -> bool:
        """Whether this process wants the object, so that a question for it is worth repeating."""
        reference = self._references.get(object_id)
        return reference is not None and reference.is_wanted()

    def pin(self, object_id: bytes) -> None:
        """Keep an object that the user has pickled; do nothing if it belongs to a cluster that this process has left."""
        reference = self._references.get(object_id)
        if reference is not None:
            reference.pinned = True

    # --- lending

    def lend(
        self, object_id: bytes, borrower: Address, ticket: bytes, lender: Address, answer: StoredObject | None = None
    ) -> bool:
        """Note, as the owner, a ticket with which ``lender`` is about to send a reference (or an answer) to ``borrower``.

        False if the object is freed already, if the ticket was given back, or if one of the two is dead.
        """
        reference = self._references.get(object_id)
        if reference is None or not reference.is_in_scope() or ticket in self._spent:
            return False
        if self._dead and any(self._is_dead(party) for party in (borrower, lender)):
            return False
        if reference.lent is None:
            reference.lent = {}
        reference.lent[ticket] = borrower, lender, answer
        return True

    def answer_to(self, object_id: bytes, question: bytes) -> StoredObject | None:
        """Return, as the owner, the value that was sent as the answer to a question whose ticket was not given back."""
        reference = self._references.get(object_id)
        noted = reference.lent.get(question) if reference is not None and reference.lent is not None else None
        return noted[2] if noted is not None else None

    def _is_dead(self, address: Address) -> bool:
        return address.worker_id in self._dead or address.node_id in self._dead

    def take_back(self, object_id: bytes, tickets: Iterable[bytes], effects: Effects) -> None:
        """Drop, as the owner, tickets that a borrower has given back."""
        reference = self._references.get(object_id)
        for ticket in tickets:
            remember(self._spent, ticket, None)
            if reference is not None and reference.lent is not None:
                reference.lent.pop(ticket, None)
        if reference is not None:
            self._maybe_free(object_id, reference, effects)

    def on_death(self, worker_or_node_id: bytes, effects: Effects) -> None:
        """React to the death of a worker or node: the tickets that it holds are void, those that it lent are doubtful."""
        remember(self._dead, worker_or_node_id, None)
        for object_id, reference in list(self._references.items()):
            if reference.lent:
                void: list[bytes] = []
                for ticket, (borrower, lender, _) in reference.lent.items():
                    if worker_or_node_id in (borrower.worker_id, borrower.node_id):
                        void.append(ticket)
                    elif worker_or_node_id in (lender.worker_id, lender.node_id):
                        effects.doubtful.setdefault((borrower, lender.worker_id), []).append(Loan(object_id, ticket))
                if void:
                    self.take_back(object_id, void, effects)

    # --- borrowing

    def receive_ticket(self, info: RefInfo, effects: Effects) -> None:
        """Keep, as a borrower, a ticket for a reference that was here before it; give it back if the reference is gone.

        ``info`` has a ticket. Only the references of ``on_value`` may have none."""
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
            if ticket not in self._replaced:  # else a repetition: its owner has forgotten it, and it must not replace others
                self._keep_ticket(object_id, reference, reference.owner, ticket, effects)
        self._maybe_free(object_id, reference, effects)

    def _keep_ticket(self, object_id: bytes, reference: Reference, owner: Address, ticket: bytes, effects: Effects) -> None:
        if reference.held_tickets is None:
            reference.held_tickets = []
        elif ticket in reference.held_tickets:
            return
        elif len(reference.held_tickets) >= self._max_held_tickets:
            effects.give_back.append((object_id, owner, reference.held_tickets))
            for replaced in reference.held_tickets:
                remember(self._replaced, replaced, None)
            reference.held_tickets = []
        reference.held_tickets.append(ticket)

    def holds_ticket(self, loan: Loan) -> bool:
        """Whether a ticket has arrived here, at the borrower, and was not given back."""
        reference = self._references.get(loan.object_id)
        return reference is not None and loan.ticket in (reference.held_tickets or ())

    def needs_ticket(self, object_id: bytes) -> bool:
        """Whether this process holds a borrowed object without a ticket, so that only another process keeps it alive."""
        reference = self._references.get(object_id)
        return reference is not None and reference.owner is not None and not reference.held_tickets and reference.is_held()

    def keep_after_task(self, object_ids: Iterable[bytes]) -> list[tuple[bytes, Address]]:
        """Return the arguments of a task that this worker holds without a ticket, not counting the task itself."""
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
        """Free an object that is not needed, and the objects that only its value held (a chain of any length)."""
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
        """Release the references inside a value; return them."""
        inside = [(inner_id, self._references[inner_id]) for inner_id in reference.nested]
        for _, inner in inside:
            inner.contained -= 1
        reference.nested = ()
        return inside
