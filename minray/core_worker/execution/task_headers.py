"""Decoded headers of tasks: what all tasks of a function, or calls of a method, have in common arrives as the same bytes.

Ray: TaskSpecification parses each task's message anew (src/ray/common/task/task_spec.h)

So a receiver decodes the bytes once, and tasks share the record.
"""

from __future__ import annotations

from minray.protocol.base import decode
from minray.protocol.core_worker import TaskHeader


class TaskHeaders(dict[bytes, TaskHeader]):
    """Headers by their encoded form; one that is missing is decoded when it is looked up.

    It is a dict because every received task looks its header up.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        """Number of headers kept, a bound on memory. Beyond it all are dropped, and decoded again as needed."""

    def __missing__(self, encoded: bytes) -> TaskHeader:
        if len(self) >= self.most:
            self.clear()
        header = self[encoded] = decode(TaskHeader, encoded)
        return header
