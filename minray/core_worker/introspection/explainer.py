"""Explains why a reference is not ready, as a short chain of reasons (``why``).

Ray: has no counterpart; its users read logs.

Each link names what it waits for. A task names its arguments, and these name their tasks. A queued task names the resource
that no node has free, a running task its worker, and a lost object the task that makes it again. The chain follows owners
across processes. It ends at a resource, a running task, or a death. Only the owner of a large object knows whether it
still exists.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

from minray.common.bundles import ANY_BUNDLE, plain
from minray.common.ids import short, short_actor, task_of
from minray.common.labels import describe_selector
from minray.common.resources import describe
from minray.core_worker.execution.actor_task_receiver import ActorTaskReceiver
from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.actor_explainer import ActorExplainer, describe_call, is_of_actor
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.leased_worker import LeasedWorker
from minray.core_worker.records.pending_task import PUSHED, QUEUED, PendingTask
from minray.core_worker.submission.actor_manager import ActorManager
from minray.core_worker.submission.dependency_resolver import DependencyResolver
from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from minray.core_worker.submission.placement_groups import PlacementGroups
from minray.core_worker.submission.task_manager import TaskManager
from minray.platform.base import PlatformError
from minray.protocol.base import Address, Request
from minray.protocol.core_worker import Explain, ExplainRun, Explanation
from minray.protocol.raylet import ExplainLease

MAX_HOPS = 12
"""Number of steps after which a chain breaks off with "...": a longer one is not read, and a cycle must end."""
PATIENCE_S = 5.0
"""Seconds after which ``why`` gives up: a user waits for the explanation, and some process on the way may never answer."""
ANSWER_S = 2.0
"""Seconds to wait for one worker, whose user code may keep it from answering; two such waits fit into ``PATIENCE_S``."""
_NAMED = re.compile(r"(task|call|constructor) \S+ \(\S+\)")
"""Matches the beginning of a line that is about a task (``describe_call``)."""


class Explainer:
    """Explains unfinished objects and tasks from the tables of one core worker, and asks other processes for theirs."""

    def __init__(
        self,
        *,
        process: Process,
        references: ReferenceCounter,
        store: MemoryStore,
        tasks: TaskManager,
        resolver: DependencyResolver,
        submitter: NormalTaskSubmitter,
        actors: ActorManager,
        placement_groups: PlacementGroups,
        actor_receiver: ActorTaskReceiver,
    ) -> None:
        self._process = process
        self._references = references
        self._store = store
        self._tasks = tasks
        self._resolver = resolver
        self._submitter = submitter
        self._placement_groups = placement_groups
        self.actors = ActorExplainer(self, process.gcs, tasks, actors, placement_groups, actor_receiver)

    async def explain_in_time(self, object_id: bytes, owner: Address) -> list[str]:
        """Explain an object to a user, within ``PATIENCE_S`` even if a process does not answer."""
        return await _in_time(self.explain(object_id, owner), short(object_id))

    async def explain_actor_in_time(self, actor_id: bytes, owner: Address) -> list[str]:
        """Explain an actor to a user, within ``PATIENCE_S`` even if a process does not answer."""
        return await _in_time(self.actors.explain_actor(actor_id, owner), f"actor {short_actor(actor_id)}")

    async def explain(self, object_id: bytes, owner: Address | None, hops: int = 0) -> list[str]:
        """Explain an object: one line per link of the chain, the object itself first."""
        stored = self._store.objects.get(object_id)
        is_ours = owner is None or owner.worker_id == self._process.address.worker_id
        if stored is not None and (is_ours or stored.place is None):
            return [f"{short(object_id)} is ready" + (" (it is an error)" if stored.is_error else "")]
        if hops >= MAX_HOPS:
            return ["..."]
        if owner is not None and not is_ours:
            return await self._ask_owner(object_id, owner, hops)
        group_id = self._placement_groups.group_awaited_by(object_id)
        if group_id is not None:
            text, _ = await self._placement_groups.explain(group_id)
            return [f"{short(object_id)} is ready when its placement group is", text]
        task = self._tasks.tasks.get(task_of(object_id))
        if task is None:
            known = self.actors.describe_here(task_of(object_id))
            return [known or f"{short(object_id)}: no task makes it any more (it was freed, or never existed)"]
        lines = await self.explain_task(task, hops)
        return lines if task.needs is None else [f"{short(object_id)} was lost and is being made again", *lines]

    async def _ask_owner(self, object_id: bytes, owner: Address, hops: int) -> list[str]:
        try:
            return (await self._process.peers.to(owner).call(Explain(object_id, hops + 1))).lines
        except PlatformError as error:
            return [f"{short(object_id)}: its owner, worker {short(owner.worker_id)}, cannot be reached: {error}"]

    async def explain_task(self, task: PendingTask, hops: int) -> list[str]:
        """Explain a task, an actor's call or a constructor: one line per link of the chain."""
        if hops >= MAX_HOPS:
            return ["..."]
        if is_of_actor(task):
            return await self.actors.explain_call(task, hops)
        name = describe_call(task)
        if task.state is PUSHED:
            return [f"{name} {self._where(task)}", *await self._ask_worker(task, hops)]
        if task.state is QUEUED:
            return [f"{name} waits for a worker: needs {self._needs(task)}", *await self._explain_lease(task)]
        missing = self._resolver.missing_of(task)
        if not missing:
            return [f"{name} is retried after a pause (attempt {task.attempt})"]
        owners = dict(task.slots)
        arguments = [object_id for object_id in missing if object_id in owners]
        if not arguments:
            return [f"{name} waits for its function, which is being exported to the gcs"]
        line = f"{name} waits for {len(arguments)} argument{'s' if len(arguments) != 1 else ''}"
        return [line, *await self.explain(arguments[0], owners[arguments[0]], hops + 1)]

    async def explain_wait(self, task_id: bytes, hops: int) -> list[str]:
        """Explain what a task that runs in this process waits for, in ``get`` or ``wait``; nothing if it does not."""
        awaited = self._store.awaited_by(task_id)
        if not awaited:
            return []
        reference = self._references.reference_of(awaited[0])
        about_first = await self.explain(awaited[0], None if reference is None else reference.owner, hops)
        return [f"it waits for {len(awaited)} object{'s' if len(awaited) != 1 else ''}", *about_first]

    async def _ask_worker(self, task: PendingTask, hops: int) -> list[str]:
        """Ask the worker of a pushed task what the task waits for, if it is the one that runs there."""
        worker = task.worker
        if not isinstance(worker, LeasedWorker) or next(iter(worker.in_flight)) != task.sequence:
            return []
        return await self.ask(worker.address, ExplainRun(task.task_id, hops + 1))

    async def ask(self, address: Address, question: Request[Explanation]) -> list[str]:
        """Ask another process for the rest of the chain; return a line that says so if it does not answer in time."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return (await self._process.peers.to(address).call(question)).lines
        except TimeoutError:
            return [f"it has not answered for {ANSWER_S:g} s"]
        except PlatformError as error:
            return [f"it does not answer: {error}"]

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
            needs += f" on a node with labels {describe_selector(shape.labels)}"
        if not shape.strategy.group_id:
            return needs
        index = shape.strategy.bundle_index
        return f"{needs} in {'any bundle' if index == ANY_BUNDLE else f'bundle {index}'} of its placement group"

    async def _explain_lease(self, task: PendingTask) -> list[str]:
        group_id = task.prepared.template.shape.strategy.group_id
        if not group_id:
            return await self._explain_request(task)
        text, is_there = await self._placement_groups.explain(group_id)
        return [text, *await self._explain_request(task)] if is_there else [text]

    async def _explain_request(self, task: PendingTask) -> list[str]:
        request = self._submitter.request_of(task)
        if request is None:
            workers = [worker for worker in self._submitter.leased_workers() if worker.in_flight]
            return [f"it waits for one of {len(workers)} leased workers, which are busy"] if workers else []
        return [text] if (text := await self.ask_raylet(request.raylet, request.lease_id)) else []

    async def ask_raylet(self, address: Address | None, lease_id: bytes) -> str:
        """Ask a raylet why it does not grant a lease; without an address, the raylet of this node."""
        raylet = self._process.raylet if address is None else self._process.peers.to(address)
        try:
            return (await raylet.call(ExplainLease(lease_id))).text
        except PlatformError as error:
            return f"its raylet cannot be reached: {error}"


def until_it_repeats(lines: list[str]) -> list[str]:
    """Cut a chain where it comes back to a task that it has passed: those tasks wait for each other."""
    passed = set()
    for number, line in enumerate(lines):
        named = _NAMED.match(line)
        if named is not None and named[0] in passed:
            return [*lines[:number], f"{named[0]} again: they wait for each other, and none will go on"]
        if named is not None:
            passed.add(named[0])
    return lines


async def _in_time(answer: Coroutine[Any, Any, list[str]], what: str) -> list[str]:
    try:
        async with asyncio.timeout(PATIENCE_S):
            return until_it_repeats(await answer)
    except TimeoutError:
        return [f"{what} is not ready; a process on the way to the reason did not answer in time"]
