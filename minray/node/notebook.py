"""Output of tasks in a notebook: it belongs to the cell that submitted the task, and is there when the cell ends.

Ray: python/ray/_private/worker.py (print_worker_logs), which prints from a thread and leaves the cell to chance

A kernel of Jupyter sends each piece of output to a cell, which it finds in a context variable. Threads have the context of
the cell that started them, so that lines of tasks would stand below the cell that called ``init``. So IPython calls this
class before and after each cell. The numbers of a driver's tasks grow, so the first number of each cell tells which cell has
submitted a task.

Rules
  * A line appears below the cell that submitted its task, or called the actor. Lines of tasks that other tasks have
    submitted appear below the cell that runs.
  * A front end may take no output for a cell that has ended: tools that execute whole notebooks lose it. Those that take it
    name the cell in their request (JupyterLab, Notebook 7). For all others, lines that come later appear below the cell that
    runs.
"""

from __future__ import annotations

import contextvars
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from minray.node.worker_output import LinePrinter

NUMBER_DIGITS = 16
"""Hexadecimal digits of a task id that are its number; those of the submitter and of the job follow (``common/ids.py``)."""
MOST_CELLS = 1000
"""Most executed cells that are remembered; lines of tasks of older ones appear below the cell that runs."""


class _Cell(NamedTuple):
    """One execution of a cell."""

    first_task: int
    """Number before those of the tasks that the cell submits."""
    context: contextvars.Context
    takes_late_output: bool
    """Whether the front end shows output of the cell after the cell has ended."""


class CellOutput:
    """Follows the cells of an IPython shell from ``start`` to ``stop``."""

    def __init__(
        self, shell: Any, printer: LinePrinter, next_task_id: Callable[[], bytes], flush: Callable[[], None]
    ) -> None:
        """``next_task_id()`` makes an id as a new task would get it; ``flush()`` waits for lines that are on their way.

        ``shell`` is IPython's InteractiveShell, of which ``events`` is used, and ``get_parent`` if it is there.
        """
        self._shell = shell
        self._printer = printer
        self._next_task_id = next_task_id
        self._flush = flush
        self._cells: list[_Cell] = []
        """Executed cells, oldest first; replaced as a whole, because other threads read it."""
        self._submitter = ""
        """The digits of a task id that follow its number, for tasks of this driver."""

    def start(self) -> None:
        """Begin with the cell that runs now."""
        self._submitter = self._next_task_id().hex()[NUMBER_DIGITS:]
        self._before_cell()
        self._printer.context_of = self.context_of
        self._shell.events.register("pre_run_cell", self._before_cell)
        self._shell.events.register("post_run_cell", self._after_cell)

    def stop(self) -> None:
        for event, callback in (("pre_run_cell", self._before_cell), ("post_run_cell", self._after_cell)):
            with suppress(ValueError):  # someone else has reset the shell's events
                self._shell.events.unregister(event, callback)

    def context_of(self, task_id: str) -> contextvars.Context:
        """Return the context of the cell below which lines of this task (an id in hexadecimal) appear."""
        cells = self._cells
        running = cells[-1]
        try:
            number = int(task_id[:NUMBER_DIGITS], 16)
        except ValueError:  # no task, or an id that user code has forged
            return running.context
        if task_id[NUMBER_DIGITS:] != self._submitter:
            return running.context
        index = bisect_right(cells, number, key=lambda cell: cell.first_task) - 1
        return cells[index].context if index >= 0 and cells[index].takes_late_output else running.context

    def _before_cell(self, *_: object) -> None:
        first_task = int.from_bytes(self._next_task_id()[: NUMBER_DIGITS // 2], "big")
        cell = _Cell(first_task, contextvars.copy_context(), self._takes_late_output())
        self._cells = [*self._cells[-MOST_CELLS + 1 :], cell]

    def _takes_late_output(self) -> bool:
        """Whether the request of the running cell names the cell, as front ends do that keep its output open."""
        parent = self._shell.get_parent() if hasattr(self._shell, "get_parent") else {}
        return "cellId" in ((parent or {}).get("metadata") or {})

    def _after_cell(self, *_: object) -> None:
        self._flush()
