"""Brings the large arguments of leases to this node, pins them, and gives the pins back: does what is decided about them.

Ray: LocalLeaseManager::WaitForLeaseArgsRequests, PinLeaseArgs and ReleaseLeaseArgs in src/ray/raylet/local_lease_manager.cc

``LeaseDependencyManager`` decides which lease may run, and whose arguments are fetched next, as a bundle. They stay pinned
until the scheduler has seen them; and if it gives the lease resources then, or later finds them still here, until the lease
is over. The worker finds them in the store of its node.

Rules
  * Whatever ends a lease, ``end`` is called, in one place (``LeaseBroker``), and no pin is left: neither of a worker that
    was killed because its owner died, nor of a request that was cancelled while its arguments were on their way.
  * An argument for which there is no room is asked for again as long as leases run whose arguments take room; it is excused
    otherwise, and the task hears that the store is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from minray.object_store.store import ObjectStore, Question
from minray.protocol.object_store import NO_ROOM, PINNED, TASK_ARGUMENTS, Pinned, Wanted
from minray.protocol.raylet import Dependency
from minray.raylet.lease_dependency_manager import LeaseDependencyManager

PATIENCE_S, MOST_PATIENCE_S = 1.0, 30.0
"""So long, at least and at most, others keep back for a lease whose arguments are on their way or have come, after the last
one that takes arguments has begun: its turn will come. In between, twice as long as it took from one to the next lately. And
they keep back as long as arguments keep coming, one in ``PATIENCE_S``: what is fetched for others would take their room."""


class LeaseArguments:
    """The arguments of one node's leases, and its store."""

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        limit_bytes: float,
        has_resources: Callable[[bytes], bool],
        on_here: Callable[[bytes], None],
        advance: Callable[[], None],
    ) -> None:
        """``on_here(lease_id)``: what was to be fetched is here, or excused. ``advance()``: ``begin`` may find more.

        ``has_resources(lease_id)``: see ``LeaseDependencyManager``.
        """
        self._store_of = store
        self._on_here = on_here
        self._advance = advance
        self.manager = LeaseDependencyManager(limit_bytes, self._is_here, has_resources)
        self._dependencies: dict[bytes, Sequence[Dependency]] = {}
        self._questions: dict[bytes, Question] = {}
        """What is being fetched, by lease."""
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        """Of leases that are ahead."""
        self._turn_at = 0.0
        """When the last lease with arguments was given resources."""
        self._turn_s = 0.0
        """How much later the next one was, lately; rather the longest time than the mean."""
        self._came_at = 0.0
        """When the last argument was here, or would not come."""
        self._pins: dict[bytes, dict[bytes, bytes]] = {}
        """The names of pins, by lease and object."""
        self._arrived: dict[bytes, None] = {}
        """Leases with pins that the scheduler has not seen yet."""
        self._pin_count = 0

    @property
    def _store(self) -> ObjectStore:
        return self._store_of()

    def _is_here(self, object_id: bytes) -> bool:
        entry = self._store.table.find(object_id)
        return entry is not None and self._store.table.is_sealed(entry)

    def add(self, lease_id: bytes, dependencies: Sequence[Dependency], level: float) -> None:
        """A lease was asked for."""
        if dependencies:
            self._dependencies[lease_id] = dependencies
            self.manager.add(lease_id, {one.object_id: one.size for one in dependencies}, level)

    def fetch(self, lease_id: bytes) -> bool:
        """Bring its arguments here; True if they are. Otherwise ``on_here`` follows, unless the lease ends before."""
        if all(map(self._is_here, self.manager.needed(lease_id))):
            return True
        self.manager.want(lease_id)
        return False

    def begin(self) -> None:
        """Fetch what there is memory for."""
        for lease_id in self.manager.begin():
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
        self._advance()

    def _stop_timer(self, lease_id: bytes) -> None:
        timer = self._timers.pop(lease_id, None)
        if timer is not None:
            timer.cancel()

    def _on_fetched(self, lease_id: bytes, wanted: list[Wanted], answer: list[Pinned]) -> None:
        question = self._questions.get(lease_id)
        if question is None or question.wanted is not wanted:
            return  # the lease is over
        del self._questions[lease_id]
        self._pins[lease_id] = {one.object_id: one.pin for one in wanted}
        for one, pinned in zip(wanted, answer, strict=True):
            if pinned.status != PINNED:
                del self._pins[lease_id][one.object_id]
                if pinned.status != NO_ROOM or self.manager.is_stuck():
                    self.manager.excuse(lease_id, one.object_id)
        self._arrived[lease_id] = None
        self._on_here(lease_id)

    def pin(self, lease_id: bytes) -> None:
        """It was given resources: keep its arguments, which are here, until it ends."""
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

    def let_go(self) -> None:
        """Of what has come for leases that were not given resources: it may go if its memory is needed."""
        arrived, self._arrived = self._arrived, {}
        for lease_id in arrived:
            self._unpin(lease_id)

    def end(self, lease_id: bytes) -> None:
        """The lease is over, whatever state it was in."""
        if self._dependencies.pop(lease_id, None) is None:
            return
        self.manager.end(lease_id)
        self._stop_timer(lease_id)
        question = self._questions.pop(lease_id, None)
        if question is not None:
            self._store.give_up(question)
            self._store.unpin([one.pin for one in question.wanted])
        self._unpin(lease_id)

    def missing(self, lease_id: bytes) -> list[bytes]:
        """Which of its arguments are not here, for people."""
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
