"""Answers of an owner about the places of its objects, and how other processes ask for them.

``Locator`` has real tables. The test plays the owners and raylets that are asked.
"""

from __future__ import annotations

import asyncio
from typing import Any

from minray.common.bounds import BOUNDS
from minray.common.ids import item_id
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.object_locator import Location, ObjectLocator
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.object_ref_streams import ObjectRefStream
from minray.core_worker.records.pending_task import PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.base import Address
from minray.protocol.core_worker import INLINED, KNOWN, LOST, NOT_MADE, UNKNOWN, GetObjectLocations, ObjectLocations
from minray.protocol.object_store import MOST_ENTRIES, CopyInfo, GetObjectsInfo, ObjectsInfo, Place
from tests.core_worker.parts import OWN, address, object_id, pending, prepare, stored
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import in_virtual_time, turns

HERE, THERE, OWNER = address("raylet-here"), address("raylet-there"), address("another-owner")
A, B, C = object_id("a"), object_id("b"), object_id("c")


class Locator:
    """See the head of this file."""

    def __init__(self) -> None:
        self.peers = RecordingPeers()
        process = process_record(self.peers)
        self.references, self.store = ReferenceCounter(), MemoryStore()
        self.directory = ObjectDirectory(process.patient, lambda lost: None, BOUNDS.max_items_per_batch)
        self.tasks: dict[bytes, PendingTask] = {}
        self.locator = ObjectLocator(process, self.references, self.store, self.directory, self.tasks.get)

    def own(self, key: bytes, value: StoredObject | None = None) -> None:
        self.references.add_owned(key)
        if value is not None:
            self.store.put(key, value)

    def own_large(self, key: bytes, raylet: Address = HERE, size: int = 1000) -> None:
        place = Place(0, size, raylet)
        self.own(key, StoredObject(b"", (), False, (), place))
        self.directory.add_location(key, place)

    def locate(self, *objects: tuple[bytes, Address]) -> asyncio.Task[dict[bytes, Location]]:
        return asyncio.get_running_loop().create_task(self.locator.locate(objects))


def copy(key: bytes, is_on_disk: bool) -> Any:
    return CopyInfo(key, 0, 1000, OWN.worker_id, "SEALED", True, 0, [], is_on_disk=is_on_disk)


# --- the owner


def test_an_owner_knows_the_nodes_of_what_is_large_and_that_other_things_are_nowhere() -> None:
    process = Locator()
    process.own_large(A)
    process.own(B, stored(b"small"))
    process.own(C)
    answers = [process.locator.answer(key) for key in (A, B, C)]
    assert (answers[0].status, answers[0].raylets, answers[0].size) == (KNOWN, [HERE], 1000)
    assert answers[1:] == [ObjectLocations(INLINED, size=5), ObjectLocations(NOT_MADE)]


def test_a_node_that_is_fetching_a_copy_is_named_to_the_next_reader() -> None:
    process = Locator()
    process.own_large(A)
    assert process.locator.answer(A, THERE, 1).receivers == []
    assert process.locator.answer(A, OWNER, 1).receivers == [THERE]


def test_of_what_was_freed_an_owner_knows_nothing() -> None:
    process = Locator()
    process.own(A, stored(b"value"))
    process.own(B, stored(b"an error", is_error=True))
    process.store.objects[B].is_freed = True
    process.references.remove_local([A], Effects())
    assert [process.locator.answer(key) for key in (A, B, C)] == [ObjectLocations(UNKNOWN)] * 3


def test_an_item_that_a_running_generator_has_not_reported_is_still_to_come() -> None:
    process = Locator()
    task = pending(prepare())
    task.stream = ObjectRefStream()
    task.stream.arrived, task.stream.beyond = 2, {4: None}
    process.tasks[task.task_id] = task
    answers = [process.locator.answer(item_id(task.task_id, number)).status for number in (1, 2, 3, 4, 5)]
    assert answers == [UNKNOWN, UNKNOWN, NOT_MADE, UNKNOWN, NOT_MADE]
    task.stream = None
    assert process.locator.answer(item_id(task.task_id, 5)) == ObjectLocations(UNKNOWN)


def test_an_error_and_what_has_no_copies_any_more_are_lost() -> None:
    process = Locator()
    process.own(A, stored(b"an error", is_error=True))
    process.own(B, StoredObject(b"", (), False, (), Place(0, 1000, HERE)))
    assert [process.locator.answer(key) for key in (A, B)] == [ObjectLocations(LOST)] * 2


# --- the curious


@in_virtual_time
async def test_owners_are_asked_for_theirs_and_the_first_nodes_for_what_they_have_on_disk() -> None:
    process = Locator()
    process.own_large(A)
    process.own(B, stored(b"small"))
    asking = process.locate((A, OWN), (B, OWN), (C, OWNER))
    await turns()
    asked = process.peers.take(GetObjectLocations)
    assert (asked.address, asked.request) == (OWNER, GetObjectLocations(C))
    asked.answer(ObjectLocations(KNOWN, 0, 2000, [THERE, HERE]))
    await turns()
    questions = process.peers.take_all(GetObjectsInfo)
    assert [(one.address, one.request.object_ids) for one in questions] == [(HERE, [A]), (THERE, [C])]
    questions[0].answer(ObjectsInfo(b"", 0, 0, 0, 1, [copy(A, False)]))
    questions[1].answer(ObjectsInfo(b"", 0, 0, 0, 1, [copy(C, True)]))
    assert await asking == {
        A: Location([HERE.node_id], 1000, False),
        B: Location([], 5, False),
        C: Location([THERE.node_id, HERE.node_id], 2000, True),
    }


@in_virtual_time
async def test_what_is_lost_or_not_made_has_no_size_and_what_nobody_knows_is_left_out() -> None:
    process = Locator()
    process.own(A)
    asking = process.locate((A, OWN), (B, OWNER), (C, OWNER), (object_id("d"), OWNER))
    await turns()
    for asked, status in zip(process.peers.take_all(GetObjectLocations), (LOST, UNKNOWN, ""), strict=True):
        if status:
            asked.answer(ObjectLocations(status))
        else:
            asked.fail(unreachable())
    assert await asking == {A: Location([], None, False), B: Location([], None, False)}


@in_virtual_time
async def test_a_node_that_is_dead_says_nothing_of_its_disk_and_the_others_do() -> None:
    process = Locator()
    process.own_large(A)
    process.own_large(B, THERE)
    asking = process.locate((A, OWN), (B, OWN))
    await turns()
    first, second = process.peers.take_all(GetObjectsInfo)
    first.fail(unreachable())
    second.answer(ObjectsInfo(b"", 0, 0, 0, 1, [copy(B, True)]))
    assert {key: location.did_spill for key, location in (await asking).items()} == {A: False, B: True}


@in_virtual_time
async def test_a_node_is_not_asked_for_more_at_once_than_it_answers() -> None:
    process = Locator()
    keys = [number.to_bytes(28, "big") for number in range(MOST_ENTRIES + 1)]
    for key in keys:
        process.own_large(key)
    asking = process.locate(*((key, OWN) for key in keys))
    for portion in (keys[:-1], keys[-1:]):
        await turns()
        asked = process.peers.take(GetObjectsInfo)
        assert asked.request.object_ids == portion
        asked.answer(ObjectsInfo(b"", 0, 0, 0, 1, [copy(portion[-1], True)]))
    spilled = [key for key, location in (await asking).items() if location.did_spill]
    assert spilled == [keys[-2], keys[-1]]
