"""Placement groups in programs: drivers make and remove them, run tasks in them, and create actors in them.

Their bundles consist of a resource of their own, ``SLOT``. Each node has more of it than all groups of a program take. So a
group takes resources from no other, and exists as soon as the gcs has made it. A task in a group takes one slot, or nothing.
An actor keeps one slot as long as it lives. A group has at least one more slot than its actors take, for tasks.

Only drivers ask about groups. Each driver has a namespace of its own, and all its earlier requests have taken effect when
the gcs answers. So it is certain at each point whether a group exists, and by which name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import minray
from minray.exceptions import TaskPlacementGroupRemoved
from minray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from tests.spec.stage import Outcome, Stage, Tagged

if TYPE_CHECKING:
    from tests.spec.model import Reading, Scope

SLOT = "slot"
REMOVED = "TaskPlacementGroupRemoved"
FORGOTTEN = "forgotten"
OVER = ("REMOVED", FORGOTTEN)
"""States of a group that was removed; ``FORGOTTEN`` when the gcs does not remember it any more."""
LONG_S = 100_000.0
"""Virtual seconds that a driver waits for a group: longer than any program may take."""


class Group(Tagged, frozen=True):
    """``placement_group``."""

    name: str
    bundles: int = 1
    strategy: str = "PACK"
    called: str = ""
    """The name that it asks for, and gets if no other group has it; empty: none."""

    def perform(self, stage: Stage) -> Outcome:
        try:
            group = placement_group([{SLOT: 1}] * self.bundles, self.strategy, self.called)
        except ValueError:
            return {"of": [], "taken": True}
        stage.refs[self.name] = group
        return {"of": [], "is": group.id.hex()}

    def foresee(self, scope: Scope) -> None:
        if not self.called:
            scope.sure.add(self.name)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (), outcome)
        holder, is_taken = reading.named_groups.get(self.called), "taken" in outcome
        if is_taken and holder is None:
            yield f"G104: {self.name} was not given the name {self.called!r}, which no group has"
        elif holder is not None and not is_taken:
            yield f"G104: {self.name} was given the name {self.called!r}, which {holder.name} has"
        elif self.called and not is_taken:
            reading.named_groups[self.called] = NamedGroup(self.name, outcome["is"], self.bundles)


@dataclass(frozen=True)
class NamedGroup:
    """A group that has a name and was not removed by its driver."""

    name: str
    group_id: str
    bundles: int


class FindGroup(Tagged, frozen=True):
    """``get_placement_group``."""

    name: str
    called: str

    def perform(self, stage: Stage) -> Outcome:
        try:
            group = get_placement_group(self.called)
        except ValueError:
            return {"of": [], "found": False}
        return {"of": [], "found": True, "is": group.id.hex(), "bundles": group.bundle_count}

    def foresee(self, scope: Scope) -> None:
        """Change nothing: the driver only asks."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (), outcome)
        holder = reading.named_groups.get(self.called)
        if not outcome["found"]:
            if holder is not None:
                yield f"G104: {self.name} did not find {holder.name} by its name {self.called!r}"
        elif holder is None:
            yield f"G106: {self.name} found a group by the name {self.called!r}, which none has"
        elif (outcome["is"], outcome["bundles"]) != (holder.group_id, holder.bundles):
            yield f"G104: {self.name} was shown another group than {holder.name}: {outcome}"


class Describe(Tagged, frozen=True):
    """``placement_group_table`` of one group."""

    name: str
    group: str

    def perform(self, stage: Stage) -> Outcome:
        groups = stage.bound((self.group,))
        return {"of": groups, "states": [placement_group_table(stage.refs[name]).get("state", FORGOTTEN) for name in groups]}

    def foresee(self, scope: Scope) -> None:
        """Change nothing: the driver only asks."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.group,), outcome)
        for state in outcome["states"]:
            if (state in OVER) != (self.group in reading.removed_groups):
                yield f"G106: {self.name} says of {self.group} that it is {state}"


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
        """Change nothing: the driver only waits."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.group,), outcome)
        if not outcome["there"] and self.group not in reading.model.removed_groups:
            yield f"G104: {self.name} was told that {self.group} is gone, which nobody removes"
        if outcome["there"] and outcome["of"]:
            reading.ready_groups[self.group] = reading.model.bundles[self.group]


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
        """Change nothing: ``Model`` lets tasks of a removed group fail anywhere, since they may be slow."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.group,), outcome)
        reading.removed_groups.update(outcome["of"])
        for group in outcome["of"]:
            reading.ready_groups.pop(group, None)
        for called, holder in list(reading.named_groups.items()):
            if holder.name in outcome["of"]:
                del reading.named_groups[called]


def remove_groups(stage: Stage) -> None:
    """Remove the groups that a driver has not removed by its end."""
    for thing in stage.refs.values():
        if isinstance(thing, PlacementGroup):
            remove_placement_group(thing)
