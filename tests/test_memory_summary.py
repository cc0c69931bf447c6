"""The text of ``minray memory``."""

from __future__ import annotations

import json

import msgspec
import pytest

from minray.observability.memory_summary import View, memory_facts, memory_summary
from minray.observability.state_reader import ClusterObjects
from minray.protocol.base import Address
from minray.protocol.core_worker import CoreWorkerStats, ObjectRefInfo
from minray.protocol.gcs import NodeInfo
from minray.protocol.object_store import CopyInfo, ObjectsInfo, SpillStats

DRIVER, WORKER, GONE = b"driver--", b"worker--", b"gone----"
BIG, SMALL, RESULT = b"\xb1" * 28, b"\x5a" * 28, b"\x4e" * 28
NODES = [b"\x01" * 16, b"\x02" * 16]


def node(node_id: bytes, name: str, ip: str) -> NodeInfo:
    return NodeInfo(node_id, name, ip, "host", Address(node_id, node_id, "sim:"), {}, {}, False)


def objects(left_out: int = 0, silent: tuple[str, ...] = ()) -> ClusterObjects:
    """A driver on the first node with three objects; a worker on the second one reads one of them, and borrows another."""
    driver = CoreWorkerStats(
        DRIVER,
        NODES[0],
        100,
        True,
        3 + left_out,
        [
            ObjectRefInfo(BIG, DRIVER, 1, 1, 0, 1, False, 2_000_000, "NIL", 0, "(put object) | a.py:f:1"),
            ObjectRefInfo(SMALL, DRIVER, 1, 0, 0, 0, False, 10, "NIL", 0, "(put object) | a.py:f:2"),
            ObjectRefInfo(RESULT, DRIVER, 1, 0, 0, 0, False, -1, "SUBMITTED_TO_WORKER", 1, "(task call) | a.py:f:3"),
        ],
    )
    worker = CoreWorkerStats(
        WORKER, NODES[1], 200, False, 1, [ObjectRefInfo(RESULT, GONE, 0, 0, 1, 0, False, -1, "NIL", 0, "")]
    )
    copies = [CopyInfo(BIG, 0, 2_000_000, DRIVER, "SEALED", True, 1, [WORKER])]
    stores = {NODES[0]: ObjectsInfo(NODES[0], 8_000_000, 2_000_000, 6_000_000, 1, copies)}
    nodes = {NODES[0]: node(NODES[0], "first", "10.0.0.1"), NODES[1]: node(NODES[1], "second", "10.0.0.2")}
    return ClusterObjects(nodes, stores, [driver, worker], list(silent))


def lines_with(text: str, *parts: str) -> list[list[str]]:
    found = [line for line in text.splitlines() if all(part in line for part in parts)]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in found]


def test_stores_come_first() -> None:
    text = memory_summary(objects(), View(stats_only=True, units="MB"))
    assert lines_with(text, "01010101") == [
        ["01010101", "first", "10.0.0.1", "2 MB", "8 MB", "25.0%", "6 MB", "1", "1", "0"]
    ]
    assert len(text.splitlines()) == 2


def test_references_are_listed_by_node_the_largest_first() -> None:
    text = memory_summary(objects(), View())
    assert [line for line in text.splitlines() if line.startswith("References")] == [
        "References of processes at 10.0.0.1 (node first): 3 objects of 2000010 B, 2 as local references, 1 used by tasks",
        "References of processes at 10.0.0.2 (node second): 2 objects of 2000000 B, 1 pinned, 1 captured in objects",
    ]
    rows = [row[:8] for row in lines_with(text, "10.0.0.1", "Driver")]
    assert rows == [
        ["10.0.0.1", "100", "Driver", "-", "1", "2000000 B", "USED_BY_PENDING_TASK", "itself"],
        ["10.0.0.1", "100", "Driver", "-", "1", "10 B", "LOCAL_REFERENCE", "itself"],
        ["10.0.0.1", "100", "Driver", "SUBMITTED_TO_WORKER", "2", "?", "LOCAL_REFERENCE", "itself"],
    ]
    assert [row[5:] for row in lines_with(text, "Worker")] == [
        ["2000000 B", "PINNED_IN_MEMORY", "driver 100", BIG.hex()],
        ["?", "CAPTURED_IN_OBJECT", GONE.hex()[:8], RESULT.hex()],
    ]


@pytest.mark.parametrize(
    ("sort_by", "sizes"), [("OBJECT_SIZE", ["2000000 B", "10 B", "?"]), ("REFERENCE_TYPE", ["10 B", "?", "2000000 B"])]
)
def test_the_order_may_be_another(sort_by: str, sizes: list[str]) -> None:
    assert [row[5] for row in lines_with(memory_summary(objects(), View(sort_by=sort_by)), "Driver")] == sizes


def test_references_may_be_grouped_by_the_line_that_made_them() -> None:
    text = memory_summary(objects(), View(group_by="STACK_TRACE"))
    groups = [line for line in text.splitlines() if line.startswith("References made at")]
    assert groups == [
        "References made at (put object) | a.py:f:1: 1 object of 2000000 B, 1 used by tasks",
        "References made at (put object) | a.py:f:2: 1 object of 10 B, 1 as local references",
        "References made at (task call) | a.py:f:3: 1 object of 0 B, 1 as local references",
        "References made at unknown places: 2 objects of 2000000 B, 1 pinned, 1 captured in objects",
    ]


def test_a_group_may_be_cut_and_its_sums_are_not() -> None:
    text = memory_summary(objects(), View(num_entries=1))
    assert len(lines_with(text, "Driver")) == len(lines_with(text, "Worker")) == 1
    assert "3 objects of 2000010 B" in text


def test_what_is_missing_is_said() -> None:
    text = memory_summary(objects(7, ("process 5 of node 0202",)), View())
    assert text.splitlines()[-1] == "process 5 of node 0202 does not answer."
    assert "7 references or copies are not shown" in text


def test_memory_on_disk_is_told_for_each_node_that_has_some() -> None:
    found = objects()
    assert "memory on disk" not in memory_summary(found, View())
    copies = [msgspec.structs.replace(copy, is_in_fallback=True) for copy in found.stores[NODES[0]].copies]
    stores = {NODES[0]: msgspec.structs.replace(found.stores[NODES[0]], fallback_used=5_000_000, copies=copies)}
    text = memory_summary(found._replace(stores=stores), View(stats_only=True, units="MB"))
    expected = f"Node {NODES[0].hex()[:8]} has 5 MB of memory on disk ({len(copies)} objects)"
    assert lines_with(text, expected) and copies


def test_what_went_to_disk_is_told_in_one_line() -> None:
    found = objects()
    spill = SpillStats(3_000_000, 2, 1_000_000, 1)
    stores = {key: msgspec.structs.replace(one, spill=spill) for key, one in found.stores.items()}
    text = memory_summary(found._replace(stores=stores), View(stats_only=True, units="MB"))
    assert text.splitlines()[-1] == "Spilled 3 MB (2 objects), restored 1 MB (1 objects), sent 0 MB from disk."


def test_programs_get_whole_ids_and_numbers() -> None:
    facts = memory_facts(objects(), View(num_entries=1))
    [largest] = facts["references"]
    assert largest["size"] == max(use.size for use in objects().uses())
    assert len(largest["object_id"]) == 2 * len(next(iter(objects().uses())).object_id)
    assert [store["node_id"] for store in facts["stores"]] == [node_id.hex() for node_id in objects().stores]
    assert json.loads(json.dumps(facts)) == facts
    assert memory_facts(objects(), View(stats_only=True))["references"] == []
