"""What becomes of a submitted task: values, an error, another attempt, a cancellation.

Ray: TaskManager::CompletePendingTask, FailOrRetryPendingTask; NormalTaskSubmitter::CancelTask

Every way in which a task can end leads through ``_finish``, which stores the results, lets go of the arguments and forgets
the task; so each task ends exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from minray.common.ids import return_id, short
from minray.core_worker.ownership.reference_counter import Effects
from minray.core_worker.records.pending_task import FAILED as TASK_FAILED
from minray.core_worker.records.pending_task import FINISHED, PUSHED, QUEUED, WAITING, Connection, PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.values import from_values
from minray.core_worker.submission.normal_task_submitter import LeasedWorker, LeaseRequest
from minray.errors.packed_exception import is_raised_by_body, wrap_packed_dependency
from minray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import FAILED, OK, CancelTask, PushTaskReply, Rerun
from minray.protocol.raylet import ENVIRONMENT_FAILED, GROUP_REMOVED, KillWorker, LeaseFailure, LeaseReply
from minray.rpc.connection import ignore

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

logger = logging.getLogger(__name__)

MAX_MEMORY_DELAY_S = 60.0
"""The longest pause before a task is made again that was killed for memory."""


class TaskOutcomes:
    """The judge of one process's tasks."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core

    # --- from the dependency resolver

    def on_ready(self, task: PendingTask) -> None:
        prepared = task.prepared
        if prepared.client is not None:
            self._core.actors.submitter.on_task_ready(prepared.client, task)
        elif prepared.template.actor is not None:
            self._core.actors.on_constructor_ready(task)
        else:
            self._core.submitter.on_task_ready(task, self._core.now())

    def on_failed_argument(self, task: PendingTask, stored: StoredObject) -> None:
        """G1: the task fails as its argument did, and its body does not run."""
        packed = wrap_packed_dependency(bytes(stored.data), task.prepared.template.name)
        if task.prepared.template.actor is not None:
            self._core.actors.on_constructor_failed(task, packed)
        else:
            stored.hand_over()
            origin = stored.origin or stored
            self._finish_with_failure(task, StoredObject(packed, (), True, (), origin=origin))
            self._on_ended_early(task)

    def _on_ended_early(self, task: PendingTask) -> None:
        """It has ended without being pushed: an actor's calls behind it need not wait for it."""
        if task.prepared.client is not None:
            self._core.actors.submitter.on_task_ended(task.prepared.client)

    # --- from the lease client

    def on_reply(self, task: PendingTask, reply: PushTaskReply, buffers: Sequence[Any]) -> None:
        if reply.status in (OK, FAILED):
            task.prepared.on_duration(reply.duration_us)
        if reply.status == OK:
            values: list[StoredObject | None] = [*from_values(reply.values, buffers)]
            for index in task.unwanted:
                values[index - 1] = None
            contradiction = None if task.stream is None else self._core.generators.contradiction(task)
            if contradiction is None:
                self._finish(task, FINISHED, values)
            else:
                self._finish_with_system_error(task, contradiction)
        elif reply.status == FAILED and reply.retryable and self._core.tasks.may_retry(task):
            self.retry(task)
        else:
            *yielded, error = from_values(reply.values, buffers)
            is_news = reply.status == FAILED and (task.prepared.client is None or is_raised_by_body(bytes(error.data)))
            finish = self._finish_with_failure if is_news else self._finish_with_error  # that its actor exits is none
            finish(task, error, yielded)

    def on_unstarted(self, tasks: list[PendingTask]) -> None:
        again = []
        for task in tasks:
            if task.state is not PUSHED:
                continue  # it has ended meanwhile
            if task.cancelled:
                self._finish_cancelled(task)
            elif self._core.resolver.is_resolved(task):
                again.append(task)
            else:
                self._wait_again(task)
        if again and again[0].prepared.client is not None:
            for task in again:
                self.on_ready(task)
        elif again:
            self._core.submitter.on_tasks_unstarted(again, self._core.now())

    def on_missing(self, object_ids: Sequence[bytes]) -> None:
        """A worker says that these arguments are being made again: what is known of those of others is not so any more."""
        core = self._core
        for object_id in object_ids:
            reference = core.references.get(object_id)
            if reference is not None and reference.owner is not None:
                core.resolver.forget([object_id])
                core.fetcher.forget_place(object_id)

    def _wait_again(self, task: PendingTask) -> None:
        """Its arguments are lost, and may come again."""
        self._core.tasks.move(task, WAITING)
        self._core.resolver.resolve(task)

    def rerun(self, task: PendingTask) -> Rerun:
        """It is about to run, not for the first time: which of its results and items are to be made."""
        if task.needs is not None:
            task.unwanted = self._core.recovery.unwanted(task)
        if task.stream is None:
            return Rerun(list(task.unwanted), 0, [])
        task.items_lost = dict.fromkeys(self._core.generators.lost_items(task))
        return Rerun(list(task.unwanted), task.stream.arrived, list(task.items_lost))

    def on_died(self, task: PendingTask, worker: LeasedWorker, failure: LeaseFailure | None) -> None:
        """Its worker died (G16, G17); ``failure`` is None when the whole node did, or is merely out of our reach."""
        if task.state is not PUSHED:
            return
        self.discard_attempt(task, worker.raylet or self._core.raylet_address)
        if task.cancelled:
            self._finish_cancelled(task)
        elif failure is not None and failure.group_removed:  # G106: there is nowhere to try again.
            reason = "its placement group was removed while it ran"
            error = TaskPlacementGroupRemoved(task_name=task.prepared.template.name, reason=reason)
            self._finish_with_system_error(task, error)
        elif failure is not None and failure.memory_total:
            self._on_killed_for_memory(task, failure)
        elif self._core.tasks.may_retry(task, self._is_preempted(worker, failure)):
            self.retry(task)
        else:
            certificate = self._death_certificate(task, worker, failure)
            self._finish_with_failure(task, self._core.objects.as_error(certificate, task.prepared.template.name))

    def _is_preempted(self, worker: LeasedWorker, failure: LeaseFailure | None) -> bool:
        """G21: whether it was lost because its node had to go."""
        return self._core.submitter.is_preempted(worker.address.node_id) if failure is None else failure.preempted

    def _death_certificate(self, task: PendingTask, worker: LeasedWorker, failure: LeaseFailure | None) -> RayError:
        name, node_id = task.prepared.template.name, worker.address.node_id
        if failure is None:
            return NodeDiedError(task_name=name, node_id=node_id.hex())
        if failure.node_ended is not None and node_id == self._core.config.node_id:
            return LocalRayletDiedError(node_id=node_id.hex(), reason=failure.node_ended)
        if failure.node_ended is not None:
            return NodeDiedError(task_name=name, node_id=node_id.hex(), reason=failure.node_ended)
        if not failure.known or not failure.dead:
            reason = failure.cause or "its raylet does not know what became of it"
            return WorkerCrashedError(task_name=name, pid=worker.pid, node_id=node_id.hex(), reason=reason)
        return WorkerCrashedError(
            task_name=name,
            pid=failure.pid or worker.pid,
            node_id=node_id.hex(),
            exit_code=-failure.signal if failure.signal else failure.exit_code,
            stderr_tail=tuple(failure.stderr_tail),
            reason=failure.doom,
        )

    def _on_killed_for_memory(self, task: PendingTask, failure: LeaseFailure) -> None:
        """G20: made again without end, later each time, unless it has no retries at all."""
        delays = self._core.tasks.retry_after_memory(task)
        if delays is not None:
            base_s = self._core.config.system_config.task_oom_retry_delay_base_ms / 1000
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
        """It may have put large results into its node's store before it died."""
        made = [object_id for index, object_id in enumerate(task.result_ids(), 1) if index not in task.unwanted]
        made += self._core.generators.unreported(task)
        self._core.directory.discard(made, task.attempt, raylet)

    def on_unschedulable(self, request: LeaseRequest, reply: LeaseReply) -> None:
        for task in self._core.submitter.take_queue(request):
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
        """Its next attempt has begun. In a pause before that it is as if it waited for arguments: it can be cancelled."""
        if delay_s is None:
            delay_s = self._core.config.system_config.task_retry_delay_ms / 1000
        logger.debug("task %s is tried again (attempt %d)", short(task.task_id), task.attempt)
        if delay_s:
            self._core.tasks.move(task, WAITING)
            asyncio.get_running_loop().call_later(delay_s, self._on_pause_over, task)
        elif self._core.resolver.is_resolved(task):
            self.on_ready(task)
        else:
            self._wait_again(task)

    def _on_pause_over(self, task: PendingTask) -> None:
        if task.state is WAITING:
            self._core.resolver.resolve(task)

    def finish_constructor(self, task: PendingTask, state: str) -> None:
        """It will not be called again."""
        self._finish(task, state, ())

    def finish_with_error(self, task: PendingTask, error: RayError) -> None:
        """A call that its actor will not answer, whatever the reason; or a task that is too large for any worker."""
        if task.cancelled:
            self._finish_cancelled(task)
        else:
            self._finish_with_system_error(task, error)

    def _finish(self, task: PendingTask, state: str, values: Sequence[StoredObject | None]) -> None:
        """None: a result that was not wanted."""
        core = self._core
        core.tasks.move(task, state)
        held = task.held_ids()
        core.recovery.remember(task, values)
        if task.stream is not None:
            core.generators.on_ended(task, values[0])
        for index, stored in enumerate(values, 1):
            if stored is not None:
                core.objects.on_result(return_id(task.task_id, index), stored)  # which may be lost; then the task runs again
        if held:
            effects = Effects()
            core.references.remove_submitted(held, effects)
            core.borrowing.apply(effects)
        if task.unwanted or task.has_lost_results:
            core.recovery.look_after(task)
        if task.prepared.client is not None:
            task.prepared.client.ended += 1
            if task.handle_id:
                core.actors.let_go(task)

    def _finish_with_failure(self, task: PendingTask, error: StoredObject, yielded: Sequence[StoredObject] = ()) -> None:
        """This error is news to the user, who has neither cancelled the task nor ended its actor."""
        is_read = task.stream is not None and self._core.generators.streams.is_wanted(task.task_id)
        error.unseen = task.prepared.template.num_returns - len(yielded) + is_read
        if not error.unseen:
            error.unseen = 1
            self._core.objects.on_unseen(error)
        self._finish_with_error(task, error, yielded)

    def _finish_with_error(self, task: PendingTask, error: StoredObject, yielded: Sequence[StoredObject] = ()) -> None:
        """All return values but those that a generator has yielded before are the error."""
        self._finish(task, TASK_FAILED, [*yielded, *[error] * (task.prepared.template.num_returns - len(yielded))])

    def _finish_with_system_error(self, task: PendingTask, error: RayError) -> None:
        self._finish_with_error(task, self._core.objects.as_error(error, task.prepared.template.name))

    def _finish_cancelled(self, task: PendingTask) -> None:
        name = task.prepared.template.name
        self._finish_with_system_error(task, TaskCancelledError(task_name=name, task_id_hex=task.task_id.hex()))

    def on_lost_cluster(self, task: PendingTask) -> None:
        """A task that was submitted after the cluster had gone."""
        for object_id in task.result_ids():
            self._core.references.add_owned(object_id)
        if task.prepared.template.is_streaming:
            self._core.generators.begin(task)
        node_id = self._core.config.node_id.hex()
        self.on_not_begun(task, LocalRayletDiedError(node_id=node_id, reason="the cluster is gone"))

    def on_not_begun(self, task: PendingTask, reason: RayError) -> None:
        """Nobody shall wait for it: the cluster is gone, or submitting it has failed, by a bug of ours."""
        error = self._core.objects.as_error(reason, task.prepared.template.name)
        for object_id in task.result_ids():
            self._core.objects.on_value(object_id, error)
        if task.stream is not None:
            self._core.generators.on_ended(task, error)

    def fail_all(self, reason: str) -> None:
        """The cluster is gone: whatever has not ended ends now."""
        error = LocalRayletDiedError(node_id=self._core.config.node_id.hex(), reason=reason)
        self._core.submitter.forget_all()
        self._core.actors.forget_constructors()
        for task in list(self._core.tasks.tasks.values()):
            if task.task_id in self._core.tasks.tasks:  # else it has ended with its argument, a moment ago
                self._finish_with_system_error(task, error)
        for object_id in self._core.store.awaited():
            self._core.objects.put_error(object_id, error)

    # --- cancelling

    def cancel(self, task: PendingTask, force: bool, recursive: bool) -> None:
        """G40-G43, G46: idempotent; the task's references always resolve."""
        force = force and task.prepared.client is None  # an actor has other calls, too (G44, G46)
        if task.state is WAITING:
            task.cancelled = True
            self._finish_cancelled(task)
            self._on_ended_early(task)
        elif task.state is QUEUED:
            task.cancelled = True
            if task.prepared.client is None:
                self._core.submitter.remove_queued(task, self._core.now())
            self._finish_cancelled(task)
            self._on_ended_early(task)
        elif not task.cancelled or force:
            task.cancelled = True
            name = f"cancel({short(task.task_id)})"
            cancelling = asyncio.get_running_loop().create_task(self._cancel_pushed(task, force, recursive), name=name)
            self._core.background.add(cancelling)
            cancelling.add_done_callback(self._core.background.discard)

    async def _cancel_pushed(self, task: PendingTask, force: bool, recursive: bool) -> None:
        """Tell the worker; tell it again while nothing happens; in the end tell its raylet."""
        patience_s = self._core.config.system_config.cancellation_retry_ms / 1000
        while task.state is PUSHED:
            worker = task.worker
            if not isinstance(worker, LeasedWorker | Connection):
                return
            request = CancelTask(task.task_id, task.attempt, force, recursive)
            try:
                async with asyncio.timeout(patience_s):
                    await self._core.peers.to(worker.address).call(request)
                    if not force:
                        return
                    await asyncio.sleep(patience_s)
            except TimeoutError:
                pass
            except PlatformError as error:
                logger.debug("cancelling %s: %r", short(task.task_id), error)
                await asyncio.sleep(patience_s)
            if force and isinstance(worker, LeasedWorker) and task.state is PUSHED and task.worker is worker:
                raylet = self._core.raylet if worker.raylet is None else self._core.peers.to(worker.raylet)
                raylet.send(KillWorker(worker.lease_id, "cancelled by force"), ignore)
