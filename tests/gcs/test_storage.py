"""The tables of the gcs on a store that a test watches."""

from __future__ import annotations

import asyncio

import pytest

from minray.gcs.storage import GcsStorage
from minray.platform.base import StorageFailed
from tests.platform_record import FakeHost, platform_record


class Store:
    """A store in memory, which may be full."""

    durable = True

    def __init__(self, is_full: bool = False) -> None:
        self.tables: dict[str, dict[str, bytes]] = {}
        self.committed = 0
        self.is_closed = False
        self._is_full = is_full

    def load(self, table: str) -> dict[str, bytes]:
        return self.tables.get(table, {})

    def put(self, table: str, key: str, value: bytes) -> None:
        self.tables.setdefault(table, {})[key] = value

    async def commit(self) -> None:
        if self._is_full:
            raise StorageFailed("no space left")
        self.committed += 1

    def close(self) -> None:
        self.is_closed = True


def opened(store: Store) -> GcsStorage:
    return asyncio.run(GcsStorage.open(platform_record(open_storage=lambda path: store, host=FakeHost()), "path"))


def test_the_id_of_a_new_cluster_is_durable_before_anybody_hears_it() -> None:
    store = Store()
    assert opened(store).cluster_id == b"r" * 16 and store.committed == 1
    store.put("cluster", "id", b"another")
    assert opened(store).cluster_id == b"another" and store.committed == 1


def test_a_new_store_that_cannot_be_written_is_closed_again() -> None:
    store = Store(is_full=True)
    with pytest.raises(StorageFailed, match="no space left"):
        opened(store)
    assert store.is_closed


def test_a_store_is_closed_with_its_gcs() -> None:
    store = Store()
    storage = opened(store)
    assert storage.durable and not store.is_closed
    storage.close()
    assert store.is_closed
