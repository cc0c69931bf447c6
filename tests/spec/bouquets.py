"""Values with many references: ``Bouquet``, in which some are too many for one answer.

What a program returns holds a few references, and an answer has room for many thousands. Some worlds let an answer have a
few dozen (``knobs``). Then a task whose results hold more fails, and so does an item of a generator. Nothing of
what they held may stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.api.calls import current_api
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

TOO_MANY = "too many"
REFUSED = frozenset(("RayTaskError(ValueError)", "RayTaskError(RayTaskError(ValueError))"))


class Bouquet(Story, frozen=True):
    """Results that hold references to many objects."""

    flowers: int = 60
    """Number of references in all results together."""
    results: int = 2
    max_retries: int = 3

    def tell(self) -> list[Look]:
        """Get the results of a task, and an item of a generator."""
        most = current_api().port.process.config.system_config.max_references_per_answer
        options = {"num_cpus": 0, "max_retries": self.max_retries}
        shares = self._shares()
        bound = bind.options(num_returns=self.results, **options).remote(shares)
        refs = bound if isinstance(bound, list) else [bound]
        looks = [self._look(ref, share, self.flowers > most) for ref, share in zip(refs, shares, strict=True)]
        items = hand_out.options(**options).remote(self.flowers)
        return [*looks, self._look(next(items), self.flowers, self.flowers > most)]

    def _shares(self) -> list[int]:
        first = self.flowers // self.results
        return [first] * (self.results - 1) + [self.flowers - first * (self.results - 1)]

    def _look(self, ref: Any, share: int, is_refused: bool) -> Look:
        """Say how many objects a value holds that can be got; or that it holds too many, if it does."""
        kind, shown = look_at(ref)
        if kind == "error":
            return ("value", share) if is_refused and shown in REFUSED else (kind, shown)
        return ("value", TOO_MANY) if is_refused else self._count(shown)

    def _count(self, flowers: list[Any]) -> Look:
        kind, shown = look_at(flowers[-1])
        return ("value", len(flowers)) if kind == "value" else (kind, shown)

    def wanted(self) -> list[Any]:
        return [*self._shares(), self.flowers]

    def errors(self, losses: Losses) -> set[str]:
        lost = losses.of_any_task(self.max_retries) | ({"OwnerDiedError"} if losses.deaths or losses.silence else set())
        return also_in_tasks(lost)


def _flowers(count: int) -> list[Any]:
    return [minray.put(number) for number in range(count)]


@minray.remote
def bind(shares: list[int]) -> Any:
    bunches = [_flowers(share) for share in shares]
    return bunches if len(bunches) > 1 else bunches[0]


@minray.remote
def hand_out(count: int) -> Iterator[list[Any]]:
    yield _flowers(count)
