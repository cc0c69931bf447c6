"""Answers whether this process is a remote client of the kind that lacks most of the API: it never is one.

Ray: python/ray/util/client/__init__.py

Libraries ask this before they use what Ray's remote clients do not have. A remote client of minray (``minray://``) lacks
nothing, so these libraries may treat it as a driver on a node.
"""

from __future__ import annotations

__all__ = ["ray"]


class _ClientContext:
    """The connection of such a client, which is never made."""

    def get_context(self) -> _ClientContext:
        return self

    def is_connected(self) -> bool:
        return False


ray = _ClientContext()
