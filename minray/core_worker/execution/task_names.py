"""How a running task is named to people: in lists of processes, and before the lines that it prints.

Ray: execute_task in python/ray/_raylet.pyx (_changeproctitle), the magic tokens of python/ray/_private/ray_logging

The title of a worker says which function or method runs, or which actor waits for calls.
``ray::f`` runs ``f``, and ``ray::Counter.add`` runs a method. ``ray::Counter`` is an actor without a call, ``ray::IDLE`` a
worker without a task. The prefix is Ray's, because programs look for it. An actor that runs several calls at once keeps
the name of its class.

A title is written when it changes: not between two tasks of one function that follow each other. Then it costs a task one
comparison.

Output is printed through streams that write a mark before it, with the task's name and ids (``node/worker_output.py``).
When a task ends, the line that it has begun ends too, and the streams forget its mark as soon as another task begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from minray.common.task_spec import TaskTemplate
from minray.core_worker.records.received_task import ReceivedTask

Speaker = tuple[int, bytes]
"""Origin of printed output: a thread's ident, and the id of the actor call that it runs (empty for the main thread)."""

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


class OutputNames:
    """Knows under which names the output streams of one process print, and which lines they have begun."""

    def __init__(self) -> None:
        self.actor_words = ""
        """The actor's ``repr`` after its constructor, if its class defines one; empty otherwise."""
        self.unended: set[tuple[Speaker, Callable[[Speaker, ReceivedTask], None]]] = set()
        """Output that ends with its task: the speaker, and a function that ends the output. Output streams enter unfinished
        lines, and a debugger its terminal."""
        self.is_named = False
        """Whether output that bypasses the output streams is shown as that of some task; written by the streams."""
        self.forget_names: list[Callable[[], None]] = []
        """Functions that make the output streams forget that task."""

    def shown_name(self, task: ReceivedTask) -> str:
        """Return the name shown before a task's output; a call of an actor with a ``repr`` is named after that."""
        template = task.header.template
        if self.actor_words and template.name.endswith(f".{template.method}"):
            return f"{self.actor_words}.{template.method}"
        return template.name

    def forget_name(self) -> None:
        """Make the output streams forget an earlier task, because another one begins."""
        self.is_named = False
        for forget in self.forget_names:
            with suppress(OSError, ValueError):  # the stream has no reader any more, or is closed
                forget()

    def end_lines(self, task: ReceivedTask, call: bytes) -> None:
        """End the output that a task has begun: that of the main thread, or that of ``call`` in any thread."""
        main = threading.get_ident(), b""
        for one in [one for one in list(self.unended) if (one[0][1] == call if call else one[0] == main)]:
            self.unended.discard(one)
            with suppress(OSError, ValueError):  # the stream has no reader any more, or cannot encode the text
                one[1](one[0], task)
