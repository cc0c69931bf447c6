"""Creation of actors: choose a node, lease a worker there, and push the constructor to it.

Ray: src/ray/gcs/actor/gcs_actor_scheduler.h

The gcs is an owner like any other here: it asks raylets for a worker with ``RequestWorkerLease`` and holds the lease for
the actor's life. One coroutine per incarnation runs these steps; the actor service stores the outcome.

Rules
  * The lease's id is stored before the lease is requested. So a restarted gcs requests the same lease again and finds the
    worker that its predecessor was given. It also gets the constructor's outcome, since a worker recognises a repeated push
    by its lease (G110). If that worker has died, the actor counts as dead in its constructor.
  * An actor is placed where its placement needs are free, else where they can ever be. If no node can, it waits for one. The
    owner's node comes first for an actor that holds resources. One that holds none gets a random node, as in Ray: it leaves
    the node as free as before, so the owner's node would get all of them.
  * An incarnation that ends meanwhile (killed, out of scope) gives its lease back in every state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from minray.common.ids import LEASE_ID_BYTES, short, short_actor
from minray.common.resources import ResourceSet, fits, lack_of
from minray.common.task_set import TaskSet
from minray.common.task_spec import STRATEGY_DEFAULT
from minray.gcs.driver_lines import warn_owner
from minray.gcs.gcs_actor_manager import ActorRow, worker_died
from minray.gcs.persistent_caller import PersistentCaller
from minray.platform.base import Platform
from minray.protocol import actor as causes
from minray.protocol import core_worker as tasks
from minray.protocol.actor import CREATION_TASK_FAILED, NODE_DIED, RUNTIME_ENV_FAILED, WORKER_DIED, DeathCause
from minray.protocol.base import Address, Done, Request
from minray.protocol.core_worker import PushTask
from minray.protocol.gcs import NodeInfo
from minray.protocol.raylet import (
    CANCELLED,
    ENVIRONMENT_FAILED,
    GRANTED,
    GROUP_REMOVED,
    SPILLBACK,
    UNSCHEDULABLE,
    CancelWorkerLease,
    GetLeaseFailure,
    LeaseReply,
    RequestWorkerLease,
    ReturnWorkerLease,
)
from minray.rpc.connection import Peers

logger = logging.getLogger(__name__)

RETRY_S = 0.2
"""Seconds before a new choice after a refusal: the nodes' views of each other need this long to agree."""
DEATH_TIMEOUT_S = 5.0
"""Seconds that the raylet of an unreachable worker may take to see its death."""
DIED_CONSTRUCTING = DeathCause(WORKER_DIED, "its worker died while it ran the constructor")
IMPOSSIBLE = {
    UNSCHEDULABLE: causes.ACTOR_UNSCHEDULABLE,
    ENVIRONMENT_FAILED: RUNTIME_ENV_FAILED,
    GROUP_REMOVED: causes.GROUP_REMOVED,
}
"""Kinds of death of an actor, by the lease reply after which no worker will ever be granted."""


class Nodes(Protocol):
    """Port to the table of nodes."""

    def open_nodes(self) -> list[NodeInfo]:
        """Return the nodes that take new actors."""

    def node(self, node_id: bytes) -> NodeInfo | None: ...

    def available(self, node_id: bytes) -> Mapping[str, int]:
        """Return the free resources that a node has reported last."""

    def death_cause(self, node_id: bytes) -> str | None: ...


class Outcomes(Protocol):
    """Port to the actor service, which stores the outcomes of a creation; False: that incarnation is over."""

    async def on_leasing(self, row: ActorRow, lease_id: bytes, raylet: Address) -> bool: ...

    async def on_created(self, row: ActorRow, address: Address, pid: int) -> bool: ...

    async def on_impossible(self, row: ActorRow, cause: DeathCause) -> None: ...

    async def on_worker_lost(self, row: ActorRow, place: Address, cause: DeathCause) -> None:
        """Handle a worker's death in the constructor, perhaps under an earlier gcs; ``place``: the worker or its raylet."""

    def is_dead(self, worker: Address) -> bool:
        """Tell whether a process is known to be dead."""


class _ActorLease(NamedTuple):
    """The leased worker of an incarnation."""

    lease_id: bytes
    raylet: Address
    worker: Address
    pid: int
    gpu_ids: tuple[int, ...]


class ActorScheduler:
    """Runs the creations of actors of one gcs."""

    def __init__(
        self, platform: Platform, own: Callable[[], Address], peers: Peers, nodes: Nodes, outcomes: Outcomes
    ) -> None:
        self._platform = platform
        self._own = own
        self._peers = peers
        self._caller = PersistentCaller(peers, self._is_dead)
        self._nodes = nodes
        self._outcomes = outcomes
        self._creating: dict[bytes, asyncio.Task[None]] = {}
        """Tasks of creations by actor id."""
        self._constructing: dict[bytes, _ActorLease] = {}
        """Workers that run a constructor, by actor id."""
        self._without_node: set[bytes] = set()
        """Actors that no node of the present cluster can ever hold; a node may have been asked before."""
        self._returning = TaskSet()
        self._node_joined = asyncio.Event()
        """Event that is set when the cluster has changed."""

    # --- From the actor service ------------------------------------------------------------------------------------------

    def create(self, row: ActorRow) -> None:
        """Begin to create an incarnation, or continue where an earlier gcs stopped."""
        actor_id = row.info.actor_id
        task = asyncio.get_running_loop().create_task(self._create(row), name=f"create_actor({short_actor(actor_id)})")
        self._creating[actor_id] = task
        task.add_done_callback(lambda _: self._creating.pop(actor_id) if self._creating.get(actor_id) is task else None)

    def cancel(self, actor_id: bytes) -> None:
        """Stop the creation of an incarnation that is over; ``end_lease`` returns its lease."""
        task = self._creating.pop(actor_id, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def settle(self, actor_id: bytes) -> None:
        """Wait until the creation that is under way, if there is one, has ended."""
        task = self._creating.get(actor_id)
        if task is not None:
            await asyncio.wait([task])

    def end_lease(
        self, lease_id: bytes, raylet: Address, reason: str, on_returned: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """End a lease in any state, and its worker; the messages are repeated until the raylet answers or is dead."""
        returning = self._end_lease(lease_id, raylet, reason, on_returned)
        self._returning.begin(returning, f"give_back({lease_id[-4:].hex()})")

    def on_nodes_changed(self) -> None:
        """Choose again for waiting actors, because a node has joined or has reported."""
        self._node_joined.set()

    def why(self, row: ActorRow) -> str:
        """Explain for users what an incarnation's creation waits for; empty if its raylet knows."""
        lease = self._constructing.get(row.info.actor_id)
        if lease is not None:
            return f"its constructor runs on worker pid={lease.pid}, node {short(lease.worker.node_id)}"
        if row.creation is not None and row.info.actor_id in self._without_node:
            return f"it {lack_of(dict(row.creation.placement), [node.resources_total for node in self._nodes.open_nodes()])}"
        return "" if row.lease_id else "a node for it is being chosen"

    def constructing_on(self, row: ActorRow) -> Address | None:
        """Return the worker that runs an actor's constructor, if one does."""
        lease = self._constructing.get(row.info.actor_id)
        return None if lease is None else lease.worker

    def close(self) -> None:
        for task in [*self._creating.values(), *self._returning]:
            task.cancel()

    # --- Creating one incarnation ----------------------------------------------------------------------------------------

    async def _create(self, row: ActorRow) -> None:
        while True:
            lease = await self._lease(row)
            if lease is None:
                return
            self._constructing[row.info.actor_id] = lease
            try:
                reply = await self._caller.call(lease.worker, _push_of(row, lease))
            finally:
                self._constructing.pop(row.info.actor_id, None)
            if reply is None:
                cause = await self._how_it_ended(lease.lease_id, lease.raylet, DEATH_TIMEOUT_S)
                await self._outcomes.on_worker_lost(row, lease.worker, cause or DIED_CONSTRUCTING)
                return
            if reply.status == tasks.OK:
                await self._outcomes.on_created(row, lease.worker, lease.pid)
                return
            if reply.status != tasks.NOT_STARTED:
                kind = RUNTIME_ENV_FAILED if reply.status == tasks.ENVIRONMENT_FAILED else CREATION_TASK_FAILED
                error = reply.values[0].data
                await self._outcomes.on_impossible(row, DeathCause(kind, "its constructor did not succeed", error))
                return
            self.end_lease(lease.lease_id, lease.raylet, "it takes no more tasks")
            row = ActorRow(row.info, row.creation)

    async def _lease(self, row: ActorRow) -> _ActorLease | None:
        """Lease a worker for an incarnation; return None if there will be none."""
        lease_id, raylet, final = row.lease_id, row.raylet, False
        if await self._is_lost(row):
            return None
        while True:
            if raylet is None:
                raylet, final = await self._choose_in_time(row), False
            if not lease_id:
                lease_id = self._platform.host.random_bytes(LEASE_ID_BYTES)
                if not await self._outcomes.on_leasing(row, lease_id, raylet):
                    return None
            reply = await self._request(row, lease_id, raylet, final)
            if reply is not None and reply.kind == GRANTED and reply.worker is not None:
                return _ActorLease(
                    lease_id=lease_id, raylet=raylet, worker=reply.worker, pid=reply.pid, gpu_ids=reply.gpu_ids
                )
            if reply is not None and reply.kind in IMPOSSIBLE:
                await self._outcomes.on_impossible(row, DeathCause(IMPOSSIBLE[reply.kind], reply.reason))
                return None
            if lease_id == row.lease_id and reply is not None and reply.kind == CANCELLED and await self._is_lost(row):
                return None
            lease_id = b""
            if reply is not None and reply.kind == SPILLBACK:
                raylet, final = reply.raylet, True
            else:
                raylet = None
                await asyncio.sleep(RETRY_S)

    async def _is_lost(self, row: ActorRow) -> bool:
        """Tell whether an earlier gcs's lease has lost its worker, which may have run the constructor (G35)."""
        if not row.lease_id or row.raylet is None:
            return False
        cause = await self._how_it_ended(row.lease_id, row.raylet, 0.0)
        if cause is None:
            return False
        await self._outcomes.on_worker_lost(row, row.raylet, cause)
        return True

    async def _how_it_ended(self, lease_id: bytes, raylet: Address, timeout_s: float) -> DeathCause | None:
        """Ask the raylet how the worker of a lease died; None: it has seen no death within ``timeout_s``."""
        failure = await self._caller.call(raylet, GetLeaseFailure(lease_id, timeout_s))
        if failure is None:
            return DeathCause(NODE_DIED, "its node died")
        if not failure.dead:
            return None
        cause = ": ".join(filter(None, [failure.cause, failure.doom]))
        return worker_died(failure.pid, raylet.node_id, cause, failure.stderr_tail, failure.memory_total > 0)

    async def _request(self, row: ActorRow, lease_id: bytes, raylet: Address, final: bool) -> LeaseReply | None:
        """Request the lease from a raylet; return None if the raylet is dead."""
        creation = row.creation
        assert creation is not None
        info = row.info
        retriable = info.may_restart()
        request = RequestWorkerLease(
            lease_id=lease_id,
            owner=self._own(),
            shape=creation.shape,
            depth=0,
            backlog=0,
            grant_or_reject=final,
            actor_id=info.actor_id,
            retriable=retriable,
        )
        return await self._caller.call(raylet, request)

    def _is_dead(self, process: Address) -> bool:
        return self._nodes.death_cause(process.node_id) is not None or self._outcomes.is_dead(process)

    async def _end_lease(
        self, lease_id: bytes, raylet: Address, reason: str, on_returned: Callable[[], Awaitable[None]] | None
    ) -> None:
        requests: Sequence[Request[Done]] = (CancelWorkerLease(lease_id), ReturnWorkerLease(lease_id, True, reason))
        for request in requests:
            if await self._caller.call(raylet, request) is None:
                break
        if on_returned is not None:
            await on_returned()

    # --- Choosing a node -------------------------------------------------------------------------------------------------

    async def _choose_in_time(self, row: ActorRow) -> Address:
        try:
            while (chosen := self._choose(row)) is None:
                if row.info.actor_id not in self._without_node:
                    self._without_node.add(row.info.actor_id)
                    warn_owner(self._peers, row.info, self.why(row), self._platform.host.time())
                self._node_joined.clear()
                await self._node_joined.wait()
        finally:
            self._without_node.discard(row.info.actor_id)
        return chosen.address

    def _choose(self, row: ActorRow) -> NodeInfo | None:
        creation = row.creation
        assert creation is not None
        nodes = self._nodes.open_nodes()
        if creation.shape.strategy.kind != STRATEGY_DEFAULT:
            return _preferred(nodes, row.info.owner.node_id, self._platform.host.random)
        needs: ResourceSet = dict(creation.placement)
        free = [node for node in nodes if fits(needs, self._nodes.available(node.node_id))]
        able = [node for node in nodes if fits(needs, node.resources_total)]
        preferred = row.info.owner.node_id if creation.shape.resources else b""
        return _preferred(free or able, preferred, self._platform.host.random)


def _preferred(nodes: list[NodeInfo], node_id: bytes, random: Callable[[], float]) -> NodeInfo | None:
    """Return the node with this id if it is among ``nodes``, else a random one."""
    for node in nodes:
        if node.node_id == node_id or len(nodes) == 1:
            return node
    return nodes[int(random() * len(nodes))] if nodes else None


def _push_of(row: ActorRow, lease: _ActorLease) -> PushTask:
    creation = row.creation
    assert creation is not None
    return PushTask(
        task_id=creation.task_id,
        attempt=row.info.restarts,
        lease_id=lease.lease_id,
        sequence=1,
        acknowledged=0,
        header=creation.header,
        depth=0,
        args=creation.args,
        arguments=creation.arguments,
        nested=creation.nested,
        inline_buffers=creation.inline_buffers,
        gpu_ids=lease.gpu_ids,
        actor_id=row.info.actor_id,
    )
