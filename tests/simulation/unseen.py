"""Errors of tasks that nobody has looked at: each is reported when its last reference goes; a part of the ``Watch``.

A task fails with an error that its results share. A program that gets a result has seen it. If all results are dropped
before, the owner has to say so. Then nothing is left to see or to report.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from minray.common.ids import short, task_of


class Unseen:
    """Notes the errors of one cluster's tasks."""

    def __init__(self) -> None:
        self._errors: list[tuple[Any, bytes, Any]] = []
        """Core worker, task id and error of each failure that its user does not expect."""

    def add_core(self, core: Any) -> None:
        """Note the failures of one owner."""
        outcomes = core.submission.outcomes
        finish = outcomes._finish_with_failure

        def watched(task: Any, error: Any, yielded: Any = ()) -> None:
            if not any(object_id in core.store.objects for object_id in task.result_ids()):  # else it was freed by hand
                self._errors.append((core, task.task_id, error))
            finish(task, error, yielded)

        outcomes._finish_with_failure = watched

    def unreported(self, living: Container[str]) -> Iterator[str]:
        """Yield the errors that were neither seen nor reported, though all results are gone; ``living``: ids of workers."""
        for core, task_id, error in self._errors:
            is_there = core.config.worker_id.hex() in living and not core.process.is_exiting
            if is_there and error.unseen > 0 and not any(task_of(object_id) == task_id for object_id in core.store.objects):
                yield f"state: the error of task {short(task_id)} was neither seen nor reported"
