"""The table of placement groups: their bundles, the nodes that hold these, and the state of the reservation.

Ray: src/ray/gcs/gcs_placement_group_manager.h, gcs_placement_group.h

    PENDING -> PREPARED -> CREATED        all bundles are reserved; then they are opened for leases
    PREPARED, CREATED -> RESCHEDULING     a node with bundles has died or leaves: those bundles need another node
    RESCHEDULING -> PREPARED              they have one
    ... -> REMOVED -> forgotten           by its user, or with the job, or the detached actor, that has created it

Rules
  * A group is created once and removed once, even if messages are repeated.
  * A name belongs to one group of its namespace at a time, until that group is removed. A group that was refused because its
    name was taken stays refused: its request may arrive again when the name is free, and no process has its handle.
  * A decision returns the record to store and changes nothing; ``on_committed`` enters it.
  * Groups that have lost bundles come before those that wait for their first place (G107), older ones before newer ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec

from minray.common.bounds import BOUNDS
from minray.common.ids import short
from minray.common.state_table import NEW, StateMachine
from minray.common.tombstones import remember
from minray.gcs.effects import Publication
from minray.platform.base import Record
from minray.protocol.placement_group import PLACEMENT_GROUPS, PlacementGroupInfo

PENDING, PREPARED, CREATED, RESCHEDULING, REMOVED = "PENDING", "PREPARED", "CREATED", "RESCHEDULING", "REMOVED"
TRANSITIONS = {
    NEW: (PENDING, PREPARED, CREATED, RESCHEDULING, REMOVED),
    PENDING: (PREPARED, REMOVED),
    PREPARED: (CREATED, RESCHEDULING, REMOVED),
    CREATED: (RESCHEDULING, REMOVED),
    RESCHEDULING: (RESCHEDULING, PREPARED, REMOVED),
    REMOVED: (NEW,),
}
"""Transitions of a group's state.

NEW leads to any state because a restarted gcs loads groups from its tables. RESCHEDULING repeats when another node dies."""


class PlacementGroupManager:
    """Holds the table of placement groups, and decides each change of it."""

    def __init__(
        self, record: Record | None, max_removed_groups: int = BOUNDS.maximum_gcs_removed_placement_group_cached_count
    ) -> None:
        self._max_removed_groups = max_removed_groups
        self._states = StateMachine("placement group", TRANSITIONS, record, short)
        self._groups: dict[bytes, PlacementGroupInfo] = {}
        """Groups by group id, in the order of their creation."""
        self._waiting: dict[str, dict[bytes, None]] = {RESCHEDULING: {}, PENDING: {}}
        """Ids of the groups in these states, oldest first."""
        self._names: dict[tuple[str, str], bytes] = {}
        """Group ids by namespace and name."""
        self._removed: dict[bytes, None] = {}
        """Ids of the groups in state REMOVED, oldest first."""
        self._forgotten: OrderedDict[bytes, None] = OrderedDict()
        """Tombstones of dropped groups, so that a late repetition does not create them again."""

        self._refused: OrderedDict[bytes, str] = OrderedDict()
        """Groups that were refused, each with the reason. It is not stored: a repeated message reaches the same gcs."""

    def load(self, groups: Iterable[PlacementGroupInfo]) -> list[Publication]:
        """Enter the groups that an earlier gcs has stored, after a restart."""
        return [publication for group in groups for publication in self.on_committed(group)]

    # --- Decisions: each returns the record to store, or None if nothing changes

    def refusal(self, group: PlacementGroupInfo) -> str:
        """Return why a group may not be created, the same at each repetition; empty if it may, or was."""
        if group.group_id in self._refused:
            return self._refused[group.group_id]
        holder = self._names.get((group.namespace, group.name)) if group.name else None
        if holder is None or holder == group.group_id:
            return ""
        reason = f"there is a placement group {group.name!r} already ({holder.hex()}); remove it first, or use another name"
        remember(self._refused, group.group_id, reason)
        return reason

    def create(self, group: PlacementGroupInfo) -> PlacementGroupInfo | None:
        if group.group_id in self._groups or group.group_id in self._forgotten:
            return None
        bundles = [bundle.unplaced() for bundle in group.bundles]
        return msgspec.structs.replace(group, bundles=bundles, state=PENDING)

    def prepare(self, group_id: bytes, places: Mapping[int, bytes], attempt: int) -> PlacementGroupInfo | None:
        """Return the record of a group all of whose chosen nodes have reserved their bundles."""
        group = self._groups.get(group_id)
        if group is None or group.state not in self._waiting:
            return None
        bundles = list(group.bundles)
        for index, node_id in places.items():
            bundles[index] = msgspec.structs.replace(bundles[index], node_id=node_id, attempt=attempt)
        return msgspec.structs.replace(group, bundles=bundles, state=PREPARED)

    def commit(self, group_id: bytes, lost: Iterable[tuple[int, int]]) -> PlacementGroupInfo | None:
        """Return the record of a group whose bundles are open, except the ``lost`` ones (index and attempt)."""
        group = self._groups.get(group_id)
        if group is None or group.state != PREPARED:
            return None
        bundles = list(group.bundles)
        for index, attempt in lost:
            if bundles[index].attempt == attempt:
                bundles[index] = bundles[index].unplaced()
        is_whole = all(bundle.node_id for bundle in bundles)
        return msgspec.structs.replace(group, bundles=bundles, state=CREATED if is_whole else RESCHEDULING)

    def lose_node(self, group_id: bytes, node_id: bytes) -> PlacementGroupInfo | None:
        """Return the record of a group without the bundles that were on a node that has died or leaves."""
        group = self._groups.get(group_id)
        if group is None or group.state == REMOVED or not group.on_node(node_id):
            return None
        bundles = [bundle.unplaced() if bundle.node_id == node_id else bundle for bundle in group.bundles]
        return msgspec.structs.replace(group, bundles=bundles, state=RESCHEDULING)

    def remove(self, group_id: bytes) -> PlacementGroupInfo | None:
        group = self._groups.get(group_id)
        if group is None or group.state == REMOVED:
            return None
        return msgspec.structs.replace(group, state=REMOVED)

    # --- Entering decisions that are durable

    def on_committed(self, group: PlacementGroupInfo) -> list[Publication]:
        """Enter a record that is durable, and return the publications. The oldest removed group may be dropped."""
        group_id = group.group_id
        self._states.set(group_id, group.state)
        self._groups[group_id] = group
        for state, waiting in self._waiting.items():
            if state != group.state:
                waiting.pop(group_id, None)
            else:
                waiting.setdefault(group_id)
        publications = [Publication(PLACEMENT_GROUPS, group_id, group)]
        key = group.namespace, group.name
        if group.state != REMOVED:
            if group.name:
                self._names[key] = group_id
            return publications
        if self._names.get(key) == group_id:
            del self._names[key]
        self._removed[group_id] = None
        if len(self._removed) > self._max_removed_groups:
            oldest = next(iter(self._removed))
            self._states.set(oldest, NEW)
            del self._removed[oldest], self._groups[oldest]
            remember(self._forgotten, oldest, None)
            publications.append(Publication(PLACEMENT_GROUPS, oldest, None))
        return publications

    # --- Questions

    def get(self, group_id: bytes) -> PlacementGroupInfo | None:
        return self._groups.get(group_id)

    def named(self, name: str, namespace: str) -> PlacementGroupInfo | None:
        """Return the group that has this name and is not removed."""
        group_id = self._names.get((namespace, name))
        return None if group_id is None else self._groups[group_id]

    def waiting(self) -> list[PlacementGroupInfo]:
        """Return the groups with unplaced bundles, in the order in which they should be placed."""
        return [self._groups[group_id] for waiting in self._waiting.values() for group_id in waiting]

    def has_waiting(self) -> bool:
        return any(self._waiting.values())

    def prepared(self) -> list[bytes]:
        return [group_id for group_id, state in self._states.items() if state == PREPARED]

    def of_job(self, job_id: bytes) -> list[bytes]:
        """Return the groups that end with a job."""
        mortal = [group for group in self._groups.values() if not group.detached and not group.creator]
        return [group.group_id for group in mortal if group.job_id == job_id]

    def of_actor(self, actor_id: bytes) -> list[bytes]:
        """Return the groups that end with a detached actor."""
        return [key for key, group in self._groups.items() if group.creator == actor_id and not group.detached]

    def on_node(self, node_id: bytes) -> list[bytes]:
        """Return the groups that have bundles on a node."""
        return [key for key, group in self._groups.items() if group.state != REMOVED and group.on_node(node_id)]

    def bundles_on(self, group_id: bytes, node_id: bytes) -> list[tuple[int, int]]:
        """Return index and attempt of a group's bundles on a node."""
        return self._groups[group_id].on_node(node_id)

    def all(self) -> list[PlacementGroupInfo]:
        return list(self._groups.values())
