"""Which of a caller's numbers are done with: a low-water mark, and ranges above it.

Ray: has no counterpart; it forgets a reply when it has sent it

An actor keeps each reply until the caller says that it has come. Calls that run side by side end in any order, and one may
run for hours while millions come and go behind it; so what is done is kept as ranges, of which there are about as many as
there are calls still running.
"""

from __future__ import annotations

from bisect import bisect_right


class SequenceRanges:
    """A set of positive numbers that grows."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        """Ranges, both ends included, in order, with gaps in between."""

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number <= self._lasts[index]

    def add(self, first: int, last: int) -> None:
        """All from ``first`` to ``last``, also those that are there already."""
        begin = bisect_right(self._firsts, first)
        if begin and self._lasts[begin - 1] >= first - 1:
            begin -= 1
            first = self._firsts[begin]
        end = begin
        while end < len(self._firsts) and self._firsts[end] <= last + 1:
            last = max(last, self._lasts[end])
            end += 1
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def forget_up_to(self, number: int) -> None:
        """Ranges that end there or earlier need not be remembered any more."""
        count = bisect_right(self._lasts, number)
        del self._firsts[:count], self._lasts[:count]

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)
