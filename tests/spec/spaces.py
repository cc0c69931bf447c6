"""One name in several namespaces: ``Spaces``, with actors that a driver drops and asks for again.

The driver makes an actor of one name in two namespaces, and finds each in its own. In a third there is none. It asks for
each again with ``get_if_exists`` while it holds the actor, and is shown the same one. Then it drops all handles, asks
again, and is given an actor that answers: the old one or another, but never one that is about to end (G33a).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.util import list_named_actors
from tests.spec.stage import Outcome, Stage
from tests.spec.stories import Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

COMMONS = "commons"
"""Beginning of the names of the namespaces that drivers share."""
NONE = "none"
"""Shown instead of an actor's id where no actor is found."""


class Spaces(Story, frozen=True):
    """Actors with one name in two namespaces."""

    restarts: int = 0
    """Number of restarts, and of retries of each call; -1: any."""
    is_shared: bool = False
    """Whether all drivers use the same namespaces, and so the same actors. These end with the drivers that made them."""
    rounds: int = 2
    """Number of times that the driver drops the actors and asks for them again."""

    def events(self) -> set[str]:
        return {"used", "dropped", "obtained again"}

    def perform(self, stage: Stage) -> Outcome:
        spaces = self.spaces()
        handles = {space: self._obtain(space) for space in spaces}
        made = [handle._actor_id.hex() for handle in handles.values()]
        found = [self._find(space) for space in spaces]
        again = [self._obtain(space)._actor_id.hex() for space in spaces]
        listed = [entry for entry in list_named_actors(all_namespaces=True) if entry["namespace"] in spaces]
        stranger = self._find(f"{spaces[0]} and a half")
        looks = [look_at(handle.say.remote(space)) for space, handle in handles.items()]
        handles.clear()
        for _ in range(self.rounds):
            looks += [look_at(self._obtain(space).say.remote(space)) for space in spaces]
        ids = {"made": made, "found": found, "again": again, "stranger": stranger, "listed": len(listed)}
        return {"of": [], "looks": looks, "ids": ids}

    def spaces(self) -> list[str]:
        place = COMMONS if self.is_shared else self.name
        return [f"{place} one", f"{place} two"]

    def _obtain(self, space: str) -> Any:
        options = {"name": "twin", "namespace": space, "get_if_exists": True, "num_cpus": 0}
        return Twin.options(max_restarts=self.restarts, max_task_retries=self.restarts, **options).remote(space)

    def _find(self, space: str) -> str:
        try:
            return minray.get_actor("twin", namespace=space)._actor_id.hex()
        except ValueError:
            return NONE

    def wanted(self) -> list[Any]:
        return [[space] * 2 for space in self.spaces()] * (1 + self.rounds)

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_actor(0 if self.is_shared else self.restarts)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        is_certain = not self.errors(reading.model.losses) and not (self.is_shared and reading.model.program.leavers())
        if is_certain or not self.is_shared:
            yield from super().check(reading, outcome)
        ids = outcome["ids"]
        if ids["stranger"] != NONE:
            yield f"G31: {self.name} found an actor in a namespace that has none"
        if len(set(ids["made"])) != 2:
            yield f"G31: {self.name} was given one actor for two namespaces: {ids['made']}"
        if is_certain and not ids["made"] == ids["found"] == ids["again"]:
            yield f"G33: {self.name} holds {ids['made']}, finds {ids['found']} and is given {ids['again']}"
        if is_certain and ids["listed"] != 2:
            yield f"G32: {ids['listed']} of two actors of {self.name} are listed"


@minray.remote
class Twin:
    """An actor that knows its namespace."""

    def __init__(self, space: str) -> None:
        self._space = space

    def say(self, space: str) -> list[str]:
        return [self._space, space]
