"""How a generator that runs here tells its owner of what it yields, and when it may go on.

``Stage`` is a process that runs one: its user thread takes turns with the test, the owner is the test itself.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from minray.common.bounds import BOUNDS
from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE
from minray.common.ids import item_id
from minray.core_worker.execution.generator_executor import GeneratorExecutor, as_async_iterator, as_iterator
from minray.core_worker.records.received_task import Result
from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.base import Address
from minray.protocol.core_worker import GeneratorItemReply, RefInfo, ReportGeneratorItem, Rerun, WaitForReader
from minray.protocol.object_store import Place
from minray.values.object_ref import ObjectRef
from minray.values.serialization import Serialized, deserialize
from tests.core_worker.parts import OWN, RECEIVED_ID, address, object_id, received, template
from tests.core_worker.peers import Asked, RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.core_worker.user_thread import UserThread
from tests.rpc.fake_network import run, turns

OWNER, OTHER = address("the-owner"), address("another")
LARGE = "large"
"""An item that goes to the object store."""
OURS, THEIRS = ObjectRef(object_id("ours"), OWN), ObjectRef(object_id("theirs"), OTHER)


class LoopUser(UserThread):
    """User code that has an event loop; in these tests the one that there is."""

    def post(self, callback: Callable[..., Any], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(callback, *args)


class Stage:
    """See the head of this file."""

    def __init__(
        self,
        is_async: bool = False,
        most_unread: int = 0,
        items_arrived: int = 0,
        items_lost: Sequence[int] = (),
        actor_id: bytes = b"",
    ) -> None:
        self.user = LoopUser() if is_async else UserThread()
        self.peers = RecordingPeers()
        self.discarded: list[bytes] = []
        self.on_discarded: list[Callable[[], None]] = []
        """Callbacks for the store's answers to those."""
        """Items that were taken back from the object store."""
        self.lent: list[bytes] = []
        """References for which tickets were made here."""
        self.lending: list[asyncio.Future[None]] = []
        """Waits for tickets of others."""
        self.yielded = 0
        """By ``numbers`` and ``numbers_async``."""
        self.lenders: list[Any] = []
        """Tasks that stand still."""
        myself: Any = self
        process = process_record(self.peers, user_code=self.user)
        self.executor = GeneratorExecutor(process, myself, myself, self.lend_soon)
        rerun = Rerun([], items_arrived, list(items_lost))
        self.task = received(template(most_unread=most_unread), OWNER, actor_id=actor_id, rerun=rerun)

    # --- as the keeper of results

    def keep_result(self, object_id: bytes, attempt: int, value: Serialized, owner: Address) -> Result:
        assert (attempt, owner) == (2, OWNER)
        assert not self.yielded or object_id == item_id(RECEIVED_ID, self.yielded)
        item = deserialize(value.data, value.buffers, value.refs)
        place = Place(2, 1000, OWN) if item == LARGE else None
        return Result(StoredObject(value.data, value.buffers, False, (), place), value.refs)

    def discard_result(self, object_id: bytes, attempt: int, on_discarded: Callable[[], None]) -> None:
        assert attempt == 2
        self.discarded.append(object_id)
        self.on_discarded.append(on_discarded)

    # --- as those who lend

    def lend_now(self, refs: Sequence[tuple[bytes, Address]], receiver: Address) -> list[RefInfo] | None:
        assert receiver == OWNER and refs
        if any(owner != OWN for _, owner in refs):
            return None
        self.lent += [object_id for object_id, _ in refs]
        return [RefInfo(object_id, owner, b"ticket") for object_id, owner in refs]

    async def lend(self, refs: Sequence[tuple[bytes, Address]], receiver: Address) -> list[RefInfo]:
        assert receiver == OWNER
        self.lending.append(asyncio.get_running_loop().create_future())
        await self.lending[-1]
        return [RefInfo(object_id, owner, b"ticket") for object_id, owner in refs]

    def lend_soon(self, task: Any) -> Callable[[], None]:
        self.lenders.append(task)
        return lambda: self.lenders.remove(task)

    # --- what a test says

    def begin(self, items: Iterator[Any]) -> None:
        self.user.begin(lambda: self.executor.run(self.task, items))

    def numbers(self, most: int = 1000) -> Iterator[int]:
        for number in range(1, most + 1):
            self.yielded = number
            yield number

    async def numbers_async(self, most: int = 1000) -> AsyncIterator[int]:
        for number in range(1, most + 1):
            self.yielded = number
            yield number

    def take_reports(self) -> list[Asked]:
        """The owner hears of items."""
        reports = self.peers.take_all(ReportGeneratorItem)
        for report in reports:
            assert report.address == OWNER and (report.request.task_id, report.request.attempt) == (RECEIVED_ID, 2)
        return reports

    def take_question(self, count: int) -> Asked:
        """Take the request that asks the owner to say when ``count`` items were read."""
        question = self.peers.take(WaitForReader)
        assert question.address == OWNER and question.request == WaitForReader(RECEIVED_ID, 2, count)
        return question

    def answer(self, *asked: Asked, read: int = 0, is_unwanted: bool = False) -> None:
        for one in asked:
            one.answer(GeneratorItemReply(read, is_unwanted))
        self.user.work()

    def is_over(self) -> bool:
        """The thread is through with it, without an error."""
        if self.user.waits_at is None:
            assert self.user.result() is None
        return self.user.waits_at is None


def items(reports: list[Asked]) -> list[Any]:
    """Values that were reported; None stands for the end."""
    values = [report.request.value for report in reports]
    return [None if value is None or value.place else deserialize(value.data, (), []) for value in values]


def numbers(reports: list[Asked]) -> list[int]:
    return [report.request.number for report in reports]


def test_items_leave_in_order_and_the_task_ends_when_all_are_answered() -> None:
    stage = Stage()
    stage.begin(stage.numbers(3))
    reports = stage.take_reports()
    assert items(reports) == [1, 2, 3, None] and numbers(reports) == [1, 2, 3, 4]
    stage.answer(*reports[1:])
    assert not stage.is_over()
    stage.answer(reports[0])
    assert stage.is_over() and stage.peers.asked == []


def test_large_items_are_told_by_their_places_and_long_ones_travel_beside() -> None:
    stage = Stage()
    stage.begin(iter([LARGE, "x" * MAX_DIRECT_CALL_OBJECT_SIZE]))
    large, long, end = stage.take_reports()
    assert large.request.value.place == Place(2, 1000, OWN) and not large.buffers
    assert long.request.value.buffer_count == 1 == len(long.buffers) and not end.buffers
    stage.answer(large, long, end)
    assert stage.is_over() and stage.discarded == []


def test_what_has_arrived_before_does_not_come_again_unless_it_is_lost() -> None:
    stage = Stage(items_arrived=4, items_lost=[2])
    stage.begin(stage.numbers(5))
    reports = stage.take_reports()
    assert numbers(reports) == [2, 5, 6] and items(reports) == [2, 5, None]
    stage.answer(*reports)
    assert stage.is_over()


def test_a_generator_that_raises_does_so_when_all_before_it_is_answered_and_tells_of_no_end() -> None:
    stage = Stage()

    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("in between")

    stage.begin(failing())
    (report,) = stage.take_reports()
    assert stage.user.waits_at is not None
    stage.answer(report)
    with pytest.raises(ValueError, match="in between"):
        stage.user.result()


def test_one_that_is_interrupted_waits_until_all_is_answered() -> None:
    stage = Stage(most_unread=1)
    stage.begin(stage.numbers())
    reports = stage.take_reports()
    question = stage.take_question(1)
    stage.user.interrupt(KeyboardInterrupt())
    assert stage.user.waits_at is not None and stage.yielded == 1
    stage.answer(*reports)
    with pytest.raises(KeyboardInterrupt):
        stage.user.result()
    stage.answer(question, read=1)
    assert stage.yielded == 1


# --- cancelled: a call of an actor, which is not interrupted


def cancel(stage: Stage) -> None:
    stage.task.cancelled = True
    stage.executor.on_cancelled(stage.task)


def test_g48_a_call_that_is_held_up_ends_when_it_is_cancelled_and_all_is_answered() -> None:
    stage = Stage(most_unread=1, actor_id=b"actor")
    closed: list[str] = []

    def some() -> Iterator[int]:
        try:
            yield from stage.numbers()
        finally:
            closed.append("before its end")

    stage.begin(some())
    reports = stage.take_reports()
    stage.take_question(1)
    cancel(stage)
    assert closed == ["before its end"] and stage.yielded == 1 and not stage.is_over()
    stage.answer(*reports)
    with pytest.raises(asyncio.CancelledError):
        stage.user.result()


def test_g48_a_call_that_nobody_holds_up_ends_before_its_next_item_when_it_is_cancelled() -> None:
    stage = Stage(actor_id=b"actor")

    def some() -> Iterator[int]:
        for number in stage.numbers():
            if number == 2:
                cancel(stage)
            yield number

    stage.begin(some())
    stage.answer(*stage.take_reports())
    with pytest.raises(asyncio.CancelledError):
        stage.user.result()
    assert stage.yielded == 2


def test_a_cancelled_call_closes_also_what_is_no_generator() -> None:
    stage = Stage(most_unread=1, actor_id=b"actor")
    stage.begin(iter([1, 2]))
    reports = stage.take_reports()
    cancel(stage)
    stage.answer(*reports)
    with pytest.raises(asyncio.CancelledError):
        stage.user.result()


# --- going on


def test_a_slow_owner_slows_its_generator_down() -> None:
    stage = Stage()
    stage.begin(stage.numbers())
    reports = stage.take_reports()
    assert len(reports) == stage.yielded == BOUNDS.generator_max_reports_in_flight and stage.peers.asked == []
    stage.answer(*reports[:2])
    assert stage.yielded == BOUNDS.generator_max_reports_in_flight + 2


def test_with_back_pressure_the_next_item_waits_until_enough_are_read() -> None:
    stage = Stage(most_unread=2)
    stage.begin(stage.numbers())
    assert stage.yielded == 2
    reports = stage.take_reports()
    question = stage.take_question(1)
    stage.answer(*reports)
    assert stage.yielded == 2 and stage.peers.asked == [], "it was asked already"
    stage.answer(question, read=1)
    assert stage.yielded == 3
    reports = stage.take_reports()
    question = stage.take_question(2)
    stage.answer(*reports, read=2)
    assert stage.yielded == 4, "who answers a report says how many were read, too"
    (report,) = stage.take_reports()
    assert stage.peers.asked == [], "one question is enough"
    stage.answer(question, read=2)
    stage.take_question(3)
    stage.answer(report, read=1)
    assert stage.yielded == 4 and stage.peers.asked == [], "what is said late does not count"


def test_g101_a_task_that_is_held_up_lends_its_cpus_until_it_goes_on() -> None:
    stage = Stage(most_unread=1)
    stage.begin(stage.numbers())
    reports = stage.take_reports()
    question = stage.take_question(1)
    assert stage.lenders == [stage.task]
    stage.answer(*reports)
    assert stage.lenders == [stage.task], "that its item has come does not mean that it is read"
    stage.answer(question, read=1)
    assert stage.yielded == 2 and stage.lenders == [stage.task], "it has gone on, and is held up again"
    reports = stage.take_reports()
    stage.take_question(2)
    stage.answer(*reports, read=2)
    assert stage.yielded == 3 and stage.lenders == [stage.task], "the question is open still"
    stage.user.interrupt(KeyboardInterrupt())
    stage.answer(*stage.take_reports())
    with pytest.raises(KeyboardInterrupt):
        stage.user.result()
    assert stage.lenders == []


def test_g101_a_task_that_waits_for_nothing_but_answers_lends_nothing() -> None:
    stage = Stage()
    stage.begin(stage.numbers())
    assert stage.yielded == BOUNDS.generator_max_reports_in_flight and stage.lenders == []
    held_up = Stage(most_unread=1, actor_id=b"actor")
    held_up.begin(held_up.numbers())
    held_up.take_reports()
    held_up.take_question(1)
    assert held_up.lenders == [], "an actor's call"


@pytest.mark.parametrize("is_dead", [False, True])
def test_g97_what_nobody_will_read_is_neither_pickled_nor_told(is_dead: bool) -> None:
    stage = Stage(most_unread=1)
    unpicklable = (number for number in ())
    items_left = [unpicklable, "after it"]

    def some() -> Iterator[Any]:
        yield "first"
        while items_left:
            yield items_left.pop()

    stage.begin(some())
    (report,) = stage.take_reports()
    question = stage.take_question(1)
    if is_dead:
        question.fail(unreachable())
        stage.user.work()
    else:
        stage.answer(question, is_unwanted=True)
    assert items_left == [] and not stage.is_over()
    assert stage.peers.asked == [], "least of all whether they will read, again and again"
    stage.answer(report)
    assert stage.is_over() and stage.peers.asked == []


class Item:
    """An item of which a weak reference shows whether it is still held."""


def test_an_item_that_was_told_of_is_let_go_while_its_generator_is_held_up() -> None:
    stage = Stage(most_unread=1)
    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def some() -> Iterator[Item]:
        yield made(alive)

    stage.begin(some())
    (report,) = stage.take_reports()
    assert len(alive) == 0
    stage.answer(report, stage.take_question(1), read=1)
    stage.answer(*stage.take_reports())
    assert stage.is_over()


def made(alive: weakref.WeakSet[Item]) -> Item:
    item = Item()
    alive.add(item)
    return item


# --- references inside items


def tell(stage: Stage, story: Callable[[], Any]) -> None:
    async def whole() -> None:
        await story()
        assert len(asyncio.all_tasks()) == 1, "the story itself"

    run(whole)


def test_g60_an_item_travels_with_tickets_for_what_is_inside() -> None:
    stage = Stage()
    stage.begin(iter([[OURS]]))
    report, end = stage.take_reports()
    assert report.request.value.nested == (RefInfo(OURS._id, OWN, b"ticket"),) and end.request.value is None
    stage.answer(report, end)
    assert stage.is_over() and stage.lent == [OURS._id]


def test_what_follows_an_item_that_waits_for_tickets_of_others_stays_behind_it() -> None:
    stage = Stage()

    async def story() -> None:
        stage.begin(iter(["first", [THEIRS], LARGE, [OURS, THEIRS], "last"]))
        await turns()
        first = stage.take_reports()
        assert items(first) == ["first"] and len(stage.lending) == 1
        stage.lending[0].set_result(None)
        await turns()
        theirs = stage.take_reports()
        assert numbers(theirs) == [2, 3] and theirs[0].request.value.nested == (RefInfo(THEIRS._id, OTHER, b"ticket"),)
        stage.lending[1].set_result(None)
        await turns()
        rest = stage.take_reports()
        assert numbers(rest) == [4, 5, 6] and len(stage.lending) == 2
        stage.answer(*first, *theirs, *rest)
        assert stage.is_over() and stage.discarded == []

    tell(stage, story)


def test_so_does_what_comes_while_it_waits() -> None:
    stage = Stage(is_async=True)

    async def story() -> None:
        is_late = asyncio.Event()

        async def some() -> AsyncIterator[Any]:
            yield [THEIRS]
            await is_late.wait()
            yield "late"

        running = begin_async(stage, some())
        await turns()
        is_late.set()
        await turns()
        assert stage.peers.asked == [] and len(stage.lending) == 1
        stage.lending[0].set_result(None)
        await turns()
        reports = stage.take_reports()
        assert numbers(reports) == [1, 2, 3]
        stage.answer(*reports)
        await running

    tell(stage, story)


def test_what_waits_when_nobody_will_read_is_taken_back() -> None:
    """But the tickets that were asked for have to arrive."""
    stage = Stage()

    async def story() -> None:
        stage.begin(iter(["first", [THEIRS], LARGE, [OURS], [THEIRS], "small"]))
        await turns()
        stage.answer(*stage.take_reports(), is_unwanted=True)
        stage.lending[0].set_result(None)
        await turns()
        reports = stage.take_reports()
        assert numbers(reports) == [2] and not stage.is_over()
        assert stage.discarded == [item_id(RECEIVED_ID, 3)] and len(stage.lending) == 1 and stage.lent == []
        stage.answer(*reports)
        assert not stage.is_over(), "the store still has the item"
        stage.on_discarded.pop()()
        assert stage.is_over()

    tell(stage, story)


# --- on an event loop


def begin_async(stage: Stage, items: AsyncIterator[Any]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(stage.executor.run_async(stage.task, items), name="generator")


def test_an_asynchronous_generator_ends_when_all_its_items_are_answered() -> None:
    stage = Stage(is_async=True, items_arrived=1)

    async def story() -> None:
        running = begin_async(stage, stage.numbers_async(3))
        await turns()
        reports = stage.take_reports()
        assert items(reports) == [2, 3, None] and numbers(reports) == [2, 3, 4]
        stage.answer(*reports[1:])
        await turns()
        assert not running.done()
        stage.answer(reports[0])
        await running

    tell(stage, story)


def test_back_pressure_holds_an_asynchronous_generator_up() -> None:
    stage = Stage(is_async=True, most_unread=2)

    async def story() -> None:
        running = begin_async(stage, stage.numbers_async(3))
        await turns()
        assert stage.yielded == 2
        reports = stage.take_reports()
        stage.answer(stage.take_question(1), read=1)
        await turns()
        assert stage.yielded == 3
        stage.answer(*reports, *stage.take_reports())
        await turns()
        stage.answer(stage.take_question(2), read=2)
        await turns()
        stage.answer(*stage.take_reports())
        await running

    tell(stage, story)


def test_an_asynchronous_generator_that_raises_does_so_when_all_before_it_is_answered() -> None:
    stage = Stage(is_async=True)

    async def failing() -> AsyncIterator[int]:
        yield 1
        raise ValueError("in between")

    async def story() -> None:
        running = begin_async(stage, failing())
        await turns()
        reports = stage.take_reports()
        assert items(reports) == [1] and not running.done()
        stage.answer(*reports)
        with pytest.raises(ValueError, match="in between"):
            await running

    tell(stage, story)


def test_an_event_loop_lets_go_of_items_too() -> None:
    stage = Stage(is_async=True, most_unread=1)
    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    async def some() -> AsyncIterator[Item]:
        yield made(alive)

    async def story() -> None:
        running = begin_async(stage, some())
        await turns()
        reports = stage.take_reports()
        assert len(reports) == 1 and len(alive) == 0
        stage.answer(*reports, stage.take_question(1), read=1)
        await turns()
        stage.answer(*stage.take_reports())
        await running

    tell(stage, story)


# --- what may be yielded from


def test_a_call_that_streams_returns_an_iterator() -> None:
    iterator = iter([1])
    assert as_iterator(iterator, "f") is iterator
    with pytest.raises(ValueError, match='task f has num_returns="streaming", but returned one object of type list'):
        as_iterator([1], "f")


def test_on_an_event_loop_a_plain_iterator_gives_way_after_each_item() -> None:
    stage = Stage()
    had: list[str] = []

    async def read(name: str, result: Any) -> None:
        async for value in as_async_iterator(result, "f"):
            had.append(f"{name} {value}")

    async def story() -> None:
        await asyncio.gather(read("a", iter([1, 2])), read("b", iter([1, 2])))
        assert had == ["a 1", "b 1", "a 2", "b 2"]
        await read("c", stage.numbers_async(2))
        assert had[4:] == ["c 1", "c 2"]
        with pytest.raises(ValueError, match="returned one object of type int"):
            await read("d", 7)

    tell(stage, story)
