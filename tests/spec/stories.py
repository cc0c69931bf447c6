"""Stories in programs: operations of a driver that make things, use them and let them go, all in one.

An operation such as ``Submit`` makes one thing, and others use it. That is the rule. A story is for steps that fit
together, if a program without one of them would never end. Actors queue for one seat, or a generator is read in a special
manner.

Rules
  * Only drivers tell stories, so no cancellation of a parent reaches them. Their things have no names in the program.
  * A story never waits for what another process may keep. It may be told at any moment, also twice.
  * Its outcome has ``looks``: what each ``get`` has shown, as ``["value", ...]`` or ``["error", its name]``. ``wanted``
    says which values are right. An error is right if the losses of the run allow it (``errors_of_tasks``,
    ``errors_of_actors``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from tests.spec.stage import Outcome, Stage, Tagged

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading, Scope

Look = tuple[str, Any]
"""Result of a ``get``: ``("value", the value)`` or ``("error", the name of its class)``."""


class Story(Tagged, frozen=True):
    """Base of all stories."""

    name: str

    def perform(self, stage: Stage) -> Outcome:
        return {"of": [], "looks": self.tell()}

    def tell(self) -> list[Look]:
        """Do all of it, and return what each ``get`` has shown."""
        raise NotImplementedError

    def wanted(self) -> Sequence[Any]:
        """The values of all looks, if nothing is lost."""
        raise NotImplementedError

    def errors(self, losses: Losses) -> set[str]:
        """Errors that the losses of a run allow for each look."""
        raise NotImplementedError

    def events(self) -> set[str]:
        """Events in the life of its things (see ``api_coverage``), all of which it brings about."""
        return {"used", "dropped"}

    def needs(self) -> dict[str, float]:
        """Resources that the head has to have beside ``RICHES``."""
        return {}

    def busy_s(self) -> float:
        """Upper bound, in seconds, of the time that its tasks and calls take one after the other."""
        return 0.0

    def foresee(self, scope: Scope) -> None:
        """Change nothing: no other operation knows its things."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        looks, wanted, allowed = outcome["looks"], list(self.wanted()), self.errors(reading.losses_of_job())
        if len(looks) != len(wanted):
            yield f"G1: {self.name} has {len(looks)} looks, and should have {len(wanted)}: {looks}"
        for number, ((kind, shown), value) in enumerate(zip(looks, wanted, strict=False)):
            if kind == "error" and shown not in allowed:
                yield f"G17: look {number} of {self.name} shows {shown}; allowed: {sorted(allowed) or 'no error'}"
            elif kind == "value" and shown != value:
                yield f"G1: look {number} of {self.name} shows {shown}, and should show {value}"


def look_at(ref: Any, timeout: float | None = None) -> Look:
    """Get one value, or the name of its error."""
    try:
        return "value", minray.get(ref, timeout=timeout)
    except RayError as error:
        return "error", type(error).__name__


def also_in_tasks(errors: set[str]) -> set[str]:
    """Add the errors that tasks raise, if they got these."""
    return errors | {f"RayTaskError({error})" for error in errors if not error.startswith("RayTaskError(")}


def of_anything(losses: Losses) -> set[str]:
    """Errors of a story with tasks and actors, of which each may own what others need."""
    lost = losses.of_any_actor(0) | losses.of_any_task(0)
    if losses.deaths or losses.silence:
        lost |= {"OwnerDiedError", "ObjectReconstructionFailedError"}
    return also_in_tasks(lost)
