"""The port through which user threads reach their process: its record, and the parts that they may use.

Ray: CoreWorkerProcess::GetCoreWorker in src/ray/core_worker/core_worker_process.h, which hands out the whole core worker

``CoreWorker`` makes it when its parts are there. Fields that a user thread may use directly say so; it posts to the others.
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


class Submission(Protocol):
    """The entrance of what user threads submit; all of it on the loop."""

    def submit(self, task: PendingTask) -> None:
        """A user thread has called a remote function, or an actor's method."""

    def export(self, export: FunctionExport, pickled: bytes) -> None:
        """A definition is about to be used."""

    def cancel(self, object_id: bytes, owner: Address, force: bool, recursive: bool) -> None:
        """The task that makes this object is not wanted any more."""


class ExplainInTime(Protocol):
    """Explanations for people, who do not wait for a process that does not answer."""

    async def explain_in_time(self, object_id: bytes, owner: Address) -> list[str]:
        """Say why an object is not ready."""

    async def explain_actor_in_time(self, actor_id: bytes, owner: Address) -> list[str]:
        """Say what an actor does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPort:
    """The parts of a process that user threads may reach."""

    process: Process
    """Safe in any thread."""
    context: JobContext
    """The job; safe in any thread."""
    drop_ref: Callable[[bytes], None]
    """Called by the destructor of an ObjectRef, in any thread."""
    # --- objects
    store: MemoryStore
    """User threads look values up, and put their own."""
    references: ReferenceCounter
    objects: Objects
    """``make_refs`` is safe in any thread."""
    call_sites: CallSites | None
    """None: where references are made is not recorded. Safe in any thread."""
    provider: StoreProvider
    """``put`` is safe in any thread."""
    fetcher: ValueFetcher
    """``get`` waits in the calling thread."""
    waiting: WaitingThreads
    """``must_fetch`` and ``follow`` are safe in any thread."""
    locator: ObjectLocator
    deletion: ObjectDeletion
    # --- tasks and actors
    submission: Submission
    tasks: TaskManager
    generators: Generators
    actors: ActorManager
    """``client`` is safe in any thread."""
    named_actors: NamedActors
    placement_groups: PlacementGroups
    """``describe``, ``announce`` and ``is_known`` are safe in any thread."""
    # --- what runs here
    functions: FunctionManager
    """``load`` is called in user threads."""
    executor: TaskExecutor
    host: ActorHost
    """The actor that lives here, if there is one, is in its receiver."""
    # --- people want to know
    explainer: ExplainInTime
    answers: StateAnswers
    """The answers of this process when the whole cluster is asked."""
