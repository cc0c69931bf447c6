"""The owner's side of tasks: where each task goes from its submission to its end.

Ray: CoreWorker::SubmitTask, SubmitActorTask and CancelTask in src/ray/core_worker/core_worker.cc, and its task_submission/

A task goes to ``submitter`` (and over a leased worker) if it is a normal one, to ``actors.submitter`` if it is an actor's
call, and to ``actors`` if it is an actor's constructor. This class makes these parts and knows their order: first the
arguments are held, then they are resolved, then the task is queued. All methods run on the loop of the process.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.common.ids import LeaseIdFactory, return_id, task_of
from minray.core_worker.fetching.future_resolver import FutureResolver
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import WAITING, FunctionExport, PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.user_calls import failure
from minray.core_worker.submission.actor_clients import ActorClients
from minray.core_worker.submission.actor_manager import ActorManager
from minray.core_worker.submission.dependency_resolver import DependencyResolver
from minray.core_worker.submission.dynamic_generators import AllGenerators
from minray.core_worker.submission.generators import Generators
from minray.core_worker.submission.lease_client import LeaseClient
from minray.core_worker.submission.lease_policy import LocalityAwareLeasePolicy
from minray.core_worker.submission.object_recovery_manager import ObjectRecoveryManager
from minray.core_worker.submission.outcomes import TaskOutcomes
from minray.core_worker.submission.task_manager import TaskManager
from minray.exceptions import RaySystemError
from minray.policies.names import locality_policy
from minray.protocol.base import Address
from minray.protocol.core_worker import CancelObject
from minray.rpc.connection import ignore


class TaskSubmission:
    """Submits and cancels the tasks of one process. It makes the parts of this room and implements their ``Routes``."""

    def __init__(
        self,
        process: Process,
        tasks: TaskManager,
        references: ReferenceCounter,
        store: MemoryStore,
        borrowing: Borrowing,
        directory: ObjectDirectory,
        objects: Objects,
        futures: FutureResolver,
        *,
        forget_place: Callable[[bytes], None],
        on_failed: Callable[[PendingTask, StoredObject | None], None],
    ) -> None:
        """Serve one process.

        ``forget_place`` drops the known place of another owner's object. ``on_failed`` hears of each task that has failed,
        with its error if one of its results holds it.
        """
        self._process = process
        self._references = references
        config = process.config
        self.tasks = tasks
        self.clients = ActorClients(references, borrowing)
        self.resolver = DependencyResolver(config.worker_id, store, futures, self.on_task_ready, self._on_failed_argument)
        self.generators = self._make_generators(store, borrowing, directory, objects)
        self.recovery = self._make_recovery(store, borrowing, objects)
        self.outcomes = TaskOutcomes(
            process=process,
            tasks=self.tasks,
            resolver=self.resolver,
            references=references,
            store=store,
            objects=objects,
            borrowing=borrowing,
            directory=directory,
            handles=self.clients,
            streams=self.generators,
            recovery=self.recovery,
            routes=self,
            forget_place=forget_place,
            on_failed=on_failed,
        )
        self.lease_policy = LocalityAwareLeasePolicy(
            config.node_id,
            directory.copies_of,
            self.resolver.place_of,
            config.system_config.locality_aware_leasing_enabled,
            locality_policy(config.system_config, process.platform),
        )
        lease_ids, best_raylet = LeaseIdFactory(config.worker_id), self.lease_policy.best_raylet
        self.lease_client = LeaseClient(process, self.tasks, self.outcomes, lease_ids, best_raylet)
        self.submitter = self.lease_client.submitter
        self.actors = ActorManager(process, self.tasks, references, self.clients, self.outcomes, self)

    def _make_generators(
        self, store: MemoryStore, borrowing: Borrowing, directory: ObjectDirectory, objects: Objects
    ) -> Generators:
        process, in_flight = self._process, self._process.config.system_config.generator_max_reports_in_flight
        record, references = process.platform.record, self._references
        return AllGenerators(
            process.address, record, self.tasks, references, store, borrowing, directory, objects, in_flight
        )

    def _make_recovery(self, store: MemoryStore, borrowing: Borrowing, objects: Objects) -> ObjectRecoveryManager:
        return ObjectRecoveryManager(
            self._process,
            self.tasks,
            self._references,
            store,
            borrowing,
            objects,
            resolve=self.resolver.resolve,
            lost_items=self.generators.lost_items,
            hurry=self.generators.hurry,
            keep_actor=self.clients.keep_handle,
        )

    # --- submitting

    def submit(self, task: PendingTask) -> None:
        """Submit a task for a user thread, which has called a remote function or an actor's method."""
        if self._process.is_exiting:
            self.outcomes.on_lost_cluster(task)
            return
        template = task.prepared.template
        try:
            for index in range(1, template.num_returns + 1):
                self._references.add_owned(return_id(task.task_id, index))
            if template.is_streaming:
                self.generators.begin_stream(task)
            self.hold_arguments(task)
            client = task.prepared.client
            if client is not None:
                self.actors.submitter.on_submitted(client, task)
            if task.slots or not task.prepared.export.done:
                self.wait_for_arguments(task)
            elif client is not None:
                self.actors.submitter.on_task_ready(client, task)
            else:
                self.submitter.on_task_ready(task, self._process.now())
        except Exception as error:
            self.outcomes.on_not_begun(task, RaySystemError(reason=failure(error)))
            raise  # to the log

    def hold_arguments(self, task: PendingTask) -> None:
        """Hold the objects that a new task refers to, and enter the task in the table of tasks."""
        if task.slots or task.nested:
            held = task.held_ids()
            self._references.add_submitted(held, [None] * len(held))
        if task.handle_id:
            self.clients.keep_handle(task)
        self.tasks.add_task(task)

    def wait_for_arguments(self, task: PendingTask) -> None:
        self.tasks.move(task, WAITING)
        self.resolver.resolve(task)

    def on_exported(self, export: FunctionExport) -> None:
        """React to a definition that the gcs has stored: its tasks may begin (G15)."""
        export.done = True
        self.resolver.on_function_exported(export.function_id)

    # --- routes of the outcomes

    def on_task_ready(self, task: PendingTask) -> None:
        """Queue a task whose arguments exist, for its first attempt or for another."""
        prepared = task.prepared
        if prepared.client is not None:
            self.actors.submitter.on_task_ready(prepared.client, task)
        elif prepared.template.actor is not None:
            self.actors.creator.on_constructor_ready(task)
        else:
            self.submitter.on_task_ready(task, self._process.now())

    def on_ended_early(self, task: PendingTask) -> None:
        """React to the end of a task that was not pushed: the actor's calls behind it go on."""
        if task.prepared.client is not None:
            self.actors.submitter.on_task_ended(task.prepared.client)

    def remove_queued(self, task: PendingTask) -> None:
        """Take a cancelled task out of its queue; an actor's queue skips an ended call when its turn comes."""
        if task.prepared.client is None:
            self.submitter.remove_queued(task, self._process.now())

    def on_constructor_failed(self, task: PendingTask, error: bytes) -> None:
        """End an actor that will never exist because an argument of its constructor is an error."""
        self.actors.creator.on_constructor_failed(task, error)

    def _on_failed_argument(self, task: PendingTask, error: StoredObject) -> None:
        self.outcomes.on_failed_argument(task, error)

    # --- ending

    def cancel_task(self, object_id: bytes, owner: Address, force: bool, recursive: bool) -> None:
        """Cancel the task that makes an object; a borrower asks the owner to do it (G47)."""
        task = self.tasks.tasks.get(task_of(object_id))
        if task is not None:
            self.outcomes.cancel_task(task, force, recursive)
        elif owner.worker_id != self._process.config.worker_id:
            self._process.peers.to(owner).send(CancelObject(object_id, force, recursive), ignore)

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        """Cancel the tasks and actor calls that a task has submitted (G46).

        An actor that the task has created is left alone: it ends with its handles, as always.
        """
        for child in self.tasks.children_of(task_id):
            if child.prepared.template.actor is None:
                self.outcomes.cancel_task(child, force, True)

    def fail_all(self, reason: str) -> None:
        """Fail all unfinished tasks because the cluster is gone."""
        self.submitter.forget_all()
        self.actors.creator.forget_constructors()
        self.outcomes.fail_all(reason)

    def close(self) -> None:
        self.actors.close()
        self.lease_client.close()
