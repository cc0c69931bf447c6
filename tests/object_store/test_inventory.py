"""Inventory of a store's copies, for people, and copies that are evicted on request."""

from __future__ import annotations

import pytest

from minray.object_store import inventory
from minray.object_store.allocator import ALIGNMENT
from minray.object_store.inventory import objects_info
from minray.object_store.object_table import DOOMED, SEALED
from minray.protocol.object_store import GetObjectsInfo, ObjectsInfo, SpillStats
from tests.object_store.copies import OWNERS, WORKERS, SmallTable, object_id


def info(table: SmallTable, request: GetObjectsInfo | None = None) -> ObjectsInfo:
    return objects_info(b"node", table, SpillStats(), request or GetObjectsInfo())


@pytest.fixture
def table() -> SmallTable:
    """A table of ten blocks: three of a, one of b (not the first copy), and the rest free."""
    table = SmallTable(10)
    table.put("a", 3)
    table.put("b", 1, is_primary=False)
    return table


def test_sizes_owners_and_kinds_are_told(table: SmallTable) -> None:
    told = info(table)
    assert (told.node_id, told.capacity, told.used, told.total) == (b"node", 10 * ALIGNMENT, 4 * ALIGNMENT, 2)
    assert (told.largest_hole, told.fallback_used) == (6 * ALIGNMENT, 0)
    assert not any(copy.is_in_fallback for copy in told.copies)
    assert [(copy.object_id, copy.size, copy.is_primary) for copy in told.copies] == [
        (object_id("a"), 3 * ALIGNMENT, True),
        (object_id("b"), ALIGNMENT, False),
    ]
    assert {(copy.owner_id, copy.state, copy.use_count) for copy in told.copies} == {(OWNERS[0].worker_id, SEALED, 0)}


def test_readers_are_named_once_and_the_raylet_is_none_of_them(table: SmallTable) -> None:
    entry = table.find(object_id("a"))
    assert entry is not None
    for pin, reader in [(b"1", WORKERS[1]), (b"2", WORKERS[0]), (b"3", WORKERS[1]), (b"send", b"")]:
        table.pin(entry, pin, reader)
    copy = info(table).copies[0]
    assert copy.use_count == 4 and copy.readers == [WORKERS[1], WORKERS[0]]


def test_a_copy_that_is_freed_but_read_is_still_told(table: SmallTable) -> None:
    entry = table.find(object_id("a"))
    assert entry is not None
    table.pin(entry, b"1", WORKERS[0])
    table.free_object(object_id("a"), 0)
    told = {copy.object_id: copy.state for copy in info(table).copies}
    assert told == {object_id("a"): DOOMED, object_id("b"): SEALED}


def test_one_may_ask_for_some_of_them(table: SmallTable) -> None:
    told = info(table, GetObjectsInfo(object_ids=[object_id("b"), object_id("unknown")]))
    assert [copy.object_id for copy in told.copies] == [object_id("b")] and told.total == 1


@pytest.mark.parametrize(("limit", "most", "expected"), [(1, 100, 1), (100, 1, 1), (0, 100, 0), (100, 100, 2)])
def test_an_answer_is_bounded_and_says_how_many_there_are(
    table: SmallTable, monkeypatch: pytest.MonkeyPatch, limit: int, most: int, expected: int
) -> None:
    monkeypatch.setattr(inventory, "MOST_ENTRIES", most)
    told = info(table, GetObjectsInfo(limit))
    assert [copy.object_id for copy in told.copies] == [object_id("a"), object_id("b")][:expected] and told.total == 2


def test_only_a_copy_that_may_go_is_evicted(table: SmallTable) -> None:
    read = table.put("c", 1, is_primary=False)
    table.pin(read, b"1", WORKERS[0])
    for name in ("a", "b", "c", "unknown"):
        table.evict(object_id(name))
    assert [entry.object_id for entry in table.evicted] == [object_id("b")]
    assert table.allocator.used == 4 * ALIGNMENT


def test_an_evicted_copy_may_come_back(table: SmallTable) -> None:
    table.evict(object_id("b"))
    table.put("b", 1, is_primary=False)
    table.evict(object_id("b"))
    assert len(table.evicted) == 2
