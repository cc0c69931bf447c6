"""Values of borrowed references: one question per object, asked until there is an answer."""

from __future__ import annotations

from typing import Any

import pytest

from minray.core_worker.fetching.future_resolver import ANY_SIZE, FutureResolver
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import OwnerDiedError, RayError, RaySystemError
from minray.platform.base import RemoteFailure
from minray.protocol.base import Address
from minray.protocol.core_worker import (
    FREED,
    LARGE,
    PENDING,
    READY,
    GetObject,
    GetObjects,
    Loan,
    ObjectReplies,
    ObjectReply,
    RefInfo,
    Value,
)
from minray.protocol.object_store import Place
from tests.core_worker.parts import address, object_id
from tests.core_worker.peers import Asked, RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import pass_time, run

OWNER = address("the-owner")
A, B, C = map(object_id, "abc")
LIMIT = 1000


class Scene:
    """A resolver in a process that holds a reference to ``A``."""

    def __init__(self) -> None:
        self.peers = RecordingPeers()
        self.references = ReferenceCounter()
        self.references.add_local(A, OWNER)
        self.came: list[tuple[bytes, StoredObject]] = []
        self.lost: list[RayError] = []
        self.freed: list[list[bytes]] = []
        self.given_back: list[tuple[bytes, Address, list[bytes]]] = []
        self.large = 0
        self.asks_again = False
        """Whether each callback about a value or its loss asks for the object once more."""
        self.resolver = FutureResolver(
            process_record(self.peers),
            self.references,
            MemoryStore(),
            self.on_object,
            self.on_lost,
            self.apply,
        )

    def apply(self, effects: Effects) -> None:
        self.freed.append(effects.freed.copy())
        self.given_back += effects.give_back

    def on_object(self, key: bytes, stored: StoredObject) -> None:
        self.came.append((key, stored))
        if self.asks_again:
            self.resolver.fetch(key, OWNER)

    def on_lost(self, key: bytes, error: RayError) -> None:
        assert key == A
        assert not isinstance(error, OwnerDiedError) or error.owner == OWNER.endpoint
        self.lost.append(error)
        if self.asks_again:
            self.resolver.fetch(key, OWNER)

    def on_large(self, place: Place | None) -> None:
        self.large += 1

    def ask(self, limit: int = ANY_SIZE) -> Asked:
        """The first question of a turn."""
        self.resolver._ask_following()
        if limit == ANY_SIZE:
            self.resolver.fetch(A, OWNER)
        else:
            self.resolver.probe(A, OWNER, limit, self.on_large)
        return self.peers.take(GetObject)

    def drop_reference(self) -> None:
        effects = Effects()
        self.references.remove_local([A], effects)
        self.given_back += effects.give_back


def test_a_value_is_asked_for_once_however_many_want_it() -> None:
    async def story() -> None:
        scene = Scene()
        asked = scene.ask()
        scene.resolver.fetch(A, OWNER)
        assert scene.peers.asked == [] and asked.address == OWNER and asked.request.inline_limit == ANY_SIZE
        asked.answer(ObjectReply(READY, Value(b"value")))
        ((key, stored),) = scene.came
        assert (key, stored.data) == (A, b"value") and scene.resolver.open_requests() == 0
        scene.ask()

    run(story)


def test_questions_of_one_turn_go_to_their_owner_together() -> None:
    async def story() -> None:
        scene = Scene()
        asked = scene.ask()
        for key in (B, C):
            scene.references.add_local(key, OWNER)
            scene.resolver.fetch(key, OWNER)
        scene.resolver.probe(A, OWNER, LIMIT, scene.on_large)
        await pass_time(0.001)
        together = scene.peers.take(GetObjects)
        questions = [(one.object_id, one.inline_limit) for one in together.request.questions]
        assert questions == [(B, ANY_SIZE), (C, ANY_SIZE), (A, LIMIT)]
        in_record, beside = Value(b"b"), Value(b"c", buffer_count=1)
        replies = [ObjectReply(READY, in_record), ObjectReply(READY, beside), ObjectReply(LARGE)]
        together.answer(ObjectReplies(replies), [b"buffer of c"])
        assert [(key, stored.data, list(stored.buffers)) for key, stored in scene.came] == [
            (B, b"b", []),
            (C, b"c", [b"buffer of c"]),
        ]
        assert scene.large == 1 and scene.resolver.open_requests() == 1
        asked.answer(ObjectReply(READY, Value(b"a")))

    run(story)


def test_each_value_of_an_answer_gets_its_own_buffers() -> None:
    async def story() -> None:
        scene = Scene()
        asked = scene.ask()
        for key in (B, C):
            scene.references.add_local(key, OWNER)
            scene.resolver.fetch(key, OWNER)
        await pass_time(0.001)
        values = [Value(b"b", buffer_count=2), Value(b"c", buffer_count=1)]
        replies = ObjectReplies([ObjectReply(READY, value) for value in values])
        scene.peers.take(GetObjects).answer(replies, [b"b1", b"b2", b"c1"])
        assert [(key, list(stored.buffers)) for key, stored in scene.came] == [(B, [b"b1", b"b2"]), (C, [b"c1"])]
        asked.answer(ObjectReply(READY, Value(b"a")))

    run(story)


def test_what_is_refused_together_is_asked_for_one_by_one() -> None:
    async def story() -> None:
        scene = Scene()
        scene.ask().answer(ObjectReply(READY, Value(b"a")))
        for key in (B, C):
            scene.references.add_local(key, OWNER)
            scene.resolver.fetch(key, OWNER)
        await pass_time(0.001)
        together = scene.peers.take(GetObjects)
        together.fail(RemoteFailure("too-large", "a reply of 9 bytes"))
        alone = scene.peers.take_all(GetObject)
        assert [(asked.request.object_id, asked.request.question) for asked in alone] == [
            (one.object_id, one.question) for one in together.request.questions
        ]
        for asked in alone:
            asked.answer(ObjectReply(READY, Value(b"b")))
        assert scene.lost == [] and [key for key, _ in scene.came] == [A, B, C]

    run(story)


def test_what_is_not_there_yet_is_asked_for_alone() -> None:
    async def story() -> None:
        scene = Scene()
        scene.ask().answer(ObjectReply(READY, Value(b"a")))
        scene.references.add_local(B, OWNER)
        scene.resolver.fetch(B, OWNER)
        await pass_time(0.001)
        together = scene.peers.take(GetObjects)
        together.answer(ObjectReplies([ObjectReply(PENDING)]))
        await pass_time(0.001)
        alone = scene.peers.take(GetObject)
        assert (alone.request.object_id, alone.request.question) == (B, together.request.questions[0].question)

    run(story)


def test_small_values_come_and_large_ones_are_reported_to_all_who_asked() -> None:
    async def story() -> None:
        scene = Scene()
        scene.ask(LIMIT).answer(ObjectReply(READY, Value(b"small")))
        assert len(scene.came) == 1 and scene.large == 0
        asked = scene.ask(LIMIT)
        scene.resolver.probe(A, OWNER, LIMIT, scene.on_large)
        asked.answer(ObjectReply(LARGE))
        assert scene.large == 2 and len(scene.came) == 1 and scene.resolver.open_requests() == 0

    run(story)


@pytest.mark.parametrize("limit", [LIMIT, ANY_SIZE])
def test_g112_a_value_that_does_not_exist_yet_is_asked_for_with_the_same_question(limit: int) -> None:
    async def story() -> None:
        scene = Scene()
        first = scene.ask(limit)
        first.answer(ObjectReply(PENDING))
        await pass_time(0.001)
        again = scene.peers.take(GetObject)
        assert again.request == first.request and scene.resolver.open_requests() == 1
        again.answer(ObjectReply(READY, Value(b"value")))
        assert scene.ask(limit).request.question != first.request.question

    run(story)


@pytest.mark.parametrize("limit", [LIMIT, ANY_SIZE])
def test_nobody_asks_on_for_what_nobody_holds(limit: int) -> None:
    async def story() -> None:
        scene = Scene()
        asked = scene.ask(limit)
        scene.drop_reference()
        asked.answer(ObjectReply(PENDING))
        await pass_time(100)
        assert scene.peers.asked == [] and scene.resolver.open_requests() == 0

    run(story)


@pytest.mark.parametrize("status", [PENDING, READY, LARGE, FREED])
def test_g112_a_question_holds_its_object_until_it_is_answered(status: int) -> None:
    """So that an answer that was lost, with tickets for what is inside, can be had again."""

    async def story() -> None:
        scene = Scene()
        asked, probed = scene.ask(), scene.ask(LIMIT)
        scene.drop_reference()
        asked.answer(ObjectReply(status, Value(b"value")))
        assert scene.references.reference_of(A) is not None
        probed.answer(ObjectReply(status, Value(b"value")))
        assert scene.references.reference_of(A) is None and scene.freed[-1] == [A]

    run(story)


@pytest.mark.parametrize("is_wanted", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_g112_an_answer_with_references_brings_the_ticket_of_its_question(together: bool, is_wanted: bool) -> None:
    """The owner keeps the object, and its answer, until this ticket comes back."""

    async def story() -> None:
        scene = Scene()
        value = Value(b"value", nested=(RefInfo(B, OWNER, b"ticket of b"),))
        asked = scene.ask()
        question = asked.request.question
        if together:
            asked.answer(ObjectReply(READY, Value(b"without references")))
            assert scene.references.needs_ticket(A)
            scene.resolver._ask_following()
            scene.resolver._following = []
            scene.resolver.fetch(A, OWNER)
            scene.resolver._ask_following()
            asked = scene.peers.take(GetObjects)
            question = asked.request.questions[0].question
        if not is_wanted:
            scene.drop_reference()
        asked.answer(ObjectReplies([ObjectReply(READY, value)]) if together else ObjectReply(READY, value))
        if is_wanted:
            assert scene.references.holds_ticket(Loan(A, question)) and scene.given_back == []
            scene.drop_reference()
        assert scene.given_back == [(A, OWNER, [question])]

    run(story)


@pytest.mark.parametrize("limit", [LIMIT, ANY_SIZE])
def test_what_the_owner_has_freed_is_lost(limit: int) -> None:
    async def story() -> None:
        scene = Scene()
        scene.ask(limit).answer(ObjectReply(FREED))
        assert "does not know object" in str(scene.lost[0]) and scene.large == 0 and scene.resolver.open_requests() == 0

    run(story)


@pytest.mark.parametrize("reply", [ObjectReply(READY, Value(b"value")), ObjectReply(FREED), None])
def test_who_hears_an_answer_may_ask_again_at_once(reply: ObjectReply | None) -> None:
    async def story() -> None:
        scene = Scene()
        first = scene.ask()
        scene.asks_again = True
        if reply is None:
            first.fail(unreachable())
        else:
            first.answer(reply)
        await pass_time(0.001)
        again = scene.peers.take(GetObjects).request.questions
        assert len(scene.came) + len(scene.lost) == 1 and [question.object_id for question in again] == [A]
        assert again[0].question != first.request.question and scene.resolver.open_requests() == 1

    run(story)


FAILURES = [
    (unreachable(), OwnerDiedError, str(unreachable())),
    (RemoteFailure("too-large", "a reply of 9 bytes"), RaySystemError, "cannot send it: too-large: a reply of 9 bytes"),
]


@pytest.mark.parametrize(("failure", "kind", "text"), FAILURES)
def test_g62_a_dead_or_refusing_owner_is_told_as_the_error_of_the_value(failure: Any, kind: Any, text: str) -> None:
    async def story() -> None:
        scene = Scene()
        scene.ask().fail(failure)
        (error,) = scene.lost
        assert type(error) is kind and text in str(error) and scene.resolver.open_requests() == 0

    run(story)


def test_who_looks_hears_at_once_that_it_does_not_exist_at_present() -> None:
    async def story() -> None:
        scene = Scene()
        heard: list[int] = []
        scene.resolver.look(A, OWNER, lambda: heard.append(1))
        scene.resolver.look(A, OWNER, lambda: heard.append(2))
        asked = scene.peers.take(GetObject)
        assert (asked.request.timeout_s, asked.request.inline_limit) == (0, ANY_SIZE) and scene.peers.asked == []
        asked.answer(ObjectReply(PENDING))
        assert heard == [1, 2] and scene.peers.asked == [] and scene.resolver.open_requests() == 0

    run(story)


def test_who_looks_gets_what_exists_beside_those_who_wait() -> None:
    async def story() -> None:
        scene = Scene()
        waiting = scene.ask()
        scene.resolver.look(A, OWNER, lambda: pytest.fail("it is there"))
        looking = scene.peers.take(GetObject)
        assert looking.request.question != waiting.request.question
        looking.answer(ObjectReply(READY, Value(b"value")))
        assert [stored.data for _, stored in scene.came] == [b"value"] and scene.lost == []
        assert scene.resolver.open_requests() == 1

    run(story)
