"""Lost objects and the tasks that make them again: which run, with what, and what becomes of those that cannot.

``Owner`` is a core worker whose tasks end as soon as the test says so (``end``); its results are large, unless it says
otherwise, and are with a node that may lose them (``lose``).
"""

from __future__ import annotations

from typing import Any

import pytest

from minray.common.ids import item_id
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.object_ref_streams import ObjectRefStream
from minray.core_worker.records.pending_task import FINISHED, PUSHED, QUEUED, WAITING, PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.lineage import TASK_BYTES
from minray.core_worker.submission.object_recovery_manager import ObjectRecoveryManager
from minray.core_worker.submission.task_manager import TaskManager
from minray.exceptions import ObjectLostError, ObjectReconstructionFailedError, ReconstructionFailure
from minray.protocol.core_worker import Argument, RefInfo
from minray.protocol.object_store import Place
from tests.core_worker.parts import OWN, address, object_id, pending, prepare, stored, submit
from tests.core_worker.process_record import process_record

OTHER = address("other")
LARGE = Place(0, 1 << 20, address("raylet"))


def large() -> StoredObject:
    return StoredObject(b"", (), False, (), LARGE)


class Owner:
    """See the head of this file."""

    def __init__(self, **system: Any) -> None:
        self.tasks, self.references, self.store = TaskManager(None), ReferenceCounter(), MemoryStore()
        self.process = process_record(**system)
        self.again: list[PendingTask] = []
        """Tasks that were begun again, in that order."""
        self.hurried: list[bool] = []
        """For each running task that was asked to end soon: whether it is known by then to have lost an object."""
        self.kept: list[bytes] = []
        """Handles of actors that calls keep."""
        self.errors: dict[bytes, Any] = {}
        tables: Any = self
        self.recovery = ObjectRecoveryManager(
            self.process,
            self.tasks,
            self.references,
            self.store,
            borrowing=tables,
            objects=tables,
            resolve=self.resolve,
            lost_items=self.lost_items,
            hurry=self.hurry,
            keep_actor=self.keep,
        )

    # --- borrowing, the objects, and the ports

    def apply(self, effects: Effects) -> None:
        self.recovery.on_freed(effects)
        self.store.delete(effects.freed)

    def resolve(self, task: PendingTask) -> None:
        assert task.state is WAITING
        self.again.append(task)

    def keep(self, task: PendingTask) -> None:
        self.kept.append(task.handle_id)

    def hurry(self, task: PendingTask) -> None:
        self.hurried.append(task.has_lost_results)

    def lost_items(self, task: PendingTask) -> list[int]:
        assert task.stream is not None
        return [number for number in task.stream.numbers() if item_id(task.task_id, number) not in self.store.objects]

    def put_error(self, key: bytes, error: Exception) -> None:
        self.errors[key] = error
        self.store.put(key, stored(is_error=True))

    # --- what happens

    def submit(self, *slots: bytes, **options: Any) -> PendingTask:
        task = pending(prepare(**options), tuple((slot, OWN) for slot in slots))
        task.arguments = [Argument(None, slot, OWN) for slot in slots]
        for key in task.result_ids():
            self.references.add_owned(key)
        self.references.add_submitted(slots, [None] * len(slots))
        return submit(self.tasks, task, QUEUED)

    def end(self, task: PendingTask, *values: StoredObject | None) -> list[bytes]:
        """As ``TaskOutcomes._finish``; large values, unless others are named."""
        made = list(values) or [large() for _ in task.result_ids()]
        if task.state is WAITING:
            self.tasks.move(task, QUEUED)
        self.tasks.move(task, PUSHED)
        self.tasks.move(task, FINISHED)
        held = task.held_ids()
        self.recovery.remember(task, made)
        for key, value in zip(task.result_ids(), made, strict=True):
            if value is not None and self.references.is_in_scope(key):
                self.store.put(key, value)
        effects = Effects()
        self.references.remove_submitted(held, effects)
        self.apply(effects)
        return task.result_ids()

    def run(self, *slots: bytes, **options: Any) -> bytes:
        """A task with one result."""
        (result,) = self.end(self.submit(*slots, **options))
        return result

    def drop(self, *keys: bytes) -> None:
        effects = Effects()
        self.references.remove_local(keys, effects)
        self.apply(effects)

    def lose(self, *keys: bytes) -> None:
        self.recovery.on_lost(keys)

    def why(self, key: bytes) -> Any:
        """Why it was not made again."""
        error = self.errors[key]
        assert isinstance(error, ObjectReconstructionFailedError) and OWN.endpoint in str(error)
        return self.references.reference_of(key).obstacle or ReconstructionFailure.LINEAGE_EVICTED  # type: ignore[union-attr]


@pytest.fixture
def owner() -> Owner:
    return Owner()


# --- what is remembered


def test_g67_a_task_is_remembered_if_something_of_it_can_be_lost(owner: Owner) -> None:
    owner.end(owner.submit(), stored())
    assert len(owner.recovery.lineage) == 0
    owner.end(owner.submit(num_returns=2), stored(), large())
    assert len(owner.recovery.lineage) == 1


def test_a_generator_is_remembered_for_its_large_items_alone(owner: Owner) -> None:
    for has_large in (False, True):
        task = owner.submit()
        task.stream = ObjectRefStream()
        task.stream.arrived, task.stream.has_large = 1, has_large
        owner.references.add_owned(item_id(task.task_id, 1))
        owner.store.put(item_id(task.task_id, 1), large() if has_large else stored())
        owner.end(task, stored())
        assert len(owner.recovery.lineage) == has_large
    owner.lose(item_id(task.task_id, 1))
    assert owner.again == [task]


def test_g67_an_item_that_was_lost_before_its_generator_has_ended_is_made_again_when_it_has(owner: Owner) -> None:
    """The attempt that had yielded it died with the copy, but that was known later than the death."""
    task = owner.submit()
    task.stream = ObjectRefStream()
    task.stream.arrived, task.stream.has_large = 1, True
    item = item_id(task.task_id, 1)
    owner.references.add_owned(item)
    owner.store.put(item, large())
    owner.lose(item)
    assert task.has_lost_results and owner.again == []
    owner.end(task, stored())
    owner.recovery.look_after(task)
    assert owner.again == [task] and owner.errors == {}
    assert task.items_lost == {1: None}, "if it fails before a worker has it, they have its error"


def test_what_was_dropped_before_it_came_is_no_reason_to_remember_its_task(owner: Owner) -> None:
    task = owner.submit()
    owner.drop(*task.result_ids())
    owner.end(task)
    assert len(owner.recovery.lineage) == 0


def test_what_only_a_remembered_task_needs_is_forgotten_with_it(owner: Owner) -> None:
    first = owner.run()
    second = owner.run(first)
    owner.drop(first)
    assert len(owner.recovery.lineage) == 2
    owner.drop(second)
    assert len(owner.recovery.lineage) == len(owner.references) == 0


# --- what is made again


def test_g74_a_task_runs_again_once_for_all_its_lost_results(owner: Owner) -> None:
    task = owner.submit(num_returns=3)
    one, two, three = owner.end(task)
    owner.lose(one, two)
    assert owner.again == [task] and (task.attempt, task.retries_left) == (1, 2)
    assert owner.recovery.unwanted(task) == (3,) and three in owner.store.objects


def test_g74_what_nobody_needs_any_more_is_not_made(owner: Owner) -> None:
    task = owner.submit(num_returns=2)
    one, two = owner.end(task)
    owner.drop(two)
    owner.lose(one)
    assert owner.recovery.unwanted(task) == (2,)


@pytest.mark.parametrize("outer_first", [True, False])
def test_g67_what_was_only_inside_of_another_lost_object_is_forgotten_with_it(owner: Owner, outer_first: bool) -> None:
    inner, outer = owner.run(max_retries=0), owner.run(max_retries=0)
    owner.references.on_value(outer, [RefInfo(inner, OWN, b"")], OWN.worker_id, Effects())
    owner.drop(inner)
    owner.lose(*([outer, inner] if outer_first else [inner, outer]))
    assert owner.references.reference_of(inner) is None and owner.store.objects.keys() == {outer}
    assert owner.why(outer) is ReconstructionFailure.RETRIES_DISABLED


def test_g67_what_it_takes_is_made_first_if_it_was_freed_or_lost_too(owner: Owner) -> None:
    first = owner.run()
    second = owner.run(first)
    third = owner.run(second, first)
    owner.drop(first)
    owner.lose(third, second)
    assert {key for task in owner.again for key in task.result_ids()} == {first, second, third} and len(owner.again) == 3
    for task in reversed(owner.again):
        owner.end(task)
    assert {second, third} <= owner.store.objects.keys() and first not in owner.store.objects
    assert owner.errors == {} and owner.tasks.tasks == {}


def test_what_exists_or_belongs_to_others_or_is_not_known_is_not_made(owner: Owner) -> None:
    exists = owner.run()
    owner.references.add_local(object_id("theirs"), OTHER)
    owner.recovery.recover([exists, object_id("theirs"), object_id("unknown")])
    assert owner.again == [] and owner.errors == {}


def test_what_was_inside_a_lost_value_is_let_go(owner: Owner) -> None:
    inside = object_id("inside")
    owner.references.add_owned(inside)
    (outer,) = owner.end(owner.submit())
    owner.references.on_value(outer, [RefInfo(inside, OWN, b"")], OWN.worker_id, Effects())
    owner.drop(inside)
    assert owner.references.is_in_scope(inside)
    owner.lose(outer)
    assert not owner.references.is_in_scope(inside)


def test_a_call_that_is_made_again_keeps_its_actor_if_its_handle_is_still_known(owner: Owner) -> None:
    known, unknown = owner.submit(), owner.submit()
    owner.references.add_owned(object_id("actor"))
    known.handle_id, unknown.handle_id = object_id("actor"), object_id("forgotten")
    for task in (known, unknown):
        owner.lose(*owner.end(task))
    assert (known.handle_id, unknown.handle_id) == (object_id("actor"), b"")
    assert owner.kept == [object_id("actor")]


def test_what_only_the_lost_value_kept_is_made_again_if_that_takes_it(owner: Owner) -> None:
    """A task that returns a reference to its argument."""
    inner = owner.run()
    (outer,) = owner.end(owner.submit(inner))
    owner.references.on_value(outer, [RefInfo(inner, OWN, b"")], OWN.worker_id, Effects())
    owner.drop(inner)
    assert inner in owner.store.objects
    owner.lose(outer)
    assert [task.result_ids() for task in owner.again] == [[outer], [inner]]


# --- while it runs


def test_what_is_lost_while_its_task_runs_again_is_looked_for_when_that_has_ended(owner: Owner) -> None:
    task = owner.submit(num_returns=2)
    one, two = owner.end(task)
    owner.lose(one)
    owner.lose(two)
    assert owner.again == [task] and owner.hurried == [True] and task.has_lost_results
    owner.end(task, large(), None)
    owner.recovery.look_after(task)
    assert owner.again == [task, task] and not task.has_lost_results and owner.recovery.unwanted(task) == (1,)


def test_after_its_end_nothing_is_looked_for_that_nobody_needs(owner: Owner) -> None:
    task = owner.submit(num_returns=2)
    one, two = owner.end(task)
    owner.lose(one)
    owner.drop(two)
    owner.end(task, large(), None)
    owner.recovery.look_after(task)
    assert owner.again == [task] and owner.errors == {}


# --- what cannot be made again


def test_g70_it_costs_a_retry_and_without_one_left_it_is_an_error(owner: Owner) -> None:
    task = owner.submit(max_retries=1)
    (result,) = owner.end(task)
    owner.lose(result)
    owner.end(task)
    owner.lose(result)
    assert owner.again == [task] and owner.why(result) == ReconstructionFailure.MAX_ATTEMPTS_EXCEEDED


def test_g70_what_must_not_run_again_or_was_cancelled_does_not(owner: Owner) -> None:
    never = owner.run(max_retries=0)
    task = owner.submit()
    task.cancelled = True
    (cancelled,) = owner.end(task)
    owner.lose(never, cancelled)
    assert owner.why(never) == ReconstructionFailure.RETRIES_DISABLED
    assert owner.why(cancelled) == ReconstructionFailure.TASK_CANCELLED and owner.again == []


def test_without_lineage_nothing_is_made_again() -> None:
    owner = Owner(lineage_pinning_enabled=False)
    result = owner.run()
    owner.lose(result)
    assert owner.why(result) == ReconstructionFailure.LINEAGE_DISABLED


def test_g72_whose_task_was_forgotten_says_so() -> None:
    owner = Owner(max_lineage_bytes=1)
    result = owner.run()
    owner.lose(result)
    assert owner.why(result) == ReconstructionFailure.LINEAGE_EVICTED and owner.again == []


def test_g72_what_was_kept_for_a_task_that_is_forgotten_goes_with_it() -> None:
    owner, put = Owner(max_lineage_bytes=TASK_BYTES + 100), object_id("put")
    owner.references.add_owned(put)
    owner.store.put(put, stored())
    owner.run(put)
    owner.drop(put)
    assert put in owner.store.objects
    owner.run()
    assert put not in owner.store.objects and owner.references.reference_of(put) is None


def test_a_small_result_is_not_made_by_a_task_that_is_remembered_for_a_large_one(owner: Owner) -> None:
    """The small result cannot be lost, and its references keep its value."""
    small, big = owner.end(owner.submit(num_returns=2), stored(), large())
    obstacles = [owner.references.reference_of(key).obstacle for key in (small, big)]  # type: ignore[union-attr]
    assert obstacles == [ReconstructionFailure.PUT, None]


def test_an_attempt_that_makes_less_changes_nothing_about_the_other_results(owner: Owner) -> None:
    """The first of two cannot be made again any more; the second, which is not wanted, is as it was."""
    task = owner.submit(num_returns=2)
    one, two = owner.end(task, large(), stored())
    owner.lose(one)
    owner.end(task, large(), None)
    obstacles = [owner.references.reference_of(key).obstacle for key in (one, two)]  # type: ignore[union-attr]
    assert obstacles == [None, ReconstructionFailure.PUT]


def test_when_the_cluster_is_gone_what_is_lost_stays_lost(owner: Owner) -> None:
    result = owner.run()
    owner.process.is_exiting = True
    owner.lose(result)
    assert isinstance(owner.errors[result], ObjectLostError) and owner.again == []
    assert not isinstance(owner.errors[result], ObjectReconstructionFailedError)
