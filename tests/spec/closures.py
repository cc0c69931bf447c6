"""Functions and actor classes that tasks define: ``Closure``. They hold values and each other, and are redefined.

A task defines a function that holds a value of the task, runs it, redefines it under the same name, and runs that. It
defines an actor class, and functions that hold the other function or this class and use them. It returns a function,
which the driver runs when the task is over.

No definition holds a reference or a handle. One that does keeps it until its job ends: a process that has the pickled
function may run it at any time. So it would be a leftover (L2).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from tests.spec.stage import Outcome
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading


class Closure(Story, frozen=True):
    """Definitions in a task, and their closures."""

    max_retries: int = 3

    def events(self) -> set[str]:
        return {"used", "dropped", "obtained again"}

    def tell(self) -> list[Look]:
        ref = define.options(max_retries=self.max_retries, num_cpus=0).remote(self.name)
        try:
            looks, echo = minray.get(ref)
        except RayError as error:
            return [("error", type(error).__name__)]
        del ref
        return [*map(tuple, looks), look_at(echo.remote())]

    def wanted(self) -> list[Any]:
        return [[word, self.name] for word in ("first", "second", "held", "actor", "echo")]

    def errors(self, losses: Losses) -> set[str]:
        inner = losses.of_any_task(0) | losses.of_any_actor(0)
        return also_in_tasks(inner)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        if outcome["looks"][0][0] == "error":
            allowed, (_, shown) = self.errors(reading.model.losses), outcome["looks"][0]
            if shown not in allowed:
                yield f"G17: {self.name} shows {shown}; allowed: {sorted(allowed) or 'no error'}"
        else:
            yield from super().check(reading, outcome)


@minray.remote
def define(name: str) -> tuple[list[Look], Any]:
    """Define functions and a class around a value, use them, and return one."""

    @minray.remote
    def say() -> list[str]:
        return ["first", name]

    looks = [look_at(say.options(num_cpus=0).remote())]

    @minray.remote(num_cpus=0)
    def say() -> list[str]:  # type: ignore[no-redef]
        return ["second", name]

    @minray.remote(num_cpus=0)
    class Keeper:
        def say(self) -> list[str]:
            return ["actor", name]

    @minray.remote(num_cpus=0)
    def ask() -> list[str]:
        return ["held", *minray.get(say.remote())[1:]]

    @minray.remote(num_cpus=0)
    def build() -> list[str]:
        keeper = Keeper.remote()
        words: list[str] = minray.get(keeper.say.remote())
        return words

    looks += [look_at(function.remote()) for function in (say, ask, build)]

    @minray.remote(num_cpus=0)
    def echo() -> list[str]:
        return ["echo", name]

    return looks, echo
