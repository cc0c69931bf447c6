"""Things that a driver begins at the last moment: ``Hasty``, after which nobody waits for anything.

The story makes a few things one after the other: a placement group, an actor with or without a name, a task with a child, an
object in an actor's hands, a generator. It drops them all at once, and the driver goes on or leaves. So their making may
meet the end of their job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from minray.util.placement_group import placement_group
from tests.spec.filled import filled
from tests.spec.stories import Look, Story
from tests.spec.wishes import BERTH

if TYPE_CHECKING:
    from tests.spec.model import Losses

SIZE = 300


class Hasty(Story, frozen=True):
    """Some of ``THINGS``, which are made and left alone."""

    things: tuple[str, ...] = ("group",)
    pause_s: float = 0.0
    """Seconds between one and the next."""

    def tell(self) -> list[Look]:
        kept = []
        for number, thing in enumerate(self.things):
            called = f"{self.name}.{number} {minray.get_runtime_context().get_job_id()}"
            try:
                kept.append(THINGS[thing](called))
            except RayError:  # What is begun may fail with its job, or after a loss.
                continue
            time.sleep(self.pause_s)
        return []

    def wanted(self) -> list[Any]:
        return []

    def errors(self, losses: Losses) -> set[str]:
        return set()

    def busy_s(self) -> float:
        return 2.0 + len(self.things) * self.pause_s


def _actor_with_object(_called: str) -> Any:
    holder = Holder.remote()
    return holder, holder.hold.remote([minray.put(filled(SIZE, 1))])


THINGS: Mapping[str, Callable[[str], Any]] = {
    "group": lambda called: placement_group([{BERTH: 1}]),
    "impossible group": lambda called: placement_group([{BERTH: 1000}]),
    "named group": lambda called: placement_group([{BERTH: 1}, {BERTH: 1}], "SPREAD", name=called),
    "actor": lambda called: Holder.remote(),
    "named actor": lambda called: Holder.options(name=called).remote(),
    "impossible actor": lambda called: Holder.options(resources={BERTH: 1000}).remote(),
    "actor with an object": _actor_with_object,
    "task": lambda called: have_child.remote(0.0),
    "slow task": lambda called: have_child.remote(1.0),
    "impossible task": lambda called: have_child.options(resources={BERTH: 1000}).remote(0.0),
    "generator": lambda called: count.remote(),
    "held generator": lambda called: count.options(_generator_backpressure_num_objects=1).remote(),
    "object": lambda called: minray.put([minray.put(filled(SIZE, 1))]),
}


@minray.remote(num_cpus=0)
class Holder:
    """Holds what it is given."""

    def hold(self, refs: list[Any]) -> None:
        self._refs = refs


@minray.remote(num_cpus=0)
def have_child(seconds: float) -> Any:
    child = sleep.remote(seconds)
    time.sleep(seconds)
    return minray.get(child)


@minray.remote(num_cpus=0)
def sleep(seconds: float) -> Any:
    time.sleep(seconds)
    return filled(SIZE, 1)


@minray.remote(num_cpus=0)
def count() -> Iterator[Any]:
    for number in range(3):
        yield filled(SIZE, number)
