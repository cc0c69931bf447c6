"""Identifiers: unique, of one size, and readable in pieces."""

from __future__ import annotations

import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.ids import (
    JOB_ID_BYTES,
    LEASE_ID_BYTES,
    OBJECT_ID_BYTES,
    PUT_INDEX,
    TASK_ID_BYTES,
    BaseID,
    JobID,
    LeaseIdFactory,
    NodeID,
    TaskID,
    TaskIdFactory,
    WorkerID,
    job_of,
    lease_tag,
    return_id,
    short,
    task_of,
)

WORKER, OTHER, JOB = b"worker----------", b"other-----------", b"\0\0\0\7"


def test_g94_an_object_id_is_its_task_and_an_index() -> None:
    task_id = TaskIdFactory(WORKER, JOB).next()
    ids = [return_id(task_id, index) for index in (1, 2, 300)]
    assert len(set(ids)) == 3 and all(len(each) == OBJECT_ID_BYTES for each in ids)
    assert all(task_of(each) == task_id and job_of(each) == JOB for each in ids)
    assert job_of(task_id) == JOB and task_of(task_id + PUT_INDEX) == task_id
    assert task_id + PUT_INDEX not in ids


def test_ids_of_one_process_are_unique_in_all_its_threads() -> None:
    factory = TaskIdFactory(WORKER, JOB)
    made: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: made.append([factory.next() for _ in range(2000)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [each for some in made for each in some]
    assert len(set(ids)) == 8000 and all(len(each) == TASK_ID_BYTES for each in ids)


def test_ids_of_different_processes_and_jobs_differ() -> None:
    factories = [TaskIdFactory(WORKER, JOB), TaskIdFactory(OTHER, JOB), TaskIdFactory(WORKER, b"\0\0\0\1")]
    assert len({factory.next() for factory in factories}) == 3


def test_lease_ids_are_fresh_for_every_request_and_their_tags_differ_between_owners() -> None:
    first, second = LeaseIdFactory(WORKER), LeaseIdFactory(OTHER)
    ids = [factory.next() for _ in range(100) for factory in (first, second)]
    assert len(set(ids)) == len({lease_tag(each) for each in ids}) == 200
    assert all(len(each) == LEASE_ID_BYTES for each in ids)


@given(st.binary(min_size=LEASE_ID_BYTES, max_size=LEASE_ID_BYTES))
def test_a_lease_tag_fits_into_eight_bytes(lease_id: bytes) -> None:
    assert 0 <= lease_tag(lease_id) < 1 << 64


def test_the_short_form_tells_the_ids_of_one_process_apart() -> None:
    factory = TaskIdFactory(WORKER, JOB)
    first, second = factory.next(), factory.next()
    assert (short(first), short(second)) == ("776f-1", "776f-2")
    assert short(return_id(second, 1)) == "776f-2" and short(WORKER) == "776f726b"


@pytest.mark.parametrize("kind", [JobID, NodeID, TaskID, WorkerID])
def test_public_ids_behave_like_values(kind: type[BaseID]) -> None:
    one = kind.from_random()
    assert one == kind(one.binary()) == kind.from_hex(one.hex()) == kind.from_binary(one.binary())
    assert pickle.loads(pickle.dumps(one)) == one and hash(one) == hash(kind(one.binary()))
    assert one != kind.from_random() or kind is JobID
    assert repr(one) == f"{kind.__name__}({one.hex()})"
    assert kind.nil().is_nil() and not kind(bytes(kind.SIZE)).is_nil()


def test_ids_of_different_kinds_are_never_equal() -> None:
    assert NodeID(WORKER) != WorkerID(WORKER) and NodeID(WORKER) != WORKER


@pytest.mark.parametrize("wrong", [b"", b"short", bytes(17)])
def test_an_id_of_the_wrong_size_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="takes 16 bytes"):
        NodeID(wrong)


def test_an_id_is_made_of_bytes() -> None:
    with pytest.raises(TypeError, match="takes bytes, not str"):
        NodeID("x" * 16)  # type: ignore[arg-type]


def test_a_task_knows_its_job() -> None:
    assert TaskID(TaskIdFactory(WORKER, JOB).next()).job_id() == JobID(JOB)
    assert len(JOB) == JOB_ID_BYTES
