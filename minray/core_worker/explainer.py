"""Why is this reference not ready? The answer as a short chain.

Ray: has no counterpart; its users read logs.

Each unfinished thing names what it waits for: a task its arguments (and those their tasks), a queued task the resource
that nobody has, a running one its worker, a lost one the dead process. The chain follows owners across processes and ends
at a resource, a running task, or a death.
"""

from __future__ import annotations

import asyncio

from minray.common.bundles import ANY_BUNDLE, plain
from minray.common.ids import short, task_of
from minray.common.labels import describe_terms
from minray.common.resources import describe
from minray.core_worker.dependency_resolver import DependencyResolver
from minray.core_worker.memory_store import MemoryStore
from minray.core_worker.normal_task_submitter import LeasedWorker, LeaseRequest, NormalTaskSubmitter
from minray.core_worker.placement_groups import PlacementGroups
from minray.core_worker.reference_counter import ReferenceCounter
from minray.core_worker.task_manager import PUSHED, QUEUED, PendingTask, TaskManager
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import Explain
from minray.protocol.raylet import ExplainLease
from minray.rpc.connection import Peer, Peers

MAX_HOPS = 12
PATIENCE_S = 5.0


class Explainer:
    """Reads the tables of one core worker."""

    def __init__(
        self,
        peers: Peers,
        local_raylet: Peer,
        own: Address,
        tasks: TaskManager,
        store: MemoryStore,
        references: ReferenceCounter,
        resolver: DependencyResolver,
        submitter: NormalTaskSubmitter,
        groups: PlacementGroups,
    ) -> None:
        self._peers = peers
        self._local_raylet = local_raylet
        self._own = own
        self._tasks = tasks
        self._store = store
        self._references = references
        self._resolver = resolver
        self._submitter = submitter
        self._groups = groups

    async def explain_in_time(self, object_id: bytes, owner: Address) -> list[str]:
        """The same for people, who do not wait for a process that does not answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.explain(object_id, owner)
        except TimeoutError:
            return [f"{short(object_id)} is not ready; a process on the way to the reason did not answer in time"]

    async def explain(self, object_id: bytes, owner: Address | None, hops: int = 0) -> list[str]:
        """One line per link of the chain, the asked object first."""
        stored = self._store.objects.get(object_id)
        if stored is not None:
            return [f"{short(object_id)} is ready" + (" (it is an error)" if stored.is_error else "")]
        if hops >= MAX_HOPS:
            return ["..."]
        if owner is not None and owner.worker_id != self._own.worker_id:
            return await self._ask_owner(object_id, owner, hops)
        group_id = self._groups.group_awaited_by(object_id)
        if group_id is not None:
            return [f"{short(object_id)} is ready when its placement group is", (await self._groups.explain(group_id))[0]]
        task = self._tasks.tasks.get(task_of(object_id))
        if task is None:
            return [f"{short(object_id)}: no task makes it any more (it was freed, or never existed)"]
        return await self._explain_task(task, hops)

    async def _ask_owner(self, object_id: bytes, owner: Address, hops: int) -> list[str]:
        try:
            return (await self._peers.to(owner).call(Explain(object_id, hops + 1))).lines
        except PlatformError as error:
            return [f"{short(object_id)}: its owner, worker {short(owner.worker_id)}, cannot be reached: {error}"]

    async def _explain_task(self, task: PendingTask, hops: int) -> list[str]:
        name = f"task {task.prepared.template.name} ({short(task.task_id)})"
        if task.state is PUSHED:
            return [f"{name} {self._where(task)}"]
        if task.state is QUEUED:
            return [f"{name} waits for a worker: needs {self._needs(task)}", *await self._explain_lease(task)]
        missing = self._resolver.missing_of(task)
        lines = [f"{name} waits for {len(missing)} argument{'s' if len(missing) != 1 else ''}"]
        owners = dict(task.slots)
        for object_id in missing[:1]:
            if object_id in owners:
                lines += await self.explain(object_id, owners[object_id], hops + 1)
            else:
                lines.append("its function is being exported to the gcs")
        return lines

    def _where(self, task: PendingTask) -> str:
        worker = task.worker
        if not isinstance(worker, LeasedWorker):
            return "was sent to a worker that cannot be reached any more; how that ended is being found out"
        place = f"on worker pid={worker.pid}, node {short(worker.address.node_id)}"
        if next(iter(worker.in_flight)) == task.sequence:
            return f"runs {place}, for {asyncio.get_running_loop().time() - worker.progress_at:.1f} s"
        ahead = sum(1 for sequence in worker.in_flight if sequence < task.sequence)
        return f"is queued behind {ahead} other task{'s' if ahead != 1 else ''} {place}"

    def _needs(self, task: PendingTask) -> str:
        shape = task.prepared.template.shape
        needs = describe(plain(dict(shape.resources)))
        if shape.labels.hard:
            needs += f" on a node with labels {describe_terms(shape.labels.hard)}"
        if not shape.strategy.group_id:
            return needs
        index = shape.strategy.bundle_index
        return f"{needs} in {'any bundle' if index == ANY_BUNDLE else f'bundle {index}'} of its placement group"

    async def _explain_lease(self, task: PendingTask) -> list[str]:
        group_id = task.prepared.template.shape.strategy.group_id
        if not group_id:
            return await self._explain_request(task)
        text, is_there = await self._groups.explain(group_id)
        return [text, *await self._explain_request(task)] if is_there else [text]

    async def _explain_request(self, task: PendingTask) -> list[str]:
        request = self._submitter.request_of(task.prepared.template.shape)
        if request is None:
            workers = [worker for worker in self._submitter.leased_workers() if worker.in_flight]
            return [f"it waits for one of {len(workers)} leased workers, which are busy"] if workers else []
        return [text] if (text := await self._ask_raylet(request)) else []

    async def _ask_raylet(self, request: LeaseRequest) -> str:
        raylet = self._local_raylet if request.raylet is None else self._peers.to(request.raylet)
        try:
            return (await raylet.call(ExplainLease(request.lease_id))).text
        except PlatformError as error:
            return f"its raylet cannot be reached: {error}"
