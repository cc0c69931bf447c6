"""The exceptions that `get` and the other calls raise.

Ray: python/ray/exceptions.py. Names and bases are Ray's.

* A user's exception arrives as `RayTaskError(ValueError)`: an instance of both, with the original at `.cause`.
* Every other error here is raised by the system. All of its fields are optional; its message is made of those that are set.

The folder ``errors/`` defines the base classes, and how an exception travels from the process that raised it to the process
that calls ``get``. This module names them too, so that pickles and users find them under Ray's name.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from minray.common.signals import signal_name as _signal_name
from minray.errors.packed_exception import RayTaskError as RayTaskError
from minray.errors.ray_error import RayError as RayError
from minray.errors.ray_error import SystemFailure as _SystemFailure
from minray.errors.ray_error import UnserializableException as UnserializableException

__all__ = [
    "ActorAlreadyExistsError",
    "ActorDiedError",
    "ActorHandleNotFoundError",
    "ActorPlacementGroupRemoved",
    "ActorUnavailableError",
    "ActorUnschedulableError",
    "AsyncioActorExit",
    "GetTimeoutError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectFetchTimedOutError",
    "ObjectFreedError",
    "ObjectLostError",
    "ObjectReconstructionFailedError",
    "ObjectRefStreamEndOfStreamError",
    "ObjectStoreFullError",
    "OutOfDiskError",
    "OutOfMemoryError",
    "OwnerDiedError",
    "PendingCallsLimitExceeded",
    "RayActorError",
    "RayError",
    "RaySystemError",
    "RayTaskError",
    "ReconstructionFailure",
    "ReferenceCountingAssertionError",
    "RuntimeEnvSetupError",
    "StreamingGeneratorReplayInconsistentError",
    "TaskCancelledError",
    "TaskPlacementGroupRemoved",
    "TaskUnschedulableError",
    "UnserializableException",
    "WorkerCrashedError",
]


@dataclass(eq=False, repr=False, kw_only=True)
class TaskCancelledError(_SystemFailure):
    """The task was cancelled."""

    task_name: str = ""
    task_id_hex: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class WorkerCrashedError(_SystemFailure):
    """The worker died while it ran the task, and no retries are left. The fields say how the worker died."""

    task_name: str = ""
    pid: int | None = None
    node_id: str = ""
    exit_code: int | None = None
    """Exit code as in `subprocess`: negative for a signal."""
    signal_name: str = ""
    """Name of the signal that killed the worker, such as SIGKILL; set from a negative exit code."""
    stderr_tail: tuple[str, ...] = ()
    """The last lines the worker wrote to stderr."""

    def __post_init__(self) -> None:
        if self.exit_code is not None and self.exit_code < 0 and not self.signal_name:
            self.signal_name = _signal_name(-self.exit_code)
        super().__post_init__()

    def _describe(self) -> str:
        how = "died" if self.exit_code is None else f"exited with code {self.exit_code}"
        if self.signal_name:
            how = f"was killed by {self.signal_name}{_LIKELY.get(self.signal_name, '')}"
        where = "" if self.pid is None else f" (pid={self.pid}, node={self.node_id[:12]})"
        task = f"task {self.task_name}" if self.task_name else "a task"
        text = f"the worker{where} {how} while it ran {task}" + (f": {self.reason}" if self.reason else "")
        return text + quoted(self.stderr_tail)


def quoted(stderr_tail: Sequence[str]) -> str:
    """Format the last stderr lines of a dead worker, to be appended to an error message; return "" if there are none."""
    return "\n  | ".join(["\nthe last lines of its stderr:", *stderr_tail]) if stderr_tail else ""


_LIKELY = {
    "SIGKILL": " (by a person or program, or by the kernel when memory ran out)",
    "SIGSEGV": " (a bad memory access in compiled code)",
    "SIGABRT": " (compiled code called abort)",
    "SIGBUS": " (a write to mapped memory for which /dev/shm, or a disk, has no room left)",
}


@dataclass(eq=False, repr=False, kw_only=True)
class NodeDiedError(_SystemFailure):
    """The node that ran the task died or cannot be reached, and no retries are left."""

    task_name: str = ""
    node_id: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class LocalRayletDiedError(_SystemFailure):
    """The raylet of this process's own node died."""

    node_id: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class ObjectLostError(_SystemFailure):
    """All copies of the object are lost."""

    object_id_hex: str = ""
    owner: str = ""
    """Address of the object's owner, which may be dead."""
    call_site: str = ""
    """The line of user code that created the reference."""


class ObjectFetchTimedOutError(ObjectLostError):
    """The object could not be fetched in time, although its owner knows of a copy."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """The object was deleted although a reference was left.

    Only an out-of-band reference can outlive its object: one that was pickled by the program itself, and unpickled when
    nothing kept the object alive any more.
    """


class ReconstructionFailure(enum.StrEnum):
    """Why an object that was lost could not be made again."""

    PUT = "PUT"
    MAX_ATTEMPTS_EXCEEDED = "MAX_ATTEMPTS_EXCEEDED"
    RETRIES_DISABLED = "RETRIES_DISABLED"
    LINEAGE_EVICTED = "LINEAGE_EVICTED"
    LINEAGE_DISABLED = "LINEAGE_DISABLED"
    TASK_CANCELLED = "TASK_CANCELLED"


_WHY_NOT_MADE = {
    "PUT": "it was made by put, or otherwise not by a task that can run again",
    "MAX_ATTEMPTS_EXCEEDED": "the task that made it has no retries left; give it more of them (max_retries)",
    "RETRIES_DISABLED": "the task that made it must not run again (max_retries=0)",
    "LINEAGE_EVICTED": "its lineage was evicted to save memory; raise max_lineage_bytes in _system_config",
    "LINEAGE_DISABLED": "this cluster keeps no lineage (lineage_pinning_enabled=False in _system_config)",
    "TASK_CANCELLED": "the task that made it was cancelled",
}


class ObjectReconstructionFailedError(ObjectLostError):
    """All copies of the object are lost, and it cannot be made again.

    `reason` is a `ReconstructionFailure`.
    """

    def _describe(self) -> str:
        explanation = _WHY_NOT_MADE.get(self.reason, "")
        return f"{super()._describe()}{f' ({explanation})' if explanation else ''}"


class ObjectFreedError(ObjectLostError):
    """The object was freed explicitly."""


class OwnerDiedError(ObjectLostError):
    """The process that owned the object died, and the object with it."""


@dataclass(eq=False, repr=False, kw_only=True)
class GetTimeoutError(_SystemFailure, TimeoutError):
    """A value was not ready in time."""

    timeout_s: float | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class ObjectStoreFullError(_SystemFailure):
    """The object store is full."""

    needed_bytes: int | None = None
    capacity_bytes: int | None = None
    top_holders: tuple[str, ...] = ()
    """The largest holders of store memory, one line of text each."""


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfDiskError(_SystemFailure):
    """The disk for spilled objects is full."""

    path: str = ""
    used_bytes: int | None = None
    capacity_bytes: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfMemoryError(_SystemFailure):
    """The node ran out of memory, the worker was killed while it ran the task, and no retries are left."""

    task_name: str = ""
    pid: int | None = None
    node_id: str = ""
    used_bytes: int | None = None
    capacity_bytes: int | None = None


class RuntimeEnvSetupError(_SystemFailure):
    """The runtime environment could not be set up."""


@dataclass(eq=False, repr=False, kw_only=True)
class TaskUnschedulableError(_SystemFailure):
    """No node may ever run the task."""

    task_name: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class TaskPlacementGroupRemoved(_SystemFailure):
    """The placement group of the task was removed before the task was done."""

    task_name: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class ActorPlacementGroupRemoved(_SystemFailure):
    """The placement group of the actor was removed."""

    actor_id: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class RayActorError(_SystemFailure):
    """A call of an actor could not be carried out."""

    actor_id: str = ""
    class_name: str = ""
    actor_init_failed: bool = False
    """Whether the actor's constructor raised; the reason then says what it raised."""
    preempted: bool = False
    """Whether the actor's node was about to be preempted."""

    @property
    def error_msg(self) -> str:
        return str(self)

    def _describe(self) -> str:
        sentence = (type(self).__doc__ or "").partition("\n")[0].rstrip(".")
        about = f" (actor {self.actor_id}{f', class {self.class_name}' if self.class_name else ''})" if self.actor_id else ""
        return f"{sentence}{about}{f': {self.reason}' if self.reason else ''}"


class ActorDiedError(RayActorError):
    """The actor is dead."""


class ActorUnavailableError(RayActorError):
    """The actor cannot be reached now; the call may have run or not."""


@dataclass(eq=False, repr=False, kw_only=True)
class ActorUnschedulableError(_SystemFailure):
    """No node may ever run the actor."""

    actor_id: str = ""


class PendingCallsLimitExceeded(_SystemFailure):
    """The handle has as many unfinished calls as max_pending_calls allows."""


class AsyncioActorExit(_SystemFailure):
    """Ends the actor that raises it, as `exit_actor` does."""


class ActorAlreadyExistsError(_SystemFailure, ValueError):
    """An actor of this name exists in the namespace."""


class ActorHandleNotFoundError(_SystemFailure, ValueError):
    """The handle belongs to another session."""


class RaySystemError(_SystemFailure):
    """minray itself failed."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """The generator was run again and has not yielded as many items as before."""


class ObjectRefStreamEndOfStreamError(_SystemFailure):
    """The generator has no more items."""
