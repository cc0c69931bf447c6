"""Abbreviated ids on the command line: ``minray get`` takes the beginning of an id that no other id has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.observability.state_reader import StateReader
from minray.util.state.common import WorkerState
from minray.util.state.rows import MOST_NAMED, Kind, Listing, beginning_of_id, find


def worker(worker_id: str) -> WorkerState:
    return WorkerState(worker_id, True, "WORKER", None, "", "", 1)


def found(text: str, *ids: str) -> list[str]:
    """The ids of the rows that are found by this text among rows with these ids."""

    async def read(_reader: StateReader, _timeout_s: float, id: str | None) -> Listing:
        return Listing([worker(one) for one in ids if id in (None, one)])

    nothing: Any = None
    listing = asyncio.run(find(Kind(WorkerState, read), nothing, 1.0, beginning_of_id(text)))
    return [row.worker_id for row in listing.rows]


@pytest.mark.parametrize("text", ["ab12", "AB12", "ab1", "a"])
def test_the_beginning_of_an_id_is_enough(text: str) -> None:
    assert found(text, "ab12", "cd34") == ["ab12"]


def test_a_whole_id_that_also_begins_another_is_that_id() -> None:
    assert found("ab", "ab", "ab12") == ["ab"]


def test_rows_of_one_id_are_found_together() -> None:
    assert found("ab", "ab12", "ab12") == ["ab12", "ab12"]


def test_nothing_is_found_where_no_id_begins_so() -> None:
    assert found("b1", "ab12") == [] == found("ab123", "ab12")


def test_an_ambiguous_beginning_is_an_error_that_lists_the_ids() -> None:
    with pytest.raises(ValueError, match=r"^2 ids begin with a: ab, ac$"):
        found("a", "ac", "ab", "bc")
    many = [f"a{number:03x}" for number in range(MOST_NAMED + 1)]
    with pytest.raises(ValueError, match=rf"^{len(many)} ids begin with a: a000, .*, \.\.\.$"):
        found("a", *many)


@pytest.mark.parametrize("text", ["x", "xy", "abx"])
def test_what_is_not_hexadecimal_begins_no_id(text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is no id"):
        beginning_of_id(text)
