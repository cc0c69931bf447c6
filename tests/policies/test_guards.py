"""A policy that raises, or answers what cannot be, is reported; the decision falls to the default policy."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from minray.policies import SPILLED, BundleQuestion, LargeArgument, LocalityQuestion, SchedulingQuestion, TransferQuestion
from minray.policies.guards import (
    MOST_REPORTS,
    Guard,
    GuardedBundles,
    GuardedEviction,
    GuardedLocality,
    GuardedScheduling,
    GuardedSpill,
    GuardedTransfer,
    ImpossibleAnswer,
)
from tests.policies.questions import Broken, Lost, Undecided, copies, guarded, host, question
from tests.scheduling.machines import JOB

LOCALITY = LocalityQuestion(b"home", [LargeArgument(b"x", 9, [b"away"])])
TRANSFER = TransferQuestion(b"home", b"x" * 28, [b"one", b"two"], [b"three"])
BUNDLES = BundleQuestion("PACK", {0: {"CPU": 1}, 1: {"CPU": 1}}, {b"one": {"CPU": 2}, b"two": {"CPU": 1}}, [])

ASK: dict[type[Guard[Any]], Callable[[Any], object]] = {
    GuardedScheduling: lambda guard: guard.choose_node(question({"a": 1})),
    GuardedLocality: lambda guard: guard.choose_first_node(LOCALITY),
    GuardedEviction: lambda guard: guard.choose_copy(copies(3, 1, 2)),
    GuardedSpill: lambda guard: guard.order_copies(copies(3, 1, 2)),
    GuardedTransfer: lambda guard: guard.order_sources(TRANSFER),
    GuardedBundles: lambda guard: guard.place_bundles(BUNDLES),
}


@pytest.mark.parametrize("kind", ASK)
@pytest.mark.parametrize("policy", [Broken, Lost])
def test_a_failed_policy_decides_nothing_and_is_reported(
    kind: type[Guard[Any]], policy: type, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guarded(kind, policy)
    assert [ASK[kind](guard) for _ in range(3)] == [None] * 3
    assert guard.failures == 3
    (record,) = caplog.records
    said = "ZeroDivisionError: there is no good node" if policy is Broken else "ImpossibleAnswer: it answered "
    assert record.levelno == logging.ERROR and record.exc_info
    assert f"some_policy 'mine' has failed, so the default policy decides: {said}" in record.getMessage()


@pytest.mark.parametrize("kind", ASK)
def test_none_leaves_the_decision_and_is_no_failure(kind: type[Guard[Any]], caplog: pytest.LogCaptureFixture) -> None:
    guard = guarded(kind, Undecided)
    assert ASK[kind](guard) is None
    assert guard.failures == 0 and not caplog.records


def test_the_driver_of_the_job_is_told() -> None:
    told: list[tuple[bytes, str]] = []
    guard = GuardedScheduling("scheduling_policy", "mine", Broken(host()), lambda job_id, text: told.append((job_id, text)))
    guard.choose_node(question({"a": 1}))
    ((job_id, text),) = told
    assert job_id == JOB and "there is no good node" in text


def test_a_policy_that_fails_in_ever_new_ways_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    guard: Guard[None] = Guard("some_policy", "mine", None)

    def fail(number: int) -> None:
        raise ValueError(number)

    for number in range(MOST_REPORTS + 5):
        guard.ask(lambda number=number: fail(number), b"")  # type: ignore[misc]
    assert len(caplog.records) == MOST_REPORTS and guard.failures == MOST_REPORTS + 5


class Answering:
    """Gives one answer to every question."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def choose_node(self, question: object) -> Any:
        return self.answer

    choose_first_node = choose_copy = order_copies = order_sources = place_bundles = choose_node


def test_a_request_may_wait_at_the_node_that_asks() -> None:
    waiting = question({"a": 0, "b": 1}, SPILLED)
    for answer, taken in ((b"a", b"a"), (b"b", b"b"), (b"c", None)):
        assert GuardedScheduling("p", "mine", Answering(answer)).choose_node(waiting) == taken


def test_an_order_is_completed() -> None:
    guard = GuardedTransfer("p", "mine", Answering([b"three", b"one", b"three"]))
    assert guard.order_sources(TRANSFER) == [b"three", b"one", b"two"]
    first, second, third = (copy.object_id for copy in copies(3, 1, 2))
    assert GuardedSpill("p", "mine", Answering([third])).order_copies(copies(3, 1, 2)) == [third, first, second]


NO_IDS: list[tuple[type[Guard[Any]], Any, str]] = [
    (GuardedScheduling, copies(1)[0], "it answered a .* instead of an id .bytes.: "),
    (GuardedScheduling, b"", "it answered an empty id, which is none of the question's 1 nodes"),
    (GuardedScheduling, [b"a"], "it answered a list instead of an id .bytes.: .b'a'."),
    (GuardedLocality, [b"home"], "it answered a list instead of an id .bytes."),
    (GuardedEviction, "6e6f7768", "it answered a str instead of an id .bytes.: '6e6f7768'"),
    (GuardedSpill, copies(3, 1, 2), "it answered a .* instead of an id .bytes."),
    (GuardedSpill, 7, "it answered 7, not a list of ids"),
    (GuardedTransfer, b"one", "it answered b'one', not a list of ids"),
    (GuardedTransfer, [["one"]], "it answered a list instead of an id .bytes.: .'one'."),
]


@pytest.mark.parametrize(("kind", "answer", "complaint"), NO_IDS)
def test_an_answer_that_is_no_id_is_named_with_its_type(
    kind: type[Guard[Any]], answer: Any, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    guard = kind("some_policy", "mine", Answering(answer))
    if kind is GuardedLocality:
        guard.policy = lambda: Answering(answer)
    assert ASK[kind](guard) is None
    (record,) = caplog.records
    assert re.search(f"ImpossibleAnswer: {complaint}", record.getMessage())


def test_a_policy_that_exits_ends_no_process() -> None:
    class Exiting:
        def choose_node(self, question: object) -> bytes:
            sys.exit(3)

    guard = GuardedScheduling("p", "mine", Exiting())
    assert guard.choose_node(question({"a": 1})) is None and guard.failures == 1


def test_a_policy_cannot_change_what_the_default_policy_sees() -> None:
    class Greedy:
        def place_bundles(self, question: BundleQuestion) -> None:
            for free in question.nodes.values():
                free.clear()  # type: ignore[attr-defined]
            question.bundles.clear()  # type: ignore[attr-defined]

        def choose_node(self, asked: SchedulingQuestion) -> None:
            asked.nodes.clear()  # type: ignore[attr-defined]

    asked = BUNDLES._replace(nodes={b"one": {"CPU": 2}}, bundles={0: {"CPU": 1}})
    assert GuardedBundles("p", "mine", Greedy()).place_bundles(asked) is None
    assert asked.nodes == {b"one": {"CPU": 2}} and asked.bundles == {0: {"CPU": 1}}
    guard, crowded = GuardedScheduling("p", "mine", Greedy()), question({"a": 1})
    assert guard.choose_node(crowded) is None and guard.failures == 1 and len(crowded.nodes) == 1


@pytest.mark.parametrize(
    ("strategy", "places", "complaint"),
    [
        ("PACK", {0: b"one", 1: b"one"}, ""),
        ("PACK", {0: b"one"}, r"it placed the bundles \[0\] of \[0, 1\]; all need a node"),
        ("PACK", {0: b"one", "1": b"one"}, r"it placed the bundles \[0, '1'\] of \[0, 1\]; all need a node"),
        ("PACK", {0: b"one", 1: b"three"}, "it answered 74687265, which is none of the nodes, for bundle 1"),
        ("PACK", {0: b"one", 1: ["one"]}, r"it answered a list instead of an id \(bytes\): \['one'\]"),
        ("PACK", [b"one", b"one"], r"it answered \[b'one', b'one'\], not a mapping from each bundle's index"),
        ("PACK", {0: b"two", 1: b"two"}, "bundle 1 does not fit on .* beside the others"),
        ("STRICT_PACK", {0: b"one", 1: b"two"}, "spread the bundles over 2 nodes, but STRICT_PACK wants one"),
        ("STRICT_SPREAD", {0: b"one", 1: b"one"}, "two bundles on one node, but STRICT_SPREAD wants a node for each"),
    ],
)
def test_a_placement_must_be_possible(strategy: str, places: Any, complaint: str) -> None:
    guard = GuardedBundles("p", "mine", Answering(places))
    asked = BUNDLES._replace(strategy=strategy)
    if complaint:
        with pytest.raises(ImpossibleAnswer, match=complaint):
            guard._answer(asked)
    assert guard.place_bundles(asked) == (None if complaint else places)
