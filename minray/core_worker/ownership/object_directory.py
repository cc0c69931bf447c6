"""Knows the nodes that have copies of this process's large objects.

Ray: src/ray/core_worker/reference_counter.h (locations), object_recovery_manager.h (promoted copies)

Only owners have a directory. The first copy of an object is on the node where its task ran, or where ``put`` was called.
Raylets report every further copy that they make or evict. A raylet that asks for an object is about to receive a copy.
Raylets that ask later learn of this receiver too. Each gets a turn, in the order of their questions (see
``object_manager.pull``). When an object is freed, all nodes that may have a copy are told. A node that reports a copy that
is not needed, or not any more, is told to drop it.

When a node dies, its copies are gone. If the first copy was among them, another copy takes its place (G66). If no copy is
left, but other nodes were receiving one, their report that it is complete may be on its way. The object is lost when all of
these have reported that they have no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from minray.protocol.base import Address
from minray.protocol.core_worker import KNOWN, LOST, LocationChange, ObjectLocations
from minray.protocol.object_store import Copy, FreeObjects, Place, PromoteObjects
from minray.rpc.batch import Batches
from minray.rpc.patient_caller import PatientCaller


class _Copies(msgspec.Struct, eq=False):
    """The copies of one object."""

    attempt: int
    size: int
    raylets: dict[bytes, Address]
    """Raylets of the nodes that have a copy, by node id; the first one has the first copy, which is not evicted."""
    receivers: dict[bytes, tuple[int, Address]]
    """Raylets that receive a copy, or are about to, with their turns, by node id and in the order of the turns."""


class ObjectDirectory:
    """Knows the copies of one process's large objects."""

    def __init__(self, patient: PatientCaller, on_lost: Callable[[list[bytes]], None], max_items: int) -> None:
        self._on_lost = on_lost
        """Function called with the ids of objects of which no copies are left."""
        self._objects: dict[bytes, _Copies] = {}
        """Copies by object id."""
        self._over: dict[bytes, dict[bytes, int]] = {}
        """Number of the last question of each node's raylet that makes it no receiver (any more), by object and node id.

        The question was answered when there was no copy, was given up, or has led to a copy. It may arrive again, late."""
        self._turn_count = 0
        """Number of turns given to receivers so far."""
        self._dead_nodes: set[bytes] = set()
        """Ids of nodes that are known to be dead."""
        self._heard: dict[bytes, int] = {}
        """Number of the last update of each node's raylet, by node id."""
        self._free: Batches[Copy] = Batches(patient.send, FreeObjects, max_items)
        self._promote: Batches[Copy] = Batches(patient.send, PromoteObjects, max_items)

    def __len__(self) -> int:
        return len(self._objects)

    def add_location(self, object_id: bytes, place: Place) -> None:
        """Note the first copy of an object."""
        self._objects[object_id] = _Copies(
            attempt=place.attempt, size=place.size, raylets={place.raylet.node_id: place.raylet}, receivers={}
        )
        if place.raylet.node_id in self._dead_nodes:
            self._forget_node([object_id], place.raylet.node_id)

    def locations(self, object_id: bytes, receiver: Address | None = None, number: int = 0) -> ObjectLocations:
        """Return the locations of an object; LOST if it has no copies.

        A receiver gets its turn, and is named to the raylets that ask later.
        """
        copies = self._objects.get(object_id)
        if copies is None:
            self._note_over(object_id, receiver, number)
            return ObjectLocations(LOST)
        turn = self._turn_of(object_id, copies, receiver, number) if receiver is not None and copies.raylets else 0
        earlier = [raylet for other, raylet in copies.receivers.values() if other < turn]
        return ObjectLocations(
            status=KNOWN,
            attempt=copies.attempt,
            size=copies.size,
            raylets=list(copies.raylets.values()),
            receivers=earlier,
            turn=turn,
        )

    def copies_of(self, object_id: bytes) -> tuple[int, list[Address]]:
        """Return the size of an object and the raylets that have a copy; 0 and none if it is not known here."""
        copies = self._objects.get(object_id)
        return (copies.size, list(copies.raylets.values())) if copies is not None else (0, [])

    def _note_over(self, object_id: bytes, raylet: Address | None, number: int) -> None:
        if raylet is not None and number:
            over = self._over.setdefault(object_id, {})
            over[raylet.node_id] = max(number, over.get(raylet.node_id, 0))

    def _turn_of(self, object_id: bytes, copies: _Copies, receiver: Address, number: int) -> int:
        if receiver.node_id not in copies.receivers:
            self._turn_count += 1
            over = self._over.get(object_id, {}).get(receiver.node_id, 0)
            if receiver.node_id in self._dead_nodes or number <= over:
                return self._turn_count
            copies.receivers[receiver.node_id] = self._turn_count, receiver
        return copies.receivers[receiver.node_id][0]

    def on_update(self, raylet: Address, number: int, changes: Sequence[LocationChange]) -> None:
        """Take note of copies that a raylet reports; reports are numbered, since one may arrive twice and late (G112)."""
        if number <= self._heard.get(raylet.node_id, 0):
            return
        self._heard[raylet.node_id] = number
        for change in changes:
            copies = self._objects.get(change.object_id)
            is_known = copies is not None and copies.attempt == change.attempt
            if copies is not None:
                self._note_over(change.object_id, raylet, change.number)
            if not change.is_here:
                if is_known:
                    self._forget_node([change.object_id], raylet.node_id)
            elif copies is not None and is_known and raylet.node_id not in self._dead_nodes:
                if not copies.raylets:
                    self._promote.add(raylet, [Copy(change.object_id, change.attempt)])
                copies.receivers.pop(raylet.node_id, None)
                copies.raylets.setdefault(raylet.node_id, raylet)
            else:
                self.discard_copies([change.object_id], change.attempt, raylet)

    def on_node_death(self, node_id: bytes) -> None:
        self._dead_nodes.add(node_id)
        there = [key for key, copies in self._objects.items() if node_id in copies.raylets or node_id in copies.receivers]
        self._forget_node(there, node_id)

    def _forget_node(self, object_ids: Sequence[bytes], node_id: bytes) -> None:
        """Note that a node has no copies of these objects any more, and report the objects that are lost thereby."""
        lost = [object_id for object_id in object_ids if self._is_lost_without(object_id, node_id)]
        for object_id in lost:
            del self._objects[object_id]
        if lost:
            self._on_lost(lost)

    def _is_lost_without(self, object_id: bytes, node_id: bytes) -> bool:
        copies = self._objects[object_id]
        was_first = next(iter(copies.raylets), None) == node_id
        copies.raylets.pop(node_id, None)
        copies.receivers.pop(node_id, None)
        if copies.raylets and was_first:
            self._promote.add(next(iter(copies.raylets.values())), [Copy(object_id, copies.attempt)])
        return not copies.raylets and not copies.receivers

    def free(self, object_ids: Iterable[bytes]) -> None:
        """Drop all copies of these objects, as made by their latest attempts."""
        if not self._objects and not self._over:
            return
        for object_id in object_ids:
            self._over.pop(object_id, None)
            copies = self._objects.pop(object_id, None)
            if copies is not None:
                receivers = {node_id: raylet for node_id, (_, raylet) in copies.receivers.items()}
                for raylet in {**copies.raylets, **receivers}.values():
                    self.discard_copies([object_id], copies.attempt, raylet)

    def discard_copies(self, object_ids: Iterable[bytes], attempt: int, raylet: Address) -> None:
        """Drop the copies that this attempt, or an earlier one, has made on a raylet's node or may still make there."""
        if raylet.node_id not in self._dead_nodes:
            self._free.add(raylet, [Copy(object_id, attempt) for object_id in object_ids])
