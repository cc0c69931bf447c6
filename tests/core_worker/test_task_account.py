"""Reports of a process about its tasks: those that it owns, and those that were sent to it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from minray.common.ids import actor_of, return_id
from minray.common.task_spec import ActorOptions
from minray.core_worker.introspection import task_account
from minray.core_worker.introspection.task_account import MAX_ERROR_CHARACTERS, TaskAccount
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.records.pending_task import (
    FAILED,
    FINISHED,
    PUSHED,
    QUEUED,
    ActorClient,
    CallStream,
    PendingTask,
)
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.task_manager import TaskManager
from minray.exceptions import ObjectFreedError, RaySystemError
from minray.protocol.actor import ALIVE, ActorInfo
from minray.protocol.state import GetTasksInfo, ReceivedInfo, TaskInfo, TasksInfo
from tests.core_worker.parts import (
    OWN,
    RECEIVED_ID,
    WORKER,
    id_of,
    leased,
    object_id,
    packed,
    pending,
    prepare,
    received,
    shape,
    stored,
    submit,
    template,
)  # fmt: skip
from tests.core_worker.process_record import process_record

ACTOR_ID = id_of("actor")


class Tables:
    """A core worker of which there are only the tables."""

    def __init__(self) -> None:
        self.store, self.tasks = MemoryStore(), TaskManager(None)
        self.process = process_record()
        self.process.config = msgspec.structs.replace(self.process.config, is_driver=True)
        self.received: list[ReceivedTask] = []
        self.calls: list[ReceivedTask] = []

    def submit(self, *steps: str, **options: Any) -> PendingTask:
        return submit(self.tasks, pending(prepare(**options)), *steps)

    def call(self, *steps: str, client: ActorClient) -> PendingTask:
        return self.submit(*steps, name="A.f", method="f", client=client)

    def told(self, request: GetTasksInfo | None = None) -> TasksInfo:
        account = TaskAccount(self.process, self.tasks, self.store, lambda: self.received + self.calls)
        return account.tasks(request or GetTasksInfo())

    def names(self, **request: Any) -> list[str]:
        return [info.name for info in self.told(GetTasksInfo(**request)).tasks]

    def store_error(self, task: PendingTask, error: Any, is_freed: bool = False, index: int = 1) -> None:
        self.store.put(return_id(task.task_id, index), StoredObject(packed(error), (), True, (), is_freed=is_freed))


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_a_process_says_who_it_is(tables: Tables) -> None:
    assert tables.told() == TasksInfo(OWN.node_id, OWN.worker_id, 7, True, 0, [], [])


def test_the_newest_are_told_first_and_those_that_have_ended_last(tables: Tables) -> None:
    for name in ("one", "two"):
        tables.submit(QUEUED, PUSHED, FINISHED, name=name)
    for name in ("three", "four"):
        tables.submit(QUEUED, name=name)
    assert tables.names() == ["four", "three", "two", "one"]


@pytest.mark.parametrize(("limit", "most", "expected"), [(3, 100, 3), (100, 3, 3), (1, 100, 1), (0, 100, 0), (100, 100, 4)])
def test_so_many_are_told_and_how_many_there_are(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, limit: int, most: int, expected: int
) -> None:
    monkeypatch.setattr(task_account, "MOST_TASKS", most)
    for name in ("one", "two"):
        tables.submit(QUEUED, PUSHED, FINISHED, name=name)
        tables.submit(QUEUED, name=f"{name} goes on")
    told = tables.told(GetTasksInfo(limit))
    assert [info.name for info in told.tasks] == ["two goes on", "one goes on", "two", "one"][:expected] and told.total == 4


def test_one_may_ask_for_some_of_them(tables: Tables) -> None:
    tasks = [tables.submit(QUEUED, PUSHED, FINISHED, name="done"), tables.submit(QUEUED, name="goes on")]
    tables.submit(QUEUED, name="another")
    told = tables.told(GetTasksInfo(task_ids=[task.task_id for task in tasks]))
    assert [info.name for info in told.tasks] == ["goes on", "done"] and told.total == 2


# --- tasks that go on


def test_of_a_task_that_waits_all_is_told_but_a_place(tables: Tables) -> None:
    task = tables.submit(QUEUED, name="f", shape=shape(2))
    task.attempt, task.parent_id = 3, id_of("parent")
    assert tables.told().tasks == [
        TaskInfo(task.task_id, 3, "f", "NORMAL_TASK", QUEUED, id_of("parent"), resources={"CPU": 20_000})
    ]


def test_where_a_task_runs_is_told_as_long_as_it_is_there(tables: Tables) -> None:
    task = tables.submit(QUEUED, PUSHED)
    task.worker = leased()
    (info,) = tables.told().tasks
    assert (info.state, info.node_id, info.worker_id, info.pid) == (PUSHED, WORKER.node_id, WORKER.worker_id, 5)
    task.worker = None
    (info,) = tables.told().tasks
    assert (info.node_id, info.worker_id, info.pid) == (b"", b"", 0)


@pytest.mark.parametrize("pid", [0, 6])
def test_a_call_is_told_with_its_actor_and_where_that_lives(tables: Tables, pid: int) -> None:
    client = ActorClient(ACTOR_ID, OWN, True)
    client.info = ActorInfo(ACTOR_ID, ALIVE, "A", "", "", OWN, False, 0, 0, b"", WORKER, pid=pid) if pid else None
    task = tables.call(QUEUED, PUSHED, client=client)
    task.worker = CallStream(WORKER, None, 0, 1)
    (told,) = tables.told().tasks
    assert (told.kind, told.actor_id, told.name) == ("ACTOR_TASK", ACTOR_ID, "A.f")
    assert (told.node_id, told.worker_id, told.pid) == (WORKER.node_id, WORKER.worker_id, pid)


def test_a_constructor_is_told_with_the_actor_that_it_makes(tables: Tables) -> None:
    running, ended = (tables.submit(QUEUED, name="A.__init__", actor=ActorOptions()) for _ in range(2))
    tables.tasks.move(ended, FAILED)
    told = tables.told().tasks
    assert [info.kind for info in told] == ["ACTOR_CREATION_TASK"] * 2
    assert [info.actor_id for info in told] == [actor_of(task.task_id) for task in (running, ended)]


# --- tasks that have ended


def test_of_a_task_that_has_ended_its_end_is_told(tables: Tables) -> None:
    task = tables.submit(QUEUED, PUSHED, name="f")
    task.attempt, task.parent_id = 2, id_of("parent")
    tables.tasks.move(task, FINISHED)
    call = tables.call(QUEUED, PUSHED, FINISHED, client=ActorClient(ACTOR_ID, OWN, True))
    assert tables.told().tasks == [
        TaskInfo(call.task_id, 0, "A.f", "ACTOR_TASK", FINISHED, b"", ACTOR_ID, resources={"CPU": 10_000}),
        TaskInfo(task.task_id, 2, "f", "NORMAL_TASK", FINISHED, id_of("parent"), resources={"CPU": 10_000}),
    ]


def test_the_error_of_one_that_has_failed_is_told_as_long_as_it_is_here(tables: Tables) -> None:
    task, other = tables.submit(QUEUED, PUSHED, FAILED), tables.submit(QUEUED, PUSHED, FAILED)
    tables.store_error(task, RaySystemError(reason="it was told to"))
    gone, told = tables.told().tasks
    assert (gone.task_id, gone.error) == (other.task_id, "") and "it was told to" in told.error


def test_a_task_that_has_failed_after_it_had_made_a_value_has_its_error_in_the_next(tables: Tables) -> None:
    task = tables.submit(QUEUED, PUSHED, FAILED, num_returns=3)
    tables.store.put(return_id(task.task_id, 1), stored(b"value"))
    for index in (2, 3):
        tables.store_error(task, RaySystemError(reason=f"error {index}"), index=index)
    (told,) = tables.told().tasks
    assert "error 2" in told.error


def test_of_a_long_error_the_end_is_told(tables: Tables) -> None:
    task = tables.submit(QUEUED, PUSHED, FAILED)
    tables.store_error(task, RaySystemError(reason=MAX_ERROR_CHARACTERS * "x" + " at last"))
    (told,) = tables.told().tasks
    assert len(told.error) == MAX_ERROR_CHARACTERS and told.error.endswith("x at last")


def test_what_became_of_a_result_later_is_no_error_of_its_task(tables: Tables) -> None:
    """The value was lost, or was freed by hand, after the task had done its work or had failed in its own way."""
    done, failed = tables.submit(QUEUED, PUSHED, FINISHED), tables.submit(QUEUED, PUSHED, FAILED)
    tables.store_error(done, RaySystemError(reason="lost"))
    tables.store_error(failed, ObjectFreedError(object_id_hex="00", reason="freed"), is_freed=True)
    assert [info.error for info in tables.told().tasks] == ["", ""]


# --- tasks that were sent here


def test_what_was_sent_here_is_told_with_what_is_done_with_it(tables: Tables) -> None:
    running, fetching, waiting = (received(template(), attempt=attempt) for attempt in range(3))
    called, bringing, ordered = (received(template(method="f"), attempt=attempt) for attempt in range(3, 6))
    for task in (running, called):
        task.claim()
    for task in (fetching, bringing, running):
        task.fetching = [(object_id("a"), OWN)]
    tables.received, tables.calls = [running, fetching, waiting], [called, bringing, ordered]
    states = (
        "RUNNING",
        "PENDING_ARGS_FETCH",
        "SUBMITTED_TO_WORKER",
        "RUNNING",
        "PENDING_ACTOR_TASK_ARGS_FETCH",
        "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
    )
    assert tables.told().received == [ReceivedInfo(RECEIVED_ID, attempt, state) for attempt, state in enumerate(states)]
