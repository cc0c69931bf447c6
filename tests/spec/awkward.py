"""Values that cannot be pickled or unpickled: ``Awkward`` sends them as arguments, results and constructor arguments.

Each attempt ends with an error, and leaves nothing behind: no reference that it held, no lease, no actor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from tests.spec.stage import Outcome
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading


class Unsendable:
    """A value whose pickling fails."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        raise ValueError("this value cannot be pickled")


class Untakable:
    """A value whose unpickling fails, after the references in it have arrived."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        return refuse, (self.held,)


def refuse(_held: Any) -> None:
    """Stand for a constructor that fails while a value is unpickled."""
    raise ValueError("this value cannot be unpickled")


class Awkward(Story, frozen=True):
    """One awkward value, in one place."""

    place: str = "argument"
    """The one of ``PLACES`` where it is sent."""

    def tell(self) -> list[Look]:
        return [PLACES[self.place][0](minray.put(self.name))]

    def wanted(self) -> list[Any]:
        return [None]

    def errors(self, losses: Losses) -> set[str]:
        return {PLACES[self.place][1]} | losses.of_any_task(0) | losses.of_any_actor(0)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        ((kind, shown),) = outcome["looks"]
        if kind != "error" or shown not in self.errors(reading.model.losses):
            yield f"G1: {self.name} sends a value that fails as {self.place}, and shows {shown}"


def _as_argument(ref: Any) -> Look:
    return look_at(take.options(num_cpus=0).remote(Untakable(ref)))


def _as_result(ref: Any) -> Look:
    return look_at(return_unsendable.options(num_cpus=0).remote([ref]))


def _as_late_result(ref: Any) -> Look:
    try:
        minray.get(return_untakable.options(num_cpus=0).remote([ref]))
    except (RayError, ValueError) as error:
        return "error", type(error).__name__
    return "value", None


def _as_put(ref: Any) -> Look:
    try:
        minray.put(Unsendable(ref))
    except (TypeError, ValueError) as error:
        return "error", type(error).__name__
    return "value", None


def _as_argument_of_a_constructor(ref: Any) -> Look:
    return look_at(Taker.options(num_cpus=0, max_restarts=2).remote(Untakable(ref)).answer.remote())


PLACES: Mapping[str, tuple[Callable[[Any], Look], str]] = {
    "argument": (_as_argument, "RayTaskError(ValueError)"),
    "result": (_as_result, "RayTaskError(ValueError)"),
    "late result": (_as_late_result, "ValueError"),
    "put": (_as_put, "ValueError"),
    "argument of a constructor": (_as_argument_of_a_constructor, "ActorDiedError"),
}
"""Place -> how the value is sent there, and the error that this shows."""


@minray.remote
def take(_value: Any) -> None:
    """Take a value, which never arrives."""


@minray.remote
def return_unsendable(held: list[Any]) -> Any:
    return Unsendable(held)


@minray.remote
def return_untakable(held: list[Any]) -> Any:
    return Untakable(held)


@minray.remote
class Taker:
    """An actor whose constructor takes a value, which never arrives."""

    def __init__(self, _value: Any) -> None:
        """Never begin."""

    def answer(self) -> None:
        """Never answer."""
