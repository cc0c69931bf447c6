"""Small values by namespace and key: exported functions, and what users keep there.

Ray: src/ray/gcs/gcs_kv_manager.h (GcsInternalKVManager)

A repeated put is told what the first was told: ``added`` is False only when *another* value was there and was kept.
Of two who overwrite the same key the one whose message comes last wins, also if it is a late repetition; what several
processes write must therefore have a key of its own per value, as functions have.

Left out: leases, watches and transactions; this is no etcd.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from minray.common.tombstones import remember


class KvManager:
    """The table of values."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[bytes, bytes]] = {}
        """Namespace to key to value; never an empty namespace."""
        self._dropped: OrderedDict[str, None] = OrderedDict()
        """Namespaces that are over: what comes late is not kept."""

    def load(self, rows: Iterable[tuple[str, bytes, bytes]]) -> None:
        """After a restart: ``(namespace, key, value)``."""
        for namespace, key, value in rows:
            self.on_put(namespace, key, value)

    def is_kept(self, namespace: str, key: bytes, value: bytes, overwrite: bool) -> bool:
        """Whether a put would find another value that it may not replace."""
        return not overwrite and self.get(namespace, key) not in (None, value)

    def on_put(self, namespace: str, key: bytes, value: bytes) -> None:
        """The row is durable."""
        self._namespaces.setdefault(namespace, {})[key] = value

    def on_deleted(self, namespace: str, key: bytes) -> None:
        """The removal is durable."""
        values = self._namespaces.get(namespace, {})
        values.pop(key, None)
        if not values:
            self._namespaces.pop(namespace, None)

    def drop_namespace(self, namespace: str) -> list[bytes]:
        """Forget all of it, for good; returns the keys it had, whose rows are to go."""
        remember(self._dropped, namespace, None)
        return list(self._namespaces.pop(namespace, {}))

    def is_dropped(self, namespace: str) -> bool:
        return namespace in self._dropped

    def get(self, namespace: str, key: bytes) -> bytes | None:
        return self._namespaces.get(namespace, {}).get(key)

    def keys(self, namespace: str, prefix: bytes) -> list[bytes]:
        return sorted(key for key in self._namespaces.get(namespace, {}) if key.startswith(prefix))
