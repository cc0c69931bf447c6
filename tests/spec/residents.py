"""Actors that hold resources for life, and queue for them: ``Seating``.

Each driver makes more actors than there are seats, calls all of them, and lets each go when it has answered. Drivers
queue behind each other's actors, too. So an actor that is let go must give its resources back at once, and those that
wait must get them, whatever nodes and processes are lost meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import minray
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.spec.stage import BORN
from tests.spec.stories import Look, Story, look_at
from tests.spec.wishes import MARK, SEAT

if TYPE_CHECKING:
    from tests.spec.model import Losses

NEEDS: Mapping[str, dict[str, Any]] = {
    "seat": {"num_cpus": 0, "resources": {SEAT: 1}},
    "seat and CPU": {"resources": {SEAT: 1}},
    "CPU": {"num_cpus": 1},
    "half a CPU": {"num_cpus": 0.5, "memory": 1000},
    "GPU": {"num_cpus": 0, "num_gpus": 1},
    "half a GPU": {"num_cpus": 0, "num_gpus": 0.5},
    "environment": {"num_cpus": 0, "resources": {SEAT: 0.5}, "runtime_env": {"env_vars": {MARK: "set"}}},
    "here": {"num_cpus": 0, "resources": {SEAT: 1}},
}
"""Name -> options of an actor that holds this for life. "here" is bound to the driver's node."""


class Seating(Story, frozen=True):
    """Actors that hold resources for life; each is let go when it has answered."""

    actors: int = 3
    need: str = "seat"
    """The one of ``NEEDS`` that each actor has."""
    restarts: int = 0
    """Number of restarts, and of retries of each call; -1: any."""
    kills: bool = False
    """Whether an actor is killed when it has answered; else its handle is dropped."""
    pause_s: float = 0.0
    """Seconds that a call takes."""

    def tell(self) -> list[Look]:
        options = dict(NEEDS[self.need])
        if self.need == "here":
            here = minray.get_runtime_context().get_node_id()
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(here, soft=False)
        seated = Seated.options(max_restarts=self.restarts, max_task_retries=self.restarts, **options)
        handles = {number: seated.remote(f"{self.name}#{number}", number) for number in range(self.actors)}
        numbers = {handle.sit.remote(self.pause_s): number for number, handle in handles.items()}
        looks: dict[int, Look] = {}
        while numbers:
            for ref in minray.wait(list(numbers))[0]:
                number = numbers.pop(ref)
                looks[number] = look_at(ref)
                handle = handles.pop(number)
                if self.kills:
                    minray.kill(handle)
                del handle, ref
        return [looks[number] for number in range(self.actors)]

    def wanted(self) -> list[list[Any]]:
        return [[number, "set" if self.need == "environment" else ""] for number in range(self.actors)]

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_actor(self.restarts)

    def events(self) -> set[str]:
        return {"used", "cancelled" if self.kills else "dropped"}

    def needs(self) -> dict[str, float]:
        return {"GPU": 1} if "GPU" in self.need else {}

    def busy_s(self) -> float:
        return 4 * self.actors * self.pause_s


@minray.remote
class Seated:
    """An actor that holds something for life."""

    def __init__(self, name: str, number: int) -> None:
        print(json.dumps([BORN, name, [], []]))
        self._number = number

    def sit(self, pause_s: float) -> list[Any]:
        time.sleep(pause_s)
        return [self._number, os.environ.get(MARK, "")]
