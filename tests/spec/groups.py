"""Placement groups in programs: made and removed by drivers, who have tasks run in them, and actors live there.

Their bundles are of a resource of their own, ``SLOT``, of which each node has more than all groups of a program take: so a
group keeps nothing from anybody, and is there as soon as the gcs has made it. A task in a group takes a slot, or nothing; an
actor keeps a slot as long as it lives, and one more than actors take is there for tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import minray
from minray.exceptions import TaskPlacementGroupRemoved
from minray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from tests.spec.stage import Outcome, Stage, Tagged

if TYPE_CHECKING:
    from tests.spec.model import Reading, Scope

SLOT = "slot"
REMOVED = "TaskPlacementGroupRemoved"
LONG_S = 100_000.0
"""Of virtual time: longer than any program may take."""


class Group(Tagged, frozen=True):
    """``placement_group``."""

    name: str
    bundles: int = 1
    strategy: str = "PACK"

    def perform(self, stage: Stage) -> Outcome:
        stage.refs[self.name] = placement_group([{SLOT: 1}] * self.bundles, self.strategy)
        return {"of": []}

    def foresee(self, scope: Scope) -> None:
        scope.sure.add(self.name)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (), outcome)


class Ready(Tagged, frozen=True):
    """``group.wait``, or ``minray.get(group.ready())``."""

    name: str
    group: str
    by_reference: bool = False

    def perform(self, stage: Stage) -> Outcome:
        groups = stage.bound((self.group,))
        is_there = _becomes_ready if self.by_reference else _is_awaited
        return {"of": groups, "there": all(is_there(stage.refs[name]) for name in groups)}

    def foresee(self, scope: Scope) -> None:
        """It changes nothing."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.group,), outcome)
        if not outcome["there"] and self.group not in reading.model.removed_groups:
            yield f"G104: {self.name} was told that {self.group} is gone, which nobody removes"


def _is_awaited(group: PlacementGroup) -> bool:
    return group.wait(LONG_S)


def _becomes_ready(group: PlacementGroup) -> bool:
    try:
        assert minray.get(group.ready()) == group
    except TaskPlacementGroupRemoved:
        return False
    return True


class Remove(Tagged, frozen=True):
    """``remove_placement_group``."""

    name: str
    group: str

    def perform(self, stage: Stage) -> Outcome:
        groups = stage.bound((self.group,))
        for name in groups:
            remove_placement_group(stage.refs[name])
        return {"of": groups}

    def foresee(self, scope: Scope) -> None:
        """Tasks of the group may fail from its beginning on: they may be slow."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.group,), outcome)


def remove_groups(stage: Stage) -> None:
    """Those that a program which is over has not removed."""
    for thing in stage.refs.values():
        if isinstance(thing, PlacementGroup):
            remove_placement_group(thing)
