"""Policies about objects beside the default ones: where an owner asks first, what is evicted or spilled, who sends a copy.

Ray: src/ray/core_worker/lease_policy.h, src/ray/object_manager/plasma/eviction_policy.h have the defaults alone

The defaults stand in the rooms that decide: the node with most bytes of the arguments (``LocalityAwareLeasePolicy``), the
least recently used copy (``ObjectTable``), and the pipelined broadcast (``Pull``). The classes here are other answers to the
same questions, so that their effect can be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from minray.policies.protocols import LocalityQuestion, PolicyHost, StoredCopy, TransferQuestion


class OwnNodeLocality:
    """Asks the owner's own node first, wherever the arguments are."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def choose_first_node(self, question: LocalityQuestion) -> bytes | None:
        return question.own_node


class LargestArgumentLocality:
    """Asks a node that has the largest argument, whatever the others are; the owner's own node if that has it."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def choose_first_node(self, question: LocalityQuestion) -> bytes | None:
        largest = max((argument for argument in question.arguments if argument.nodes), key=lambda argument: argument.size)
        return question.own_node if question.own_node in largest.nodes else min(largest.nodes)


class MostRecentlyUsedEviction:
    """Evicts the copy that was used last, which is best for a program that reads the same objects in a circle."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def choose_copy(self, copies: Sequence[StoredCopy]) -> bytes | None:
        return copies[-1].object_id


class LargestEviction:
    """Evicts the largest copy, so that few copies are lost; among equals the least recently used."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def choose_copy(self, copies: Sequence[StoredCopy]) -> bytes | None:
        return max(copies, key=lambda copy: copy.size).object_id


class LargestSpill:
    """Spills large copies first, so that few objects go to disk."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def order_copies(self, copies: Sequence[StoredCopy]) -> Sequence[bytes] | None:
        return [copy.object_id for copy in sorted(copies, key=lambda copy: -copy.size)]


class SmallestSpill:
    """Spills small copies first, so that large ones need not be read back."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def order_copies(self, copies: Sequence[StoredCopy]) -> Sequence[bytes] | None:
        return [copy.object_id for copy in sorted(copies, key=lambda copy: copy.size)]


class HoldersTransfer:
    """Reads from a random node that has the whole object, and from nodes that are receiving it last."""

    def __init__(self, host: PolicyHost) -> None:
        self._host = host

    def order_sources(self, question: TransferQuestion) -> Sequence[bytes] | None:
        holders = list(question.holders)
        first = int(self._host.random() * len(holders))
        return [*holders[first:], *holders[:first], *reversed(question.receivers)]


LOCALITIES = {"own_node": OwnNodeLocality, "largest_argument": LargestArgumentLocality}
EVICTIONS = {"most_recently_used": MostRecentlyUsedEviction, "largest": LargestEviction}
SPILLS = {"largest": LargestSpill, "smallest": SmallestSpill}
TRANSFERS = {"holders": HoldersTransfer}
"""Names in ``_system_config`` of the policies beside the defaults."""
