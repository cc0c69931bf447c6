"""A task waits for its arguments; what is small travels in it, what failed fails it."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE, TASK_RPC_INLINED_BYTES_LIMIT
from minray.core_worker.fetching.future_resolver import OnLarge
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.records.pending_task import FAILED, WAITING, PendingTask, PreparedTemplate
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.dependency_resolver import DependencyResolver
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.base import Address
from minray.protocol.core_worker import Argument, RefInfo, Value
from minray.protocol.object_store import Place
from minray.protocol.raylet import Dependency
from tests.core_worker.parts import OWN, address, object_id, pending, prepare, stored, submit

A, B = object_id("a"), object_id("b")
OTHER = address("other")
LARGE = stored(b"x" * (MAX_DIRECT_CALL_OBJECT_SIZE + 1))
THERE = StoredObject(b"", (), False, (), Place(0, 200_000, OWN))
"""Entry of a value that is in the object store."""


class Scene:
    """A resolver with a store; other owners answer when the test says so."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.tasks = TaskManager(None)
        self.ready: list[PendingTask] = []
        self.failed: list[tuple[PendingTask, StoredObject]] = []
        self.probes: dict[bytes, OnLarge] = {}
        self.resolver = DependencyResolver(OWN.worker_id, self.store, self, self.ready.append, self.on_failed)  # type: ignore[arg-type]

    def probe(self, key: bytes, owner: Address, inline_limit: int, on_large: OnLarge) -> None:
        """As ``FutureResolver.probe``."""
        assert inline_limit == MAX_DIRECT_CALL_OBJECT_SIZE and owner == OTHER
        self.probes[key] = on_large

    def on_failed(self, task: PendingTask, error: StoredObject) -> None:
        self.tasks.move(task, FAILED)
        self.failed.append((task, error))

    def resolve(self, *slots: tuple[bytes, Address], prepared: PreparedTemplate | None = None) -> PendingTask:
        task = pending(prepared or prepare(), slots=slots)
        self.resolver.resolve(submit(self.tasks, task, WAITING))
        return task


@pytest.fixture
def scene() -> Scene:
    return Scene()


def inlined(value: StoredObject, key: bytes, owner: Address = OWN) -> Argument:
    return Argument(Value(value.data), key, owner)


def test_g10_a_task_waits_for_all_its_arguments(scene: Scene) -> None:
    task = scene.resolve((A, OWN), (B, OTHER))
    assert scene.ready == [] and scene.resolver.missing_of(task) == [A, B]
    scene.store.put(A, stored(b"1"))
    assert scene.ready == [] and scene.resolver.missing_of(task) == [B]
    scene.store.put(B, stored(b"2"))
    assert scene.ready == [task] and task.waiting_for is None
    assert task.arguments == (inlined(stored(b"1"), A), inlined(stored(b"2"), B, OTHER))


def test_g86_a_task_that_is_ready_names_its_large_arguments_and_their_sizes(scene: Scene) -> None:
    named: list[tuple[Dependency, ...]] = []
    scene.resolver._on_ready = lambda task: named.append(task.dependencies)
    scene.store.put(A, StoredObject(b"", (), False, (), Place(0, 1000, OTHER)))
    scene.resolve((A, OWN), (B, OTHER))
    scene.probes[B](Place(0, 2000, OTHER))
    assert named == [(Dependency(A, OWN, 1000), Dependency(B, OTHER, 2000))]


LINKS = 5000


def test_g1_an_error_runs_through_a_chain_of_any_length(scene: Scene) -> None:
    """Each task takes what the one before it makes, and so do two more."""
    chain = [object_id("first"), *(object_id(f"link {number}") for number in range(LINKS))]
    results: dict[int, bytes] = {}

    def on_failed(task: PendingTask, error: StoredObject) -> None:
        scene.on_failed(task, error)
        scene.store.put(results[id(task)], error)
        assert task.state is FAILED and scene.failed[-1][0] is task, "none ends within the end of another"

    scene.resolver._on_failed_argument = on_failed
    for before, after in itertools.pairwise(chain):
        for result in (after, after + b"'", after + b'"'):
            results[id(scene.resolve((before, OWN)))] = result
    scene.store.put(chain[0], error := StoredObject(b"error", (), True, ()))
    assert len(scene.failed) == 3 * LINKS and {reason for _, reason in scene.failed} == {error}
    assert scene.resolver._failed == deque()


def test_a_task_that_cannot_be_ended_keeps_no_other_one_waiting(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    tasks = [scene.resolve((A, OWN)) for _ in range(3)]

    def on_failed(task: PendingTask, error: StoredObject) -> None:
        if task is tasks[1]:
            raise KeyError("oops")
        scene.on_failed(task, error)

    scene.resolver._on_failed_argument = on_failed
    scene.store.put(A, StoredObject(b"error", (), True, ()))
    assert [task for task, _ in scene.failed] == [tasks[0], tasks[2]] and "oops" in caplog.text


def test_what_has_ended_before_its_turn_to_fail_does_not_end_again(scene: Scene) -> None:
    tasks = [scene.resolve((A, OWN)) for _ in range(2)]

    def on_failed(task: PendingTask, error: StoredObject) -> None:
        for each in tasks:
            scene.on_failed(each, error)

    scene.resolver._on_failed_argument = on_failed
    scene.store.put(A, StoredObject(b"error", (), True, ()))
    assert [task for task, _ in scene.failed] == tasks


def test_arguments_that_are_here_are_no_reason_to_wait(scene: Scene) -> None:
    scene.store.put(A, stored())
    task = scene.resolve((A, OWN))
    assert scene.ready == [task]


def test_g67_a_task_that_comes_again_keeps_its_small_values_and_waits_for_the_others(scene: Scene) -> None:
    scene.store.put(A, stored(b"small"))
    scene.store.put(B, LARGE)
    task = scene.resolve((A, OWN), (B, OWN))
    assert scene.ready == [task] and scene.resolver.is_resolved(task)
    scene.store.delete([A])
    assert scene.resolver.is_resolved(task)
    scene.store.delete([B])
    assert not scene.resolver.is_resolved(task)
    scene.resolver.resolve(task)
    assert scene.resolver.missing_of(task) == [B]
    scene.store.put(B, stored(b"now small"))
    assert scene.ready == [task, task]
    assert task.arguments == (inlined(stored(b"small"), A), inlined(stored(b"now small"), B))


def test_an_argument_that_is_passed_twice_is_waited_for_once(scene: Scene) -> None:
    task = scene.resolve((A, OWN), (A, OWN))
    scene.store.put(A, stored())
    assert scene.ready == [task] and len(task.arguments) == 2


def test_g1_a_failed_argument_fails_the_task_without_waiting_for_the_others(scene: Scene) -> None:
    error = stored(b"error", is_error=True)
    task = scene.resolve((A, OWN), (B, OWN))
    scene.store.put(A, error)
    assert scene.failed == [(task, error)] and scene.ready == []
    scene.store.put(B, stored())
    assert scene.ready == [] and len(scene.failed) == 1


def test_g1_an_argument_that_has_failed_already_fails_the_task_at_once(scene: Scene) -> None:
    scene.store.put(A, stored(is_error=True))
    scene.resolve((A, OWN))
    assert len(scene.failed) == 1 and scene.ready == []


def test_g76_large_arguments_stay_references(scene: Scene) -> None:
    scene.store.put(A, THERE)
    task = scene.resolve((A, OWN))
    assert task.arguments == (Argument(None, A, OWN, THERE.place),), "its place saves the worker a question to the owner"


def test_the_owner_lends_the_references_inside_a_large_argument_so_it_must_be_asked(scene: Scene) -> None:
    scene.store.put(A, StoredObject(b"", (), False, (RefInfo(B, OWN, b"ticket"),), THERE.place))
    assert scene.resolve((A, OWN)).arguments == (Argument(None, A, OWN),)


def test_g66_a_large_argument_is_waited_for_again_although_the_task_carries_its_place(scene: Scene) -> None:
    scene.store.put(A, THERE)
    task = scene.resolve((A, OWN))
    scene.store.delete([A])
    task.state = WAITING
    scene.resolver.resolve(task)
    assert not scene.resolver.is_resolved(task) and scene.ready == [task]
    newer = StoredObject(b"", (), False, (), Place(1, 200_000, OWN))
    scene.store.put(A, newer)
    assert scene.ready == [task, task] and task.arguments == (Argument(None, A, OWN, newer.place),)


def test_g76_c9_the_limit_itself_still_travels_inline(scene: Scene) -> None:
    scene.store.put(A, stored(b"x" * MAX_DIRECT_CALL_OBJECT_SIZE))
    assert scene.resolve((A, OWN)).arguments[0].value is not None


def test_g76_all_inlined_arguments_together_are_bounded(scene: Scene) -> None:
    count = TASK_RPC_INLINED_BYTES_LIMIT // MAX_DIRECT_CALL_OBJECT_SIZE + 5
    slots = [(object_id(str(number)), OWN) for number in range(count)]
    for key, _ in slots:
        scene.store.put(key, stored(b"x" * MAX_DIRECT_CALL_OBJECT_SIZE))
    inline = [argument.value for argument in scene.resolve(*slots).arguments if argument.value is not None]
    assert sum(len(value.data) for value in inline) == TASK_RPC_INLINED_BYTES_LIMIT // 102_400 * 102_400


def test_a_large_borrowed_argument_is_enough_when_it_exists_elsewhere(scene: Scene) -> None:
    task = scene.resolve((A, OTHER))
    scene.probes[A](None)
    assert scene.ready == [task] and task.arguments == (Argument(None, A, OTHER),)
    again = scene.resolve((A, OTHER))
    assert scene.ready == [task, again], "remembered while anybody here holds it"
    scene.resolver.forget([A])
    scene.resolve((A, OTHER))
    assert len(scene.ready) == 2


def test_references_inside_a_small_argument_travel_with_it(scene: Scene) -> None:
    inside = (RefInfo(B, OTHER, b""),)
    scene.store.put(A, StoredObject(b"value", (), False, inside))
    value = scene.resolve((A, OWN)).arguments[0].value
    assert value is not None and value.nested == inside


def test_buffers_of_a_small_argument_travel_inside_the_record(scene: Scene) -> None:
    scene.store.put(A, stored(b"value", buffers=[memoryview(b"buffer")]))
    value = scene.resolve((A, OWN)).arguments[0].value
    assert value is not None and value.inline_buffers == (b"buffer",) and value.buffer_count == 0


def test_g15_a_function_that_is_being_exported_is_one_more_argument(scene: Scene) -> None:
    prepared = prepare(exported=False)
    task, other = scene.resolve((A, OWN), prepared=prepared), scene.resolve(prepared=prepared)
    scene.store.put(A, stored())
    assert scene.ready == []
    prepared.export.done = True
    scene.resolver.on_function_exported(prepared.template.function_id)
    assert scene.ready == [task, other]


def test_a_cancelled_task_is_left_alone_when_its_argument_comes(scene: Scene) -> None:
    task = scene.resolve((A, OWN))
    scene.tasks.move(task, FAILED)
    scene.store.put(A, stored())
    assert scene.ready == scene.failed == []
