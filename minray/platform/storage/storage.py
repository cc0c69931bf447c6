"""Stores the gcs's tables in memory, or opens a store in a file (``sqlite_storage``).

Ray: src/ray/gcs/store_client/in_memory_store_client.h

Both kinds stage writes until ``commit``, so that code which works with one works with the other.
"""

from __future__ import annotations

from minray.platform.base import Storage

_Staged = dict[tuple[str, str], bytes | None]
"""(table, key) -> value, or None for a removal."""


def open_storage(path: str) -> Storage:
    """Open a store: ``""`` one in memory, a path an existing or a new one in a file. Raises ``StorageFailed``."""
    if not path:
        return MemoryStorage()
    from minray.platform.storage.sqlite_storage import SqliteStorage  # Imported here, since most processes never need it.

    return SqliteStorage(path)


class MemoryStorage:
    """Implements ``base.Storage`` in memory; the tables end with the process."""

    durable = False

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, bytes]] = {}
        """The committed rows: table -> key -> value."""
        self._staged: _Staged = {}

    def load(self, table: str) -> dict[str, bytes]:
        return dict(self._tables.get(table, {}))

    def put(self, table: str, key: str, value: bytes) -> None:
        self._staged[table, key] = value

    def delete(self, table: str, key: str) -> None:
        self._staged[table, key] = None

    async def commit(self) -> None:
        for (table, key), value in self._staged.items():
            if value is None:
                self._tables.get(table, {}).pop(key, None)
            else:
                self._tables.setdefault(table, {})[key] = value
        self._staged.clear()

    def close(self) -> None:
        self._tables.clear()
        self._staged.clear()
