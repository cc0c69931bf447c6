"""Questions about a table: filters, search, order and part, and what is wrong with them."""

from __future__ import annotations

import pytest

from minray.dashboard.listing import MAX_LIMIT, RowQuestion, parse_question, select_rows

COLUMNS = ("id", "state", "size", "where")
ROWS = [
    {"id": "a", "state": "RUNNING", "size": 9, "where": {"node": "N1"}},
    {"id": "b", "state": "FAILED", "size": None, "where": None},
    {"id": "c", "state": "running", "size": 10, "where": {"node": "N2"}},
    {"id": "d", "state": "PENDING", "size": 1.5, "where": None},
]


def ids(*pairs: tuple[str, str]) -> tuple[str, int]:
    rows, matching = select_rows(ROWS, parse_question(pairs, COLUMNS))
    return "".join(str(row["id"]) for row in rows), matching


def test_no_question_is_everything() -> None:
    assert parse_question([], COLUMNS) == RowQuestion()
    assert ids() == ("abcd", 4)


def test_filters_must_all_hold_and_ignore_case() -> None:
    assert ids(("filter", "state=running")) == ("ac", 2)
    assert ids(("filter", "state!=running"), ("filter", "size!=1.5")) == ("b", 1)
    assert ids(("filter", "size=")) == ("b", 1), "no value equals the empty text"


def test_a_search_looks_into_every_column() -> None:
    assert ids(("search", "n2")) == ("c", 1)
    assert ids(("search", "RUN"), ("filter", "size=9")) == ("a", 1)


def test_numbers_sort_by_size_and_what_is_missing_comes_last() -> None:
    assert ids(("sort", "size")) == ("dacb", 4)
    assert ids(("sort", "-size")) == ("cadb", 4)
    assert ids(("sort", "state")) == ("bdac", 4)


def test_a_part_still_tells_how_many_match() -> None:
    assert ids(("sort", "id"), ("limit", "1"), ("offset", "2")) == ("c", 4)
    assert ids(("offset", "9")) == ("", 4)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("filter", "colour=red"), "no column 'colour'; it has id, state, size, where"),
        (("filter", "state"), "is not a filter"),
        (("sort", "-colour"), "no column 'colour'"),
        (("limit", "0"), f"limit must be a whole number from 1 to {MAX_LIMIT}"),
        (("limit", "1e3"), "limit must be"),
        (("limit", "9" * 200), "limit must be"),
        (("limit", "٣"), "limit must be"),
        (("offset", "-1"), "offset must be"),
        (("search", "x" * 301), "301 characters"),
        (("fitler", "state=x"), "no option 'fitler'"),
    ],
)
def test_a_wrong_question_is_an_error_that_names_its_part(pair: tuple[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        parse_question([pair], COLUMNS)


def test_too_many_filters_are_an_error() -> None:
    with pytest.raises(ValueError, match="21 filters"):
        parse_question([("filter", "id=a")] * 21, COLUMNS)
