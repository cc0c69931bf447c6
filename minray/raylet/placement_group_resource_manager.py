"""The bundles that a node holds: reserved, open for leases, or about to be returned.

Ray: src/ray/raylet/placement_group_resource_manager.h

    PREPARED        the resources are reserved for the bundle, and no lease may use them yet
    COMMITTED       they are offered under the bundle's names
    ENDING          its group was removed; its resources are free again when the last lease in it is over (G99)

Rules
  * All bundles of a request are reserved, or none.
  * An attempt that was returned is over: late messages of it, or of an older attempt, find nothing and leave nothing.
    Attempts of a former gcs are over, too, and all attempts of a removed group (G112).
  * The reserved names of a group are removed when its last lease on this node has ended, because a lease refers to
    its resources by these names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

import msgspec

from minray.common.ids import short
from minray.common.resources import describe
from minray.common.state_table import NEW, StateMachine
from minray.common.tombstones import remember
from minray.platform.base import Record
from minray.protocol.placement_group import GENERATION_SHIFT
from minray.scheduling.local_resource_manager import Gpus, LocalResourceManager

PREPARED, COMMITTED, ENDING = "PREPARED", "COMMITTED", "ENDING"
TRANSITIONS = {
    NEW: (PREPARED,),
    PREPARED: (COMMITTED, NEW),
    COMMITTED: (ENDING,),
    ENDING: (NEW,),
}
INDEX_BYTES = 4
FOR_GOOD = 1 << 63
"""Attempt number larger than any other: a group whose attempts up to it are over is removed."""


class Reservation(msgspec.Struct, frozen=True):
    """One bundle on this node."""

    group_id: bytes
    index: int
    attempt: int
    """Attempt of the gcs that has reserved the bundle here."""
    resources: Mapping[str, int]
    gpus: Gpus


class PlacementGroupResourceManager:
    """Holds all bundles of one node."""

    def __init__(self, resources: LocalResourceManager, record: Record | None) -> None:
        self._resources = resources
        self.states = StateMachine("bundle", TRANSITIONS, record, _show)
        """States of the bundles, by group id and index."""
        self._groups: dict[bytes, dict[int, Reservation]] = {}
        """Bundles by group and index; no empty groups."""
        self._ending: dict[bytes, None] = {}
        """Groups with bundles in state ENDING."""
        self._over: OrderedDict[bytes, int] = OrderedDict()
        """Last attempt of each group that is over."""
        self._generation = 0
        """Generation of the newest gcs that has sent ReleaseUnusedBundles; attempts of older ones are over."""

    # --- Requests of the gcs

    def prepare(self, group_id: bytes, attempt: int, bundles: Mapping[int, Mapping[str, int]]) -> str:
        """Reserve bundles, all or none; return the reason if that is refused, else an empty text."""
        if attempt >> GENERATION_SHIFT < self._generation or attempt <= self._over.get(group_id, -1):
            return "this attempt is over"
        held = [bundle for bundle in self._of(group_id) if bundle.index in bundles]
        if any(bundle.attempt == attempt for bundle in held):
            return ""  # A repetition: all were reserved together.
        for bundle in held:
            if self._state(bundle) != PREPARED:
                return f"bundle {bundle.index} is here already"
            self._release(bundle)
        done: list[Reservation] = []
        for index, resources in bundles.items():
            gpus = self._resources.reserve(resources)
            if gpus is None:
                free = {name: self._resources.available.get(name, 0) for name in resources}
                for bundle in done:
                    self._release(bundle)
                return f"bundle {index} needs {describe(resources)}, and {describe(free)} is free"
            done.append(Reservation(group_id=group_id, index=index, attempt=attempt, resources=resources, gpus=gpus))
            self.states.set(_key(group_id, index), PREPARED)
            self._groups.setdefault(group_id, {})[index] = done[-1]
        return ""

    def commit(self, group_id: bytes, bundles: Iterable[tuple[int, int]]) -> list[int]:
        """Open bundles (index and attempt) for leases; return the indices of those that are not here."""
        missing = []
        for index, attempt in bundles:
            bundle = self._groups.get(group_id, {}).get(index)
            if bundle is None or bundle.attempt != attempt or self._state(bundle) == ENDING:
                missing.append(index)
            elif self._state(bundle) == PREPARED:
                self.states.set(_key(group_id, index), COMMITTED)
                self._resources.open_bundle(group_id, index, bundle.resources, bundle.gpus)
        return missing

    def give_back(self, group_id: bytes, attempt: int) -> None:
        """Release the bundles that a failed attempt, or an earlier one, has reserved; committed ones stay."""
        remember(self._over, group_id, max(attempt, self._over.pop(group_id, -1)))
        for bundle in self._of(group_id):
            if bundle.attempt <= attempt and self._state(bundle) == PREPARED:
                self._release(bundle)

    def remove(self, group_id: bytes) -> None:
        """End a removed group; ``settle`` frees its resources when no lease uses them."""
        self.give_back(group_id, FOR_GOOD)
        for bundle in self._of(group_id):
            if self._state(bundle) == COMMITTED:
                self.states.set(_key(group_id, bundle.index), ENDING)
                self._ending[group_id] = None

    def release_unused(self, generation: int, in_use: Iterable[tuple[bytes, int, int]]) -> list[bytes]:
        """Release the prepared bundles that a newly started gcs does not know (``in_use``: those that it knows).

        Return the groups of unknown committed bundles: they were removed, or the bundles were moved."""
        if generation <= self._generation:
            return []
        self._generation = generation
        known = set(in_use)
        removed: dict[bytes, None] = {}
        for bundle in self.all():
            is_known = (bundle.group_id, bundle.index, bundle.attempt) in known
            if bundle.attempt >> GENERATION_SHIFT < generation and not is_known:
                if self._state(bundle) == PREPARED:
                    self._release(bundle)
                else:
                    removed[bundle.group_id] = None
        return list(removed)

    # --- Releasing

    def settle(self, is_in_use: Callable[[bytes], bool]) -> bool:
        """Release the bundles of removed groups without leases; return whether there were any."""
        vacant = [group_id for group_id in self._ending if not is_in_use(group_id)]
        for group_id in vacant:
            del self._ending[group_id]
            for bundle in self._of(group_id):
                self._resources.close_bundle(group_id, bundle.index, bundle.resources, bundle.gpus)
                self._release(bundle)
        return bool(vacant)

    def _release(self, bundle: Reservation) -> None:
        self.states.set(_key(bundle.group_id, bundle.index), NEW)
        del self._groups[bundle.group_id][bundle.index]
        if not self._groups[bundle.group_id]:
            del self._groups[bundle.group_id]
        self._resources.release(bundle.resources, bundle.gpus)

    def _state(self, bundle: Reservation) -> str:
        return self.states.get(_key(bundle.group_id, bundle.index))

    def _of(self, group_id: bytes) -> list[Reservation]:
        return list(self._groups.get(group_id, {}).values())

    def all(self) -> list[Reservation]:
        return [bundle for bundles in self._groups.values() for bundle in bundles.values()]


def _key(group_id: bytes, index: int) -> bytes:
    return group_id + index.to_bytes(INDEX_BYTES, "big")


def _show(key: bytes) -> str:
    return f"{short(key[:-INDEX_BYTES])}[{int.from_bytes(key[-INDEX_BYTES:], 'big')}]"
