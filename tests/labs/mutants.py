"""The ten mutants of lab 6: small changes of the reference counter, each of which breaks one sentence of its contract.

Hidden from students as far as an archive can hide them: it holds the changed files packed, and not this file.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.zoo.transplant import Mutation

MODULE = "minray.core_worker.ownership.reference_counter"


@dataclass(frozen=True)
class Mutant:
    """One mutant."""

    clause: str
    """The sentence of the contract that it breaks, as the grader names it."""
    mutation: Mutation


def _mutant(clause: str, symbol: str, fragment: str, replacement: str) -> Mutant:
    return Mutant(clause, Mutation(MODULE, symbol, fragment, replacement))


MUTANTS = [
    _mutant(
        "clause 2, lending",
        "Reference.is_in_scope",
        "bool(self.local or self.lent or self.asked)",
        "bool(self.local or self.asked)",
    ),
    _mutant("clause 2, lending", "ReferenceCounter.take_back", "remember(self._spent, ticket, None)", "pass"),
    _mutant(
        "clause 6, lineage",
        "ReferenceCounter.lend",
        "not reference.is_in_scope()",
        "False",
    ),
    _mutant(
        "clause 3, deaths",
        "ReferenceCounter.on_death",
        "worker_or_node_id in (borrower.worker_id, borrower.node_id)",
        "worker_or_node_id == borrower.worker_id",
    ),
    _mutant(
        "clause 3, deaths",
        "ReferenceCounter.lend",
        "self._dead and any(self._is_dead(party) for party in (borrower, lender))",
        "False",
    ),
    _mutant("clause 4, borrowing", "ReferenceCounter._keep_ticket", "remember(self._replaced, replaced, None)", "pass"),
    _mutant(
        "clause 4, borrowing",
        "ReferenceCounter.receive_ticket",
        "effects.give_back.append((info.object_id, info.owner, [info.ticket]))",
        "pass",
    ),
    _mutant("clause 4, borrowing", "ReferenceCounter.keep_after_task", "reference.submitted > 1", "reference.submitted > 0"),
    _mutant("clause 1, holding", "ReferenceCounter._maybe_free", "unneeded += self._take_nested(reference)", "pass"),
    _mutant(
        "clause 1, holding",
        "ReferenceCounter.on_value",
        "is_needed and reference is not None and not reference.nested",
        "is_needed and reference is not None",
    ),
]
