"""Generators that yield less when they run again: ``Fickle``.

A lost item is made again by its generator, which yields what it has yielded before. This one does not, so some items cannot
come back. Its reader takes all items, waits for a while in which their node may die, and reads them then. Some items it
drops while they are still on their way here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.filled import filled
from tests.spec.stage import raised
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

INCONSISTENT = "StreamingGeneratorReplayInconsistentError"
ENDED = "the end"
"""Stands for an item that its generator has not yielded, since it has run again before its end."""
RUNS = 3
"""Number of generators, which run on all nodes in turn."""
SIZE = 300
"""Bytes of each item."""


class Fickle(Story, frozen=True):
    """A generator whose second run ends earlier, and the items of its first run."""

    items: int = 4
    again: int = 2
    """Number of items of each later run."""
    pause_s: float = 2.0
    raises: bool = False
    """Whether each later run raises then."""

    def tell(self) -> list[Look]:
        run = yield_less.options(scheduling_strategy="SPREAD", max_retries=3)
        name = f"{self.name} of {minray.get_runtime_context().get_job_id()}"
        runs = [run.remote(f"{name} {number}", self.items, self.again, self.raises) for number in range(RUNS)]
        lists = [list(items) for items in runs]
        passing = list(run.remote(f"{name} in passing", self.items, self.items, False))
        minray.wait(passing, num_returns=len(passing), timeout=0.0)
        del passing
        time.sleep(self.pause_s)
        return [look for refs in lists for look in self._look(refs)]

    def _look(self, refs: list[Any]) -> list[Look]:
        """Look at the items of a run, and at its error instead of those that are missing."""
        minray.wait(refs, num_returns=len(refs), timeout=0.001)
        looks = [look_at(ref) for ref in refs]
        looks = [("value", len(shown.tobytes())) if kind == "value" else (kind, shown) for kind, shown in looks]
        last = looks[-1] if looks and looks[-1][0] == "error" else ("error", ENDED)
        return [*looks, *[last] * (self.items - len(looks))][: self.items]

    def wanted(self) -> list[Any]:
        return [SIZE] * self.items * RUNS

    def errors(self, losses: Losses) -> set[str]:
        """If it runs again, it may end with an error, which stands behind the items or for those that are lost."""
        found = losses.of_any_task(3)
        if losses.deaths or losses.files:
            found |= {INCONSISTENT, ENDED} | ({"RayTaskError(ValueError)"} if self.raises else set())
        return found

    def busy_s(self) -> float:
        return self.pause_s


def begins(name: str) -> bool:
    """Tell whether a generator runs for the first time. Simulated processes share the memory of that."""
    is_first = ("fickle", name) not in raised
    raised.add(("fickle", name))
    return is_first


@minray.remote(num_cpus=0)
def yield_less(name: str, items: int, again: int, raises: bool) -> Iterator[Any]:
    """Yield items, at first more than later."""
    is_first = begins(name)
    for number in range(items if is_first else again):
        time.sleep(0.01)
        yield filled(SIZE, number)
    if raises and not is_first:
        raise ValueError("not again")
