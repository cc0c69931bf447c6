"""G107a: a task or actor sees the GPUs of its lease, and no others. No GPU is needed: what is set are variables."""

from __future__ import annotations

import os
from typing import Any

import pytest

import minray as ray
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.real.support import Files

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.skipif("CUDA_VISIBLE_DEVICES" in os.environ, reason="the ids of the user's GPUs would be others"),
]
INIT = {"num_gpus": 2}
VARIABLE = "CUDA_VISIBLE_DEVICES"
EACH = [("0", ["0"]), ("1", ["1"])]
"""Values that ``seen`` returns with each of the GPUs."""


class OnArrival:
    """A value that notes the variable of the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os.getenv, (VARIABLE,)


def seen() -> tuple[str | None, list[str]]:
    """Return the variable's value, and what the context says."""
    return os.environ.get(VARIABLE), ray.get_runtime_context().get_accelerator_ids()["GPU"]


@ray.remote(num_cpus=0)
def look(value: Any = None) -> Any:
    return seen()


@ray.remote(num_cpus=0, num_gpus=1)
class Resident:
    def __init__(self, on_arrival: Any = None) -> None:
        self.at_first = on_arrival, seen()

    def look(self) -> Any:
        return self.at_first, seen()

    def ask(self, **options: Any) -> Any:
        return ray.get(look.options(**options).remote())


@pytest.mark.parametrize(("amount", "value"), [(0.5, "0"), (1, "0"), (2, "0,1")])
def test_g107a_a_task_sees_the_gpus_of_its_lease_only(amount: float, value: str) -> None:
    assert ray.get(look.options(num_gpus=amount).remote()) == (value, value.split(","))


def test_a_task_without_gpus_finds_the_variable_as_it_was_unless_all_are_hidden() -> None:
    assert ray.get(look.remote()) == (None, [])
    hidden = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}}
    assert ray.get(look.options(runtime_env=hidden).remote()) == ("", [])


@pytest.mark.parametrize(
    ("env_vars", "answer"),
    [
        ({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}, (None, ["0"])),
        ({VARIABLE: "7,8"}, ("7", ["7"])),
        ({VARIABLE: ""}, ("", [])),
    ],
)
def test_the_users_own_variables_win(env_vars: dict[str, str], answer: Any) -> None:
    assert ray.get(look.options(num_gpus=1, runtime_env={"env_vars": env_vars}).remote()) == answer


def test_g107a_the_variable_is_set_before_user_code_is_unpickled() -> None:
    @ray.remote(num_gpus=1)
    def function(value: Any) -> Any:
        return value

    assert ray.get(function.remote(OnArrival())) == "0"
    resident = Resident.remote(OnArrival())
    (on_arrival, at_first), now = ray.get(resident.look.remote())
    assert on_arrival == at_first[0] == now[0] in ("0", "1")


def test_fractions_share_a_gpu_and_an_actor_keeps_its_own_for_life() -> None:
    halves = [Resident.options(num_gpus=0.5).remote() for _ in range(2)]
    (_, shared), other_half = ray.get([half.look.remote() for half in halves])
    whole = Resident.remote()
    _, alone = ray.get(whole.look.remote())
    assert other_half[1] == shared and sorted([shared, alone]) == EACH
    assert [now for _, now in ray.get([actor.look.remote() for actor in (*halves, whole)])] == [shared, shared, alone]
    del halves
    assert ray.get(look.options(num_gpus=1).remote()) == shared


def test_child_tasks_have_gpus_of_their_own_or_none() -> None:
    resident = Resident.remote()
    _, own = ray.get(resident.look.remote())
    assert sorted([own, ray.get(resident.ask.remote(num_gpus=1))]) == EACH
    assert ray.get(resident.ask.remote()) == (None, [])


def test_bundles_hold_gpus_for_their_tasks_and_actors() -> None:
    group = placement_group([{"GPU": 1}, {"GPU": 1}])
    ray.get(group.ready())
    try:
        strategies = [PlacementGroupSchedulingStrategy(group, index) for index in range(2)]
        actors = [Resident.options(num_gpus=0.5, scheduling_strategy=strategy).remote() for strategy in strategies]
        ids = [ray.get(actor.look.remote())[1] for actor in actors]
        assert sorted(ids) == EACH
        again = [look.options(num_gpus=0.5, scheduling_strategy=strategy).remote() for strategy in strategies]
        assert ray.get(again) == ids
    finally:
        remove_placement_group(group)


def test_g107a_a_worker_is_not_shown_other_gpus_later(files: Files) -> None:
    """Workers that serve many tasks (``max_calls=0``) each keep one value; tasks that hold one GPU never share it."""
    release = files.signal("release")

    @ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
    def held(number: int, started: Any) -> Any:
        started.set()
        release.wait()
        return os.getpid(), seen()

    started = [files.signal(f"started {number}") for number in range(2)]
    together = [held.remote(number, signal) for number, signal in enumerate(started)]
    for signal in started:
        signal.wait()
    release.set()
    first = ray.get(together)
    assert sorted(answer for _, answer in first) == EACH
    later = ray.get([held.remote(number, started[0]) for number in range(20)])
    of_worker: dict[int, Any] = {}
    assert all(of_worker.setdefault(pid, answer) == answer for pid, answer in [*first, *later])
