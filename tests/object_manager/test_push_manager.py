"""Chunks leave in order and in bounds (G88)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minray.common.bounds import BOUNDS
from minray.object_manager.push_manager import PushManager


def test_g88_at_most_so_many_bytes_are_in_flight() -> None:
    pushes, sent = PushManager(100), list[int]()
    for number in range(4):
        pushes.add_push(40, lambda number=number: sent.append(number))
    assert (sent, pushes.bytes_in_flight, len(pushes)) == ([0, 1], 80, 2)
    pushes.on_sent(40)
    assert sent == [0, 1, 2]
    assert BOUNDS.object_manager_max_bytes_in_flight == 2 << 30


def test_what_is_larger_than_the_bound_goes_alone() -> None:
    pushes, sent = PushManager(100), list[int]()
    for size in (10, 500, 10):
        pushes.add_push(size, lambda size=size: sent.append(size))
    assert sent == [10]
    pushes.on_sent(10)
    assert sent == [10, 500]
    pushes.on_sent(500)
    assert sent == [10, 500, 10]


@given(st.lists(st.integers(1, 150)), st.data())
def test_g88_everything_leaves_in_order(sizes: list[int], data: st.DataObject) -> None:
    pushes, sent, over = PushManager(100), list[int](), 0
    for number, size in enumerate(sizes):
        pushes.add_push(size, lambda number=number: sent.append(number))
        while over < len(sent) and data.draw(st.booleans()):
            pushes.on_sent(sizes[sent[over]])
            over += 1
        in_flight = [sizes[number] for number in sent[over:]]
        assert pushes.bytes_in_flight == sum(in_flight)
        assert sum(in_flight) <= 100 or len(in_flight) == 1
    while over < len(sent):
        pushes.on_sent(sizes[sent[over]])
        over += 1
    assert sent == list(range(len(sizes)))
