"""Workers die at random while work goes on: everything ends, rightly, and nothing is left (G16, G22, G48, at rest)."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import minray as ray
from minray.exceptions import RayTaskError, TaskCancelledError, WorkerCrashedError
from minray.protocol.raylet import GetNodeStats, NodeStats
from tests.helpers import wait_for_condition
from tests.real.conftest import all_resources_are_free
from tests.real.support import Files, api, core, echo

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"_system_config": {"cancellation_retry_ms": 200}}


def node_stats() -> NodeStats:
    """Ask the raylet for its workers and leases."""

    async def ask() -> NodeStats:
        return await core().raylet.call(GetNodeStats())

    return api().run_on_loop(ask)


@contextmanager
def workers_dying(seed: int, every_s: float, deaths: int) -> Iterator[Callable[[], bool]]:
    """Kill a worker ``deaths`` times, on average every ``every_s`` seconds; yield whether that still goes on.

    The count is bounded and the gaps vary: on a slow transport a task could otherwise never live to its end.
    """
    dice, over = random.Random(seed), threading.Event()

    def kill_some() -> None:
        left = deaths
        while left and not over.wait(dice.expovariate(1 / every_s)):
            pids = [worker.pid for worker in node_stats().workers if worker.pid]
            if pids:
                left -= 1
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(pids), signal.SIGKILL)

    killer = threading.Thread(target=kill_some)
    killer.start()
    try:
        yield killer.is_alive
    finally:
        over.set()
        killer.join()


def is_at_rest() -> bool:
    stats = node_stats()
    return (
        all_resources_are_free()
        and not stats.pending_leases
        and all(worker.state == "IDLE" and not worker.lease_id for worker in stats.workers)
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_g16_g22_everything_ends_rightly_although_workers_die(files: Files, seed: int) -> None:
    journal = files.journal()

    @ray.remote(max_retries=-1)
    def leaf(number: int) -> int:
        sum(range(20_000))
        return number

    @ray.remote(max_retries=-1)
    def branch(number: int) -> int:
        journal.note(number)
        return sum(ray.get([leaf.remote(number + index) for index in range(3)]))

    with workers_dying(seed, 0.05, 20) as workers_die:
        values: list[int] = []
        while workers_die():
            refs = [branch.remote(number) for number in range(20)]
            values = ray.get(refs, timeout=60)
            assert values == [3 * number + 3 for number in range(20)]
    wait_for_condition(is_at_rest, message="free resources, no leases")


def test_g48_g16_cancels_and_deaths_together_leave_nothing_unresolved() -> None:
    dice = random.Random(4)

    @ray.remote(max_retries=1, retry_exceptions=True)
    def work(number: int, *_: object) -> int:
        if number % 7 == 0:
            raise ValueError(number)
        return sum(ray.get([echo.remote(number), echo.remote(0)])) if number % 3 == 0 else number

    outcomes: list[Any] = []
    with workers_dying(3, 0.03, 20) as workers_die:
        while workers_die():
            refs: list[Any] = []
            for number in range(60):
                refs.append(work.remote(number, *dice.sample(refs, min(len(refs), dice.randrange(2)))))
            for reference in dice.sample(refs, 20):
                ray.cancel(reference, force=dice.random() < 0.3)
            for number, reference in enumerate(refs):
                try:
                    outcomes.append(ray.get(reference, timeout=60))
                    assert outcomes[-1] == number
                except (RayTaskError, TaskCancelledError, WorkerCrashedError) as error:
                    outcomes.append(type(error))
    assert sum(isinstance(outcome, int) for outcome in outcomes) > 0
    wait_for_condition(is_at_rest, message="free resources, no leases")
    assert ray.get([echo.remote(number) for number in range(20)]) == list(range(20))


def test_borrowed_references_survive_the_deaths_of_their_borrowers() -> None:
    """A borrower that is killed in the middle of anything gives back, or has taken from it, what it held."""

    @ray.remote(max_retries=-1)
    def pass_around(refs: list[Any]) -> list[Any]:
        return [*refs[1:], refs[0], *ray.get([echo.remote([refs[0]])])[0]]

    with workers_dying(5, 0.05, 15) as workers_die:
        refs: list[Any] = [ray.put(number) for number in range(5)]
        while workers_die():
            refs = ray.get(pass_around.remote(refs), timeout=60)[-5:]
            assert sorted(set(ray.get(refs, timeout=60))) == sorted(set(ray.get(refs)))
    del refs
    wait_for_condition(is_at_rest, message="free resources, no leases")
