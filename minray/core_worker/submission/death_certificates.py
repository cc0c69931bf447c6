"""Errors that say how the worker of a task, or an actor, has died, as its raylet or the gcs reports it.

Ray: GetRayErrorInfo and GenerateErrorInfoFromDeathCause in src/ray/core_worker/task_manager.cc, actor_manager.cc

Pure. A task's error is made from the answer to ``GetLeaseFailure``, a call's error from the actor's row in the gcs.
"""

from __future__ import annotations

from minray.core_worker.records.leased_worker import LeasedWorker
from minray.errors.packed_exception import describe_packed, unpack_exception
from minray.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RuntimeEnvSetupError,
    WorkerCrashedError,
)
from minray.protocol.actor import (
    ACTOR_UNSCHEDULABLE,
    CREATION_TASK_FAILED,
    GROUP_REMOVED,
    OUT_OF_MEMORY,
    RUNTIME_ENV_FAILED,
    DeathCause,
)
from minray.protocol.raylet import LeaseFailure


def error_of_worker(name: str, own_node: bytes, worker: LeasedWorker, failure: LeaseFailure | None) -> RayError:
    """Return the error of a task of this name whose worker died.

    ``failure`` is None if the worker's node died, or cannot be reached from here. ``own_node`` is this process's node.
    """
    node_id = worker.address.node_id.hex()
    if failure is None:
        return NodeDiedError(task_name=name, node_id=node_id)
    if failure.node_ended is not None:
        if worker.address.node_id == own_node:
            return LocalRayletDiedError(node_id=node_id, reason=failure.node_ended)
        return NodeDiedError(task_name=name, node_id=node_id, reason=failure.node_ended)
    if not failure.known or not failure.dead:
        reason = failure.cause or "its raylet does not know what became of it"
        return WorkerCrashedError(task_name=name, pid=worker.pid, node_id=node_id, reason=reason)
    return WorkerCrashedError(
        task_name=name,
        pid=failure.pid or worker.pid,
        node_id=node_id,
        exit_code=-failure.signal if failure.signal else failure.exit_code,
        stderr_tail=tuple(failure.stderr_tail),
        reason=failure.doom,
    )


def error_of_actor(actor_id: bytes, death: DeathCause, class_name: str = "") -> RayError:
    """Return the error that a call of a dead actor raises."""
    if death.kind == ACTOR_UNSCHEDULABLE:
        return ActorUnschedulableError(actor_id=actor_id.hex(), reason=death.message)
    if death.kind == OUT_OF_MEMORY:
        return OutOfMemoryError(reason=death.message)
    if death.kind == GROUP_REMOVED:
        return ActorPlacementGroupRemoved(actor_id=actor_id.hex(), reason=death.message)
    if death.kind == RUNTIME_ENV_FAILED:
        return unpack_exception(death.error) if death.error else RuntimeEnvSetupError(reason=death.message)
    if death.kind == CREATION_TASK_FAILED:
        reason = f"{death.message}\n{describe_packed(death.error)}" if death.error else death.message
        return ActorDiedError(actor_id=actor_id.hex(), class_name=class_name, actor_init_failed=True, reason=reason)
    return ActorDiedError(actor_id=actor_id.hex(), class_name=class_name, reason=death.message, preempted=death.preempted)
