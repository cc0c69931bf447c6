"""Answers of a streaming generator's owner to executors: only the present attempt is believed, and held up.

``Owner`` has one generator's task. It records the messages of ``Generators`` to the tables of this process and to others.
"""

from __future__ import annotations

from typing import Any

import pytest

from minray.common.bounds import BOUNDS
from minray.common.ids import item_id
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.pending_task import PUSHED, QUEUED
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.generators import EVERYTHING, UNWANTED, Generators
from minray.core_worker.submission.task_manager import TaskManager
from minray.exceptions import StreamingGeneratorReplayInconsistentError
from minray.protocol.base import Address
from minray.protocol.core_worker import GeneratorItemReply, RefInfo, ReportGeneratorItem, Value, WaitForReader
from minray.protocol.object_store import Place
from tests.core_worker.parts import address, object_id, pending, prepare, stored

RAYLET = address("raylet")
OTHER = address("other-owner")


class Owner:
    """See the head of this file."""

    def __init__(self) -> None:
        self.tasks, self.references, self.store = TaskManager(None), ReferenceCounter(), MemoryStore()
        self.given_back: list[bytes] = []
        """Tickets."""
        self.discarded: list[tuple[list[bytes], int, Address]] = []
        self.errors: list[Exception] = []
        self.answers: list[GeneratorItemReply] = []
        """To those who were made to wait."""
        tables: Any = self
        self.generators = Generators(
            record=None,
            tasks=self.tasks,
            references=self.references,
            store=self.store,
            borrowing=tables,
            directory=tables,
            objects=tables,
            max_in_flight=BOUNDS.generator_max_reports_in_flight,
        )
        self.task = pending(prepare("generator"))
        self.tasks.add_task(self.task)
        self.tasks.move(self.task, QUEUED)
        self.tasks.move(self.task, PUSHED)
        self.generators.begin_stream(self.task)

    # --- borrowing, the directory and the objects

    def apply(self, effects: Effects) -> None:
        self.given_back += [ticket for _, _, tickets in effects.give_back for ticket in tickets]

    def discard_copies(self, object_ids: list[bytes], attempt: int, raylet: Address) -> None:
        self.discarded.append((object_ids, attempt, raylet))

    def on_result(self, key: bytes, value: StoredObject) -> None:
        self.store.put(key, value)

    def put_error(self, key: bytes, error: Exception) -> None:
        self.errors.append(error)

    def reply(self, reply: GeneratorItemReply) -> None:
        self.answers.append(reply)

    # --- what happens

    def report(self, number: int, attempt: int = 0, ticket: bytes = b"", place: Place | None = None) -> GeneratorItemReply:
        nested = [RefInfo(object_id("inside"), OTHER, ticket)] if ticket else []
        value = Value(b"" if place else b"item", nested=nested, place=place)
        return self.generators.on_report(ReportGeneratorItem(self.task.task_id, attempt, number, value), ())

    def report_end(self, count: int) -> None:
        self.generators.on_report(ReportGeneratorItem(self.task.task_id, self.task.attempt, count + 1, None), ())

    def wait(self, count: int, attempt: int = 0) -> GeneratorItemReply | None:
        call: Any = self
        return self.generators.on_wait(WaitForReader(self.task.task_id, attempt, count), call)

    def read(self, number: int) -> None:
        self.generators.on_read(self.task.task_id, number)

    def retry(self) -> None:
        self.task.attempt += 1


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_g91_a_generator_that_runs_ahead_waits_for_its_reader(owner: Owner) -> None:
    assert owner.report(1) == owner.report(2) == GeneratorItemReply(0, False)
    assert owner.wait(1) is None
    owner.read(1)
    assert owner.answers == [GeneratorItemReply(1, False)] and owner.wait(1) == GeneratorItemReply(1, False)


def test_g94_another_attempt_is_not_believed_and_not_held_up(owner: Owner) -> None:
    owner.report(1)
    owner.retry()
    assert owner.report(2, attempt=0) == owner.wait(1, attempt=0) == UNWANTED
    assert owner.store.objects.keys() == {item_id(owner.task.task_id, 1)} and owner.wait(1, attempt=1) is None


def test_an_executor_whose_task_is_over_is_not_held_up(owner: Owner) -> None:
    owner.report(1)
    del owner.tasks.tasks[owner.task.task_id]
    assert owner.wait(1) == owner.report(2) == UNWANTED


def test_g91_who_makes_a_result_again_is_not_held_up(owner: Owner) -> None:
    """A copy that was lost is made by the next attempt, which begins when this one has ended."""
    owner.report(1)
    assert owner.wait(1) is None
    owner.generators.hurry(owner.task)
    owner.task.has_lost_results = True
    go_on = GeneratorItemReply(EVERYTHING, False)
    assert owner.answers == [go_on] and owner.wait(1) == go_on
    owner.read(1)
    assert len(owner.answers) == 1, "everybody is answered once"


def test_g94_what_comes_with_a_refused_item_goes_back(owner: Owner) -> None:
    place = Place(0, 100, RAYLET)
    owner.retry()
    owner.report(1, attempt=0, ticket=b"ticket", place=place)
    assert owner.given_back == [b"ticket"] and owner.discarded == [([item_id(owner.task.task_id, 1)], place.attempt, RAYLET)]


def test_g112_a_repeated_item_does_not_discard_the_first(owner: Owner) -> None:
    place = Place(0, 100, RAYLET)
    owner.report(1, place=place)
    owner.report(1, place=place)
    assert owner.discarded == []


def test_g97_who_drops_the_generator_frees_what_is_unread(owner: Owner) -> None:
    owner.report(1)
    owner.report(2)
    owner.read(1)
    assert owner.wait(2) is None
    owner.generators.on_dropped(owner.task.task_id)
    assert owner.answers == [UNWANTED] and owner.report(3) == UNWANTED
    first, second = (owner.references.reference_of(item_id(owner.task.task_id, number)) for number in (1, 2))
    assert first is not None and second is None


def test_g95_an_item_that_the_last_attempt_has_not_made_again_is_an_error(owner: Owner) -> None:
    place = Place(0, 100, RAYLET)
    for number in (1, 2):
        owner.report(number, place=place)
        owner.store.delete([item_id(owner.task.task_id, number)])
    owner.generators.on_ended(owner.task, stored())
    assert owner.generators.lost_items(owner.task) == [1, 2]
    owner.task.items_lost = {1: None, 2: None}
    owner.retry()
    owner.report(1, attempt=1, place=place)
    owner.store.delete([item_id(owner.task.task_id, 1)])  # lost once more: for the next attempt to make
    owner.generators.on_ended(owner.task, None)
    (error,) = owner.errors
    assert isinstance(error, StreamingGeneratorReplayInconsistentError) and "item 2 was lost" in str(error)


@pytest.mark.parametrize(("said", "agree"), [(2, True), (3, False), (1, False)])
def test_g95_what_the_task_says_at_its_end_is_compared_with_what_has_come(owner: Owner, said: int, agree: bool) -> None:
    owner.report(1)
    owner.report(2)
    owner.report_end(said)
    assert (owner.generators.contradiction(owner.task) is None) is agree


def test_g93_an_error_is_the_last_item(owner: Owner) -> None:
    errors: list[tuple[bytes, bool]] = []
    owner.on_value = lambda key, _: errors.append((key, owner.references.is_in_scope(key)))  # type: ignore[attr-defined]
    owner.report(1)
    owner.generators.on_ended(owner.task, stored(is_error=True))
    assert errors == [(item_id(owner.task.task_id, 2), True)], "the reader takes it over"
    assert owner.store.objects.keys() == {item_id(owner.task.task_id, number) for number in (1, 3)}


def test_g97_a_stream_that_nobody_reads_is_forgotten_with_its_task(owner: Owner) -> None:
    owner.generators.on_dropped(owner.task.task_id)
    owner.generators.on_ended(owner.task, stored())
    assert len(owner.generators.streams) == len(owner.references) == 0 and not owner.store.objects
    assert owner.generators.contradiction(owner.task) is None


def test_g97_a_generator_that_is_dropped_after_its_end_leaves_nothing(owner: Owner) -> None:
    owner.report(1)
    owner.generators.on_ended(owner.task, stored())
    end = item_id(owner.task.task_id, 2)
    assert end in owner.store.objects, "the mark of the end"
    owner.generators.on_dropped(owner.task.task_id)
    assert end not in owner.store.objects and owner.references.reference_of(item_id(owner.task.task_id, 1)) is None


def test_l2_items_behind_a_missing_one_are_freed_when_the_task_fails(owner: Owner) -> None:
    """A worker that has lost a report may crash before it repeats it."""
    owner.on_value = lambda key, value: owner.store.put(key, value)  # type: ignore[attr-defined]
    for number in (1, 3, 4):
        owner.report(number)
    owner.generators.on_ended(owner.task, stored(is_error=True))
    known = [number for number in (1, 2, 3, 4) if owner.references.reference_of(item_id(owner.task.task_id, number))]
    assert known == [1, 2], "the second one is the error"


def test_l2_what_a_dead_attempt_may_have_made_is_what_comes_next_and_what_it_was_asked_for(owner: Owner) -> None:
    for number in (1, 2, 3):
        owner.report(number)
    owner.task.items_lost = {2: None}
    expected = [2, *range(4, 4 + BOUNDS.generator_max_reports_in_flight + 1)]
    assert owner.generators.unreported(owner.task) == [item_id(owner.task.task_id, number) for number in expected]
    assert owner.generators.unreported(pending(prepare("no generator"))) == []
