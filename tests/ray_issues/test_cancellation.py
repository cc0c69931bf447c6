"""Issues of Ray about cancelled tasks and calls."""

from __future__ import annotations

import asyncio
import select
from typing import Any

import pytest

import minray as ray
from minray.exceptions import RayError, TaskCancelledError
from tests.helpers import wait_for_condition
from tests.real.support import PATIENCE_S, Files, Journal, Signal, hold

pytestmark = pytest.mark.usefixtures("cluster")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@pytest.mark.ray_issue(ray="right")
def test_ray_46157_a_cancelled_reference_that_was_lent_can_be_got(files: Files) -> None:
    """A task that was given a reference inside a list waits for ever if the reference was cancelled and dropped."""

    @ray.remote(num_cpus=0)
    def read(refs: list[Any]) -> str:
        try:
            ray.get(refs[0])
        except RayError as error:
            return type(error).__name__
        return "no error"

    started = files.signal("started")
    ref = hold.options(num_cpus=0).remote(started, files.signal("never"))
    wait_for_condition(started.is_set, timeout_s=PATIENCE_S)
    reader = read.remote([ref])
    ray.cancel(ref)
    del ref
    assert "Cancelled" in get(reader)


@ray.remote(num_cpus=0)
def sleep(started: Signal) -> None:
    started.set()
    select.select([], [], [], 60)


@pytest.mark.ray_issue(ray="wrong: the task sleeps on")
def test_ray_32954_a_sleeping_task_is_cancelled(files: Files) -> None:
    """`cancel` without `force` does not reach a task that sleeps."""
    ref = sleep.remote(files.signal())
    wait_for_condition(files.signal().is_set, timeout_s=PATIENCE_S)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)


@ray.remote(num_cpus=0)
class Waiter:
    async def wait(self, ended: Journal) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.note()

    async def answer(self) -> str:
        return "answer"


@pytest.mark.ray_issue(ray="right")
def test_ray_52628_a_call_to_an_async_actor_is_cancelled_at_any_moment(files: Files) -> None:
    """A cancellation that reaches an async actor before the call's coroutine has begun is lost, and the call runs on."""
    waiter = Waiter.remote()
    assert get(waiter.answer.remote()) == "answer"
    refs = []
    for _ in range(30):
        refs.append(waiter.wait.remote(files.journal()))
        ray.cancel(refs[-1])
    for ref in refs:
        with pytest.raises(TaskCancelledError):
            get(ref)
    assert get(waiter.answer.remote()) == "answer"


@pytest.mark.ray_issue(
    ray="wrong: no error",
    minray="like Ray: nothing is left of an ended call that says whose it was, and there is nothing to cancel",
)
def test_ray_39145_force_changes_nothing_for_a_call_that_has_ended() -> None:
    """`cancel(force=True)` is an error for a call to an actor, but not if the call has already ended."""
    waiter = Waiter.remote()
    ref = waiter.answer.remote()
    assert get(ref) == "answer"
    ray.cancel(ref, force=True)
    assert get([ref, waiter.answer.remote()]) == ["answer"] * 2


@pytest.mark.ray_issue(ray="right")
def test_ray_24359_tasks_that_are_cancelled_as_they_are_pushed_end() -> None:
    """A task that was pushed to a worker and is cancelled before it has begun is waited for without end."""

    @ray.remote
    def nothing(number: int) -> int:
        return number

    refs = [nothing.remote(number) for number in range(100)]
    for ref in refs:
        ray.cancel(ref)
    for number, ref in enumerate(refs):
        try:
            assert get(ref) == number
        except TaskCancelledError:
            continue
    assert get(nothing.remote(7)) == 7


@pytest.mark.ray_issue(ray="right")
def test_ray_31398_a_task_whose_child_is_a_call_to_an_actor_is_cancelled(files: Files) -> None:
    """A recursive cancellation of a task that waits for an actor's call ends the task's worker with a failed check."""

    @ray.remote(num_cpus=0, max_retries=0)
    def call(waiter: Any, ended: Journal, started: Signal) -> None:
        ref = waiter.wait.remote(ended)
        started.set()
        ray.get(ref)

    waiter, started = Waiter.remote(), files.signal()
    ref = call.remote(waiter, files.journal(), started)
    wait_for_condition(started.is_set, timeout_s=PATIENCE_S)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    assert get(waiter.answer.remote()) == "answer"


@pytest.mark.ray_issue(ray="right")
def test_ray_29739_a_task_that_asks_for_its_gpus_is_cancelled(files: Files) -> None:
    """The cancellation of a task deadlocks with a call of `get_gpu_ids` inside that task."""

    @ray.remote(num_cpus=0)
    def ask(started: Signal) -> None:
        started.set()
        while True:
            ray.get_gpu_ids()

    refs = [ask.remote(files.signal(str(number))) for number in range(2)]
    for number in range(2):
        wait_for_condition(files.signal(str(number)).is_set, timeout_s=PATIENCE_S)
    for ref in refs:
        ray.cancel(ref)
    for ref in refs:
        with pytest.raises(TaskCancelledError):
            get(ref)
