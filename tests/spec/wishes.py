"""Wishes of tasks, actors and calls: options that programs say rarely, and that change no outcome.

``Order``, ``Settle`` and ``Ask`` (``programs``, ``actors``) are a ``Submit``, a ``Create`` and a ``Call`` with such
options. Records of their own keep the pickles of all other programs as they are: a seed's run depends on their sizes.

Rules
  * All that wishes need is on every node (``RICHES``), so that they can come true anywhere. What an actor holds for life
    is a part so small that everybody else has room.
  * Actors of a placement group are bound to bundles all or none, since one that is not bound may be in another's bundle.
  * A task in a placement group says so in the older words, if it wishes. It captures its child tasks only if it has none,
    because a bundle has no CPUs for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minray.api.placement_group import PlacementGroup
from tests.spec.stage import ZONE, Record

MARK = "SPEC_MARK"
"""The environment variable that the ``runtime_env`` of a task or an actor sets."""
SEAT = "seat"
"""A resource that actors hold for life."""
BERTH = "berth"
"""A resource for the bundles of stories. Only tasks of a ``Contest`` take it otherwise, and for a short time."""
KIND = "X1"
"""The type of accelerator that all nodes have."""
ROOM = 2
"""Number of seats, and of berths, on each node."""
RICHES: Mapping[str, int] = {SEAT: ROOM, BERTH: ROOM, f"accelerator_type:{KIND}": 1}
"""Resources of every node, where programs have wishes or tell stories."""
A_PART = 0.001
"""The part of a seat that an actor with a wish for it holds."""
NO_ZONE = "nowhere"
"""A value that the label of no node has."""


class Wishes(Record, frozen=True):
    """Options for which tasks and actors have the same names."""

    memory: int = 0
    """Bytes. Bundles have none."""
    has_kind: bool = False
    """Whether it needs an accelerator of the type ``KIND``, which bundles do not have."""
    is_unrecorded: bool = False
    """Whether the state API is told nothing of it (``enable_task_events``)."""
    falls_back: bool = False
    """Whether it asks for a label that no node has, and else for any node without that label."""
    in_old_words: bool = False
    """Whether it names its placement group by the options that are older than the strategy, with a bundle."""
    captures: bool = False
    """Whether its child tasks run in its group, too; it has none."""

    def options(self, options: dict[str, Any], group: PlacementGroup | None) -> dict[str, Any]:
        """Return the options with those of these wishes."""
        changed = dict(options)
        if self.memory and group is None:
            changed["memory"] = self.memory
        if self.has_kind and group is None:
            changed["accelerator_type"] = KIND
        if self.is_unrecorded:
            changed["enable_task_events"] = False
        if self.falls_back and group is None and "label_selector" not in options:
            changed["label_selector"] = {ZONE: NO_ZONE}
            changed["fallback_strategy"] = [{"label_selector": {ZONE: f"!{NO_ZONE}"}}]
        if self.in_old_words and group is not None:
            changed["scheduling_strategy"] = None
            changed["placement_group"] = group
            changed["placement_group_capture_child_tasks"] = self.captures
        return changed


class TaskWishes(Wishes, frozen=True):
    """Options of a task."""

    cpus: float = 0.0
    """Part of a CPU that it needs instead of whole ones; 0: whole ones."""
    most_calls: int = 0
    """Number of calls after which its worker ends, if it returns one object: 3; 0: any."""
    in_bundle: bool = False
    """Whether it is bound to the first bundle of its group, of which it then takes nothing."""


class ActorWishes(Wishes, frozen=True):
    """Options of an actor."""

    has_seat: bool = False
    """Whether it holds a part of a seat for life."""
    bundle: int = -1
    """The bundle of its group in which it lives. No other actor lives there; -1: any."""
    mark: str = ""
    """The value of ``MARK`` in its environment."""


class CallWishes(Record, frozen=True):
    """Options of a call."""

    returns: int = 1
    """Number of objects, with the same references inside."""
    is_unrecorded: bool = False
    """Whether the state API is told nothing of it."""
