"""Generators that are read in special manners (``wait``, ``next_ready``, ``is_finished``, ``completed``): ``Stream``.

``Generate`` (``programs``) is the operation for most generators. A ``Stream`` may have more than a hundred items. Before
each item its reader waits for the generator, or asks whether there is one. At the end it asks whether the generator is
finished, and gets the reference that is complete with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stage import RUN, Outcome
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

WAITS, ASKS, READS = "waits", "asks", "reads"
"""Manners of reading: ``minray.wait`` for the generator, ``next_ready`` of it, or nothing before each item."""


class Stream(Story, frozen=True):
    """A generator, which a driver reads to its end."""

    yields: int = 3
    manner: str = READS
    most_unread: int = -1
    """Number of unread items at which it pauses; -1: it never pauses."""
    pause_s: float = 0.0
    """Seconds before each item."""
    max_retries: int = 3

    def tell(self) -> list[Look]:
        generator = count_up.options(
            _generator_backpressure_num_objects=self.most_unread, max_retries=self.max_retries, name=self.name
        ).remote(self.name, self.yields, self.pause_s)
        completed = generator.completed()
        assert not generator.task_id().is_nil()
        looks: list[Look] = []
        while len(looks) <= 2 * self.yields + 1:
            if self.manner == WAITS:
                minray.wait([generator], timeout=60)
            elif self.manner == ASKS:
                generator.next_ready()
            ref = next(generator, None)
            if ref is None:
                break
            looks.append(look_at(ref))
        return [*looks, ("value", generator.is_finished()), look_at(completed)]

    def wanted(self) -> list[Any]:
        return [*range(1, self.yields + 1), True, None]

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_task(self.max_retries, 1 + self.yields)

    def busy_s(self) -> float:
        return 4 * self.yields * self.pause_s

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """G90, G92, G93: the items in order, perhaps an error that explains why some are missing, then the end."""
        *items, (_, is_finished), (kind, shown) = outcome["looks"]
        allowed, errors = self.errors(reading.model.losses), [shown for kind, shown in items if kind == "error"]
        for number, (word, item) in enumerate(items, 1):
            if word == "value" and item != number:
                yield f"G90: {self.name} shows {item} as item {number}"
        if not set(errors) <= allowed:
            yield f"G92: {self.name} shows the errors {errors}; allowed: {sorted(allowed) or 'none'}"
        if not errors and len(items) != self.yields:
            yield f"G93: {self.name} ended after {len(items)} of {self.yields} items, without a word"
        if is_finished is not True:
            yield f"G93: {self.name} is read to its end, and is not finished"
        if (kind, shown) != ("value", None) and shown not in allowed:
            yield f"G92: {self.name} is complete with {shown}; allowed: {sorted(allowed) or 'no error'}"


@minray.remote
def count_up(name: str, yields: int, pause_s: float) -> Iterator[int]:
    """Yield the numbers from 1 on."""
    print(json.dumps([RUN, name, [], []]))
    for number in range(1, yields + 1):
        time.sleep(pause_s)
        yield number
