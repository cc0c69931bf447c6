"""The shell around the reference counter: tickets before references, and questions about those of the dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.platform.base import RemoteFailure
from minray.protocol.base import DONE
from minray.protocol.core_worker import (
    AddBorrower,
    AddBorrowerReply,
    CheckTickets,
    CheckTicketsReply,
    Loan,
    RefInfo,
    RemoveBorrower,
)
from minray.rpc.connection import PeerUnreachable
from tests.core_worker.parts import OWN, address, object_id
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import run, turns

OTHER, THIRD = address("other-owner"), address("third")
MINE, THEIRS, FOUND = object_id("mine"), object_id("theirs"), object_id("found")
REFS = [(MINE, OWN), (THEIRS, OTHER)]


class Scene:
    """A process that owns ``MINE`` and borrows ``THEIRS``."""

    def __init__(self) -> None:
        self.peers = RecordingPeers()
        self.references = ReferenceCounter()
        self.references.add_owned(MINE)
        self.references.add_local(THEIRS, OTHER)
        self.freed: list[bytes] = []
        self.watches = 0
        process = process_record(self.peers)
        self.borrowing = Borrowing(process, self.references, self.on_freed, self.on_first_lent)

    def on_freed(self, effects: Effects) -> None:
        self.freed += effects.freed

    def on_first_lent(self) -> None:
        self.watches += 1

    def drop(self, key: bytes) -> None:
        effects = Effects()
        self.references.remove_local([key], effects)
        self.borrowing.apply(effects)

    def lent(self) -> dict[bytes, Any]:
        reference = self.references.reference_of(MINE)
        assert reference is not None
        return reference.lent or {}


def test_own_references_are_lent_at_once() -> None:
    scene = Scene()
    infos = scene.borrowing.lend_now([(MINE, OWN)], THIRD)
    assert infos is not None and scene.lent() == {infos[0].ticket: (THIRD, OWN, None)} and scene.peers.asked == []
    assert scene.borrowing.lend_now(REFS, THIRD) is None and len(scene.lent()) == 1


def test_borrowed_references_travel_when_their_owner_has_noted_it() -> None:
    async def story() -> None:
        scene = Scene()
        lending = asyncio.ensure_future(scene.borrowing.lend(REFS, THIRD))
        await turns()
        asked = scene.peers.take(AddBorrower)
        assert asked.address == OTHER and not lending.done()
        asked.answer(AddBorrowerReply([]))
        infos = await lending
        assert [(info.object_id, info.owner) for info in infos] == REFS
        assert asked.request == AddBorrower(THIRD, OWN, [Loan(THEIRS, infos[1].ticket)]) and infos[0].ticket in scene.lent()

    run(story)


def test_owners_that_are_dead_or_refuse_do_not_hold_up_the_others() -> None:
    async def story() -> None:
        scene = Scene()
        lending = asyncio.ensure_future(scene.borrowing.lend([*REFS, (b"another" * 4, THIRD)], THIRD))
        await turns()
        scene.peers.asked[0].fail(unreachable())
        scene.peers.asked[1].fail(RemoteFailure("internal", "oops"))
        assert len(await lending) == 3

    run(story)


def test_a_mistake_of_ours_while_lending_is_not_passed_over() -> None:
    async def story() -> None:
        scene = Scene()
        lending = asyncio.ensure_future(scene.borrowing.lend(REFS, THIRD))
        await turns()
        scene.peers.asked[0].fail(AssertionError("a bug"))  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match="a bug"):
            await lending

    run(story)


def test_g112_a_repeated_question_is_answered_with_the_same_tickets() -> None:
    async def story() -> None:
        scene = Scene()
        refs = [(MINE, OWN)] * 2
        tickets = [await scene.borrowing.lend(refs, THIRD, question) for question in (b"q1", b"q1", b"q2", b"", b"")]
        assert tickets[0] == tickets[1]
        assert len({info.ticket for infos in tickets for info in infos}) == len(scene.lent()) == 8

    run(story)


def test_tickets_of_our_own_replace_the_hold_of_others() -> None:
    async def story() -> None:
        scene = Scene()
        assert scene.references.needs_ticket(THEIRS)
        scene.borrowing.keep_soon(THEIRS, OTHER)
        await turns()
        asked = scene.peers.take(AddBorrower)
        assert asked.request.borrower == OWN
        asked.answer(AddBorrowerReply([]))
        await turns()
        assert not scene.references.needs_ticket(THEIRS)
        scene.drop(THEIRS)
        returned = scene.peers.take(RemoveBorrower)
        assert returned.address == OTHER and returned.request.loans == asked.request.loans

    run(story)


def test_a_reference_that_is_dropped_before_its_ticket_comes_gives_it_back() -> None:
    async def story() -> None:
        scene = Scene()
        scene.borrowing.keep_soon(THEIRS, OTHER)
        await turns()
        asked = scene.peers.take(AddBorrower)
        scene.drop(THEIRS)
        assert scene.peers.asked == []
        asked.answer(AddBorrowerReply([]))
        await turns()
        assert scene.peers.take(RemoveBorrower).request.loans == asked.request.loans

    run(story)


def test_g33a_who_holds_an_object_that_nobody_has_lent_to_it_asks_the_owner() -> None:
    async def story() -> None:
        scene = Scene()
        holding = asyncio.ensure_future(scene.borrowing.hold(FOUND, OTHER))
        await turns()
        asked = scene.peers.take(AddBorrower)
        assert asked.address == OTHER and asked.request.borrower == asked.request.lender == OWN
        assert scene.references.reference_of(FOUND) is None, "nothing is held before the owner has agreed"
        asked.answer(AddBorrowerReply([]))
        assert await holding and not scene.references.needs_ticket(FOUND)
        scene.drop(FOUND)
        assert scene.peers.take(RemoveBorrower).request.loans == asked.request.loans

    run(story)


def test_g33a_an_object_that_its_owner_has_freed_is_not_held() -> None:
    async def story() -> None:
        scene = Scene()
        holding = asyncio.ensure_future(scene.borrowing.hold(FOUND, OTHER))
        await turns()
        asked = scene.peers.take(AddBorrower)
        asked.answer(AddBorrowerReply(asked.request.loans))
        assert not await holding and scene.references.reference_of(FOUND) is None and scene.peers.asked == []
        dead = asyncio.ensure_future(scene.borrowing.hold(FOUND, THIRD))
        await turns()
        scene.peers.take(AddBorrower).fail(unreachable(is_certain=True))
        with pytest.raises(PeerUnreachable):
            await dead
        assert scene.references.reference_of(FOUND) is None

    run(story)


def test_g33a_an_owner_holds_its_own_object_as_long_as_that_is_not_freed() -> None:
    async def story() -> None:
        scene = Scene()
        assert await scene.borrowing.hold(MINE, OWN)
        for is_last in (False, True):
            assert scene.freed == []
            scene.drop(MINE)
            assert (scene.freed == [MINE]) is is_last
        assert not await scene.borrowing.hold(MINE, OWN) and scene.peers.asked == []

    run(story)


def test_g33a_an_owner_says_which_tickets_it_cannot_note() -> None:
    scene = Scene()
    loans = [Loan(MINE, b"ticket 1"), Loan(FOUND, b"ticket 2")]
    assert scene.borrowing.lend_to(AddBorrower(THIRD, THIRD, loans)) == loans[1:]
    assert scene.lent() == {b"ticket 1": (THIRD, THIRD, None)}


def test_many_references_of_one_owner_cost_few_messages() -> None:
    async def story() -> None:
        scene = Scene()
        many = [(b"%028d" % number, OTHER) for number in range(25_000)]
        for key, owner in many:
            scene.references.add_local(key, owner)
        keeping = asyncio.ensure_future(scene.borrowing.keep_refs(many))
        await turns()
        lent, scene.peers.asked = scene.peers.asked, []
        assert [len(asked.request.loans) for asked in lent] == [10_000, 10_000, 5_000]
        for asked in lent:
            asked.answer(AddBorrowerReply([]))
        await keeping
        for key, _ in many:
            scene.drop(key)
        returned = scene.peers.take(RemoveBorrower)
        assert len(returned.request.loans) == 1 and scene.peers.asked == [], "one at a time"
        returned.answer(DONE)
        for expected in (10_000, 10_000, 4_999):
            returned = scene.peers.take(RemoveBorrower)
            assert len(returned.request.loans) == expected
            returned.answer(DONE)
        assert scene.peers.asked == []

    run(story)


def test_what_an_owner_would_have_got_next_is_forgotten_with_it() -> None:
    scene = Scene()
    for key in (b"%028d" % number for number in range(3)):
        scene.references.add_local(key, OTHER)
        scene.references.receive_ticket(RefInfo(key, OTHER, key), Effects())
        scene.drop(key)
    scene.peers.take(RemoveBorrower).fail(unreachable())
    assert scene.peers.asked == []


def test_deaths_are_watched_from_the_first_loan_to_somebody_else_on() -> None:
    scene = Scene()
    scene.borrowing.lend_now([(MINE, OWN)], OWN)
    assert scene.watches == 0
    for _ in range(2):
        scene.borrowing.lend_now([(MINE, OWN)], THIRD)
    assert scene.watches == 1


def test_what_is_freed_is_forgotten() -> None:
    scene = Scene()
    scene.drop(MINE)
    assert scene.freed == [MINE]


def test_loans_of_a_dead_lender_are_checked_with_the_borrower() -> None:
    scene = Scene()
    lender = address("lender")
    for ticket in (b"t1", b"t2"):
        scene.borrowing.lend_as_owner(MINE, THIRD, ticket, lender)
    effects = Effects()
    scene.references.on_death(lender.worker_id, effects)
    scene.borrowing.apply(effects)
    asked = scene.peers.take(CheckTickets)
    assert asked.address == THIRD
    assert asked.request == CheckTickets(lender.worker_id, [Loan(MINE, b"t1"), Loan(MINE, b"t2")])
    asked.answer(CheckTicketsReply([Loan(MINE, b"t2")]))
    assert list(scene.lent()) == [b"t1"]


def test_loans_of_a_dead_lender_to_ourselves_are_void() -> None:
    """We take tickets of our own objects back when they arrive; what is still out has not arrived."""
    scene = Scene()
    lender = address("lender")
    scene.borrowing.lend_as_owner(MINE, OWN, b"t", lender)
    effects = Effects()
    scene.references.on_death(lender.worker_id, effects)
    scene.borrowing.apply(effects)
    assert scene.lent() == {} and scene.peers.asked == [] and scene.peers.reported_dead == [lender.worker_id]


def test_who_answers_for_the_tickets_of_a_dead_lender_hears_it_no_more() -> None:
    scene = Scene()
    scene.references.receive_ticket(RefInfo(THEIRS, OTHER, b"arrived"), Effects())
    loans = [Loan(THEIRS, b"arrived"), Loan(THEIRS, b"not-arrived"), Loan(object_id("unknown"), b"t")]
    assert scene.borrowing.missing(b"lender", loans) == loans[1:]
    assert scene.peers.reported_dead == [b"lender"]


def test_closing_ends_what_is_being_kept() -> None:
    async def story() -> None:
        scene = Scene()
        scene.borrowing.keep_soon(THEIRS, OTHER)
        await turns()
        scene.borrowing.close()
        await turns()
        assert not scene.borrowing._registering

    run(story)
