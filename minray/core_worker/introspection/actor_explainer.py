"""The actors' part of ``why``: explains why an actor is not alive, and why its call is not answered.

Ray: has no counterpart; its users read logs.

Three processes each know a part. The gcs knows the actor's state, the caller knows which of its calls were sent, and the
actor's process knows what it does with the calls that it received. The explainer asks them in turn. An answer may lead on
to an argument, a resource, a running call or a death.
"""

from __future__ import annotations

from typing import Protocol

from minray.common.ids import actor_of, creation_task_of, return_id, short, short_actor
from minray.common.shown import cut
from minray.core_worker.execution.actor_task_receiver import ActorTaskReceiver
from minray.core_worker.records.pending_task import PUSHED, WAITING, ActorClient, CallStream, PendingTask
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.submission.actor_manager import ActorManager
from minray.core_worker.submission.placement_groups import PlacementGroups
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import with_last_line
from minray.platform.base import PlatformError
from minray.protocol.actor import (
    ALIVE,
    DEAD,
    DEPENDENCIES_UNREADY,
    RESTARTING,
    ActorInfo,
    ExplainActor,
    ExplainCall,
)
from minray.protocol.base import Address, Request
from minray.protocol.core_worker import ExplainRun, Explanation
from minray.rpc.connection import Peer

MAX_NAMED = 3
"""Number of running calls that a line names, so that it stays short; the line counts the others."""


class ExplainPort(Protocol):
    """The explanations that lead on from an actor: of objects, of tasks, and by other processes."""

    async def explain(self, object_id: bytes, owner: Address | None, hops: int = 0) -> list[str]:
        """Explain an object that is not ready."""

    async def explain_task(self, task: PendingTask, hops: int) -> list[str]:
        """Explain a task, an actor's call or a constructor that has not ended."""

    async def explain_wait(self, task_id: bytes, hops: int) -> list[str]:
        """Explain what a task that runs in this process waits for; nothing if it does not wait."""

    async def ask(self, address: Address, question: Request[Explanation]) -> list[str]:
        """Ask another process for the rest of the chain."""

    async def ask_raylet(self, address: Address | None, lease_id: bytes) -> str:
        """Ask a raylet why it does not grant a lease."""


class ActorExplainer:
    """Explains actors and their calls from the tables of one core worker, and asks other processes for theirs."""

    def __init__(
        self,
        others: ExplainPort,
        gcs: Peer,
        tasks: TaskManager,
        actors: ActorManager,
        placement_groups: PlacementGroups,
        actor_receiver: ActorTaskReceiver,
    ) -> None:
        self._others = others
        self._gcs = gcs
        self._tasks = tasks
        self._actors = actors
        self._placement_groups = placement_groups
        self._receiver = actor_receiver

    # --- actors

    async def explain_actor(self, actor_id: bytes, owner: Address, hops: int = 0) -> list[str]:
        """Say what an actor is doing, or what its creation waits for."""
        try:
            known = await self._gcs.call(ExplainActor(actor_id, owner))
        except PlatformError as error:
            return [f"actor {short_actor(actor_id)}: the gcs cannot be reached: {error}"]
        info = known.actor
        if info is None:
            return [f"actor {short_actor(actor_id)} is not known to the gcs yet"]
        lines = [_describe(info)]
        if info.state == ALIVE and info.address is not None:
            lines += await self._ask_process(info, b"", 0, hops)
        elif info.state == DEPENDENCIES_UNREADY:
            lines += await self._explain_constructor(actor_id, info.owner, hops)
        elif known.raylet is not None:
            lines += await self._explain_lease(known.raylet, known.lease_id, known.group_id)
        elif known.text:
            lines.append(known.text)
            if known.worker is not None:
                constructor = creation_task_of(actor_id, info.owner.worker_id)
                lines += await self._others.ask(known.worker, ExplainRun(constructor, hops + 1))
        return lines

    async def _explain_lease(self, raylet: Address, lease_id: bytes, group_id: bytes) -> list[str]:
        if group_id:
            text, is_there = await self._placement_groups.explain(group_id)
            if not is_there:
                return [text]
        text = await self._others.ask_raylet(raylet, lease_id)
        return [f"its lease {text}"] if text else []

    async def _explain_constructor(self, actor_id: bytes, owner: Address, hops: int) -> list[str]:
        task_id = creation_task_of(actor_id, owner.worker_id)
        return await self._others.explain(return_id(task_id, 1), owner, hops + 1)

    def describe_here(self, task_id: bytes) -> str | None:
        """Describe the actor that a constructor creates, from this process's own record; None if there is none.

        The gcs may not know the actor yet.
        """
        info = self._actors.info_of(actor_of(task_id))
        return None if info is None else _describe(info)

    # --- calls

    async def explain_call(self, task: PendingTask, hops: int) -> list[str]:
        """Explain an actor's call, or a constructor, whose arguments are ready."""
        name = describe_call(task)
        client = task.prepared.client
        if client is None:
            return [f"{name} is on its way to the gcs, which creates actor {short_actor(actor_of(task.task_id))}"]
        if task.state is not PUSHED:
            return await self._explain_unsent(name, task, client, hops)
        stream, info = task.worker, client.info
        if not isinstance(stream, CallStream) or info is None:
            line = f"{name} was sent to an actor that cannot be reached any more; it may have run"
            return [line, *await self.explain_actor(client.actor_id, client.owner, hops)]
        said = await self._ask_process(info, task.task_id, task.attempt, hops)
        return [f"{name} was sent to {_describe(info)}", *said]

    async def _explain_unsent(self, name: str, task: PendingTask, client: ActorClient, hops: int) -> list[str]:
        if client.stream is None:
            about = await self.explain_actor(client.actor_id, client.owner, hops)
            return [f"{name} waits for its actor", *about]
        ahead = self._ahead_of(task, client)
        if not ahead:
            return [f"{name} is about to be sent"]
        line = f"{name} waits behind {_calls(len(ahead))} of this process, for they are taken in order; the first:"
        return [line, *await self._others.explain_task(ahead[0], hops + 1)]

    def _ahead_of(self, task: PendingTask, client: ActorClient) -> list[PendingTask]:
        unended = self._tasks.tasks
        ahead = []
        for other in client.queue:
            if other is task:
                break
            if other.task_id in unended:
                ahead.append(other)
        return ahead

    async def _ask_process(self, info: ActorInfo, task_id: bytes, attempt: int, hops: int) -> list[str]:
        assert info.address is not None
        return await self._others.ask(info.address, ExplainCall(info.actor_id, task_id, attempt, hops + 1))

    # --- the actor's own process

    async def explain_here(self, request: ExplainCall) -> list[str]:
        """Say what this process does with one call of its actor, or with all its calls if none is named."""
        text, running = self._look_here(request)
        waits = [] if running is None else await self._others.explain_wait(running.task_id, request.depth)
        return [text, *waits]

    def _look_here(self, request: ExplainCall) -> tuple[str, ReceivedTask | None]:
        """Return an explanation, and the running call that it depends on; None if there is none, or more than one."""
        receiver = self._receiver
        unanswered = receiver.unanswered()
        running = [task for task in unanswered if task.is_claimed()]
        asked = next((task for task in unanswered if task.task_id == request.task_id), None)
        if receiver.actor is None or receiver.actor.actor_id != request.actor_id:
            return "it does not live there any more", None
        if not request.task_id:
            waiting = len(unanswered) - len(running)
            others = f", {_calls(waiting)} wait{'s' if waiting == 1 else ''}" if waiting else ""
            return f"{_named(running)}{others}", _only(running)
        if asked is None:
            return "the call has not arrived, or its answer is on its way", None
        if asked.is_claimed():
            return "it runs", asked
        if asked.fetching is not None:
            missing = ", ".join(short(object_id) for object_id, _ in asked.fetching)
            return f"its arguments are being brought to the actor's node: {missing}", None
        ahead = sum(not task.is_claimed() for task in unanswered[: unanswered.index(asked)])
        before = f"{_calls(ahead)} wait{'s' if ahead == 1 else ''} before it"
        return f"it waits for its turn: {_named(running)}, {before}", _only(running)


def describe_call(task: PendingTask) -> str:
    """Name a task, a call or a constructor for a user."""
    template = task.prepared.template
    kind = "call" if task.prepared.client is not None else "constructor" if template.actor is not None else "task"
    return f"{kind} {cut(template.name)} ({short(task.task_id)})"


def is_of_actor(task: PendingTask) -> bool:
    """Whether a task is an actor's call or a constructor with ready arguments: no lease of ours decides when it runs."""
    prepared = task.prepared
    return task.state is not WAITING and (prepared.client is not None or prepared.template.actor is not None)


def _describe(info: ActorInfo) -> str:
    name = f" {info.name!r}" if info.name else ""
    actor = f"actor {short_actor(info.actor_id)} ({info.class_name}{name})"
    death = with_last_line(info.death.message, info.death.error).partition("\n")[0] if info.death is not None else ""
    if info.state == ALIVE and info.address is not None:
        return f"{actor}, which lives in pid={info.pid}, node {short(info.address.node_id)}"
    if info.state == DEAD:
        return f"{actor}, which is dead: {death}"
    if info.state == RESTARTING:
        of = f" of {info.max_restarts}" if info.max_restarts >= 0 else ""
        return f"{actor}, which is being restarted (restart {info.restarts}{of}): {death}"
    return f"{actor}, which is being created"


def _calls(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"


def _only(running: list[ReceivedTask]) -> ReceivedTask | None:
    return running[0] if len(running) == 1 else None


def _named(running: list[ReceivedTask]) -> str:
    if not running:
        return "no call runs"
    names = ", ".join(cut(task.header.template.name) for task in running[:MAX_NAMED])
    others = f" and {len(running) - MAX_NAMED} more" if len(running) > MAX_NAMED else ""
    return f"{names}{others} run{'s' if len(running) == 1 else ''}"
