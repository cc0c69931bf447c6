"""Callbacks for forks of this process by user code, which on some systems (Windows) cannot happen.

Ray: has no counterpart; a fork of a Ray driver or worker has undefined behaviour

A copy that user code forks has locks that nobody will release, and connections that belong to its parent. Each module that
has such things registers here what a copy does with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def at_fork(**callbacks: Callable[[], None]) -> None:
    """Call these at each later fork: ``before``, ``after_in_parent``, ``after_in_child`` (``os.register_at_fork``)."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**callbacks)
