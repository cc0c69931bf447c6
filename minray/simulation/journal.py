"""The journal of a simulated world: log lines of minray as events of the trace.

Warnings and errors of minray are part of the story of a run, so they stand between the messages and callbacks that led to
them. An exception that minray logs as an error is a failure of the run, as if nobody had caught it, unless its process is
dead anyway. While a world is open its lines go to the trace alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

from minray.simulation.loop import Failure, current_process
from minray.simulation.machine import SimWorld
from minray.simulation.trace import LOG


class Journal(logging.Handler):
    """Adds minray's log lines to the trace. An exception that is logged as an error is a failure of the run."""

    def __init__(self, world: SimWorld) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process.get() or self._world.loop.world
        self._world.trace.add(process.name, LOG, record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR and error is not None and process.alive:
            self._world.loop.failures.append(Failure(process.name, record.getMessage(), error))


@contextlib.contextmanager
def journal(world: SimWorld) -> Generator[None, None, None]:
    """Add minray's log lines to the world's trace, and let them go nowhere else."""
    logger, handler = logging.getLogger("minray"), Journal(world)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
