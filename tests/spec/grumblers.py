"""Values and actors whose ``__del__`` raises: ``Grumbling``. Python reports such an error and goes on; so must minray.

A grumbler holds a reference. It is an argument, a result or an item of a container, and dies where it is dropped: in a
worker, in an actor, or in the driver. The reference it held must be released all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stage import Outcome
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading


class Grumble(Exception):
    """Raised in destructors; the judge of a run expects it there."""


class Grumbler:
    """A value whose end raises."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __del__(self) -> None:
        raise Grumble


class Grumbling(Story, frozen=True):
    """A value, or an actor, whose destructor raises."""

    place: str = "argument"
    """The one of ``PLACES`` where it dies."""

    def tell(self) -> list[Look]:
        return [PLACES[self.place](minray.put(self.name))]

    def wanted(self) -> list[Any]:
        return [self.name]

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_task(0) | losses.of_any_actor(0)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """Judge its value if nothing was lost: a value inside a value may be lost as well."""
        if not self.errors(reading.model.losses):
            yield from super().check(reading, outcome)


def _as_argument(ref: Any) -> Look:
    return look_at(hear.options(num_cpus=0).remote(Grumbler(ref)))


def _as_result(ref: Any) -> Look:
    shown, value = look_at(keep.options(num_cpus=0).remote([ref]))
    return (shown, value) if shown == "error" else look_at(value.held)


def _as_actor(ref: Any) -> Look:
    actor = Sulker.options(num_cpus=0).remote([ref])
    return look_at(actor.hear.remote())


PLACES: Mapping[str, Callable[[Any], Look]] = {"argument": _as_argument, "result": _as_result, "actor": _as_actor}


@minray.remote
def hear(grumbler: Any) -> Any:
    """Say the value to which a grumbler refers."""
    return minray.get(grumbler.held)


@minray.remote
def keep(held: list[Any]) -> Any:
    """Return a grumbler, and let another one die here."""
    Grumbler(held[0])
    return Grumbler(held[0])


@minray.remote
class Sulker:
    """An actor whose destructor raises."""

    def __init__(self, held: list[Any]) -> None:
        self._held = held

    def hear(self) -> Any:
        return minray.get(self._held[0])

    def __del__(self) -> None:
        raise Grumble
