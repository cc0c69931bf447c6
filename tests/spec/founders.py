"""Placement groups that are made elsewhere than in a driver: ``Founding``, in a task or in an actor.

The founder makes a group, runs a task in it, and hands the group to the driver, which runs one too and removes it. If the
founder is lost on the way, the driver finds the group by its name, so that none is left.

Left out: groups of detached actors, which live as long as these. A driver that is killed in the middle of a story would
leave such an actor behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from minray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.spec.bundles import PATIENCE_S, find_group
from tests.spec.stage import Outcome
from tests.spec.stories import Look, Story, look_at
from tests.spec.wishes import BERTH

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

LATE_S = 80.0
"""Virtual seconds after which the last message of a lost founder has arrived."""
INSIDE, OUTSIDE = "inside", "outside"


class Founding(Story, frozen=True):
    """A placement group that a task or an actor makes."""

    in_actor: bool = False
    bundles: int = 1

    def events(self) -> set[str]:
        return {"used", "dropped"}

    def tell(self) -> list[Look]:
        try:
            group, shown = minray.get(self._found(), timeout=3 * PATIENCE_S)
        except RayError as error:
            self._remove_lost()
            return [("error", type(error).__name__)] * 2
        ref = _visit(group, self.bundles - 1)
        seen = look_at(ref, PATIENCE_S)
        remove_placement_group(group)
        return [("value", shown), (seen[0], _place(group, seen[1])) if seen[0] == "value" else seen]

    def _found(self) -> Any:
        if self.in_actor:
            return Founder.options(num_cpus=0).remote().found.remote(self.name, self.bundles)
        return found.options(num_cpus=0, max_retries=0).remote(self.name, self.bundles)

    def _remove_lost(self) -> None:
        """Remove the group of a founder that has not handed it over."""
        time.sleep(LATE_S)
        try:
            remove_placement_group(get_placement_group(self.name))
        except ValueError:
            return

    def wanted(self) -> list[Any]:
        return [INSIDE, INSIDE]

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_task(0) | losses.of_any_actor(0)

    def busy_s(self) -> float:
        return 6 * PATIENCE_S + LATE_S

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """Judge what it has seen if nothing was lost. Otherwise only what it leaves behind is judged."""
        losses = reading.model.losses
        if not (self.errors(losses) or losses.may_move_bundles()):
            yield from super().check(reading, outcome)


def _visit(group: Any, index: int) -> Any:
    strategy = PlacementGroupSchedulingStrategy(group, index)
    return find_group.options(
        num_cpus=0, resources={BERTH: 0.25}, scheduling_strategy=strategy, max_retries=-1
    ).remote()


def _place(group: Any, shown: str) -> str:
    return INSIDE if shown == group.id.hex() else OUTSIDE


def _found(name: str, bundles: int) -> tuple[Any, str]:
    """Make a group, and say where a task is that should be in it."""
    group = placement_group([{BERTH: 0.5}] * bundles, "PACK", name=name)
    minray.get(group.ready(), timeout=PATIENCE_S)
    return group, _place(group, minray.get(_visit(group, 0), timeout=PATIENCE_S))


@minray.remote
def found(name: str, bundles: int) -> tuple[Any, str]:
    return _found(name, bundles)


@minray.remote
class Founder:
    """An actor that makes placement groups."""

    def found(self, name: str, bundles: int) -> tuple[Any, str]:
        return _found(name, bundles)
