"""Answers of a core worker to others, about values that are here, that come, that are too large, or that will never come.

``Owner`` is a core worker with references and values. It records all other requests to its parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.service import CoreWorkerService
from minray.protocol.base import Address
from minray.protocol.core_worker import (
    FREED,
    LARGE,
    PENDING,
    READY,
    AddBorrower,
    AddBorrowerReply,
    CancelObject,
    ExitWorker,
    GetObject,
    GetObjects,
    Loan,
    ObjectQuestion,
    ObjectReply,
    PrintLines,
    RefInfo,
    RemoveBorrower,
)
from minray.protocol.object_store import Place
from tests.core_worker.parts import OWN, address, object_id, stored
from tests.core_worker.peers import RecordingPeers
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import pass_time, run, turns
from tests.rpc.recording_call import RecordingCall

OTHER, READER, RAYLET = address("other"), address("reader"), address("raylet")
A, B, C, D = map(object_id, "abcd")
NO_LIMIT, LIMIT = -1, 100
FIRST, SECOND = (index.to_bytes(4, "big") for index in range(2))
"""The ends of tickets: positions of the references inside a value."""
no_call: Any = None
PLACE = Place(0, 1 << 20, RAYLET)


class Owner:
    """See the head of this file."""

    def __init__(self, **system: int) -> None:
        self.peers = RecordingPeers()
        self.process = process_record(self.peers, processes=self, **system)
        self.references, self.store = ReferenceCounter(), MemoryStore()
        self.borrowing = Borrowing(self.process, self.references, self.on_freed, lambda: None)
        self.submission = self.task_events = self
        self.said: list[str] = []
        self.on_lines: Any = None
        self.needed = False
        """Whether another process depends on this one."""
        myself: Any = self
        self.service = CoreWorkerService(myself)

    def report_last(self) -> None:
        self.report()

    def report(self) -> None:
        self.said.append("failures reported")

    def exit(self, code: int) -> None:
        self.said.append(f"exit {code}")

    def cancel_task(self, key: bytes, owner: Address, force: bool, recursive: bool) -> None:
        assert (key, owner) == (A, OWN)
        self.said.append(f"cancel {force} {recursive}")

    def is_free(self) -> bool:
        return not self.needed

    def on_freed(self, effects: Effects) -> None:
        self.store.delete(effects.freed)

    def own(self, key: bytes, value: StoredObject | None = None) -> None:
        self.references.add_owned(key)
        if value is not None:
            self.references.on_value(key, value.nested, OWN.worker_id, Effects())
            self.store.put(key, value)

    def drop(self, key: bytes) -> None:
        effects = Effects()
        self.references.remove_local([key], effects)
        self.borrowing.apply(effects)

    def tickets(self, key: bytes) -> list[bytes]:
        reference = self.references.reference_of(key)
        return [] if reference is None else list(reference.lent or ())

    async def get(
        self, key: bytes, limit: int = NO_LIMIT, timeout_s: float = 5.0, question: bytes = b"question"
    ) -> tuple[ObjectReply, Sequence[Any]]:
        """The one answer, and what came beside it."""
        call: Any = RecordingCall()
        returned = await self.service.handle_GetObject(GetObject(key, READER, limit, timeout_s, question), call)
        assert [returned, *call.replies].count(None) == len(call.replies)
        return returned or call.replies[0], call.buffers


def holding(*refs: tuple[bytes, Address]) -> StoredObject:
    return StoredObject(b"value", (), False, [RefInfo(key, owner, b"") for key, owner in refs])


def ask(story: Any, **system: int) -> None:
    async def whole() -> None:
        await story(Owner(**system))

    run(whole)


# --- one value


def test_a_value_that_is_here_is_sent_with_what_does_not_fit_into_the_message() -> None:
    async def story(owner: Owner) -> None:
        owner.own(A, stored(b"small"))
        owner.own(B, stored(b"stream", buffers=[b"x" * 200_000]))
        reply, beside = await owner.get(A)
        assert (reply.status, reply.value and reply.value.data, beside) == (READY, b"small", [])
        reply, beside = await owner.get(B)
        assert reply.status == READY and reply.value is not None and reply.value.buffer_count == len(beside) == 1

    ask(story)


def test_references_inside_travel_with_tickets_of_their_owners() -> None:
    async def story(owner: Owner) -> None:
        owner.own(C)
        owner.own(A, holding((C, OWN)))
        owner.references.add_local(D, OTHER)
        owner.own(B, holding((C, OWN), (D, OTHER)))
        own = (await owner.get(A, question=b"1"))[0].value
        assert own is not None and own.nested == (RefInfo(C, OWN, b"1" + FIRST),) and owner.tickets(C) == [b"1" + FIRST]
        asking = asyncio.ensure_future(owner.get(B, question=b"2"))
        await turns()
        assert not asking.done()
        noting = owner.peers.take(AddBorrower)
        assert noting.address == OTHER and noting.request == AddBorrower(READER, OWN, [Loan(D, b"2" + SECOND)])
        noting.answer(AddBorrowerReply([]))
        mixed = (await asking)[0].value
        assert mixed is not None and [info.ticket for info in mixed.nested] == [b"2" + FIRST, b"2" + SECOND]

    ask(story)


@pytest.mark.parametrize("what", ["dropped", "freed by the user"])
@pytest.mark.parametrize("together", [False, True])
def test_g112_a_repeated_question_gets_the_first_answer_whatever_became_of_the_object(what: str, together: bool) -> None:
    """The tickets of an answer that was lost come again, so that the borrower can give them back."""

    async def story(owner: Owner) -> None:
        owner.own(C)
        owner.own(A, holding((C, OWN)))
        first = (await owner.get(A))[0]
        owner.drop(C)
        if what == "dropped":
            owner.drop(A)
        else:
            owner.store.replace(A, stored(b"freed", is_error=True))
        if together:
            call: Any = RecordingCall()
            await owner.service.handle_GetObjects(GetObjects(READER, [ObjectQuestion(A, NO_LIMIT, b"question")]), call)
            again = call.replies[0].replies[0]
        else:
            again = (await owner.get(A))[0]
        assert again == first and again.value is not None and again.value.nested
        owner.service.handle_RemoveBorrower(
            RemoveBorrower(READER.worker_id, [Loan(A, b"question"), Loan(C, again.value.nested[0].ticket)]), call=no_call
        )
        if what != "dropped":
            owner.drop(A)
        assert len(owner.references) == 0 and not owner.store.objects

    ask(story)


def test_g112_a_late_repetition_of_a_question_leaves_no_ticket_behind() -> None:
    """The repetition comes when its own ticket is back, and when the value, made again, has another reference inside."""

    async def story(owner: Owner) -> None:
        for key in (C, D):
            owner.own(key)
        owner.own(A, holding((C, OWN)))
        await owner.get(A)
        owner.borrowing.take_back([Loan(A, b"question")])
        owner.store.replace(A, holding((D, OWN)))
        reply = (await owner.get(A))[0]
        assert reply.value is not None and [info.ticket for info in reply.value.nested] == [b""]
        assert owner.tickets(D) == [] and owner.tickets(C) == [b"question" + FIRST], "which the borrower still has"

    ask(story)


def test_a_value_with_too_many_references_for_an_answer_leaves_no_ticket_behind() -> None:
    async def story(owner: Owner) -> None:
        owner.own(C)
        owner.own(A, holding(*[(C, OWN)] * 3))
        with pytest.raises(ValueError, match="3 references, and at most 2 fit into an answer"):
            await owner.get(A)
        assert owner.tickets(A) == owner.tickets(C) == []

    ask(story, max_references_per_answer=2)


@pytest.mark.parametrize("value", [stored(b"x" * (LIMIT + 1)), StoredObject(b"", (), False, (), PLACE)])
def test_who_asks_with_a_limit_hears_that_a_large_value_is_there_and_where(value: StoredObject) -> None:
    async def story(owner: Owner) -> None:
        owner.own(A, value)
        assert (await owner.get(A, LIMIT))[0] == ObjectReply(LARGE, place=value.place)
        assert (await owner.get(A))[0].status == READY
        owner.own(B, stored(b"x" * LIMIT))
        assert (await owner.get(B, LIMIT))[0].status == READY

    ask(story)


def test_what_is_not_there_is_waited_for() -> None:
    async def story(owner: Owner) -> None:
        owner.own(A)
        asking = asyncio.ensure_future(owner.get(A))
        await pass_time(4)
        assert not asking.done()
        owner.store.put(A, stored(b"late"))
        value = (await asking)[0].value
        assert value is not None and value.data == b"late"

    ask(story)


def test_after_a_while_the_owner_answers_pending_and_waits_no_more() -> None:
    async def story(owner: Owner) -> None:
        owner.own(A)
        assert (await owner.get(A, timeout_s=1.0))[0] == ObjectReply(PENDING)
        assert owner.store.awaited() == []

    ask(story)


def test_what_has_been_freed_is_not_waited_for() -> None:
    async def story(owner: Owner) -> None:
        assert (await owner.get(A))[0] == ObjectReply(FREED)
        owner.own(B)
        asking = asyncio.ensure_future(owner.get(B))
        await turns()
        owner.store.delete([B])
        assert (await asking)[0] == ObjectReply(FREED)

    ask(story)


def test_who_stops_waiting_in_the_moment_in_which_it_comes_is_answered_once() -> None:
    async def story(owner: Owner) -> None:
        owner.own(A)
        asking = asyncio.ensure_future(owner.get(A))
        await turns()
        asking.cancel()
        owner.store.put(A, stored())
        await turns()
        assert asking.cancelled()

    ask(story)


# --- many values


def test_many_are_answered_at_once_each_in_its_place() -> None:
    async def story(owner: Owner) -> None:
        owner.own(A, stored(b"x" * (LIMIT + 1)))
        owner.own(B)
        owner.own(D)
        owner.own(C, holding((D, OWN)))
        freed = object_id("freed")
        call: Any = RecordingCall()
        questions = [
            ObjectQuestion(A, LIMIT, b"1"),
            ObjectQuestion(B, LIMIT, b"2"),
            ObjectQuestion(C, LIMIT, b"3"),
            ObjectQuestion(freed, LIMIT, b"4"),
            ObjectQuestion(A, NO_LIMIT, b"5"),
        ]
        await owner.service.handle_GetObjects(GetObjects(READER, questions), call)
        (reply,) = call.replies
        assert [each.status for each in reply.replies] == [LARGE, PENDING, READY, FREED, READY]
        assert reply.replies[2].value.nested == (RefInfo(D, OWN, b"3" + FIRST),)
        assert reply.replies[4].value.data == b"x" * (LIMIT + 1) and call.buffers == []

    ask(story)


def test_large_parts_of_many_travel_beside_their_message() -> None:
    async def story(owner: Owner) -> None:
        owner.own(A, stored(b"stream", buffers=[b"x" * 200_000]))
        call: Any = RecordingCall()
        await owner.service.handle_GetObjects(GetObjects(READER, [ObjectQuestion(A, NO_LIMIT, b"1")]), call)
        assert [len(part) for part in call.buffers] == [200_000]

    ask(story)


# --- other requests


def test_g47_who_borrows_an_object_may_have_its_task_cancelled() -> None:
    owner, call = Owner(), RecordingCall()
    owner.service.handle_CancelObject(CancelObject(A, True, False), call)  # type: ignore[arg-type]
    assert owner.said == ["cancel True False"]


@pytest.mark.parametrize(("needed", "force", "agrees"), [(False, False, True), (True, False, False), (True, True, True)])
def test_g64_a_worker_agrees_to_end_if_nobody_needs_it_or_it_must(needed: bool, force: bool, agrees: bool) -> None:
    async def story(owner: Owner) -> None:
        owner.needed = needed
        call: Any = RecordingCall()
        reply = owner.service.handle_ExitWorker(ExitWorker(force), call)
        assert (reply.agreed, owner.process.is_exiting, owner.said) == (agrees, agrees, ["failures reported"] * agrees)
        await pass_time(1)
        assert owner.said == (["failures reported", "exit 0"] if agrees else []), "a moment later, so that the answer leaves"

    ask(story)


def test_lines_of_workers_go_to_the_callback_that_prints_them() -> None:
    owner = Owner()
    call: Any = RecordingCall()
    request = PrintLines(b"node", "", 1, False, [("", "text", "")], 1)
    owner.service.handle_PrintLines(request, call)
    printed: list[PrintLines] = []
    owner.on_lines = printed.append
    owner.service.handle_PrintLines(request, call)
    assert printed == [request]
