"""Chunks are asked for in order, given back when they do not come, and announced to readers that wait for their bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minray.object_manager.chunks import Chunks, chunk_bytes_of


def test_chunks_are_taken_from_the_first_to_the_last() -> None:
    chunks = Chunks(25, 10)
    assert [chunks.take() for _ in range(3)] == [(0, 10), (10, 20), (20, 25)]
    assert chunks.is_all_taken()
    assert not chunks.is_complete()


def test_what_did_not_come_is_the_next_to_be_taken() -> None:
    chunks = Chunks(40, 10)
    for _ in range(3):
        chunks.take()
    chunks.arrive(10)
    chunks.give_back(20)
    chunks.give_back(0)
    assert [chunks.take() for _ in range(3)] == [(0, 10), (20, 30), (30, 40)]


def test_bytes_may_be_cut_otherwise_than_the_chunks() -> None:
    chunks = Chunks(40, 10)
    for _ in range(4):
        chunks.take()
    chunks.arrive(10)
    chunks.arrive(20)
    assert chunks.has(12, 28)
    assert chunks.has(10, 30)
    assert not chunks.has(9, 12)
    assert not chunks.has(25, 31)


def test_who_waits_is_told_once_when_all_bytes_are_here() -> None:
    chunks = Chunks(30, 10)
    for _ in range(3):
        chunks.take()
    told: list[bool] = []
    chunks.when_here(5, 25, told.append)
    for start in (10, 0):
        chunks.arrive(start)
    assert told == []
    chunks.arrive(20)
    chunks.give_up()
    assert told == [True]


def test_who_waits_in_vain_is_told_so() -> None:
    chunks = Chunks(20, 10)
    told: list[bool] = []
    chunks.when_here(0, 10, told.append)
    chunks.give_up()
    assert told == [False]


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_everything_arrives_once_whatever_is_lost(size: int, chunk_bytes: int, data: st.DataObject) -> None:
    chunks = Chunks(size, chunk_bytes)
    start, end = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    told: list[bool] = []
    if start < end:
        chunks.when_here(start, end, told.append)
    arrived: list[int] = []
    under_way: list[tuple[int, int]] = []
    while not chunks.is_complete():
        if not chunks.is_all_taken() and (not under_way or data.draw(st.booleans())):
            under_way.append(chunks.take())
            continue
        first, last = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        if data.draw(st.booleans()):
            chunks.give_back(first)
        else:
            chunks.arrive(first)
            arrived.extend(range(first, last))
            assert bool(told) == (start < end and set(range(start, end)) <= set(arrived))
    assert sorted(arrived) == list(range(size))
    assert told == [True] * (start < end)


def test_large_objects_have_larger_chunks_but_many_all_the_same() -> None:
    mebibyte = 1 << 20
    assert [chunk_bytes_of(size * mebibyte, 5 * mebibyte) // mebibyte for size in (1, 160, 319, 320, 1024, 10240)] == [
        5, 5, 5, 10, 30, 60,
    ]  # fmt: skip
    assert chunk_bytes_of(1 << 30, 100 * mebibyte) == 100 * mebibyte
    assert chunk_bytes_of(0, 7) == 7
