"""Statistics of a process about its references."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from minray.common.ids import PUT_INDEX
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.introspection import stats
from minray.core_worker.introspection.stats import Statistician
from minray.core_worker.ownership.call_sites import CallSites
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import QUEUED
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.core_worker import GetCoreWorkerStats, ObjectRefInfo
from minray.protocol.object_store import Place
from tests.core_worker.parts import OWN, address, object_id, pending, prepare, submit
from tests.core_worker.process_record import process_record

X, Y = object_id("x"), object_id("y")


class Tables:
    """A core worker of which there are only the tables."""

    def __init__(self) -> None:
        self.references = ReferenceCounter()
        self.store = MemoryStore()
        self.tasks = TaskManager(None)
        self.call_sites: CallSites | None = None
        self.process = process_record()
        self.process.config = msgspec.structs.replace(self.process.config, is_driver=True)

    def own(self, known_as: bytes, value: bytes | None = None, **fields: Any) -> None:
        """An object of this process, with its value if it is there."""
        self.references.add_owned(known_as)
        if value is not None:
            self.store.put(known_as, StoredObject(value, (), fields.pop("is_error", False), (), **fields))

    def told(self, request: GetCoreWorkerStats | None = None) -> list[ObjectRefInfo]:
        return self.statistician().stats(request or GetCoreWorkerStats()).references

    def statistician(self) -> Statistician:
        """One that reads these tables; what runs here is not asked for."""
        nothing: Any = None
        return Statistician(
            process=self.process,
            context=JobContext(OWN.worker_id),
            references=self.references,
            store=self.store,
            tasks=self.tasks,
            call_sites=self.call_sites,
            profile=nothing,
            receiver=nothing,
            actor_receiver=nothing,
        )


@pytest.fixture
def tables() -> Tables:
    return Tables()


def test_a_process_says_who_it_is(tables: Tables) -> None:
    told = tables.statistician().stats(GetCoreWorkerStats())
    assert (told.worker_id, told.node_id, told.pid, told.is_driver, told.total) == (OWN.worker_id, OWN.node_id, 7, True, 0)


def test_counts_are_told(tables: Tables) -> None:
    tables.own(X, b"12345")
    tables.references.add_submitted([X, X], [None, None])
    tables.references.add_local(X, None)
    tables.references.pin(X)
    for ticket, borrower in [(b"1", "b"), (b"2", "b"), (b"3", "c")]:
        tables.references.lend(X, address(borrower), ticket, OWN)
    (told,) = tables.told()
    assert (told.owner_id, told.size, told.call_site) == (OWN.worker_id, 5, "disabled")
    assert (told.local, told.submitted, told.contained, told.borrowers, told.is_pickled) == (2, 2, 0, 2, True)


def test_of_a_borrowed_object_the_owner_is_told_and_nothing_of_its_task(tables: Tables) -> None:
    tables.references.add_local(X, address("other"))
    tables.store.put(X, StoredObject(b"12", (), False, ()))
    (told,) = tables.told()
    assert (told.owner_id, told.size, told.task_status, told.borrowers) == (address("other").worker_id, 2, "NIL", 0)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"value": b"1"}, ("FINISHED", 0)),
        ({"value": b"", "place": Place(2, 5000, address("raylet"))}, ("FINISHED", 2)),
        ({"value": b"1", "is_error": True}, ("FAILED", 0)),
        ({"value": b"freed by hand", "is_error": True, "is_freed": True}, ("NIL", 0)),
        ({}, ("NIL", 0)),
    ],
)
def test_the_fate_of_a_task_that_has_ended_is_told(tables: Tables, stored: dict[str, Any], expected: Any) -> None:
    tables.own(X, **stored)
    (told,) = tables.told()
    assert (told.task_status, told.attempt) == expected


def test_what_was_put_has_no_task(tables: Tables) -> None:
    tables.own(X[: -len(PUT_INDEX)] + PUT_INDEX, b"1")
    assert tables.told()[0].task_status == "NIL"


def test_the_state_and_the_attempt_of_a_task_that_goes_on_are_told(tables: Tables) -> None:
    task = submit(tables.tasks, pending(prepare()), QUEUED)
    task.attempt = 3
    tables.own(task.task_id + b"\0\0\0\1")
    (told,) = tables.told()
    assert (told.task_status, told.attempt, told.size) == ("PENDING_NODE_ASSIGNMENT", 3, -1)


def test_a_call_site_is_told(tables: Tables) -> None:
    tables.call_sites = CallSites(is_driver=True, running_task_name=str)
    tables.call_sites.note([X], "put object")
    tables.own(X)
    tables.own(Y)
    assert [told.call_site.partition(" | ")[0] for told in tables.told()] == ["(put object)", ""]


@pytest.mark.parametrize(("limit", "most", "expected"), [(2, 100, 2), (100, 2, 2), (0, 100, 0), (100, 100, 3)])
def test_the_largest_are_told_and_how_many_there_are(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, limit: int, most: int, expected: int
) -> None:
    monkeypatch.setattr(stats, "MOST_ENTRIES", most)
    for size in (5, 9, 7):
        tables.own(object_id(f"of-{size}"), b"x" * size)
    told = tables.statistician().stats(GetCoreWorkerStats(limit))
    assert [info.size for info in told.references] == [9, 7, 5][:expected] and told.total == 3


def test_one_may_ask_for_some_of_them(tables: Tables) -> None:
    tables.own(X)
    tables.own(Y)
    assert [told.object_id for told in tables.told(GetCoreWorkerStats(object_ids=[Y, object_id("unknown"), Y]))] == [Y]
