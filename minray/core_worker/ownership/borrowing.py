"""Carries out the decisions of the reference counter: frees values, lends references, gives tickets back.

Ray: the sending half of src/ray/core_worker/reference_counter.cc (WaitForRefRemoved and friends)

A *ticket* is the owner's note that a receiver borrows an object. The rule: before a reference leaves this process, except as
an argument of a task, its owner has noted a ticket for the receiver (``lend``). For own objects that is an entry in a table.
For borrowed objects it costs a round trip to each owner, and the message waits for it. Tickets that are given back travel
together, and no caller waits for them. When a lender dies, the owner asks the borrowers whether the lender's message has
arrived (``CheckTickets``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minray.common.ids import short
from minray.common.task_set import TaskSet
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import AddBorrower, CheckTickets, CheckTicketsReply, Loan, RefInfo, RemoveBorrower
from minray.rpc.batch import Batches, by_receiver, portions

logger = logging.getLogger(__name__)


class Borrowing:
    """Carries out the effects of one ReferenceCounter, and exchanges its messages."""

    def __init__(
        self,
        process: Process,
        references: ReferenceCounter,
        on_freed: Callable[[Effects], None],
        on_first_lent: Callable[[], None],
    ) -> None:
        self._peers = process.peers
        self._patient = patient = process.patient
        self._own = own = process.address
        self._references = references
        self._on_freed = on_freed
        """Function that drops the values of freed objects; further consequences join the effects."""
        self._on_first_lent = on_first_lent
        """Function that begins to watch for the deaths of other processes; called once."""
        self._message_count = 0
        """Number of messages with references that were sent, from which tickets are named."""
        self._watching = False
        """Whether ``on_first_lent`` was called."""
        self._max_items = process.config.system_config.max_items_per_batch
        """Most items in one message."""
        self._spent: Batches[Loan] = Batches(
            patient.send, lambda loans: RemoveBorrower(own.worker_id, loans), self._max_items
        )
        self._registering = TaskSet()

    def apply(self, effects: Effects) -> None:
        """Carry out the effects of an event."""
        if effects.freed:
            self._on_freed(effects)
        for object_id, owner, tickets in effects.give_back:
            self._spent.add(owner, [Loan(object_id, ticket) for ticket in tickets])
        for (borrower, lender_id), loans in effects.doubtful.items():
            if borrower.worker_id == self._own.worker_id:
                self.take_back(self.missing(lender_id, loans))
            else:
                self._patient.send(borrower, CheckTickets(lender_id, loans), self._on_checked)

    # --- as owner

    def lend_as_owner(
        self, object_id: bytes, borrower: Address, ticket: bytes, lender: Address, answer: StoredObject | None = None
    ) -> bool:
        """Note a ticket at its owner, this process; False if the object is freed, the ticket spent, or a party dead."""
        is_ours = borrower.worker_id == lender.worker_id == self._own.worker_id
        if not is_ours and not self._watching:
            self._watching = True
            self._on_first_lent()
        return self._references.lend(object_id, borrower, ticket, lender, answer)

    def lend_to(self, request: AddBorrower) -> list[Loan]:
        """Note the tickets of a lender, or of a borrower that asks for itself; return those that cannot be noted."""
        borrower, lender = request.borrower, request.lender
        return [loan for loan in request.loans if not self.lend_as_owner(loan.object_id, borrower, loan.ticket, lender)]

    def _on_checked(self, reply: CheckTicketsReply | None, _error: PlatformError | None, _buffers: Sequence[Any]) -> None:
        if reply is not None:
            self.take_back(reply.missing)

    def on_death(self, worker_or_node: bytes) -> None:
        """Drop the tickets of a dead borrower, or of all borrowers on a dead node."""
        effects = Effects()
        self._references.on_death(worker_or_node, effects)
        self.apply(effects)

    def take_back(self, loans: Iterable[Loan]) -> None:
        """Drop tickets that were given back, or that have never reached their borrower."""
        effects = Effects()
        for loan in loans:
            self._references.take_back(loan.object_id, [loan.ticket], effects)
        self.apply(effects)

    # --- as lender

    def lend_now(
        self, refs: Sequence[tuple[bytes, Address]], receiver: Address, question: bytes = b""
    ) -> list[RefInfo] | None:
        """Make and note tickets for references that are about to be sent; None if one is borrowed (then use ``lend``)."""
        if any(owner.worker_id != self._own.worker_id for _, owner in refs):
            return None
        infos = self._with_tickets(refs, question)
        for info in infos:
            self.lend_as_owner(info.object_id, receiver, info.ticket, self._own)
        return infos

    async def lend(self, refs: Sequence[tuple[bytes, Address]], receiver: Address, question: bytes = b"") -> list[RefInfo]:
        """Make tickets for any references, and ask their owners to note them; a dead owner's objects are lost."""
        infos = self._with_tickets(refs, question)
        others: list[tuple[Loan, Address]] = []
        for info in infos:
            if info.owner.worker_id == self._own.worker_id:
                self.lend_as_owner(info.object_id, receiver, info.ticket, self._own)
            else:
                others.append((Loan(info.object_id, info.ticket), info.owner))
        asking = [
            self._patient.call(owner, AddBorrower(receiver, self._own, list(portion)))
            for owner, loans in by_receiver(others)
            for portion in portions(loans, self._max_items)
        ]
        for answer in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(answer, PlatformError):
                logger.debug("could not lend a reference: %s", answer)
            elif isinstance(answer, BaseException):
                raise answer
        return infos

    def _with_tickets(self, refs: Iterable[tuple[bytes, Address]], question: bytes) -> list[RefInfo]:
        """Make tickets for references, named after the question that is answered, or else after this message."""
        self._message_count += 1
        name = question or self._own.worker_id[:12] + self._message_count.to_bytes(8, "big")
        return [RefInfo(ref[0], ref[1], name + index.to_bytes(4, "big")) for index, ref in enumerate(refs)]

    # --- as borrower

    def missing(self, lender_id: bytes, loans: Iterable[Loan]) -> list[Loan]:
        """Return the loans of a dead lender that have not reached this process; ignore its messages from now on."""
        self._peers.on_death_of(lender_id, "it is reported dead")
        return [loan for loan in loans if not self._references.holds_ticket(loan)]

    async def hold(self, object_id: bytes, owner: Address) -> bool:
        """Add a local reference to an object that no process has lent to this one; False if its owner has freed it.

        Raises PeerUnreachable if the owner is dead. This process holds no reference until the owner has agreed.
        """
        references = self._references
        if owner.worker_id == self._own.worker_id:
            is_held = references.is_in_scope(object_id)
            if is_held:
                references.add_local(object_id, None)
            return is_held
        (info,) = self._with_tickets([(object_id, owner)], b"")
        reply = await self._patient.call(owner, AddBorrower(self._own, self._own, [Loan(object_id, info.ticket)]))
        if reply.missing:
            return False
        references.add_local(object_id, owner)
        self._receive_tickets([info])
        return True

    async def keep_refs(self, refs: Sequence[tuple[bytes, Address]]) -> None:
        """Get own tickets for references that another process has kept alive for this one until now."""
        self._receive_tickets(await self.lend(refs, self._own))

    def _receive_tickets(self, infos: Iterable[RefInfo]) -> None:
        """Keep the tickets that came with references to this process; give back those whose references are gone."""
        effects = Effects()
        for info in infos:
            self._references.receive_ticket(info, effects)
        self.apply(effects)

    def keep_soon(self, object_id: bytes, owner: Address) -> None:
        """Get a ticket in the background for a reference that the user has unpickled; its owner has pinned the object."""
        self._registering.begin(self.keep_refs([(object_id, owner)]), f"keep({short(object_id)})")

    def close(self) -> None:
        self._registering.cancel()
