"""Messages about the log files of a node, which its raylet lists and reads; and lines of workers that others understand.

Ray: src/ray/protobuf/reporter.proto (LogService), the magic tokens of python/ray/_private/ray_constants.py

A worker writes a mark before the first line of each task that prints. The mark is a line of its own, ASCII 30 (record
separator), the name that people see, ASCII 30, and ``TASK.ATTEMPT.ACTOR`` with both ids in hexadecimal. A bare ASCII 30
says that no task prints from here on. The raylet keeps marks in the worker's log file, and shows no reader one.

A task that waits in the debugger prints an invitation, from which people and its driver learn the id of the breakpoint.

A file and its backups of a rotation are read as one text, oldest first. A reader passes on the position that the last
answer has named, so the raylet keeps nothing between two requests.
"""

from __future__ import annotations

from typing import NamedTuple

from minray.protocol.base import Count, Record, Request
from minray.protocol.core_worker import TASK_NAME_MARK

EVERYTHING = -1
"""A ``tail`` that means all lines, and an ``attempt`` that means all attempts."""
MOST_LOG_FILES = 10_000
"""Most files that one answer names, so that it fits into one message."""


class Mark(NamedTuple):
    """Describes the lines that follow a mark."""

    name: str
    """Name shown before the lines; empty: no task prints."""
    task_id: str = ""
    """Id of the task in hexadecimal; empty: not known."""
    attempt: int = 0
    actor_id: str = ""


def mark_of(name: str, task_id: bytes = b"", attempt: int = 0, actor_id: bytes = b"") -> str:
    """Return the mark of a task, without its newline."""
    shown = " ".join(name.replace(TASK_NAME_MARK, " ").split())
    if not task_id:
        return f"{TASK_NAME_MARK}{shown}"
    return f"{TASK_NAME_MARK}{shown}{TASK_NAME_MARK}{task_id.hex()}.{attempt}.{actor_id.hex()}"


def read_mark(line: str) -> Mark:
    """Read a mark, also one that user code has forged and that names nothing."""
    name, _, ids = line.removeprefix(TASK_NAME_MARK).partition(TASK_NAME_MARK)
    task_id, _, rest = ids.partition(".")
    attempt, _, actor_id = rest.partition(".")
    return Mark(name, task_id, int(attempt) if attempt.isascii() and attempt.isdecimal() else 0, actor_id)


INVITATION = " waits in the debugger. To attach a terminal: minray debug "


def invitation(place: str, error: str, breakpoint_id: str) -> str:
    """Return the line that a task prints when it waits in the debugger at this place, or where it has raised an error."""
    return f"{place}{f' raised {error} and' if error else ''}{INVITATION}{breakpoint_id}"


def breakpoint_of(line: str) -> str:
    """Return the id of the breakpoint that a line invites to; empty if it is no invitation. User code can forge one."""
    _, words, breakpoint_id = line.rpartition(INVITATION)
    return breakpoint_id if words and breakpoint_id.replace("-", "").isalnum() and breakpoint_id.isascii() else ""


class LogFile(Record, frozen=True):
    """One log file of a node."""

    name: str
    size: Count
    """Size in bytes."""
    modified: float
    """Wall-clock time of the last write, by the clock of the node, in seconds since the epoch."""


class LogFiles(Record, frozen=True):
    """The log files of a node, by name."""

    files: list[LogFile]
    total: Count
    """Number of files that match; ``files`` has the first ``MOST_LOG_FILES``."""
    absence: str = ""
    """Reason why the node keeps no log files; empty if it does."""


class ListLogs(Request[LogFiles], frozen=True):
    """Asks a raylet for the log files of its node."""

    pattern: str = "*"
    """Shell pattern for names, as in ``fnmatch``."""


class LogPosition(Record, frozen=True):
    """A place in a log file, also after the file has become a backup. Only the raylet that made it understands it."""

    inode: int
    offset: Count
    mark: str = ""
    """The mark that holds at this place, for a reader of one task or actor."""


class LogChoice(Record, frozen=True):
    """Says which lines of a file are wanted. All that is given must hold."""

    task_id: str = ""
    """Only lines of this task, an id in hexadecimal."""
    attempt: int = EVERYTHING
    """With ``task_id``: only lines of this attempt."""
    actor_id: str = ""
    """Only lines from the first one of this actor on. Its worker runs nothing else afterwards."""
    search: str = ""
    """Only lines that contain this text. Upper and lower case of ASCII letters are the same."""

    def is_everything(self) -> bool:
        return not (self.task_id or self.actor_id or self.search)


class LogPart(Record, frozen=True):
    """The next piece of a log file."""

    data: bytes
    """Whole lines, unless a line is longer than a piece. Marks are left out. May be empty before the end, too."""
    position: LogPosition | None
    """Where the next piece begins; None if there is no such file."""
    is_end: bool
    """Whether the file has nothing more at the moment."""
    note: str = ""
    """News that a reader must have before this piece, such as that lines are lost; usually empty."""
    absence: str = ""
    """Reason why there is no such file; empty if there is."""


class ReadLog(Request[LogPart], frozen=True):
    """Asks a raylet for a piece of a log file of its node, together with the file's backups."""

    name: str
    """Name of the file, without a directory."""
    position: LogPosition | None = None
    """Where to go on; None: at the beginning, or so that ``tail`` lines are left."""
    tail: int = EVERYTHING
    """Without a position: number of lines before the end to begin at."""
    choice: LogChoice = LogChoice()
    is_followed: bool = False
    """Whether the reader will ask again for what is written later. A line without an end is then left for that."""
