"""The directory of one node of an in-process cluster, made when something is written there first.

Ray: has no counterpart

A cluster that spills nothing and unpacks nothing leaves the disk alone. The directory is a session's as any other: only this
user can read it, a lock says that it is in use, and the next cluster that needs one sweeps those of killed programs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress


class LocalSession:
    """A directory for spilled objects and packages, which need not exist yet."""

    def __init__(self, path: str, begin: Callable[[], int]) -> None:
        """``begin`` makes the directory, locks it, and returns the descriptor of the lock. It may raise OSError."""
        self.path = path
        self._begin = begin
        self._lock_descriptor: int | None = None
        """The descriptor of the directory's lock; None before the directory is made."""
        self._making = threading.Lock()

    def directory(self) -> str:
        """From any thread: make the directory unless it exists; return its path. Raises OSError."""
        with self._making:
            if self._lock_descriptor is None:
                self._lock_descriptor = self._begin()
        return self.path

    def remove_spilled(self) -> None:
        """Remove what a raylet that has died has spilled, here and in other places, as far as possible. Never raises."""
        if self._lock_descriptor is not None:
            from minray.platform.process.session import remove_spilled  # Few clusters spill anything.

            remove_spilled(self.path)

    def remove(self) -> None:
        """Remove the directory, and what was spilled to other places, as far as possible. Never raises."""
        self.remove_spilled()
        with self._making:
            if self._lock_descriptor is None:
                return
            from minray.platform.storage.private_paths import remove_tree  # Few clusters have a directory.

            remove_tree(self.path)
            with suppress(OSError):
                os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def contains(self, path: str) -> bool:
        """Return whether a path is in this directory."""
        return path.startswith(self.path + os.sep)
