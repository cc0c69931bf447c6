"""Placement groups that others than drivers make: ``Founding`` in a task or an actor, ``Endowment`` in a detached actor.

The founder makes a group, runs a task in it, and hands the group to the driver, which runs one too and removes it. If the
founder is lost on the way, the driver finds the group by its name, so that none is left.

The group of a detached actor ends with that. So the driver of an ``Endowment`` kills the founder, and waits for the end of
the group. A driver that is killed meanwhile would leave the founder behind, so only drivers that no fault strikes tell it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from minray.util.placement_group import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
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
REMOVED = "REMOVED"
FOUNDERS = "founders"
"""Namespace of the detached actors."""


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


class Endowment(Story, frozen=True):
    """A placement group that a detached actor makes, which ends with its maker."""

    bundles: int = 1
    is_removed: bool = False
    """Whether the driver removes the group before it kills the founder, which makes another one."""

    def tell(self) -> list[Look]:
        founder = Founder.options(num_cpus=0, name=self.name, namespace=FOUNDERS, lifetime="detached").remote()
        groups: list[Any] = []
        try:
            looks = [self._found(founder, number, groups) for number in range(1 + self.is_removed)]
        finally:
            minray.kill(founder)
        states = [_state_in_time(group) for group in groups]
        return [*looks, *(("value", state) for state in states)]

    def _found(self, founder: Any, number: int, groups: list[Any]) -> Look:
        """Have a group made, and run a task in its last bundle; remove a group before another is made."""
        for group in groups:
            remove_placement_group(group)
        try:
            group, _ = minray.get(founder.found.remote(f"{self.name}.{number}", self.bundles), timeout=3 * PATIENCE_S)
        except RayError as error:
            return "error", type(error).__name__
        groups.append(group)
        seen = look_at(_visit(group, self.bundles - 1), PATIENCE_S)
        return (seen[0], _place(group, seen[1])) if seen[0] == "value" else seen

    def wanted(self) -> list[Any]:
        groups = 1 + self.is_removed
        return [INSIDE] * groups + [REMOVED] * groups

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_task(0) | losses.of_any_actor(0)

    def busy_s(self) -> float:
        return (1 + self.is_removed) * 6 * PATIENCE_S

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """G106: the group ends with the founder, whatever is lost. The rest is judged if nothing was lost."""
        losses = reading.model.losses
        if not (self.errors(losses) or losses.may_move_bundles()):
            yield from super().check(reading, outcome)
        states = [shown for kind, shown in outcome["looks"] if kind == "value" and shown not in (INSIDE, OUTSIDE)]
        if not losses.silence and any(state != REMOVED for state in states):
            yield f"G106: the groups of {self.name} are {states}, and their maker was killed"


def _state_in_time(group: Any) -> str:
    """Return the state of a group that should be removed soon; the gcs may have forgotten it then."""
    for _ in range(int(LATE_S)):
        if (state := str(placement_group_table(group).get("state", REMOVED))) == REMOVED:
            break
        time.sleep(1.0)
    return state


def _visit(group: Any, index: int) -> Any:
    strategy = PlacementGroupSchedulingStrategy(group, index)
    return find_group.options(num_cpus=0, resources={BERTH: 0.25}, scheduling_strategy=strategy, max_retries=-1).remote()


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
