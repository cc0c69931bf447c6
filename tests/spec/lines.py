"""Lines of short tasks in programs, one of which is slow: ``Line``.

The first tasks of a function show that it is short, so that the next ones are pushed to a worker one behind the other. Then
one of them is slow, or waits for one behind it. No task follows that could move those that wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses


class Line(Story, frozen=True):
    """Short tasks of one function, and a slow one among them."""

    tasks: int = 12
    slow: int = 3
    """Number of the slow task, from 0."""
    seconds: float = 0.5
    """Virtual seconds that it takes."""
    waits: bool = False
    """Whether it waits for the last task, too."""
    max_retries: int = 3

    def tell(self) -> list[Look]:
        """Run some tasks, then all of the line, and get their values in order."""
        run = step.options(max_retries=self.max_retries)
        looks = [look_at(run.remote(number, 0.0, [])) for number in range(3)]
        last = run.remote(self.tasks, 0.0, []) if self.waits else None
        refs = [self._submit(run, number, last) for number in range(self.tasks)]
        return looks + [look_at(ref) for ref in refs]

    def _submit(self, run: Any, number: int, last: Any) -> Any:
        is_slow = number == self.slow
        return run.remote(number, self.seconds if is_slow else 0.0, [last] if is_slow and last is not None else [])

    def wanted(self) -> Sequence[Any]:
        return [*range(3), *range(self.tasks)]

    def errors(self, losses: Losses) -> set[str]:
        found = losses.of_any_task(self.max_retries)
        return found | ({f"RayTaskError({name})" for name in found} if self.waits else set())

    def busy_s(self) -> float:
        return self.seconds


@minray.remote
def step(number: int, seconds: float, others: list[Any]) -> int:
    """Return the number, after a while and when others are done."""
    minray.get(others)
    time.sleep(seconds)
    return number
