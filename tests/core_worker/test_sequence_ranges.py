"""Numbers that are done with, kept as ranges: the same as a set, in less room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minray.common.sequence_ranges import SequenceRanges

SPANS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6)), max_size=25)


def test_neighbours_become_one_range() -> None:
    numbers = SequenceRanges()
    for number in (1, 3, 2, 7, 5):
        numbers.add(number, number)
    assert numbers.ranges() == [(1, 3), (5, 5), (7, 7)] and len(numbers) == 3
    numbers.add(4, 9)
    assert numbers.ranges() == [(1, 9)]
    assert 9 in numbers and 10 not in numbers and 0 not in numbers


@given(SPANS)
def test_it_is_a_set_with_as_few_ranges_as_can_be(spans: list[tuple[int, int]]) -> None:
    numbers, expected = SequenceRanges(), set[int]()
    for first, more in spans:
        numbers.add(first, first + more)
        expected.update(range(first, first + more + 1))
        assert [number for number in range(45) if number in numbers] == sorted(expected)
        ranges = numbers.ranges()
        assert all(a[1] + 1 < b[0] for a, b in zip(ranges, ranges[1:], strict=False))


@given(SPANS, st.integers(0, 40))
def test_what_is_forgotten_is_below_the_mark_and_the_rest_stays(spans: list[tuple[int, int]], mark: int) -> None:
    numbers, expected = SequenceRanges(), set[int]()
    for first, more in spans:
        numbers.add(first, first + more)
        expected.update(range(first, first + more + 1))
    numbers.forget_up_to(mark)
    assert [number for number in range(mark + 1, 45) if number in numbers] == sorted(n for n in expected if n > mark)
    assert all(last > mark for _, last in numbers.ranges())
