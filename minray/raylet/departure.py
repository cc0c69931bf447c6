"""Departure of a drained node: what it waits for, what it hands over, and when it leaves.

Ray: NodeManager::HandleDrainRaylet, LocalResourceManager::SetLocalNodeDraining; Ray hands nothing over

From the first moment nothing new is leased here, and owners push nothing more to the workers that they have leased. Running
tasks may finish. Meanwhile the primary copies of objects move to other nodes. Another node pulls and pins a copy, and is
told that its copy is now the primary one. Then this node's copy is given up, as if it had been evicted.

The node leaves when nothing is leased, no worker is left and no primary copy is left to hand over. (A worker that owns
objects stays until no process needs them.) At its deadline it leaves in any case. Bundles of placement groups keep a node
only from leaving because it is idle; the gcs moves them.

Objects that are owned by processes of this node are not handed over: they end with their owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minray.object_store.object_entry import ObjectEntry
from minray.object_store.store import ObjectStore
from minray.platform.base import Platform, PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import LeaveNode
from minray.protocol.gcs import IDLE_TERMINATION, NodeDrain
from minray.protocol.object_store import PINNED, WAIT, Copy, PinObjects, PromoteObjects, ReleasePins, Wanted
from minray.raylet.bundle_service import BundleService
from minray.raylet.lease_broker import LeaseBroker
from minray.rpc.connection import Peers, ignore

LOOK_AGAIN_S = 0.1
"""Seconds between two checks whether a departing node may leave."""


class Departure:
    """Carries out the drain of one node."""

    def __init__(
        self,
        platform: Platform,
        node_id: bytes,
        peers: Peers,
        broker: LeaseBroker,
        store: ObjectStore,
        groups: BundleService,
        address_of_raylet: Callable[[bytes], Address],
        on_gone: Callable[[str], None],
        at_once: int,
    ) -> None:
        """``on_gone`` is called with the reason when the node must end now; ``at_once`` objects are handed over together."""
        self._at_once = at_once
        self._platform = platform
        self._node_id = node_id
        self._peers = peers
        self._broker = broker
        self._store = store
        self._groups = groups
        self._address_of_raylet = address_of_raylet
        self._on_gone = on_gone
        self.drain: NodeDrain | None = None
        """Last drain request; None: the node was not asked to leave."""
        self.is_over = False
        """Whether the node has left because it was drained."""
        self._leaving: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._move_count = 0

    def begin(self, drain: NodeDrain) -> bool:
        """Begin or change the drain of this node; return False if it should leave as idle but is not idle.

        If it is leaving already, a refused request changes nothing."""
        if drain == self.drain:
            return True
        if drain.reason == IDLE_TERMINATION and (self._groups.bundles.all() or not self._is_idle()):
            return False
        self.drain = drain
        loop = asyncio.get_running_loop()
        if self._deadline is not None:
            self._deadline.cancel()
        if drain.deadline:
            delay_s = max(0.0, drain.deadline - self._platform.host.time())
            self._deadline = loop.call_later(delay_s, self._go, f"{drain.message} (its time was up)")
        self._broker.drain(drain)
        self._groups.on_leave()
        self._tell_owners()
        if self._leaving is None:
            self._leaving = loop.create_task(self._leave(), name="leave_cluster")
        return True

    def _tell_owners(self) -> None:
        """Tell the owners of leases to push nothing more to the leased workers."""
        entries = self._broker.entries.values()
        for owner in {entry.owner.worker_id: entry.owner for entry in entries if not entry.request.for_actor}.values():
            self._peers.to(owner).send(LeaveNode(self._node_id), ignore)

    def close(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._leaving is not None:
            self._leaving.cancel()

    def _is_idle(self) -> bool:
        return not self._broker.entries and not self._to_hand_over()

    async def _leave(self) -> None:
        while self._broker.pool.workers or not self._is_idle():
            await self._hand_over()
            await asyncio.sleep(LOOK_AGAIN_S)
        assert self.drain is not None
        self._go(self.drain.message)

    def _go(self, reason: str) -> None:
        self.is_over = True
        self._on_gone(reason)

    # --- Objects

    def _to_hand_over(self) -> list[ObjectEntry]:
        """Return the primary copies that are owned by processes of other nodes."""
        return [entry for entry in self._store.table.primaries() if entry.owner.node_id != self._node_id]

    async def _hand_over(self) -> None:
        """Hand some copies over, in turn, each to the next node in turn: one node may have no room, or not answer."""
        others = [view for view in self._broker.nodes.alive() if view is not self._broker.nodes.local and not view.draining]
        complete = [entry for entry in self._to_hand_over() if entry.is_written]
        moves = []
        for _ in range(min(self._at_once, len(complete)) if others else 0):
            turn, index = divmod(self._move_count, len(complete))
            to = self._address_of_raylet(others[(turn + index) % len(others)].node_id)
            self._move_count += 1
            moving = self._move(complete[index], to, self._move_count)
            moves.append(asyncio.get_running_loop().create_task(moving, name="move"))
        await asyncio.gather(*moves)

    async def _move(self, entry: ObjectEntry, to: Address, number: int) -> None:
        pin = b"move" + self._node_id + number.to_bytes(8, "big")
        raylet = self._peers.to(to)
        try:
            wanted = Wanted(entry.object_id, entry.owner, pin, entry.attempt)
            reply = await raylet.call(PinObjects(self._node_id, [wanted], WAIT))
            if reply.pinned[0].status == PINNED:
                await raylet.call(PromoteObjects([Copy(entry.object_id, entry.attempt)]))
                self._store.lose(entry)
        except PlatformError:
            pass  # Another node is asked next time.
        finally:
            raylet.send(ReleasePins([pin]), ignore)
