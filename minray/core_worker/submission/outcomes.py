"""Decides the outcome of a submitted task: values, an error, another attempt, or a cancellation.

Ray: TaskManager::CompletePendingTask, FailOrRetryPendingTask; NormalTaskSubmitter::CancelTask

Every end of a task leads through ``_finish``, which stores the results, releases the arguments and removes the task from the
table. Hence each task ends exactly once.

Which attempt counts: a reply reaches ``on_reply`` only while its task is pushed to the worker, or stream of calls, from
which it comes (``LeaseClient._on_pushed``, ``ActorManager._on_pushed``). A worker that was given up has no task any more, so
its late reply is dropped. Copies in object stores and items of generators carry the number of their attempt instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from minray.common.ids import return_id, short
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.leased_worker import LeasedWorker
from minray.core_worker.records.pending_task import FAILED as TASK_FAILED
from minray.core_worker.records.pending_task import FINISHED, PUSHED, QUEUED, WAITING, CallStream, PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.values import from_values
from minray.core_worker.submission.actor_clients import ActorClients
from minray.core_worker.submission.death_certificates import error_of_worker
from minray.core_worker.submission.dependency_resolver import DependencyResolver
from minray.core_worker.submission.task_manager import TaskManager
from minray.core_worker.submission.task_ports import Recovery, Routes, Streams
from minray.errors.packed_exception import is_raised_by_body, wrap_packed_dependency
from minray.exceptions import (
    LocalRayletDiedError,
    OutOfMemoryError,
    RayError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
)
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import FAILED, OK, CancelTask, PushTaskReply, Rerun
from minray.protocol.raylet import ENVIRONMENT_FAILED, GROUP_REMOVED, KillWorker, LeaseFailure, LeaseReply
from minray.rpc.connection import ignore

logger = logging.getLogger(__name__)

MAX_MEMORY_DELAY_S = 60.0
"""Maximum seconds before a task that was killed for its node's memory is tried again; the delay doubles up to this."""


class TaskOutcomes:
    """Decides the outcomes of one process's tasks."""

    def __init__(
        self,
        *,
        process: Process,
        tasks: TaskManager,
        resolver: DependencyResolver,
        references: ReferenceCounter,
        store: MemoryStore,
        objects: Objects,
        borrowing: Borrowing,
        directory: ObjectDirectory,
        handles: ActorClients,
        streams: Streams,
        recovery: Recovery,
        routes: Routes,
        forget_place: Callable[[bytes], None],
        on_failed: Callable[[PendingTask, StoredObject | None], None],
    ) -> None:
        """Serve one process. ``forget_place`` drops the known place of another owner's object. ``on_failed`` hears of each
        failed task, with its error if a result of it has one."""
        self._process = process
        self._tasks = tasks
        self._resolver = resolver
        self._references = references
        self._store = store
        self._objects = objects
        self._borrowing = borrowing
        self._directory = directory
        self._handles = handles
        self._streams = streams
        self._recovery = recovery
        self._routes = routes
        self._forget_place = forget_place
        self._on_failed = on_failed
        self._lost_because = ""
        """Reason why the cluster is gone; empty as long as it is there."""

    # --- from the dependency resolver

    def on_failed_argument(self, task: PendingTask, stored: StoredObject) -> None:
        """Fail a task with the error of its argument; its body does not run (G1)."""
        packed = wrap_packed_dependency(bytes(stored.data), task.prepared.template.name)
        if task.prepared.template.actor is not None:
            self._routes.on_constructor_failed(task, packed)
        else:
            stored.hand_over()
            origin = stored.origin or stored
            self._finish_with_failure(task, StoredObject(packed, (), True, (), origin=origin))
            self._routes.on_ended_early(task)

    # --- from the lease client, and from the actor manager

    def on_reply(self, task: PendingTask, reply: PushTaskReply, buffers: Sequence[Any]) -> None:
        """Decide about a task whose present attempt was answered; its caller has dropped replies of earlier attempts."""
        if reply.status in (OK, FAILED):
            task.prepared.on_duration(reply.duration_us)
        if reply.status == OK:
            values: list[StoredObject | None] = [*from_values(reply.values, buffers)]
            for index in task.unwanted:
                values[index - 1] = None
            contradiction = None if task.stream is None else self._streams.contradiction(task)
            if contradiction is None:
                self._finish(task, FINISHED, values)
            else:
                self._finish_with_system_error(task, contradiction)
        elif reply.status == FAILED and reply.retryable and self._tasks.begin_retry(task):
            self.retry(task)
        else:
            *yielded, error = from_values(reply.values, buffers)
            is_unexpected = reply.status == FAILED and (task.prepared.client is None or is_raised_by_body(bytes(error.data)))
            finish = self._finish_with_failure if is_unexpected else self._finish_with_error  # an actor's exit is expected
            finish(task, error, yielded)

    def on_unstarted(self, tasks: list[PendingTask]) -> list[PendingTask]:
        """Decide about pushed tasks that never began; return those that may be pushed again at once.

        These are the tasks whose arguments still exist. The others are cancelled, or wait for their arguments.
        """
        again = []
        for task in tasks:
            if task.state is not PUSHED:
                continue  # it has ended meanwhile
            if task.cancelled:
                self._finish_cancelled(task)
            elif self._resolver.is_resolved(task):
                again.append(task)
            else:
                self._wait_again(task)
        return again

    def on_missing(self, object_ids: Sequence[bytes]) -> None:
        """Forget the places of other owners' objects that a worker reports as being made again."""
        for object_id in object_ids:
            reference = self._references.reference_of(object_id)
            if reference is not None and reference.owner is not None:
                self._resolver.forget([object_id])
                self._forget_place(object_id)

    def _wait_again(self, task: PendingTask) -> None:
        """Move a task whose arguments were lost back to WAITING and resolve them again."""
        self._tasks.move(task, WAITING)
        self._resolver.resolve(task)

    def rerun(self, task: PendingTask) -> Rerun:
        """Return which results and items a later attempt of a task makes."""
        if task.needs is not None:
            task.unwanted = self._recovery.unwanted(task)
        if task.stream is None:
            return Rerun(list(task.unwanted), 0, [])
        task.items_lost = dict.fromkeys(self._streams.lost_items(task))
        return Rerun(list(task.unwanted), task.stream.arrived, list(task.items_lost))

    def on_died(
        self, task: PendingTask, worker: LeasedWorker, failure: LeaseFailure | None, *, is_preempted: bool = False
    ) -> None:
        """Decide about a task whose worker died (G16, G17).

        ``failure`` is None if the whole node died, or cannot be reached from here. ``is_preempted``: the node was
        preempted before (G21).
        """
        if task.state is not PUSHED:
            return
        raylet = worker.raylet or self._process.raylet_address
        assert raylet is not None, "tasks run when this process is registered"
        self.discard_attempt(task, raylet)
        if task.cancelled:
            self._finish_cancelled(task)
        elif failure is not None and failure.group_removed:  # G106: another attempt has no bundle to run in
            reason = "its placement group was removed while it ran"
            removed = TaskPlacementGroupRemoved(task_name=task.prepared.template.name, reason=reason)
            self._finish_with_system_error(task, removed)
        elif failure is not None and failure.memory_total:
            self._on_killed_for_memory(task, failure)
        elif self._tasks.begin_retry(task, is_preempted if failure is None else failure.preempted):
            self.retry(task)
        else:
            name = task.prepared.template.name
            error = error_of_worker(name, self._process.config.node_id, worker, failure)
            self._finish_with_failure(task, self._objects.as_error(error, name))

    def _on_killed_for_memory(self, task: PendingTask, failure: LeaseFailure) -> None:
        """Retry a task that was killed for its node's memory, without limit, unless it has ``max_retries=0`` (G20).

        The delay doubles with each attempt.
        """
        delays = self._tasks.retry_after_memory(task)
        if delays is not None:
            base_s = self._process.config.system_config.task_oom_retry_delay_base_ms / 1000
            self.retry(task, min(base_s * delays, MAX_MEMORY_DELAY_S))
            return
        error = OutOfMemoryError(
            task_name=task.prepared.template.name,
            pid=failure.pid,
            used_bytes=failure.memory_used,
            capacity_bytes=failure.memory_total,
            reason=failure.doom,
        )
        self._finish_with_system_error(task, error)

    def discard_attempt(self, task: PendingTask, raylet: Address) -> None:
        """Free the large results that a dead attempt may have put into its node's store."""
        made = [object_id for index, object_id in enumerate(task.result_ids(), 1) if index not in task.unwanted]
        made += self._streams.unreported(task)
        self._directory.discard_copies(made, task.attempt, raylet)

    def on_unschedulable(self, tasks: Sequence[PendingTask], reply: LeaseReply) -> None:
        for task in tasks:
            name = task.prepared.template.name
            if reply.kind == ENVIRONMENT_FAILED:
                error: RayError = RuntimeEnvSetupError(reason=reply.reason)
            elif reply.kind == GROUP_REMOVED:
                error = TaskPlacementGroupRemoved(task_name=name, reason=reply.reason)
            else:
                error = TaskUnschedulableError(task_name=name, reason=reply.reason)
            self._finish_with_system_error(task, error)

    # --- endings

    def retry(self, task: PendingTask, delay_s: float | None = None) -> None:
        """Begin the next attempt of a task. In a pause before that, the task is WAITING, so that it can be cancelled."""
        if delay_s is None:
            delay_s = self._process.config.system_config.task_retry_delay_ms / 1000
        logger.debug("task %s is tried again (attempt %d)", short(task.task_id), task.attempt)
        if delay_s:
            self._tasks.move(task, WAITING)
            asyncio.get_running_loop().call_later(delay_s, self._on_pause_over, task)
        elif self._resolver.is_resolved(task):
            self._routes.on_task_ready(task)
        else:
            self._wait_again(task)

    def _on_pause_over(self, task: PendingTask) -> None:
        if task.state is WAITING:
            self._resolver.resolve(task)

    def finish_constructor(self, task: PendingTask, state: str) -> None:
        """End the task of a constructor that will not be called again."""
        self._finish(task, state, ())

    def finish_with_error(self, task: PendingTask, error: RayError) -> None:
        """Fail a call that its actor will not answer, or a task too large to be sent; a cancelled one ends as cancelled."""
        if task.cancelled:
            self._finish_cancelled(task)
        else:
            self._finish_with_system_error(task, error)

    def _finish(self, task: PendingTask, state: str, values: Sequence[StoredObject | None]) -> None:
        """Store the results, release the arguments and remove the task from the table; None is an unwanted result."""
        self._tasks.move(task, state)
        if state is TASK_FAILED:
            self._on_failed(task, values[-1] if values else None)
        held = task.held_ids()
        self._recovery.remember(task, values)
        if task.stream is not None:
            values = [self._streams.on_ended(task, values[0])]
        for index, stored in enumerate(values, 1):
            if stored is not None:
                self._objects.on_result(return_id(task.task_id, index), stored)  # if it is lost by now, the task runs again
        if held:
            effects = Effects()
            self._references.remove_submitted(held, effects)
            self._borrowing.apply(effects)
        if task.unwanted or task.has_lost_results:
            self._recovery.look_after(task)
        if task.prepared.client is not None:
            task.prepared.client.ended += 1
            if task.handle_id:
                self._handles.let_go(task)

    def _finish_with_failure(self, task: PendingTask, error: StoredObject, yielded: Sequence[StoredObject] = ()) -> None:
        """Fail a task with an error that its user does not expect: the user has neither cancelled it nor ended its actor.

        An error that no result will hold is reported as unseen at once.
        """
        is_read = task.stream is not None and self._streams.is_wanted(task.task_id)
        error.unseen = task.prepared.template.num_returns - len(yielded) + is_read
        if not error.unseen:
            error.unseen = 1
            self._objects.on_unseen(error)
        self._finish_with_error(task, error, yielded)

    def _finish_with_error(self, task: PendingTask, error: StoredObject, yielded: Sequence[StoredObject] = ()) -> None:
        """Fail a task: its return values are the error, except those that a generator has yielded before."""
        self._finish(task, TASK_FAILED, [*yielded, *[error] * (task.prepared.template.num_returns - len(yielded))])

    def _finish_with_system_error(self, task: PendingTask, error: RayError) -> None:
        self._finish_with_error(task, self._objects.as_error(error, task.prepared.template.name))

    def _finish_cancelled(self, task: PendingTask) -> None:
        name = task.prepared.template.name
        self._finish_with_system_error(task, TaskCancelledError(task_name=name, task_id_hex=task.task_id.hex()))

    def on_lost_cluster(self, task: PendingTask) -> None:
        """Fail a task that was submitted after the cluster was gone."""
        for object_id in task.result_ids():
            self._references.add_owned(object_id)
        if task.prepared.template.is_streaming:
            self._streams.begin_stream(task)
        node_id = self._process.config.node_id.hex()
        self.on_not_begun(task, LocalRayletDiedError(node_id=node_id, reason=self._lost_because))

    def on_not_begun(self, task: PendingTask, reason: RayError) -> None:
        """Fail a task that is not in the table, because the cluster is gone or a bug of ours broke its submission.

        Its results become errors, so that no thread waits for them.
        """
        error = self._objects.as_error(reason, task.prepared.template.name)
        for object_id in task.result_ids():
            self._objects.on_value(object_id, error)
        if task.stream is not None:
            self._streams.on_ended(task, error)

    def fail_all(self, reason: str) -> None:
        """Fail all unfinished tasks because the cluster is gone; objects that are waited for become errors."""
        self._lost_because = reason
        error = LocalRayletDiedError(node_id=self._process.config.node_id.hex(), reason=reason)
        for task in list(self._tasks.tasks.values()):
            if task.task_id in self._tasks.tasks:  # else it has just ended with the error of its argument
                self._finish_with_system_error(task, error)
        for object_id in self._store.awaited():
            self._objects.put_error(object_id, error)

    # --- cancelling

    def cancel_task(self, task: PendingTask, force: bool, recursive: bool) -> None:
        """Cancel a task (G40-G43, G46); idempotent, and the task's references always resolve."""
        force = force and task.prepared.client is None  # force would end the actor's other calls (G44, G46)
        if task.state in (WAITING, QUEUED):
            task.cancelled = True
            if task.state is QUEUED:
                self._routes.remove_queued(task)
            self._finish_cancelled(task)
            self._routes.on_ended_early(task)
        elif not task.cancelled or force:
            task.cancelled = True
            self._process.begin(self._cancel_pushed(task, force, recursive), f"cancel({short(task.task_id)})")

    async def _cancel_pushed(self, task: PendingTask, force: bool, recursive: bool) -> None:
        """Ask the worker to cancel a task, again while it does not answer; with ``force``, ask its raylet to kill it."""
        patience_s = self._process.config.system_config.cancellation_retry_ms / 1000
        while task.state is PUSHED:
            worker = task.worker
            if not isinstance(worker, LeasedWorker | CallStream):
                return
            request = CancelTask(task.task_id, task.attempt, force, recursive)
            try:
                async with asyncio.timeout(patience_s):
                    await self._process.peers.to(worker.address).call(request)
                    if not force:
                        return
                    await asyncio.sleep(patience_s)
            except TimeoutError:
                pass
            except PlatformError as error:
                logger.debug("cancelling %s: %r", short(task.task_id), error)
                await asyncio.sleep(patience_s)
            if force and isinstance(worker, LeasedWorker) and task.state is PUSHED and task.worker is worker:
                raylet = self._process.raylet if worker.raylet is None else self._process.peers.to(worker.raylet)
                raylet.send(KillWorker(worker.lease_id, "cancelled by force"), ignore)
