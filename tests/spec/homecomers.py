"""Drivers that leave their cluster and join it again in one process: ``Homecoming``.

Each time the driver has another job. It says the same functions and classes as before, which the process has kept, and finds
a free name. In the middle of a round it leaves: a task runs, a value is in use, and an actor has a name. References of the
earlier time are dropped when the driver has joined again, and may not free what has come since.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stage import Outcome, Stage
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

HOME = "homecomers"
"""Namespace of their actors."""


class Homecoming(Story, frozen=True):
    """Rounds in which the driver joins, works and leaves."""

    rounds: int = 2
    pause_s: float = 0.0
    """Seconds between leaving and joining again."""
    max_retries: int = 3
    works_on: bool = False
    """Whether it leaves while a task and a call run."""

    def perform(self, stage: Stage) -> Outcome:
        jobs: list[str] = []
        looks = [look for number in range(self.rounds) for look in self._round(number, jobs)]
        return {"of": [], "looks": looks, "jobs": jobs}

    def _round(self, number: int, jobs: list[str]) -> Iterator[Look]:
        if number:
            minray.init()
        jobs.append(minray.get_runtime_context().get_job_id())
        options = {"num_cpus": 0, "name": self.name, "namespace": HOME, "get_if_exists": True}
        keeper = Keeper.options(**options).remote(number)
        kept = minray.put([number, "put"])
        yield look_at(tell.options(num_cpus=0, max_retries=self.max_retries).remote(number, kept))
        yield look_at(keeper.keep.remote([kept]))
        if number < self.rounds - 1:
            left = [tell.options(num_cpus=0).remote(number, kept, 5.0), keeper.rest.remote()] if self.works_on else []
            minray.shutdown()
            time.sleep(self.pause_s)
            minray.init()
            del kept, left, keeper
            minray.shutdown()

    def wanted(self) -> list[Any]:
        return [value for number in range(self.rounds) for value in ([number, [number, "put"]], number)]

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_task(0) | losses.of_any_actor(0)

    def busy_s(self) -> float:
        return self.rounds * (self.pause_s + 10.0)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        if not self.errors(reading.model.losses):
            yield from super().check(reading, outcome)
        if len(set(outcome["jobs"])) != len(outcome["jobs"]):
            yield f"jobs: {self.name} has joined {self.rounds} times, and its jobs are {outcome['jobs']}"


@minray.remote
def tell(number: int, kept: Any, seconds: float = 0.0) -> list[Any]:
    time.sleep(seconds)
    return [number, kept]


@minray.remote
class Keeper:
    """An actor that keeps references of the driver that has made it, and says which round that was."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._kept: list[Any] = []

    def keep(self, kept: list[Any]) -> int:
        self._kept += kept
        return self._number

    def rest(self) -> None:
        time.sleep(5.0)
