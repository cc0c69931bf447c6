"""The table of values, and who waits for those that are not here."""

from __future__ import annotations

import pytest

from minray.common.ids import return_id, short
from minray.core_worker.ownership.memory_store import SWEEP_AT, MemoryStore, Waiter
from tests.core_worker.parts import object_id, stored, task_ids

A, B, C = map(object_id, "abc")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Counted:
    """A waiter that counts its releases."""

    def __init__(self, needed: int, stop_at_error: bool = False) -> None:
        self.releases = 0
        self.waiter = Waiter(needed, stop_at_error, self.on_release)

    def on_release(self) -> None:
        self.releases += 1


def test_a_waiter_is_released_once_when_enough_have_come(store: MemoryStore) -> None:
    two = Counted(2)
    assert store.wait([A, B, C], two.waiter) == [A, B, C]
    for key, releases in ((A, 0), (B, 1), (C, 1)):
        store.put(key, stored())
        assert two.releases == releases
    assert store._waiters == {}


def test_what_is_here_counts_at_once(store: MemoryStore) -> None:
    store.put(A, stored())
    one = Counted(1)
    assert store.wait([A, B], one.waiter) == [B] and one.releases == 1


def test_g5_the_first_error_releases_a_get_but_not_a_wait(store: MemoryStore) -> None:
    get, wait = Counted(2, stop_at_error=True), Counted(2)
    for each in (get, wait):
        store.wait([A, B], each.waiter)
    store.put(A, stored(is_error=True))
    assert (get.releases, wait.releases) == (1, 0)
    store.put(B, stored(is_error=True))
    assert (get.releases, wait.releases) == (1, 1)


def test_errors_that_go_unseen_are_named(store: MemoryStore) -> None:
    seen, unseen = stored(is_error=True), stored(is_error=True)
    unseen.unseen = 2
    for key, error in ((A, seen), (B, unseen)):
        store.put(key, error)
    assert store.delete([A, B, C]) == [unseen]


def test_g112_the_first_arrival_stands(store: MemoryStore) -> None:
    first = stored(b"first")
    store.put(A, first)
    store.put(A, stored(b"second"))
    assert store.objects[A] is first


def test_who_has_stopped_waiting_is_not_released_and_leaves_nothing(store: MemoryStore) -> None:
    patient, hasty = Counted(1), Counted(1)
    for each in (patient, hasty):
        store.wait([A, B], each.waiter)
    store.stop_waiting([A, B], hasty.waiter)
    assert hasty.waiter.released and not patient.waiter.released, "other tables drop who is released"
    store.put(A, stored())
    assert (patient.releases, hasty.releases) == (1, 0)
    store.stop_waiting([A, B], patient.waiter)
    assert store._waiters == {}


def test_deleting_an_object_releases_those_who_would_wait_for_ever(store: MemoryStore) -> None:
    one = Counted(1)
    store.wait([A], one.waiter)
    store.delete([A])
    assert one.releases == 1 and store._waiters == {} and A not in store.objects


def test_who_is_released_is_released_once_although_that_brings_more_objects(store: MemoryStore) -> None:
    released: list[int] = []

    def release() -> None:
        released.append(1)
        store.put(B, stored())

    store.wait([A, B], Waiter(1, False, release))
    store.put(A, stored())
    assert released == [1]


def test_released_waiters_do_not_pile_up_on_an_object_that_does_not_come(store: MemoryStore) -> None:
    """A loop of ``wait([long, short], num_returns=1)``."""
    for number in range(10 * SWEEP_AT):
        short = object_id(f"short-{number}")
        store.wait([A, short], Counted(1).waiter)
        store.put(short, stored())
    assert len(store._waiters[A]) <= SWEEP_AT


def test_a_sweep_keeps_those_who_still_wait(store: MemoryStore) -> None:
    waiting = [Counted(1) for _ in range(3 * SWEEP_AT)]
    for each in waiting:
        store.wait([A], each.waiter)
    store.put(A, stored())
    assert all(each.releases == 1 for each in waiting)


def test_the_size_of_a_value_is_that_of_all_its_parts() -> None:
    assert stored(b"12345", buffers=[b"123", memoryview(b"12")]).size() == 10


def test_what_becomes_of_an_object_is_recorded() -> None:
    record: list[tuple[str, str, str, str]] = []
    made_by = task_ids.next()
    store = MemoryStore(lambda *change: record.append(change))
    returned, put, never = (return_id(made_by, index) for index in (2, 0, 3))
    one, other = Counted(1), Counted(1)
    store.wait([returned, never], one.waiter)
    store.put(returned, stored())
    store.stop_waiting([returned, never], one.waiter)
    store.put(put, stored(is_error=True))
    store.wait([never], other.waiter)
    for key in (returned, put, never):
        store.delete([key])
    name = short(made_by)
    store.put(never, stored())
    store.replace(never, stored(is_error=True))
    assert record.pop() == ("object", f"{name}.3", "HERE", "ERROR") and record.pop() == ("object", f"{name}.3", "", "HERE")
    assert record == [
        ("object", f"{name}.2", "", "AWAITED"),
        ("object", f"{name}.3", "", "AWAITED"),
        ("object", f"{name}.2", "AWAITED", "HERE"),
        ("object", f"{name}.3", "AWAITED", ""),
        ("object", f"{name}.put", "", "ERROR"),
        ("object", f"{name}.3", "", "AWAITED"),
        ("object", f"{name}.2", "HERE", ""),
        ("object", f"{name}.put", "ERROR", ""),
        ("object", f"{name}.3", "AWAITED", ""),
    ]
