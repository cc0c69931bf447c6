"""Asks a policy, and leaves the decision to the default one if the policy has failed.

Ray: none, its policies are part of the raylet

A policy is a program's code inside of a raylet, which other programs need. So an exception or an impossible answer loses no
task and no object: the answer counts as None, and the default policy decides. The failure is logged with its traceback and
told to the driver whose task or object it was about. Each text is reported once. A simulated run fails at its end for such a
failure, because it says nothing about the policy.

None of this runs for a default policy, because the rooms do not ask a policy then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from minray.common.bundles import STRICT_PACK, STRICT_SPREAD
from minray.common.ids import job_of, short
from minray.common.resources import fits, subtract
from minray.common.shown import a, shown
from minray.policies.protocols import (
    ARRIVED,
    BundlePolicy,
    BundleQuestion,
    EvictionPolicy,
    LocalityPolicy,
    LocalityQuestion,
    SchedulingPolicy,
    SchedulingQuestion,
    SpillPolicy,
    StoredCopy,
    TransferPolicy,
    TransferQuestion,
    Warn,
)

logger = logging.getLogger(__name__)

FAILED = "has failed, so the default policy decides"
"""Words of each report of a failed policy."""
MOST_REPORTS = 100
"""Most different failures of one policy that a process logs: enough to see what they have in common."""

P = TypeVar("P")
A = TypeVar("A")
K = TypeVar("K")


class ImpossibleAnswer(ValueError):
    """The policy has answered something that the question does not allow."""


class Guard(Generic[P]):
    """A policy, and what is known of its failures."""

    def __init__(self, setting: str, name: str, policy: P, warn: Warn | None = None) -> None:
        """``setting`` and ``name`` are the entry of ``_system_config``; without ``warn`` failures are only logged."""
        self.policy = policy
        self._title = f"{setting} {shown(name)}"
        self._warn = warn
        self.failures = 0
        """Number of questions that the policy has failed to answer."""
        self._reported: set[str] = set()

    def ask(self, answer: Callable[[], A], job_id: bytes) -> A | None:
        """Return the policy's answer; None if it leaves the decision to the default policy, or has failed."""
        try:
            return answer()
        except (Exception, SystemExit) as error:  # A policy that exits must not end its process either.
            self.failures += 1
            text = f"{self._title} {FAILED}: {type(error).__name__}: {error}"
            if text not in self._reported and len(self._reported) < MOST_REPORTS:
                self._reported.add(text)
                logger.exception("%s", text)
            if self._warn is not None and job_id:
                self._warn(job_id, text)
            return None


class GuardedScheduling(Guard[SchedulingPolicy]):
    """A scheduling policy that answers a node of the question, or None."""

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        return self.ask(lambda: self._answer(question), question.request.job_id)

    def _answer(self, question: SchedulingQuestion) -> bytes | None:
        # Tuples, so that a policy cannot empty the lists with which the default policy may have to decide.
        chosen = self.policy.choose_node(question._replace(nodes=tuple(question.nodes), with_room=tuple(question.with_room)))
        if chosen is None or (question.moment != ARRIVED and chosen == question.local.node_id):
            return chosen
        for nodes in (question.nodes, question.with_room):
            if any(node.node_id == chosen for node in nodes):
                return chosen
        raise _impossible(chosen, f"which is none of the question's {len(question.nodes)} nodes")


class GuardedLocality(Guard[Callable[[], LocalityPolicy]]):
    """A locality policy that answers a node of the question, or None. It is made at the first question."""

    def choose_first_node(self, question: LocalityQuestion) -> bytes | None:
        return self.ask(lambda: self._answer(question), b"")

    def _answer(self, question: LocalityQuestion) -> bytes | None:
        chosen = self.policy().choose_first_node(question)
        nodes = {question.own_node, *(node for argument in question.arguments for node in argument.nodes)}
        if chosen is not None and not (isinstance(chosen, bytes) and chosen in nodes):
            raise _impossible(chosen, "which has none of the arguments and is not the owner's")
        return chosen


class GuardedEviction(Guard[EvictionPolicy]):
    """An eviction policy that answers one of the copies, or None."""

    def choose_copy(self, copies: Sequence[StoredCopy]) -> bytes | None:
        return self.ask(lambda: self._answer(copies), job_of(copies[0].object_id))

    def _answer(self, copies: Sequence[StoredCopy]) -> bytes | None:
        chosen = self.policy.choose_copy(copies)
        if chosen is not None and all(copy.object_id != chosen for copy in copies):
            raise _impossible(chosen, f"which is none of the {len(copies)} copies")
        return chosen


class GuardedSpill(Guard[SpillPolicy]):
    """A spill policy that answers each copy once, the left out ones last, or None."""

    def order_copies(self, copies: Sequence[StoredCopy]) -> Sequence[bytes] | None:
        known = [copy.object_id for copy in copies]
        return self.ask(lambda: _completed(self.policy.order_copies(copies), known, "copies"), job_of(known[0]))


class GuardedTransfer(Guard[TransferPolicy]):
    """A transfer policy that answers each node once, the left out ones last, or None."""

    def order_sources(self, question: TransferQuestion) -> Sequence[bytes] | None:
        known = [*question.holders, *question.receivers]
        job_id = job_of(question.object_id)
        return self.ask(lambda: _completed(self.policy.order_sources(question), known, "nodes of the question"), job_id)


class GuardedBundles(Guard[BundlePolicy]):
    """A bundle policy that answers a possible placement, or None."""

    def place_bundles(self, question: BundleQuestion) -> dict[int, bytes] | None:
        return self.ask(lambda: self._answer(question), b"")

    def _answer(self, question: BundleQuestion) -> dict[int, bytes] | None:
        # A placement counts down what is free, perhaps in the question itself. So it gets a copy.
        bundles, nodes = (_copied(resources) for resources in (question.bundles, question.nodes))
        answer = self.policy.place_bundles(question._replace(bundles=bundles, nodes=nodes))
        if answer is None:
            return None
        if not isinstance(answer, Mapping):
            raise ImpossibleAnswer(f"it answered {shown(answer)}, not a mapping from each bundle's index to a node's id")
        places = dict(answer)
        if places.keys() != question.bundles.keys():
            placed = f"[{', '.join(map(shown, places))}] of {sorted(question.bundles)}"
            raise ImpossibleAnswer(f"it placed the bundles {placed}; all need a node")
        room = _copied(question.nodes)
        for index, node_id in places.items():
            if not isinstance(node_id, bytes) or node_id not in room:
                raise _impossible(node_id, f"which is none of the nodes, for bundle {index}")
            if not fits(question.bundles[index], room[node_id]):
                raise ImpossibleAnswer(f"bundle {index} does not fit on {short(node_id)} beside the others")
            subtract(room[node_id], question.bundles[index])
        used = [*question.beside, *places.values()]
        if question.strategy == STRICT_PACK and len(set(used)) > 1:
            raise ImpossibleAnswer(f"it spread the bundles over {len(set(used))} nodes, but STRICT_PACK wants one")
        if question.strategy == STRICT_SPREAD and len(set(used)) < len(used):
            raise ImpossibleAnswer("it placed two bundles on one node, but STRICT_SPREAD wants a node for each")
        return places


def _impossible(answer: object, why: str) -> ImpossibleAnswer:
    """Return the error about an answer that is not among the ids of the question, or no id at all."""
    if isinstance(answer, bytes):
        return ImpossibleAnswer(f"it answered {short(answer) if answer else 'an empty id'}, {why}")
    return ImpossibleAnswer(f"it answered {a(answer)} instead of an id (bytes): {shown(answer)}")


def _copied(resources: Mapping[K, Mapping[str, int]]) -> dict[K, dict[str, int]]:
    return {key: dict(amounts) for key, amounts in resources.items()}


def _completed(answer: Iterable[bytes] | None, known: Sequence[bytes], what: str) -> Sequence[bytes] | None:
    """Return a policy's order of known ids, with those that it has left out at the end. Raises ImpossibleAnswer."""
    if answer is None:
        return None
    if not isinstance(answer, Iterable) or isinstance(answer, bytes | str):
        raise ImpossibleAnswer(f"it answered {shown(answer)}, not a list of ids")
    order, ids = list(answer), set(known)
    for each in order:
        if not isinstance(each, bytes) or each not in ids:
            raise _impossible(each, f"which is none of the {len(known)} {what}")
    return list(dict.fromkeys([*order, *known]))
