"""What `get` and the other calls raise.

Ray: python/ray/exceptions.py. Names and bases are Ray's.

* A user's exception arrives as `RayTaskError(ValueError)`: an instance of both, with the original at `.cause`.
* Every other error here is the system's. All of its fields are optional, and its message is made of those that are known.

How an exception travels from the process that raised it to the one that asks is `packed_exception`'s to say.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, NamedTuple

HOPS = 20
"""So many tasks that failed because of an argument are named, the first and the last ones."""


class TaskFailure(NamedTuple):
    """Who failed, and where in the user's code."""

    task_name: str
    pid: int
    """0: nobody's code failed, the system says so."""
    node_id: str
    ip: str
    traceback_str: str
    """Written by the executor, without frames of minray; it ends with the original `Type: message`."""

    def __str__(self) -> str:
        if not self.pid:
            return self.traceback_str
        where = f"(pid={self.pid}, node={self.node_id[:12]}, ip={self.ip})"
        return f"task {self.task_name} failed {where}\n{self.traceback_str}"


class Hops(NamedTuple):
    """The tasks that did not run because of this error, oldest first."""

    task_names: tuple[str, ...] = ()
    """At most HOPS; the middle ones are dropped."""
    total: int = 0
    """The number of all of them."""

    def and_then(self, task_name: str) -> Hops:
        names = (*self.task_names, task_name)
        return Hops(names if len(names) <= HOPS else names[: HOPS // 2] + names[HOPS // 2 + 1 :], self.total + 1)

    def lines(self) -> list[str]:
        lines = [f"at least one argument of task {name} failed" for name in self.task_names]
        if self.total > len(self.task_names):
            lines.insert(HOPS // 2, f"(and so did those of {self.total - len(self.task_names)} tasks in between)")
        return lines[::-1]


class RayError(Exception):
    """The base of everything minray raises for a task. An instance of RayError itself stands in for an exception that
    could not be pickled; it then has `original_type`, `original_str` and `original_traceback_str`."""

    # RayError and RayTaskError define as little as possible: whatever they define hides an attribute of the user's
    # exception. In particular no __init__, so that `type(error)("better message")` means what it says.

    original_type: str
    original_str: str
    original_traceback_str: str

    _minray_hops: Hops = Hops()

    def __str__(self) -> str:
        return "\n".join([*self._minray_hops.lines(), super().__str__()])


class RayTaskError(RayError):
    """A task raised. `get` raises a subclass of this and of the exception's own type, if that can be subclassed."""

    _minray_failure: TaskFailure | None = None
    """None only if user code has constructed the instance: `raise type(error)("better message")`."""
    _minray_cause: BaseException | None = None
    _minray_cause_class: type[Exception] | None = None
    """Of a dual class: the user's."""

    @property
    def cause(self) -> BaseException | None:
        """The original exception, with its remote traceback."""
        return self._minray_cause

    @property
    def task_failure(self) -> TaskFailure | None:
        return self._minray_failure

    def as_instanceof_cause(self) -> RayTaskError:
        """This error: ``get`` raises one that is an instance of its cause's type already, if there can be one."""
        return self

    def __str__(self) -> str:
        if self._minray_failure is None:
            return super().__str__()
        return "\n".join([*self._minray_hops.lines(), str(self._minray_failure)])

    def __reduce__(self) -> tuple[Any, ...]:
        from minray.errors.packed_exception import reduce_task_error  # that needs this file for everything

        return reduce_task_error(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


# --- errors of the system ---------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class _SystemError(RayError):
    """What the errors below share: fields, all optional, and a message that is made of them unless one is given."""

    # `message` is positional because pickle and copy construct an exception from its args.
    message: str = ""
    _: KW_ONLY
    reason: str = ""
    """What is known besides the fields."""

    def __post_init__(self) -> None:
        self.args = (self.message or self._describe(),)

    def _describe(self) -> str:
        """The first sentence of the class's documentation, and every field that is known."""
        sentence = (type(self).__doc__ or type(self).__name__).partition("\n")[0].rstrip(".")
        details, lines = [], []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("message", "reason") or value in (None, "", ()):
                continue
            if isinstance(value, TaskFailure):
                lines.append(str(value))
            elif isinstance(value, tuple):
                lines += [f"{field.name.replace('_', ' ')}:", *(f"  | {line}" for line in value)]
            else:
                words = [word for word in field.name.split("_") if word not in ("hex", "name")]
                if words[-1] in ("bytes", "s"):
                    words, value = words[:-1], f"{value:,} {words[-1]}"
                details.append(" ".join([*words, str(value)]))
        about = f" ({', '.join(details)})" if details else ""
        return "\n".join([f"{sentence}{about}{f': {self.reason}' if self.reason else ''}", *lines])


@dataclass(eq=False, repr=False, kw_only=True)
class TaskCancelledError(_SystemError):
    """The task was cancelled."""

    task_name: str = ""
    task_id_hex: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class WorkerCrashedError(_SystemError):
    """The worker died while it ran the task, and no retries are left. This is its death certificate."""

    task_name: str = ""
    pid: int | None = None
    node_id: str = ""
    exit_code: int | None = None
    """As `subprocess` has it: negative for a signal."""
    signal_name: str = ""
    """Follows from a negative exit code."""
    stderr_tail: tuple[str, ...] = ()
    """The last lines the worker wrote to stderr."""

    def __post_init__(self) -> None:
        if self.exit_code is not None and self.exit_code < 0 and not self.signal_name:
            known = -self.exit_code in set(signal.Signals)
            self.signal_name = signal.Signals(-self.exit_code).name if known else f"signal {-self.exit_code}"
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
    """The last lines of a dead worker, to be appended to an error; nothing if there are none."""
    return "\n  | ".join(["\nthe last lines of its stderr:", *stderr_tail]) if stderr_tail else ""


_LIKELY = {
    "SIGKILL": " (by somebody, or by the kernel when memory ran out)",
    "SIGSEGV": " (a bad memory access in compiled code)",
    "SIGABRT": " (compiled code gave up)",
}


@dataclass(eq=False, repr=False, kw_only=True)
class NodeDiedError(_SystemError):
    """The node that ran the task died or cannot be reached, and no retries are left."""

    task_name: str = ""
    node_id: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class LocalRayletDiedError(_SystemError):
    """The raylet of this process's own node died."""

    node_id: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class ObjectLostError(_SystemError):
    """All copies of the object are lost."""

    object_id_hex: str = ""
    owner: str = ""
    """Where its owner is, or was."""
    call_site: str = ""
    """The line of user code that created the reference."""


class ObjectFetchTimedOutError(ObjectLostError):
    """The object could not be fetched for too long, although its owner knows of a copy."""


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """The object was deleted although a reference was left.

    Only bytes can be such a reference: pickled elsewhere, and unpickled when nothing kept the object alive any more (G65).
    """


class ReconstructionFailure(enum.StrEnum):
    """Why an object that was lost could not be made again."""

    PUT = "PUT"
    MAX_ATTEMPTS_EXCEEDED = "MAX_ATTEMPTS_EXCEEDED"
    RETRIES_DISABLED = "RETRIES_DISABLED"
    LINEAGE_EVICTED = "LINEAGE_EVICTED"
    LINEAGE_DISABLED = "LINEAGE_DISABLED"
    TASK_CANCELLED = "TASK_CANCELLED"
    BORROWED = "BORROWED"
    REF_NOT_FOUND = "REF_NOT_FOUND"


_WHY_NOT_MADE = {
    "PUT": "it was put, or was made in another way than by a task that could run again",
    "MAX_ATTEMPTS_EXCEEDED": "the task that made it has no retries left; give it more of them (max_retries)",
    "RETRIES_DISABLED": "the task that made it must not run again (max_retries=0)",
    "LINEAGE_EVICTED": "too many tasks were remembered, so this one was forgotten; see max_lineage_bytes of _system_config",
    "LINEAGE_DISABLED": "tasks are not remembered in this cluster (lineage_pinning_enabled=False in _system_config)",
    "TASK_CANCELLED": "the task that made it was cancelled",
    "BORROWED": "only its owner could",
    "REF_NOT_FOUND": "its owner does not know it any more",
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
class GetTimeoutError(_SystemError, TimeoutError):
    """A value was not ready in time."""

    timeout_s: float | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class ObjectStoreFullError(_SystemError):
    """The object store is full."""

    needed_bytes: int | None = None
    capacity_bytes: int | None = None
    top_holders: tuple[str, ...] = ()
    """Who holds most of it, a line each."""


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfDiskError(_SystemError):
    """The disk for spilled objects is full."""

    path: str = ""
    used_bytes: int | None = None
    capacity_bytes: int | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfMemoryError(_SystemError):
    """The node ran out of memory, the worker was killed while it ran the task, and no retries are left."""

    task_name: str = ""
    pid: int | None = None
    node_id: str = ""
    used_bytes: int | None = None
    capacity_bytes: int | None = None


class RuntimeEnvSetupError(_SystemError):
    """The runtime environment could not be set up."""


@dataclass(eq=False, repr=False, kw_only=True)
class TaskUnschedulableError(_SystemError):
    """No node may ever run the task."""

    task_name: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class TaskPlacementGroupRemoved(_SystemError):
    """The placement group of the task was removed before the task was done."""

    task_name: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class ActorPlacementGroupRemoved(_SystemError):
    """The placement group of the actor was removed."""

    actor_id: str = ""


@dataclass(eq=False, repr=False, kw_only=True)
class RayActorError(_SystemError):
    """A call of an actor could not be carried out."""

    actor_id: str = ""
    class_name: str = ""
    actor_init_failed: bool = False
    """Its constructor raised; the reason tells what."""
    preempted: bool = False
    """Its node was to be preempted."""

    @property
    def error_msg(self) -> str:
        return str(self)

    def _describe(self) -> str:
        sentence = (type(self).__doc__ or "").partition("\n")[0].rstrip(".")
        about = f"{self.actor_id}{f', class {self.class_name}' if self.class_name else ''}"
        return f"{sentence} (actor {about}){f': {self.reason}' if self.reason else ''}"


class ActorDiedError(RayActorError):
    """The actor is dead."""


class ActorUnavailableError(RayActorError):
    """The actor cannot be reached now; the call may have run or not."""


@dataclass(eq=False, repr=False, kw_only=True)
class ActorUnschedulableError(_SystemError):
    """No node may ever run the actor."""

    actor_id: str = ""


class PendingCallsLimitExceeded(_SystemError):
    """The handle has as many unfinished calls as max_pending_calls allows."""


class AsyncioActorExit(_SystemError):
    """Ends the actor that raises it, as `exit_actor` does."""


class ActorAlreadyExistsError(_SystemError, ValueError):
    """An actor of this name exists in the namespace."""


class ActorHandleNotFoundError(_SystemError, ValueError):
    """The handle belongs to another session."""


class RaySystemError(_SystemError):
    """minray itself failed."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """The generator was run again and has not yielded as many items as before."""


class ObjectRefStreamEndOfStreamError(_SystemError):
    """The generator has no more items."""


@dataclass(eq=False, repr=False, kw_only=True)
class UnserializableException(_SystemError):
    """The exception cannot be rebuilt in this process."""

    task_failure: TaskFailure | None = None
    """What is left of it."""
