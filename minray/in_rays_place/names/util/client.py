"""Answers whether this process is a remote client of a cluster (``ray://``): it never is one.

Ray: python/ray/util/client/__init__.py

Libraries ask this before they use what a remote client does not have. Connecting by ``ray://`` is not part of minray.
"""

from __future__ import annotations

__all__ = ["ray"]


class _ClientContext:
    """The connection of a remote client, which is never made."""

    def get_context(self) -> _ClientContext:
        return self

    def is_connected(self) -> bool:
        return False


ray = _ClientContext()
