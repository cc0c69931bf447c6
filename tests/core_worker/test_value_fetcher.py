"""How large values come to a process: at once, or after what was known of them turned out to be old.

``Home`` has a real memory store and reference counter; what its fetcher asks of the node's store and of owners is written
down, and the test answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from minray.core_worker.fetching.store_provider import CHANGED_VALUE, Fetched
from minray.core_worker.fetching.value_fetcher import AGAIN_S, RAYLET_PATIENCE_S, ValueFetcher
from minray.core_worker.ownership.memory_store import MemoryStore, Waiter
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import ObjectLostError, RayError
from minray.protocol.base import Address
from minray.protocol.core_worker import RefInfo
from minray.protocol.object_store import GET, TASK_ARGUMENTS, WAIT, Place
from tests.core_worker.parts import OWN, address, object_id, stored
from tests.core_worker.process_record import process_record
from tests.core_worker.user_thread import UserThread
from tests.rpc.fake_network import pass_time, run, turns

OWNER = address("the-owner")
A, B, C, INNER = map(object_id, ("a", "b", "c", "inner"))
VALUE, OTHER = stored(b"value"), stored(b"other")
LOST = ObjectLostError(reason="gone")


def large(attempt: int = 1) -> StoredObject:
    """Entry of a large value that this attempt has made."""
    return StoredObject(b"", (), False, (), Place(attempt, 10_000, address("raylet")))


class Question:
    """A request to the store of the node to bring objects."""

    def __init__(self, objects: Any, on_fetched: Any, timeout_s: float | None, purpose: int) -> None:
        self.asked = [(known.object_id, known.attempt) for known in objects]
        self.answer: Callable[[list[Fetched]], None] = on_fetched
        self.timeout_s = timeout_s
        self.purpose = purpose


class Home:
    """See the head of this file."""

    def __init__(self) -> None:
        self.user_code = UserThread()
        self.process = process_record(user_code=self.user_code)
        self.store = MemoryStore()
        self.references = ReferenceCounter()
        self.lenders: list[ReceivedTask] = []
        """Tasks that lend their CPUs while they read."""
        self.freed: list[bytes] = []
        self.questions: list[Question] = []
        """To the store of this node."""
        self.asked: list[bytes] = []
        """Objects whose owners were asked for the value."""
        self.looks: list[tuple[bytes, Callable[[], None]]] = []
        """Objects whose owners were asked whether the object exists now, with their callbacks."""
        self.results: list[list[Any]] = []
        """Values that were fetched, a list for each fetch."""
        around: Any = self
        self.fetcher = ValueFetcher(
            self.process,
            self.references,
            self.store,
            borrowing=around,
            objects=around,
            futures=around,
            provider=around,
            lend_soon=self.lend_soon,
        )
        for key in (A, B, C):
            self.references.add_local(key, OWNER)
            self.store.put(key, large())

    # --- the parts around it

    def lend_soon(self, task: ReceivedTask) -> Callable[[], None]:
        self.lenders.append(task)
        return lambda: self.lenders.remove(task)

    def as_error(self, error: RayError) -> StoredObject:
        return stored(str(error).encode(), is_error=True)

    def apply(self, effects: Effects) -> None:
        self.freed += effects.freed

    def fetch(self, *asked: Any) -> None:
        """Both of owners and of the store."""
        if isinstance(asked[0], bytes):
            assert asked[1] == OWNER
            self.asked.append(asked[0])
        else:
            self.questions.append(Question(*asked))

    def look(self, object_id: bytes, owner: Address, on_pending: Callable[[], None]) -> None:
        assert owner == OWNER
        self.looks.append((object_id, on_pending))

    # --- what a test says

    def known(self, *object_ids: bytes) -> list[LargeObject]:
        return [LargeObject.known(key, OWNER, self.store.objects[key]) for key in object_ids]

    def want(self, *object_ids: bytes, timeout_s: float | None = None, purpose: int = GET) -> None:
        self.fetcher.fetch(self.known(*object_ids), self.results.append, timeout_s, purpose)

    def take(self) -> Question:
        """The one question to the store."""
        (question,) = self.questions
        self.questions.clear()
        return question

    def drop(self, object_id: bytes) -> None:
        self.references.remove_local([object_id], Effects())
        self.store.delete([object_id])

    def own(self, object_id: bytes) -> None:
        """Make an object belong to this process, which has not made it yet."""
        self.drop(object_id)
        self.references.add_owned(object_id)


def tell(story: Any) -> None:
    async def whole() -> None:
        home = Home()
        await story(home)
        assert not home.process.background and home.questions == [] and home.store.awaited() == []

    run(whole)


# --- at once


def test_a_user_thread_gets_values_errors_and_nothing_for_what_is_late() -> None:
    async def story(home: Home) -> None:
        known = home.known(A, B, C)
        home.user_code.begin(lambda: home.fetcher.get(known, 1.5))
        question = home.take()
        assert (question.asked, question.timeout_s, question.purpose) == ([(A, 1), (B, 1), (C, 1)], 1.5, GET)
        question.answer([VALUE, LOST, None])
        value, error, late = home.user_code.result()
        assert value is VALUE and late is None and error.is_error and b"gone" in error.data

    tell(story)


def test_g101_a_task_that_reads_lends_its_cpus_until_it_has_what_it_wants() -> None:
    async def story(home: Home) -> None:
        known, task = home.known(A), cast(Any, "task")
        home.user_code.begin(lambda: home.fetcher.get(known, None, task))
        assert home.lenders == ["task"]
        home.take().answer([VALUE])
        assert home.lenders == [] and len(home.user_code.result()) == 1
        home.user_code.begin(lambda: home.fetcher.get(known, None, task))
        late = home.take()
        home.user_code.interrupt(KeyboardInterrupt())
        assert home.lenders == []
        with pytest.raises(KeyboardInterrupt):
            home.user_code.result()
        home.user_code.begin(lambda: home.fetcher.get(known, None))
        assert home.lenders == [], "nobody stands still"
        home.take().answer([VALUE])
        del late

    tell(story)


def test_l1_a_thread_with_a_time_out_does_not_wait_for_a_silent_raylet() -> None:
    async def story(home: Home) -> None:
        known, task = home.known(A), cast(Any, "task")
        home.user_code.begin(lambda: home.fetcher.get(known, 1.5, task))
        late = home.take()
        assert home.user_code.end_wait() == 1.5 + RAYLET_PATIENCE_S
        assert home.user_code.result() == [None] and home.lenders == []
        late.answer([VALUE])
        home.user_code.begin(lambda: home.fetcher.get(known, 1.5, task))
        home.take().answer([VALUE])
        assert len(home.user_code.result()) == 1 and home.lenders == []

    tell(story)


def test_what_is_as_it_was_known_is_asked_for_once_and_handed_over() -> None:
    async def story(home: Home) -> None:
        home.want(A, B, timeout_s=3.0, purpose=WAIT)
        question = home.take()
        assert (question.asked, question.timeout_s, question.purpose) == ([(A, 1), (B, 1)], 3.0, WAIT)
        question.answer([VALUE, None])
        assert home.results == [[VALUE, None]] and home.asked == [] and A in home.store.objects

    tell(story)


# --- after a change


def test_what_has_changed_is_forgotten_asked_for_at_its_owner_and_fetched_once_more() -> None:
    """And nothing else is fetched again."""

    async def story(home: Home) -> None:
        home.want(A, B, C, purpose=WAIT)
        home.take().answer([VALUE, CHANGED_VALUE, LOST])
        await turns()
        assert home.asked == [B] and B not in home.store.objects and A in home.store.objects
        assert len(home.process.background) == 1 and home.questions == [] and home.results == []
        home.store.put(B, large(2))
        await turns()
        again = home.take()
        assert (again.asked, again.timeout_s, again.purpose) == ([(B, 2)], None, WAIT)
        again.answer([OTHER])
        await turns()
        assert home.results == [[VALUE, OTHER, LOST]]

    tell(story)


def test_all_that_have_changed_are_followed() -> None:
    async def story(home: Home) -> None:
        home.want(A, B)
        home.take().answer([CHANGED_VALUE, CHANGED_VALUE])
        await turns()
        home.store.put(A, VALUE)
        await turns()
        home.store.put(B, OTHER)
        await turns()
        assert home.asked == [A, B] and home.results == [[VALUE, OTHER]]

    tell(story)


def test_what_was_inside_the_old_value_is_let_go() -> None:
    async def story(home: Home) -> None:
        home.references.on_value(A, [RefInfo(INNER, OWNER, b"")], OWN.worker_id, Effects())
        home.want(A)
        home.take().answer([CHANGED_VALUE])
        await turns()
        assert home.freed == [INNER]
        home.store.put(A, VALUE)
        await turns()

    tell(story)


@pytest.mark.parametrize("now", [VALUE, stored(b"failed", is_error=True)])
def test_a_small_value_or_an_error_in_its_place_is_the_value(now: StoredObject) -> None:
    async def story(home: Home) -> None:
        home.want(A)
        home.take().answer([CHANGED_VALUE])
        await turns()
        home.store.put(A, now)
        await turns()
        assert home.results == [[now]]

    tell(story)


def test_while_an_owner_does_not_know_yet_it_is_asked_again_after_a_pause() -> None:
    async def story(home: Home) -> None:
        home.want(A)
        home.take().answer([CHANGED_VALUE])
        await turns()
        home.store.put(A, large(1))
        await turns()
        home.take().answer([CHANGED_VALUE])
        await turns()
        assert home.asked == [A], "not at once"
        await pass_time(AGAIN_S)
        assert home.asked == [A, A]
        home.store.put(A, large(2))
        await turns()
        question = home.take()
        assert question.asked == [(A, 2)]
        question.answer([VALUE])
        await turns()
        assert home.results == [[VALUE]]

    tell(story)


def test_nobody_asks_when_a_later_attempt_is_known_already() -> None:
    async def story(home: Home) -> None:
        home.want(A)
        home.store.replace(A, large(2))
        home.take().answer([CHANGED_VALUE])
        await turns()
        assert home.asked == []
        home.take().answer([VALUE])
        await turns()
        assert home.results == [[VALUE]]

    tell(story)


def test_what_is_ones_own_is_waited_for_and_nobody_is_asked() -> None:
    async def story(home: Home) -> None:
        home.fetcher.fetch([LargeObject(A, OWN, (), 1)], home.results.append)
        home.own(A)
        home.take().answer([CHANGED_VALUE])
        await turns()
        assert home.asked == [] and home.results == []
        home.store.put(A, VALUE)
        await turns()
        assert home.results == [[VALUE]]

    tell(story)


@pytest.mark.parametrize("dropped_late", [False, True])
def test_what_nobody_wants_any_more_does_not_come(dropped_late: bool) -> None:
    async def story(home: Home) -> None:
        home.want(A)
        question = home.take()
        if not dropped_late:
            home.drop(A)
        question.answer([CHANGED_VALUE])
        await turns()
        if dropped_late:
            home.drop(A)
            await turns()
        assert home.results == [[None]] and home.asked == [A] * dropped_late

    tell(story)


@pytest.mark.parametrize("is_with_owner", [False, True])
def test_what_has_not_come_in_time_is_none_however_often_it_has_changed(is_with_owner: bool) -> None:
    """The time began with the first question; what is answered after it is up changes nothing."""

    async def story(home: Home) -> None:
        home.want(A, B, C, timeout_s=10.0)
        await pass_time(6.0)
        home.take().answer([CHANGED_VALUE, OTHER, CHANGED_VALUE])
        await turns()
        if not is_with_owner:
            home.store.put(A, large(2))
            await turns()
        await pass_time(3.9)
        assert home.results == []
        await pass_time(0.2)
        assert home.results == [[None, OTHER, None]] and home.store.awaited() == []
        if not is_with_owner:
            home.take().answer([VALUE])
        assert home.results == [[None, OTHER, None]]

    tell(story)


def test_a_process_that_leaves_its_cluster_gets_no_more() -> None:
    async def story(home: Home) -> None:
        home.want(A, B, C)
        home.take().answer([CHANGED_VALUE, OTHER, None])
        await turns()
        (following,) = home.process.background
        following.cancel()
        await turns()
        ((value, other, late),) = home.results
        assert isinstance(value, ObjectLostError) and "has left its cluster" in str(value)
        assert other is OTHER and late is None and following.cancelled()

    tell(story)


# --- places


def test_a_place_is_forgotten_with_what_was_inside_so_that_its_owner_is_asked_again() -> None:
    home = Home()
    home.references.on_value(A, [RefInfo(INNER, OWNER, b"")], OWN.worker_id, Effects())
    home.fetcher.forget_place(A, attempt=2)
    assert A in home.store.objects and home.freed == [], "that was another attempt"
    home.fetcher.forget_place(A)
    assert A not in home.store.objects and home.freed == [INNER]


def test_only_places_of_borrowed_objects_are_forgotten() -> None:
    home = Home()
    home.store.replace(A, VALUE)
    home.references.remove_local([B], Effects())
    home.own(C)
    home.store.put(C, large())
    for key in (A, B, C, object_id("unknown")):
        home.fetcher.forget_place(key)
    assert set(home.store.objects) == {A, B, C}


# --- for those who wait


def test_for_all_who_wait_for_an_object_there_is_one_question() -> None:
    async def story(home: Home) -> None:
        (one,) = home.known(A)
        heard: list[bool] = []

        def hear() -> None:
            heard.append(home.store.objects[A].is_fetched)

        first, gone, second = (Waiter(1, False, hear) for _ in range(3))
        for waiter in (first, gone):
            home.fetcher.fetch_for(waiter, one)
        gone.released = True
        home.fetcher.fetch_for(second, one)
        assert home.fetcher._fetching[A] == [first, second], "whoever polls leaves nothing"
        question = home.take()
        assert (question.asked, question.timeout_s, question.purpose) == ([(A, 1)], None, WAIT)
        question.answer([VALUE])
        assert heard == [True, True]
        home.fetcher.fetch_for(Waiter(1, False, lambda: None), one)
        home.take().answer([VALUE])

    tell(story)


@pytest.mark.parametrize("answer", [VALUE, LOST])
def test_who_waits_hears_of_what_cannot_be_brought_too(answer: Any) -> None:
    """An error counts as ready."""

    async def story(home: Home) -> None:
        waiter = Waiter(1, False, lambda: None)
        home.fetcher.fetch_for(waiter, *home.known(A))
        home.take().answer([answer])
        assert waiter.released and home.store.objects[A].is_fetched

    tell(story)


def test_who_waits_does_not_hear_of_what_is_not_known_any_more() -> None:
    async def story(home: Home) -> None:
        waiter = Waiter(1, False, lambda: None)
        home.fetcher.fetch_for(waiter, *home.known(A))
        home.drop(A)
        home.take().answer([LOST])
        assert not waiter.released and home.fetcher._fetching == {}

    tell(story)


# --- for tasks


class Taker:
    """A task that needs an argument."""

    def __init__(self, home: Home, owner: Address, waits: bool = False) -> None:
        self.heard: list[str] = []
        here, missing = (lambda word=word: self.heard.append(word) for word in ("here", "missing"))
        home.fetcher.fetch_argument(A, owner, here, missing, waits)


@pytest.mark.parametrize("owner", [OWN, OWNER])
@pytest.mark.parametrize("waits", [False, True])
def test_an_argument_that_is_here_is_here(owner: Address, waits: bool) -> None:
    async def story(home: Home) -> None:
        assert Taker(home, owner, waits).heard == ["here"]
        assert home.asked == [] and home.looks == []

    tell(story)


def test_an_owner_is_asked_whether_it_has_an_argument_now() -> None:
    async def story(home: Home) -> None:
        home.store.delete([A])
        taker = Taker(home, OWNER)
        ((key, on_pending),) = home.looks
        assert key == A and taker.heard == [] and home.asked == []
        home.store.put(A, VALUE)
        assert taker.heard == ["here"]
        on_pending()
        assert taker.heard == ["here"]

    tell(story)


def test_a_task_that_does_not_wait_hears_that_its_argument_is_being_made() -> None:
    async def story(home: Home) -> None:
        home.store.delete([A])
        taker = Taker(home, OWNER)
        home.looks[0][1]()
        assert taker.heard == ["missing"] and home.store.awaited() == []
        home.store.put(A, VALUE)
        assert taker.heard == ["missing"]

    tell(story)


def test_of_its_own_objects_a_process_knows_itself_that_they_are_being_made() -> None:
    async def story(home: Home) -> None:
        home.own(A)
        taker = Taker(home, OWN)
        assert taker.heard == ["missing"] and home.looks == [] and home.store.awaited() == []

    tell(story)


@pytest.mark.parametrize("owner", [OWN, OWNER])
def test_g49_a_call_with_a_place_in_an_order_waits(owner: Address) -> None:
    async def story(home: Home) -> None:
        home.store.delete([A])
        taker = Taker(home, owner, waits=True)
        assert home.asked == ([A] if owner is OWNER else []) and home.looks == [] and taker.heard == []
        home.store.put(A, VALUE)
        assert taker.heard == ["here"]

    tell(story)


@pytest.mark.parametrize(("waits", "purpose"), [(False, TASK_ARGUMENTS), (True, GET)])
def test_large_arguments_are_fetched_with_their_errors(waits: bool, purpose: int) -> None:
    async def story(home: Home) -> None:
        home.fetcher.fetch_arguments(home.known(A, B, C), home.results.append, waits)
        question = home.take()
        assert (question.asked, question.purpose) == ([(A, 1), (B, 1), (C, 1)], purpose)
        question.answer([VALUE, None, LOST])
        ((value, missing, error),) = home.results
        assert value is VALUE and missing is None and error.is_error

    tell(story)


@pytest.mark.parametrize("came_with_the_task", [False, True])
@pytest.mark.parametrize("is_there", [False, True])
def test_an_argument_that_has_changed_is_missing_unless_its_owner_has_another_now(
    is_there: bool, came_with_the_task: bool
) -> None:
    async def story(home: Home) -> None:
        home.want(A, purpose=TASK_ARGUMENTS)
        if came_with_the_task:
            home.store.delete([A])
        home.take().answer([CHANGED_VALUE])
        await turns()
        ((_, on_pending),) = home.looks
        if is_there:
            home.store.put(A, large(2))
            await turns()
            again = home.take()
            assert (again.asked, again.purpose) == ([(A, 2)], TASK_ARGUMENTS)
            again.answer([VALUE])
        else:
            on_pending()
        await turns()
        assert home.results == [[VALUE if is_there else None]] and home.asked == []

    tell(story)
