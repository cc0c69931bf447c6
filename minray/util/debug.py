"""Logging a message only once: ``log_once``.

Ray: python/ray/util/debug.py

Each process remembers its own keys, for good. Left out: Ray's other helpers, which look for memory leaks, and a way to log a
key again after some time.
"""

from __future__ import annotations

__all__ = ["log_once"]

_said: set[str] = set()


def log_once(key: str) -> bool:
    """Return True only for this process's first call with this key: ``if log_once("slow"): logger.warning(...)``."""
    if key in _said:
        return False
    _said.add(key)
    return True
