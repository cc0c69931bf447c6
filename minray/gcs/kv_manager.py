"""The key-value table: small values by namespace and key, such as exported functions and values of users.

Ray: src/ray/gcs/gcs_kv_manager.h (GcsInternalKVManager)

A repeated put gets the same reply as the first: ``added`` is False only when *another* value was there and was kept. If two
processes overwrite the same key, the message that arrives last wins, even if it is a late repetition. Processes that write
concurrently must therefore use one key per value, as exported functions do.

Left out: leases, watches and transactions; this is no etcd.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from minray.common.tombstones import remember


class KvManager:
    """Holds the table of values."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[bytes, bytes]] = {}
        """Values by namespace and key; never an empty namespace."""
        self._dropped: OrderedDict[str, None] = OrderedDict()
        """Tombstones of dropped namespaces, in which late values are not kept."""

    def load(self, rows: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Enter the rows ``(namespace, key, value)`` that an earlier gcs has stored, after a restart."""
        for namespace, key, value in rows:
            self.on_put(namespace, key, value)

    def is_kept(self, namespace: str, key: bytes, value: bytes, overwrite: bool) -> bool:
        """Tell whether a put would find another value that it may not replace."""
        return not overwrite and self.get(namespace, key) not in (None, value)

    def on_put(self, namespace: str, key: bytes, value: bytes) -> None:
        """Enter a value whose row is durable."""
        self._namespaces.setdefault(namespace, {})[key] = value

    def on_deleted(self, namespace: str, key: bytes) -> None:
        """Remove a value whose removal is durable."""
        values = self._namespaces.get(namespace, {})
        values.pop(key, None)
        if not values:
            self._namespaces.pop(namespace, None)

    def drop_namespace(self, namespace: str) -> list[bytes]:
        """Drop a namespace for good, and return its keys, whose rows must be deleted."""
        remember(self._dropped, namespace, None)
        return list(self._namespaces.pop(namespace, {}))

    def is_dropped(self, namespace: str) -> bool:
        return namespace in self._dropped

    def get(self, namespace: str, key: bytes) -> bytes | None:
        return self._namespaces.get(namespace, {}).get(key)

    def keys(self, namespace: str, prefix: bytes) -> list[bytes]:
        return sorted(key for key in self._namespaces.get(namespace, {}) if key.startswith(prefix))
