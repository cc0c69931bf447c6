"""A generator that is dropped while the reference that is complete with it is held (G96).

The owner wants no more items, but it still has to hear how the task ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import minray
from minray.exceptions import RayError
from tests.spec.stage import ERRORS, Outcome, Stage, Tagged

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading, Scope

LOST = frozenset({"ObjectReconstructionFailedError", "RayTaskError(ObjectReconstructionFailedError)"})
"""Errors of a lost result, and of a task whose arguments were in an object store and are lost."""


class Abandon(Tagged, frozen=True):
    """Takes some items of a generator, drops it, and gets ``completed()`` a while later."""

    name: str
    yields: int = 3
    taken: int = 1
    """Number of items that are taken before it is dropped."""
    pause_s: float = 0.0
    """Seconds before each item."""
    type: str = ""
    """The one of ``ERRORS`` that it raises after all items; empty: none."""
    most_unread: int = -1
    """Number of unread items at which it pauses; -1: it never pauses."""
    max_retries: int = 0
    seconds: float = 0.0
    """Seconds between the drop and the ``get``."""

    def perform(self, stage: Stage) -> Outcome:
        generator = tell.options(
            max_retries=self.max_retries, _generator_backpressure_num_objects=self.most_unread, name=self.name
        ).remote(self.yields, self.pause_s, self.type)
        completed = generator.completed()
        for _ in range(self.taken):
            next(generator, None)
        del generator
        time.sleep(self.seconds)
        try:
            return {"of": [], "completed": minray.get(completed)}
        except RayError as error:
            return {"of": [], "completed": type(error).__name__}

    def busy_s(self) -> float:
        return self.seconds + self.yields * self.pause_s * (self.max_retries + 1)

    def foresee(self, scope: Scope) -> None:
        """Change nothing: no other operation knows the generator."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (), outcome)
        shown, wanted = outcome["completed"], f"RayTaskError({self.type})" if self.type else None
        if shown != wanted and shown not in self._errors(reading.model.losses):
            yield f"G96: {self.name} is complete with {shown}, and should be with {wanted}"

    def _errors(self, losses: Losses) -> set[str]:
        lost = LOST if losses.objects or losses.files else set()
        return losses.errors_with(self.max_retries) | losses.without_room() | lost


@minray.remote
def tell(yields: int, pause_s: float, raises: str) -> Iterator[int]:
    """Yield the numbers from 1 on, and raise."""
    for number in range(1, yields + 1):
        time.sleep(pause_s)
        yield number
    if raises:
        raise ERRORS[raises](raises)
