"""Counts the tasks of a process that have ended, by name: for the system metric ``ray_tasks``.

Ray: TaskManager::task_counter_ in src/ray/core_worker/task_manager.h

A program may give each task a name of its own. So each table keeps the latest names only, and adds the counts of older ones
up under ``OTHERS``. One table is for first attempts that have succeeded: ``TaskManager.move`` writes there for each task,
and does nothing else for metrics.
"""

from __future__ import annotations

MOST_NAMES = 1000
"""Most names of one table; a bound on memory, and on the series of a metric."""
OTHERS = ""
"""Name under which the counts of older names are added up."""


class CountsByName(dict[str, int]):
    """A count for each name; a missing one counts as 0."""

    def __missing__(self, name: str) -> int:
        if len(self) >= MOST_NAMES:
            oldest = next(known for known in self if known != OTHERS)
            others = self.pop(OTHERS, 0) + self.pop(oldest)
            self[OTHERS] = others
        return 0


class EndedTasks:
    """The counts of one process."""

    __slots__ = ("finished", "finished_again", "failed", "failed_again")

    def __init__(self) -> None:
        self.finished = CountsByName()
        """Tasks whose first attempt has succeeded."""
        self.finished_again = CountsByName()
        """Tasks of which a later attempt has succeeded."""
        self.failed = CountsByName()
        self.failed_again = CountsByName()

    def total(self) -> int:
        tables = (self.finished, self.finished_again, self.failed, self.failed_again)
        return sum(sum(table.values()) for table in tables)
