"""Runs calls that a user thread has posted to the loop and waits for, so that a failed call wakes the thread.

Ray: the C++ exceptions that python/ray/_raylet.pyx turns into Python ones (``check_status``)

The thread is parked until the loop releases it. A bug of ours on the loop releases it too, with an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minray.exceptions import RaySystemError
from minray.platform.base import Parker


def call_for(parker: Parker, callback: Callable[..., None], *args: Any) -> None:
    """Run a callback for the thread that waits with this parker; if it raises, by a bug of ours, the wait raises too."""
    try:
        callback(*args)
    except Exception as error:
        parker.fail(partial(RaySystemError, reason=failure(error)))
        raise  # to the log


def failure(error: Exception) -> str:
    """Describe a bug of ours to the thread that waits."""
    return f"minray itself has failed: {type(error).__name__}: {error}"
