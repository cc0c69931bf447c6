"""What is said once: ``log_once``.

Ray: python/ray/util/debug.py

Each process counts for itself, and forgets nothing. Ray's other helpers, which look for leaks of memory, are not here, and
neither is a way to have keys told again after a while.
"""

from __future__ import annotations

_said: set[str] = set()


def log_once(key: str) -> bool:
    """Whether this process asks with this key for the first time: ``if log_once("slow"): logger.warning(...)``."""
    if key in _said:
        return False
    _said.add(key)
    return True
