"""How many threads OpenMP may start in a worker: what is set for which lease, and when nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from minray.common.bundles import within
from minray.common.task_spec import LeaseShape, RuntimeEnvInfo, SchedulingStrategy
from minray.core_worker.execution.omp_threads import OmpThreads, threads_of
from tests.core_worker.parts import JOB


class UserCode:
    """Notes what is set in the worker's environment."""

    def __init__(self) -> None:
        self.entered: list[dict[str, str]] = []

    def enter_environment(self, leading: Any, sys_path: Any, working_dir: Any, env_vars: dict[str, str]) -> None:
        assert (list(leading), list(sys_path), working_dir) == ([], [], None)
        self.entered.append(env_vars)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> tuple[OmpThreads, list[dict[str, str]]]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    user_code: Any = UserCode()
    return OmpThreads(user_code), user_code.entered


def shape(**resources: int) -> LeaseShape:
    return LeaseShape(tuple(sorted(resources.items())), SchedulingStrategy(), RuntimeEnvInfo(), JOB)


def test_the_variable_changes_only_when_a_lease_has_other_cpus(worker: Any) -> None:
    threads, entered = worker
    threads.on_lease(shape(CPU=20_000))
    assert entered == []  # the environment is not prepared
    threads.on_environment(RuntimeEnvInfo((("PATH", "/bin"),)))
    assert entered == [{"OMP_NUM_THREADS": "2"}]
    threads.on_lease(shape(CPU=29_999))
    assert len(entered) == 1
    threads.on_lease(shape(GPU=10_000))
    assert entered[1:] == [{"OMP_NUM_THREADS": "1"}]


def test_a_lease_that_replaces_the_first_before_the_environment_is_ready_counts(worker: Any) -> None:
    threads, entered = worker
    threads.on_lease(shape(CPU=20_000))
    threads.on_lease(shape(CPU=40_000))
    threads.on_environment(RuntimeEnvInfo())
    assert entered == [{"OMP_NUM_THREADS": "4"}]


@pytest.mark.parametrize("of_the_runtime_env", [True, False])
def test_a_value_of_the_users_stays(worker: Any, monkeypatch: pytest.MonkeyPatch, of_the_runtime_env: bool) -> None:
    threads, entered = worker
    if not of_the_runtime_env:
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
    threads.on_lease(shape(CPU=20_000))
    threads.on_environment(RuntimeEnvInfo((("OMP_NUM_THREADS", "7"),) if of_the_runtime_env else ()))
    threads.on_lease(shape(CPU=40_000))
    assert entered == []


@pytest.mark.parametrize(
    ("resources", "threads"),
    [({"CPU": 5000}, 1), ({"CPU": 27_000}, 2), ({}, 1), (within(b"g" * 18, 0, {"CPU": 30_000}), 3)],
)
def test_threads_are_whole_cpus_also_those_of_a_group_and_one_at_least(resources: dict[str, int], threads: int) -> None:
    assert threads_of(shape(**resources)) == threads
