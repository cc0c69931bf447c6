"""Output of tasks in a notebook: it belongs to the cell that runs, and is there before the cell has ended.

Ray: python/ray/_private/worker.py (print_worker_logs), which prints from a thread and leaves the cell to chance

A kernel of Jupyter sends each piece of output to a cell, which it finds in a context variable. Threads have the context of
the cell that started them, so that lines of tasks would stand below the cell that called ``init``. Tools that execute whole
notebooks take no output for a cell that has ended. So this class asks IPython to be called before and after each cell.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def running_shell() -> Any:
    """Return the IPython shell that runs this program, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


class CellOutput:
    """Follows the cells of an IPython shell from ``start`` to ``stop``."""

    def __init__(self, shell: Any, show_in: Callable[[contextvars.Context], None], flush: Callable[[], None]) -> None:
        """``show_in(context)`` says where lines that come from now on are printed; ``flush()`` waits for those on their way.

        ``shell`` is IPython's InteractiveShell, of which only ``events`` is used.
        """
        self._shell = shell
        self._show_in = show_in
        self._flush = flush

    def start(self) -> None:
        """Begin with the cell that runs now."""
        self._before_cell()
        self._shell.events.register("pre_run_cell", self._before_cell)
        self._shell.events.register("post_run_cell", self._after_cell)

    def stop(self) -> None:
        for event, callback in (("pre_run_cell", self._before_cell), ("post_run_cell", self._after_cell)):
            with suppress(ValueError):  # someone else has reset the shell's events
                self._shell.events.unregister(event, callback)

    def _before_cell(self, *_: object) -> None:
        self._show_in(contextvars.copy_context())

    def _after_cell(self, *_: object) -> None:
        self._flush()
