"""Actors with several concurrency groups: ``Lanes``, in which calls sleep, wait for each other, and are cancelled.

The actor has a group that runs one call at once, and one that runs two. Its methods have options of their own: a group, a
number of results, retries of exceptions, back-pressure. A driver makes more calls than the groups take, cancels some of
the first ones, and gets all. Then it calls each of the other methods.

Calls that run in a thread go on when they are cancelled; coroutines end (G45). A cancelled call that had not begun never
does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stage import BORN, Outcome
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

GROUPS = {"io": 1, "work": 2}
"""Name of a concurrency group -> the number of calls that it runs at once."""
CANCELLED = frozenset(("TaskCancelledError", "RayTaskError(TaskCancelledError)", "RayTaskError(CancelledError)"))
LATER: list[Any] = [["a", "b"], [1, 2, 3], ["again"]]
"""Values of the calls after those in the groups: two results, three items, and one that is retried after an exception."""


class Lanes(Story, frozen=True):
    """An actor with several concurrency groups."""

    is_async: bool = False
    calls: int = 4
    seconds: float = 0.02
    """Seconds that each call takes."""
    cancels: int = 0
    """Number of calls, among the first ones, that are cancelled."""
    restarts: int = 0
    """Number of restarts, and of retries of each call; -1: any."""

    def tell(self) -> list[Look]:
        laned = (AsyncLaned if self.is_async else Laned).options(max_restarts=self.restarts, max_task_retries=self.restarts)
        handle = laned.remote(f"{self.name}#{self.is_async}")
        refs = [self._sleep(handle, number) for number in range(self.calls)]
        for ref in refs[: self.cancels]:
            minray.cancel(ref)
        looks = [look_at(ref) for ref in refs]
        first, second = handle.pair.remote()
        looks.append(_joined([look_at(first), look_at(second)]))
        items = [look_at(ref) for ref in handle.count.remote()]
        looks.append(_joined(items))
        looks.append(look_at(handle.stumble.options(max_task_retries=-1).remote()))
        return looks

    def _sleep(self, handle: Any, number: int) -> Any:
        return (handle.work if number % 2 else handle.read).remote(number, self.seconds)

    def wanted(self) -> list[Any]:
        return [[number, "work" if number % 2 else "io"] for number in range(self.calls)] + LATER

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_actor(self.restarts)

    def events(self) -> set[str]:
        return {"used", "dropped"} | ({"cancelled"} if self.cancels else set())

    def busy_s(self) -> float:
        return 4 * self.calls * self.seconds

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """Allow that a cancelled call shows its cancellation."""
        shown, wanted = outcome["looks"], self.wanted()
        cancelled = {n for n, (kind, error) in enumerate(shown[: self.cancels]) if kind == "error" and error in CANCELLED}
        looks = [("value", wanted[n]) if n in cancelled else look for n, look in enumerate(shown)]
        yield from super().check(reading, outcome | {"looks": looks})


def _joined(looks: list[Look]) -> Look:
    """Return one look for several: all values, or the first error."""
    errors = [look for look in looks if look[0] == "error"]
    return errors[0] if errors else ("value", [shown for _, shown in looks])


class Base:
    """The methods that both kinds of actors have."""

    def __init__(self, name: str) -> None:
        print(json.dumps([BORN, name, [], []]))
        self._has_stumbled = False

    @minray.method(num_returns=2, enable_task_events=False, max_task_retries=-1)
    def pair(self) -> tuple[str, str]:
        return "a", "b"

    @minray.method(retry_exceptions=[ValueError])
    def stumble(self) -> list[str]:
        if not self._has_stumbled:
            self._has_stumbled = True
            raise ValueError("the first time")
        return ["again"]


@minray.remote(concurrency_groups=GROUPS, num_cpus=0)
class Laned(Base):
    """An actor whose calls run in threads."""

    @minray.method(concurrency_group="io")
    def read(self, number: int, seconds: float) -> list[Any]:
        time.sleep(seconds)
        return [number, "io"]

    @minray.method(concurrency_group="work")
    def work(self, number: int, seconds: float) -> list[Any]:
        time.sleep(seconds)
        return [number, "work"]

    @minray.method(_generator_backpressure_num_objects=1)
    def count(self) -> Iterator[int]:
        yield from (1, 2, 3)


@minray.remote(concurrency_groups=GROUPS, num_cpus=0)
class AsyncLaned(Base):
    """An actor whose calls are coroutines."""

    @minray.method(concurrency_group="io")
    async def read(self, number: int, seconds: float) -> list[Any]:
        await asyncio.sleep(seconds)
        return [number, "io"]

    @minray.method(concurrency_group="work")
    async def work(self, number: int, seconds: float) -> list[Any]:
        await asyncio.sleep(seconds)
        return [number, "work"]

    @minray.method(_generator_backpressure_num_objects=1)
    async def count(self) -> AsyncIterator[int]:
        for number in (1, 2, 3):
            yield number
