"""The large arguments of leases: this class pulls them to the node, pins them, and gives the pins back.

Ray: LocalLeaseManager::WaitForLeaseArgsRequests, PinLeaseArgs and ReleaseLeaseArgs in src/ray/raylet/local_lease_manager.cc

``LeaseDependencyManager`` decides which lease may run, and whose arguments are pulled next, as a bundle. Pulled arguments
stay pinned until the lease ends. If it has no resources yet, it gives its pins back when others need the memory, or when it
takes too long. Then the arguments are pinned again when the lease gets its resources, or pulled again if they have gone.

Rules
  * Every end of a lease leads through one call of ``end`` (in ``LeaseTable.finish``), after which no pin is left. That holds
    for a worker that was killed because its owner died, and for a request that was cancelled during the pull.
  * An argument for which there is no room is pulled again as long as another lease with arguments runs and is not blocked.
    Otherwise the lease is granted without it, and the task gets the error that the store is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from minray.object_store.question import Question
from minray.object_store.store import ObjectStore
from minray.protocol.object_store import NO_ROOM, PINNED, TASK_ARGUMENTS, Pinned, Wanted
from minray.protocol.raylet import Dependency
from minray.raylet.lease_dependency_manager import LeaseDependencyManager

PATIENCE_S, MOST_PATIENCE_S = 1.0, 30.0
"""Minimum and maximum seconds that other leases are held back for one whose arguments are being pulled or have come.

The time counts from the last lease with arguments that got resources. In between, it is twice the recent time from one such
lease to the next. Other leases are also held back while arguments keep arriving, at least one per ``PATIENCE_S``: pulls for
others would take their room."""


class LeaseArguments:
    """Pulls and pins the arguments of one node's leases."""

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        limit_bytes: float,
        has_resources: Callable[[bytes], bool],
        on_here: Callable[[bytes], None],
        advance: Callable[[], None],
    ) -> None:
        """``on_here(lease_id)`` is called when the lease's arguments are here or excused.

        ``advance()`` is called when ``begin`` may find more to pull. ``has_resources``: see ``LeaseDependencyManager``.
        """
        self._store_of = store
        self._on_here = on_here
        self._advance = advance
        self.manager = LeaseDependencyManager(limit_bytes, self._is_here, has_resources)
        self._dependencies: dict[bytes, Sequence[Dependency]] = {}
        self._questions: dict[bytes, Question] = {}
        """Pulls that are under way, by lease."""
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        """Timers of leases that are ahead (see ``LeaseDependencyManager``)."""
        self._turn_at = 0.0
        """Time at which the last lease with arguments got resources."""
        self._turn_s = 0.0
        """Recent seconds between two such leases; the longest ones count most."""
        self._came_at = 0.0
        """Time at which the last argument arrived, or turned out not to come."""
        self._pins: dict[bytes, dict[bytes, bytes]] = {}
        """Pin names by lease and object."""
        self._arrived: dict[bytes, None] = {}
        """Leases with pins and without resources."""
        self._pin_count = 0

    @property
    def _store(self) -> ObjectStore:
        return self._store_of()

    def _is_here(self, object_id: bytes) -> bool:
        entry = self._store.table.find(object_id)
        return entry is not None and self._store.table.is_sealed(entry)

    def add_lease(self, lease_id: bytes, dependencies: Sequence[Dependency], level: float) -> None:
        """Note the arguments of a lease request."""
        if dependencies:
            self._dependencies[lease_id] = dependencies
            self.manager.add_lease(lease_id, {one.object_id: one.size for one in dependencies}, level)

    def fetch(self, lease_id: bytes) -> bool:
        """Have a lease's arguments pulled; return True if all are here. Else ``on_here`` follows, unless the lease ends."""
        if all(map(self._is_here, self.manager.needed(lease_id))):
            return True
        self.manager.want(lease_id)
        return False

    def begin_pulls(self) -> None:
        """Begin the pulls for which there is memory."""
        for lease_id in self.manager.begin_pulls():
            self._stop_timer(lease_id)
            self._timers[lease_id] = asyncio.get_running_loop().call_later(PATIENCE_S, self._on_late, lease_id)
            self._begin(lease_id)

    def _begin(self, lease_id: bytes) -> None:
        needed = self.manager.needed(lease_id)
        wanted = [
            Wanted(dependency.object_id, dependency.owner, self._new_pin())
            for dependency in self._dependencies[lease_id]
            if dependency.object_id in needed
        ]

        def on_answer(pinned: list[Pinned]) -> None:
            asyncio.get_running_loop().call_soon(self._on_fetched, lease_id, wanted, pinned)

        self._questions[lease_id] = self._store.pin_together(b"", wanted, TASK_ARGUMENTS, on_answer, self._note_arrival)

    def _note_arrival(self) -> None:
        self._came_at = asyncio.get_running_loop().time()

    def _note_turn(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._turn_at:
            self._turn_s = max(now - self._turn_at, 0.9 * self._turn_s)
        self._turn_at = now

    def _on_late(self, lease_id: bytes) -> None:
        loop = asyncio.get_running_loop()
        turn_late_at = self._turn_at + min(max(PATIENCE_S, 2 * self._turn_s), MOST_PATIENCE_S)
        late_at = max(turn_late_at, self._came_at + PATIENCE_S)
        if loop.time() < late_at:
            self._timers[lease_id] = loop.call_at(late_at, self._on_late, lease_id)
            return
        del self._timers[lease_id]
        self.manager.on_late(lease_id)
        self._arrived.pop(lease_id, None)
        self._unpin(lease_id)
        self._advance()

    def _stop_timer(self, lease_id: bytes) -> None:
        timer = self._timers.pop(lease_id, None)
        if timer is not None:
            timer.cancel()

    def _on_fetched(self, lease_id: bytes, wanted: list[Wanted], answer: list[Pinned]) -> None:
        question = self._questions.get(lease_id)
        if question is None or question.wanted is not wanted:
            return  # The lease is over.
        del self._questions[lease_id]
        self._unpin(lease_id)  # Some may be pinned since an earlier pull, in which others found no room.
        self._pins[lease_id] = {one.object_id: one.pin for one in wanted}
        for one, pinned in zip(wanted, answer, strict=True):
            if pinned.status != PINNED:
                del self._pins[lease_id][one.object_id]
                if pinned.status != NO_ROOM or self.manager.is_stuck():
                    self.manager.excuse(lease_id, one.object_id)
        self._arrived[lease_id] = None
        self._on_here(lease_id)

    def pin(self, lease_id: bytes) -> None:
        """Pin the arguments of a lease that got resources, until it ends; they are here."""
        self._arrived.pop(lease_id, None)
        self._stop_timer(lease_id)
        if lease_id not in self._dependencies:
            return
        self._note_turn()
        pins = self._pins.setdefault(lease_id, {})
        for object_id in self.manager.needed(lease_id):
            if object_id not in pins:
                entry = self._store.table.find(object_id)
                assert entry is not None, "a lease was given resources although its arguments are not here"
                pins[object_id] = self._new_pin()
                self._store.table.pin(entry, pins[object_id], b"")

    def give_way(self) -> bool:
        """Unpin the arguments of leases without resources, which may be evicted then; return whether there were any."""
        arrived, self._arrived = self._arrived, {}
        pins = [pin for lease_id in arrived for pin in self._pins.pop(lease_id, {}).values()]
        self._store.table.unpin(pins)
        return bool(pins)

    def end_lease(self, lease_id: bytes) -> None:
        """Stop the pull of a lease that is over, and give its pins back."""
        if self._dependencies.pop(lease_id, None) is None:
            return
        self.manager.end_lease(lease_id)
        self._arrived.pop(lease_id, None)
        self._stop_timer(lease_id)
        question = self._questions.pop(lease_id, None)
        if question is not None:
            self._store.give_up(question)
            self._store.unpin([one.pin for one in question.wanted])
        self._unpin(lease_id)

    def missing(self, lease_id: bytes) -> list[bytes]:
        """Return the arguments of a lease that are not here, for explanations."""
        return [object_id for object_id in self.manager.needed(lease_id) if not self._is_here(object_id)]

    def close(self) -> None:
        for lease_id in list(self._timers):
            self._stop_timer(lease_id)

    def _unpin(self, lease_id: bytes) -> None:
        pins = self._pins.pop(lease_id, None)
        if pins:
            self._store.unpin(list(pins.values()))

    def _new_pin(self) -> bytes:
        self._pin_count += 1
        return b"argument" + self._pin_count.to_bytes(8, "big")
