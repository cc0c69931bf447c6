"""The title of a worker in lists of processes: which function or method runs, or which actor waits for calls.

Ray: execute_task in python/ray/_raylet.pyx (_changeproctitle)

``ray::f`` runs ``f``, and ``ray::Counter.add`` runs a method. ``ray::Counter`` is an actor without a call, ``ray::IDLE`` a
worker without a task. The prefix is Ray's, because programs look for it. An actor that runs several calls at once keeps
the name of its class.

A title is written when it changes: not between two tasks of one function that follow each other. Then it costs a task one
comparison.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.common.task_spec import TaskTemplate

IDLE = "ray::IDLE"


def _write_nothing(title: str) -> None:
    """Show no title: this process is simulated, or has none."""


class TaskTitle:
    """Knows the title of one worker; used in its main thread."""

    def __init__(self) -> None:
        self.template: TaskTemplate | None = None
        """The tasks that the title names; None: it names what this process is while no task runs."""
        self.write: Callable[[str], None] = _write_nothing
        """Function that replaces the title; set by the process."""
        self._idle = IDLE

    def show(self, template: TaskTemplate) -> None:
        self.template = template
        self.write(f"ray::{template.name}")

    def show_idle(self) -> None:
        """Show that the main thread waits for work; called each time when it begins to wait."""
        if self.template is not None:
            self.template = None
            self.write(self._idle)

    def become(self, actor: object) -> None:
        """Show that an actor lives here from now on."""
        self.template, self._idle = None, f"ray::{type(actor).__name__}"
        self.write(self._idle)
