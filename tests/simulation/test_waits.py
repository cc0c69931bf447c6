"""Threads that wait longer than they need are seen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.core_worker.fetching.blocked_tasks import BlockedTasks
from minray.core_worker.user_threads.object_reader import ObjectReader
from minray.exceptions import GetTimeoutError
from minray.simulation import Deadlock, SimCluster
from tests.simulation.invariants import Watch


@minray.remote
def rest(seconds: float) -> None:
    time.sleep(seconds)


@minray.remote(max_retries=0)
def fail() -> None:
    raise ValueError("no")


def get_in_time() -> None:
    with contextlib.suppress(GetTimeoutError):
        minray.get(rest.remote(5), timeout=0.5)


def get_an_error_and_more() -> None:
    refs = [fail.remote(), rest.remote(5)]
    minray.wait(refs)
    with contextlib.suppress(ValueError):
        minray.get(refs)


def get_a_late_error_and_more() -> None:
    with contextlib.suppress(ValueError):
        minray.get([fail.remote(), rest.remote(5)])


def get_an_error_and_a_value_that_is_elsewhere() -> None:
    refs = [make.options(resources={"other": 1}).remote(), fail.remote()]
    minray.wait(refs, num_returns=2, fetch_local=False)
    with contextlib.suppress(ValueError):
        minray.get(refs)


def wait_for_one() -> None:
    minray.wait([rest.remote(0.2), rest.remote(5)])


def problems_of(body: Callable[[], None]) -> str:
    """Problems that are seen while a program runs."""
    with SimCluster([{"num_cpus": 2}, {"num_cpus": 1, "resources": {"other": 1}}], 1, show_output=False) as cluster:
        watch = Watch(cluster)
        driver = cluster.start_driver(body)
        with contextlib.suppress(Deadlock):
            cluster.wait_until(driver.done, 20)
        return "\n".join(watch.problems)


def keep_only_values(self: Any, refs: Any) -> Any:
    return [self._objects.get(ref._id) for ref in refs]


def do_nothing(*_: Any) -> None:
    pass


true_wait = ObjectReader._wait


def wait_for_ever(self: Any, refs: Any, needed: int, stop: bool, _timeout_s: Any, elsewhere: Any = ()) -> None:
    true_wait(self, refs, needed, stop, None, elsewhere)


def wait_on_after_an_error(self: Any, refs: Any, needed: int, _stop: bool, timeout_s: Any, elsewhere: Any = ()) -> None:
    true_wait(self, refs, needed, False, timeout_s, elsewhere)


def wait_for_all(self: Any, refs: Any, _needed: int, stop: bool, timeout_s: Any, elsewhere: Any = ()) -> None:
    true_wait(self, refs, len(refs), stop, timeout_s, elsewhere)


@minray.remote
def make() -> bytes:
    return bytes(200_000)


@minray.remote(num_cpus=1, resources={"other": 1})
def read_and_rest(refs: list[Any]) -> None:
    minray.get(refs[0])
    time.sleep(5)


def read_from_afar() -> None:
    minray.get(read_and_rest.remote([make.remote()]))


def go_on_waiting(self: Any, task: Any) -> Callable[[], None]:
    self.hold_up(task, object())
    return lambda: None


def test_cpus_that_stay_lent_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems_of(read_from_afar) == ""
    monkeypatch.setattr(BlockedTasks, "lend_soon", go_on_waiting)
    assert "lends the CPUs of 1 waits, and no thread waits" in problems_of(read_from_afar)


@pytest.mark.parametrize(
    ("body", "name", "mistake", "said"),
    [
        (get_in_time, "_wait", wait_for_ever, "longer than its time-out"),
        (get_an_error_and_more, "_known", keep_only_values, "one of its values is an error, which is here"),
        (get_a_late_error_and_more, "_wait", wait_on_after_an_error, "is an error, which is here"),
        (get_an_error_and_a_value_that_is_elsewhere, "_raise_first_error", do_nothing, "is an error, which is here"),
        (wait_for_one, "_wait", wait_for_all, "lets a wait for 1 values wait, which are here"),
    ],
)
def test_a_thread_that_waits_without_need_is_seen(
    body: Callable[[], None], name: str, mistake: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems_of(body) == ""
    monkeypatch.setattr(ObjectReader, name, mistake)
    assert said in problems_of(body)
