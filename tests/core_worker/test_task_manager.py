"""The table of unfinished tasks: states, retries, and what a function is known to take."""

from __future__ import annotations

import pytest

from minray.common.state_table import InvalidTransition
from minray.core_worker.records.pending_task import (
    FAILED,
    FINISHED,
    NEW,
    PUSHED,
    QUEUED,
    WAITING,
    ActorClient,
    FunctionExport,
    PendingTask,
    PreparedTemplate,
)
from minray.core_worker.submission.task_manager import TRANSITIONS, TaskManager
from minray.protocol.core_worker import RefInfo
from tests.core_worker.parts import OWN, object_id, pending, prepare, submit

STATES = (NEW, WAITING, QUEUED, PUSHED, FINISHED, FAILED)
PATHS = {NEW: [], WAITING: [WAITING], QUEUED: [QUEUED], PUSHED: [QUEUED, PUSHED]}
"""How to get to each state that is not an end."""


def task_in(tasks: TaskManager, state: str) -> PendingTask:
    return submit(tasks, pending(prepare()), *PATHS[state])


@pytest.mark.parametrize("new", STATES)
@pytest.mark.parametrize("old", PATHS)
def test_only_the_steps_of_the_table_are_taken(old: str, new: str) -> None:
    tasks = TaskManager(None)
    task = task_in(tasks, old)
    if new in TRANSITIONS[old]:
        tasks.move(task, new)
        assert task.state is new
    else:
        with pytest.raises(InvalidTransition, match=f"-> {new}"):
            tasks.move(task, new)


def test_a_task_that_has_ended_is_forgotten() -> None:
    tasks = TaskManager(None)
    done, failed, running = (task_in(tasks, PUSHED) for _ in range(3))
    tasks.move(done, FINISHED)
    tasks.move(failed, FAILED)
    assert list(tasks.tasks.values()) == [running]
    assert (tasks.submitted_count, tasks.ended.total()) == (3, 2)


def test_of_a_task_that_has_ended_people_are_told_what_it_was() -> None:
    tasks = TaskManager(None)
    actor = ActorClient(b"an actor", OWN, in_order=True)
    call = pending(PreparedTemplate(prepare("c.m").template, b"", FunctionExport(b"", True), actor))
    task = pending(prepare("f"), parent_id=b"a task")
    task.attempt = 2
    for each, end in ((task, FAILED), (call, FINISHED)):
        tasks.add_task(each)
        tasks.move(each, QUEUED)
        tasks.move(each, PUSHED)
        assert each.task_id not in [one[0] for one in tasks.recent]
        tasks.move(each, end)
    assert list(tasks.recent) == [
        (task.task_id, task.prepared.template, b"", 2, FAILED, b"a task"),
        (call.task_id, call.prepared.template, b"an actor", 0, FINISHED, b""),
    ]


def test_a_task_that_is_made_again_is_here_again_and_takes_what_it_is_said_to_need() -> None:
    tasks = TaskManager(None)
    task = pending(prepare(), slots=((object_id("small"), OWN), (object_id("large"), OWN)))
    submit(tasks, task, QUEUED, PUSHED, FINISHED)
    tasks.begin_again(task, (object_id("large"),))
    assert tasks.tasks == {task.task_id: task} and task.state is WAITING
    assert task.held_ids() == (object_id("large"),)
    assert (tasks.submitted_count, tasks.ended.total()) == (2, 1)


def test_every_step_is_recorded() -> None:
    seen: list[tuple[str, str, str]] = []
    tasks = TaskManager(lambda table, key, old, new: seen.append((table, old, new)))
    tasks.move(task_in(tasks, PUSHED), FINISHED)
    assert seen == [("task", NEW, QUEUED), ("task", QUEUED, PUSHED), ("task", PUSHED, FINISHED)]


@pytest.mark.parametrize(("max_retries", "executions"), [(0, 1), (3, 4)])
def test_g16_a_task_runs_at_most_max_retries_times_more(max_retries: int, executions: int) -> None:
    tasks = TaskManager(None)
    task = pending(prepare(max_retries=max_retries))
    attempts = [task.attempt]
    while tasks.begin_retry(task):
        attempts.append(task.attempt)
    assert attempts == list(range(executions))


def test_g16_minus_one_retries_without_end() -> None:
    tasks = TaskManager(None)
    task = pending(prepare(max_retries=-1))
    assert all(tasks.begin_retry(task) for _ in range(1000)) and task.attempt == 1000


def test_g19_a_cancelled_task_is_never_retried() -> None:
    task = pending(prepare(max_retries=-1))
    task.cancelled = True
    assert not TaskManager(None).begin_retry(task) and task.attempt == 0


def test_g21_a_preemption_uses_up_no_retry() -> None:
    tasks = TaskManager(None)
    task = pending(prepare(max_retries=1))
    assert tasks.begin_retry(task, preempted=True) and tasks.begin_retry(task, preempted=True)
    assert (task.attempt, task.preemptions, task.retries_left) == (2, 2, 1)
    assert tasks.begin_retry(task) and not tasks.begin_retry(task)
    assert tasks.begin_retry(task, preempted=True) and task.attempt == 4


def test_g21_what_is_never_to_be_retried_is_not_retried_for_a_preemption() -> None:
    tasks = TaskManager(None)
    once, cancelled = pending(prepare(max_retries=0)), pending(prepare(max_retries=-1))
    cancelled.cancelled = True
    assert not tasks.begin_retry(once, preempted=True) and not tasks.begin_retry(cancelled, preempted=True)
    assert once.attempt == once.preemptions == cancelled.attempt == cancelled.preemptions == 0


def test_g20_who_was_killed_for_memory_waits_longer_each_time_and_uses_up_no_retry() -> None:
    tasks = TaskManager(None)
    task = pending(prepare(max_retries=1))
    assert [tasks.retry_after_memory(task) for _ in range(4)] == [1, 2, 4, 8]
    assert (task.attempt, task.retries_left) == (4, 1)
    once = pending(prepare(max_retries=0))
    task.cancelled = True
    assert tasks.retry_after_memory(task) is tasks.retry_after_memory(once) is None
    assert (task.attempt, once.attempt) == (4, 0)


def test_g20_nor_does_it_need_one_that_is_left() -> None:
    """A task with ``max_retries=0`` is not made again. One whose retries were used up by crashes is."""
    tasks = TaskManager(None)
    task = pending(prepare(max_retries=1))
    assert tasks.begin_retry(task) and not tasks.begin_retry(task)
    assert tasks.retry_after_memory(task) == 1 and (task.attempt, task.retries_left) == (2, 0)


def test_children_are_known_by_their_parent() -> None:
    tasks = TaskManager(None)
    children = [pending(prepare(), parent_id=parent) for parent in (b"a", b"b", b"a")]
    for child in children:
        tasks.add_task(child)
    assert tasks.children_of(b"a") == [children[0], children[2]]


def test_a_task_holds_its_arguments_and_what_is_inside_them() -> None:
    top_level, inside = object_id("top"), object_id("inside")
    task = pending(prepare(), slots=((top_level, OWN),), nested=(RefInfo(inside, OWN, b""),))
    assert task.held_ids() == [top_level, inside]
    assert pending(prepare()).held_ids() == []


def test_durations_are_learnt_fast_downwards_and_slowly_upwards() -> None:
    """A first call imports things; one slow call among many says little."""
    prepared = prepare()
    prepared.on_duration(80_000)
    assert prepared.mean_us == 80_000
    for _ in range(10):
        prepared.on_duration(100)
    assert prepared.mean_us == pytest.approx(100, rel=1)
    prepared.mean_us = 100.0
    prepared.on_duration(1100)
    assert prepared.mean_us == 300
