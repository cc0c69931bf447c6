"""Ray's names for the kinds of errors with which a task can fail, as the state API shows them.

Ray: ErrorType in src/ray/protobuf/common.proto, python/ray/_raylet.pyx

A failed task has one packed error. If its body raised the error, the name is TASK_EXECUTION_EXCEPTION, whatever the error's
class, and nothing of the user's is unpickled. Errors of the system have names by their class.
"""

from __future__ import annotations

from minray import exceptions
from minray.errors.packed_exception import is_raised_by_body, unpack_exception

TASK_EXECUTION_EXCEPTION, TASK_CANCELLED, WORKER_DIED = "TASK_EXECUTION_EXCEPTION", "TASK_CANCELLED", "WORKER_DIED"

ERROR_TYPES: dict[type[Exception], str] = {
    exceptions.TaskCancelledError: TASK_CANCELLED,
    exceptions.WorkerCrashedError: WORKER_DIED,
    exceptions.NodeDiedError: "NODE_DIED",
    exceptions.LocalRayletDiedError: "LOCAL_RAYLET_DIED",
    exceptions.OutOfMemoryError: "OUT_OF_MEMORY",
    exceptions.OutOfDiskError: "OUT_OF_DISK_ERROR",
    exceptions.RuntimeEnvSetupError: "RUNTIME_ENV_SETUP_FAILED",
    exceptions.TaskUnschedulableError: "TASK_UNSCHEDULABLE_ERROR",
    exceptions.TaskPlacementGroupRemoved: "TASK_PLACEMENT_GROUP_REMOVED",
    exceptions.ActorUnschedulableError: "ACTOR_UNSCHEDULABLE_ERROR",
    exceptions.ActorPlacementGroupRemoved: "ACTOR_PLACEMENT_GROUP_REMOVED",
    exceptions.ActorUnavailableError: "ACTOR_UNAVAILABLE",
    exceptions.RayActorError: "ACTOR_DIED",
    exceptions.OwnerDiedError: "OWNER_DIED",
    exceptions.ObjectFreedError: "OBJECT_FREED",
    exceptions.ObjectFetchTimedOutError: "OBJECT_FETCH_TIMED_OUT",
    exceptions.ObjectReconstructionFailedError: "OBJECT_UNRECONSTRUCTABLE",
    exceptions.ObjectLostError: "OBJECT_LOST",
}
"""Class of a system error -> its name; a class stands before its bases."""


def error_type_of(packed: bytes) -> str:
    """Name the kind of a packed error. An error that user code has raised is not unpickled."""
    if is_raised_by_body(packed):
        return TASK_EXECUTION_EXCEPTION
    error = unpack_exception(packed)
    return next((name for known, name in ERROR_TYPES.items() if isinstance(error, known)), TASK_EXECUTION_EXCEPTION)
