"""The base class of the exceptions that minray raises, and an error's facts about the task that failed.

Ray: RayError in python/ray/exceptions.py

Users and pickles find these classes in ``minray/exceptions.py``, which their ``__module__`` names.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import NamedTuple

from minray.common.shown import cut

PUBLIC_MODULE = "minray.exceptions"
"""Module from which users import the classes."""
HOPS = 20
"""Most tasks that an error names as failed because of an argument: the first ten and the last ten, so that a long chain
stays readable."""


class TaskFailure(NamedTuple):
    """The task that failed, its process and node, and the traceback."""

    task_name: str
    pid: int
    """Process id of the worker; 0 if no user code failed and the error comes from the system."""
    node_id: str
    ip: str
    traceback_str: str
    """Text of the traceback, made by the executor without frames of minray; it ends with the original `Type: message`."""

    def __str__(self) -> str:
        if not self.pid:
            return self.traceback_str
        where = f"(pid={self.pid}, node={self.node_id[:12]}, ip={self.ip})"
        return f"task {cut(self.task_name)} failed {where}\n{self.traceback_str}"


class Hops(NamedTuple):
    """The tasks that did not run because of this error, oldest first."""

    task_names: tuple[str, ...] = ()
    """Names of at most HOPS tasks; the middle ones are dropped."""
    total: int = 0
    """Number of all such tasks, with the dropped ones."""

    def and_then(self, task_name: str) -> Hops:
        names = (*self.task_names, task_name)
        return Hops(names if len(names) <= HOPS else names[: HOPS // 2] + names[HOPS // 2 + 1 :], self.total + 1)

    def lines(self) -> list[str]:
        lines = [f"at least one argument of task {cut(name)} failed" for name in self.task_names]
        if self.total > len(self.task_names):
            lines.insert(HOPS // 2, f"(and so did those of {self.total - len(self.task_names)} tasks in between)")
        return lines[::-1]


class RayError(Exception):
    """The base of all errors that minray raises for a task. An instance of RayError itself stands in for an exception
    that could not be pickled; it then has `original_type`, `original_str` and `original_traceback_str`."""

    __module__ = PUBLIC_MODULE

    # RayError and RayTaskError define as little as possible, since each definition hides an attribute of the user's
    # exception. In particular they have no __init__, so that `type(error)("better message")` calls the user's.

    original_type: str
    original_str: str
    original_traceback_str: str

    _minray_hops: Hops = Hops()

    def __str__(self) -> str:
        return "\n".join([*self._minray_hops.lines(), super().__str__()])


@dataclass(eq=False, repr=False)
class SystemFailure(RayError):
    """The base of errors of the system. All fields are optional; the message is made of them unless one is given."""

    # `message` is positional because pickle and copy construct an exception from its args.
    message: str = ""
    _: KW_ONLY
    reason: str = ""
    """Text that says more than the fields."""

    def __post_init__(self) -> None:
        self.args = (self.message or self._describe(),)

    def _describe(self) -> str:
        """Make the message: the first line of the class's docstring, and every field that is set."""
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
                details.append(" ".join([*words, cut(str(value))]))
        about = f" ({', '.join(details)})" if details else ""
        return "\n".join([f"{sentence}{about}{f': {self.reason}' if self.reason else ''}", *lines])


@dataclass(eq=False, repr=False, kw_only=True)
class UnserializableException(SystemFailure):
    """The exception cannot be rebuilt in this process."""

    __module__ = PUBLIC_MODULE

    task_failure: TaskFailure | None = None
    """The failed task and the text of its traceback, which remain of the exception."""
