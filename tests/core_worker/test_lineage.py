"""Finished tasks that are remembered: for which results, with what they take, and for how long."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.pending_task import PendingTask
from minray.core_worker.submission.lineage import TASK_BYTES, Lineage
from minray.exceptions import ReconstructionFailure
from minray.protocol.core_worker import Argument, RefInfo, Value
from tests.core_worker.parts import OWN, address, object_id, pending, prepare

OTHER = address("other")
MUCH = 1 << 30


class Process:
    """A reference counter with its lineage; tasks end as soon as they are submitted."""

    def __init__(self, max_bytes: int = MUCH) -> None:
        self.references = ReferenceCounter()
        self.lineage = Lineage(self.references, max_bytes)
        self.freed: list[bytes] = []

    def apply(self, effects: Effects) -> None:
        """As ``Borrowing.apply`` and what the core worker does for freed objects."""
        for key in effects.freed:
            self.freed.append(key)
            if self.references.reference_of(key) is None:
                self.lineage.on_forgotten(key, effects)

    def put(self) -> bytes:
        key = object_id(f"put {len(self.references)}")
        self.references.add_owned(key)
        return key

    def run(self, *slots: bytes, nested: tuple[bytes, ...] = (), num_returns: int = 1) -> list[bytes]:
        """A task that takes these, all of them large; its results are large, too."""
        task = pending(
            prepare(num_returns=num_returns),
            tuple((key, OWN) for key in slots),
            tuple(RefInfo(key, OWN, b"") for key in nested),
        )
        task.arguments = [Argument(None, key, OWN) for key in slots]
        for key in task.result_ids():
            self.references.add_owned(key)
        self.references.add_submitted(task.held_ids(), [None] * len(task.held_ids()))
        self.end(task)
        return task.result_ids()

    def end(self, task: PendingTask) -> None:
        effects, held = Effects(), task.held_ids()
        for key in task.result_ids():
            if (reference := self.references.reference_of(key)) is not None:
                reference.obstacle = None
        known = [key for key in task.result_ids() if self.references.reference_of(key) is not None]
        self.lineage.keep_task(task, known, effects)
        self.references.remove_submitted(held, effects)
        self.apply(effects)

    def drop(self, *keys: bytes) -> None:
        effects = Effects()
        for key in keys:
            self.references.remove_local([key], effects)
        self.apply(effects)

    def is_in_scope(self, key: bytes) -> bool:
        return self.references.is_in_scope(key)


def test_a_task_is_remembered_as_long_as_one_of_its_results_is_known() -> None:
    process = Process()
    one, two = process.run(num_returns=2)
    assert len(process.lineage) == 1 and process.lineage.bytes == TASK_BYTES + len(b"args")
    process.drop(one)
    assert len(process.lineage) == 1
    process.drop(two)
    assert len(process.lineage) == len(process.references) == process.lineage.bytes == 0


def test_what_a_remembered_task_takes_loses_its_value_and_stays_known() -> None:
    process = Process()
    (one,) = process.run()
    (two,) = process.run(one)
    process.drop(one)
    assert process.freed == [one] and not process.is_in_scope(one) and len(process.lineage) == 2
    process.drop(two)
    assert process.freed == [one, two, one] and len(process.references) == len(process.lineage) == 0


def test_what_cannot_be_made_again_is_held_with_its_value() -> None:
    process = Process()
    put, never = process.put(), object_id("never")
    process.references.add_owned(never).obstacle = ReconstructionFailure.RETRIES_DISABLED
    process.references.add_local(object_id("theirs"), OTHER)
    (two,) = process.run(put, object_id("theirs"), nested=(never,))
    process.drop(put, never, object_id("theirs"))
    assert process.freed == [] and process.is_in_scope(put) and process.is_in_scope(never)
    process.drop(two)
    assert len(process.references) == 0


def test_small_arguments_are_part_of_the_task_but_not_what_they_refer_to() -> None:
    process = Process()
    inside = process.put()
    task = pending(prepare(), ((object_id("small"), OWN),))
    task.arguments = (Argument(Value(b"12345", False, (b"678",), 0, (RefInfo(inside, OWN, b""),)), object_id("small"), OWN),)
    process.references.add_owned(object_id("small"))
    process.references.add_owned(task.result_ids()[0])
    process.references.add_submitted([object_id("small")], [None])
    process.end(task)
    process.drop(object_id("small"), inside)
    assert process.freed == [object_id("small")] and process.is_in_scope(inside)
    assert process.lineage.needs_of(task.task_id) == (inside,) and process.lineage.bytes == TASK_BYTES + 4 + 8


def test_a_chain_of_any_length_is_forgotten_at_once() -> None:
    process = Process()
    (last,) = process.run()
    for _ in range(5000):
        (made,) = process.run(last)
        process.drop(last)
        last = made
    assert len(process.lineage) == 5001 and process.is_in_scope(last)
    process.drop(last)
    assert len(process.lineage) == len(process.references) == 0


def test_a_task_that_has_run_again_is_remembered_with_what_it_took_then() -> None:
    process = Process()
    first, second = process.put(), process.put()
    (made,) = process.run(first)
    task = process.lineage.find(made[:24])
    assert task is not None
    task.needs, task.arguments = process.lineage.needs_of(task.task_id), [Argument(None, second, OWN)]
    process.references.add_submitted(task.held_ids(), [None])
    process.end(task)
    process.drop(first, second)
    assert process.freed == [first] and len(process.lineage) == 1
    process.drop(made)
    assert len(process.references) == 0


def test_g72_when_they_take_too_much_the_older_half_is_forgotten() -> None:
    process = Process(max_bytes=10 * (TASK_BYTES + 4))
    put = process.put()
    keys = [process.run(put)[0] for _ in range(10)]
    assert all(process.lineage.find(key[:24]) for key in keys)
    keys += process.run(put)
    found = [process.lineage.find(key[:24]) is not None for key in keys]
    assert found == [False] * 6 + [True] * 5 and process.lineage.bytes == 5 * (TASK_BYTES + 4)
    process.drop(put, *keys)
    assert len(process.references) == len(process.lineage) == process.lineage.bytes == 0


def test_g72_what_only_forgotten_tasks_need_is_forgotten_with_them() -> None:
    process = Process(max_bytes=3 * (TASK_BYTES + 4))
    put = process.put()
    (one,) = process.run(put)
    (two,) = process.run(one)
    process.drop(put, one)
    process.run()
    assert process.references.reference_of(put) is not None
    process.run()
    assert process.references.reference_of(put) is process.references.reference_of(one) is None and process.is_in_scope(two)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[list[int], list[int], int]]:
    """Tasks with slots and nested references, by the numbers of earlier results, and how many results they have."""
    count, tasks = 0, []
    for _ in range(draw(st.integers(1, 12))):
        refs = st.lists(st.integers(0, count - 1), max_size=3) if count else st.just([])
        tasks.append((draw(refs), draw(refs), draw(st.integers(1, 2))))
        count += tasks[-1][2]
    return tasks


@given(graphs(), st.data())
@settings(max_examples=60, deadline=None)
def test_exactly_what_leads_to_needed_results_is_remembered(graph: list[Any], data: st.DataObject) -> None:
    process = Process()
    results: list[bytes] = []
    takes: dict[bytes, set[bytes]] = {}
    for slots, nested, num_returns in graph:
        before = [[results[number] for number in numbers] for numbers in (slots, nested)]
        made = process.run(*before[0], nested=tuple(before[1]), num_returns=num_returns)
        takes[made[0][:24]] = {*before[0], *before[1]}
        results += made
    held = list(results)
    for key in data.draw(st.permutations(results)):
        process.drop(key)
        held.remove(key)
        tasks, open_ends = set(), list(held)
        while open_ends:
            task_id = open_ends.pop()[:24]
            if task_id not in tasks:
                tasks.add(task_id)
                open_ends += takes[task_id]
        assert {task_id for task_id in takes if process.lineage.find(task_id)} == tasks
        assert all(process.is_in_scope(one) == (one in held) for one in results)
    assert len(process.references) == 0
