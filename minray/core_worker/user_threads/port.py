"""The port through which user threads reach their process: the parts of the core worker that they may use.

Ray: CoreWorkerProcess::GetCoreWorker in src/ray/core_worker/core_worker_process.h, which hands out the whole core worker

``CoreWorker`` makes the port when all its parts exist. A field that a user thread may use directly says so; for the others
the thread posts to the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from minray.core_worker.execution.actor_host import ActorHost
from minray.core_worker.execution.function_manager import FunctionManager
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.core_worker.fetching.store_provider import StoreProvider
from minray.core_worker.fetching.value_fetcher import ValueFetcher
from minray.core_worker.fetching.waiting_threads import WaitingThreads
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.call_sites import CallSites
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_deletion import ObjectDeletion
from minray.core_worker.ownership.object_locator import ObjectLocator
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import FunctionExport, PendingTask
from minray.core_worker.submission.actor_manager import ActorManager
from minray.core_worker.submission.generators import Generators
from minray.core_worker.submission.named_actors import NamedActors
from minray.core_worker.submission.placement_groups import PlacementGroups
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.base import Address
from minray.protocol.state import StateAnswers


class TaskSubmission(Protocol):
    """Receives the tasks and definitions that user threads submit; all methods run on the loop."""

    def submit(self, task: PendingTask) -> None:
        """Submit the call of a remote function or of an actor's method."""

    def export(self, export: FunctionExport, pickled: bytes) -> None:
        """Store a definition in the gcs, so that its tasks can run."""

    def cancel(self, object_id: bytes, owner: Address, force: bool, recursive: bool) -> None:
        """Cancel the task that makes an object."""


class ExplainInTime(Protocol):
    """Explanations for users, within a few seconds even if a process does not answer."""

    async def explain_in_time(self, object_id: bytes, owner: Address) -> list[str]:
        """Explain why an object is not ready."""

    async def explain_actor_in_time(self, actor_id: bytes, owner: Address) -> list[str]:
        """Explain what an actor does, or what its creation waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPort:
    """The parts of a process that user threads may reach."""

    process: Process
    """Safe in any thread."""
    context: JobContext
    """The job of this process; safe in any thread."""
    drop_ref: Callable[[bytes], None]
    """Function that the destructor of an ObjectRef calls, in any thread."""
    # --- objects
    store: MemoryStore
    """User threads look values up in its ``objects``, and put their own values there."""
    references: ReferenceCounter
    objects: Objects
    """``make_refs`` is safe in any thread."""
    call_sites: CallSites | None
    """Records where references are made; None if that is switched off. Safe in any thread."""
    provider: StoreProvider
    """``put`` is safe in any thread."""
    fetcher: ValueFetcher
    """``get`` waits in the calling thread."""
    waiting: WaitingThreads
    """``must_fetch`` and ``follow`` are safe in any thread."""
    locator: ObjectLocator
    deletion: ObjectDeletion
    # --- tasks and actors
    submission: TaskSubmission
    tasks: TaskManager
    generators: Generators
    actors: ActorManager
    """``client`` is safe in any thread."""
    named_actors: NamedActors
    placement_groups: PlacementGroups
    """``describe``, ``announce`` and ``is_known`` are safe in any thread."""
    # --- what runs in this process
    functions: FunctionManager
    """``load`` is called in user threads."""
    executor: TaskExecutor
    host: ActorHost
    """Host of the actor of this process, which is ``host.receiver.actor``; None if there is none."""
    # --- explanations and state
    explainer: ExplainInTime
    answers: StateAnswers
    """This process's answers when the state of the whole cluster is asked for."""
