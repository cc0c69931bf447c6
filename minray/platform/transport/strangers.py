"""Connections of a TCP listener whose peers have not proven anything yet: how many there may be, and which goes first.

Ray: has no counterpart; gRPC accepts connections as long as there are descriptors

A process that opens thousands of connections and says nothing would take all descriptors of a gcs. An honest peer needs
milliseconds for its handshake.

Rules
  * No IO: the listener reports connections here, and closes the one that it is told to close.
  * Above ``MOST_STRANGERS`` the machine with the most connections loses its oldest one. So a machine that floods a listener
    pushes out its own connections, and not those of others.
  * A connection that has proven that it knows the token is no stranger any more, and is not counted.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

MOST_STRANGERS = 512
"""Number of connections without a proof that one listener keeps. A process may have at least 4,096 open files on most
systems, and nodes of a large cluster that all come back at once take fewer."""

CROWDED = "too many connections have proven nothing, and its machine has most of them"
"""Reason, for the log, of closing a connection."""


class Stranger(Protocol):
    """A connection of a listener that has proven nothing."""

    def crowd_out(self) -> None:
        """Close the connection and log why: newer ones need its place."""


T = TypeVar("T", bound=Stranger)


class Strangers(Generic[T]):
    """Holds the connections of one listener that have proven nothing, by machine."""

    def __init__(self) -> None:
        self._by_machine: dict[str, dict[T, None]] = {}
        """Connections of each machine, oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, machine: str, connection: T) -> T | None:
        """Add a connection. Return the one that the listener must close, if there are too many now."""
        self._by_machine.setdefault(machine, {})[connection] = None
        self._count += 1
        if self._count <= MOST_STRANGERS:
            return None
        largest = max(self._by_machine, key=lambda each: len(self._by_machine[each]))
        oldest = next(iter(self._by_machine[largest]))
        self.discard(largest, oldest)
        return oldest

    def discard(self, machine: str, connection: T) -> None:
        """Remove a connection that has proven itself or has ended; nothing if it is not here."""
        connections = self._by_machine.get(machine, {})
        if connection in connections:
            del connections[connection]
            self._count -= 1
            if not connections:
                del self._by_machine[machine]
