"""Tables of the gcs: in memory here, or in a file (``sqlite_storage``).

Ray: src/ray/gcs/store_client/in_memory_store_client.h

Either kind stages writes until ``commit``, so that code which works with one works with the other.
"""

from __future__ import annotations

from minray.platform.base import Storage

_Staged = dict[tuple[str, str], bytes | None]
"""(table, key) -> value, or None for a removal."""


def open_storage(path: str) -> Storage:
    """``""`` opens a store in memory; a path an existing store or a new one. Raises ``StorageFailed``."""
    if not path:
        return MemoryStorage()
    from minray.platform.storage.sqlite_storage import SqliteStorage  # SQLite's memory is for those who use it.

    return SqliteStorage(path)


class MemoryStorage:
    """Tables that end with the process."""

    durable = False

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, bytes]] = {}
        """Table -> key -> value, as committed."""
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
