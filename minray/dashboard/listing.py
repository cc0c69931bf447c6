"""One question about a table, and its answer: filters, search, order, and a part of the rows.

Ray: python/ray/dashboard/state_aggregator.py, and the tables of its page, which filter in the browser

The functions are pure. Rows are dicts with the columns' names. A table is filtered here, not in the browser: a million rows
would take the browser minutes. Every answer tells how many rows there are and how many match, so that a part is never taken
for the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from minray.common.shown import shown
from minray.util.state.filters import Filter, parse

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
"""Most rows of one answer: more than anybody reads, and about a megabyte."""
MOST_TEXT = 300
"""Most characters of a filter or search text."""
MOST_FILTERS = 20

Row = dict[str, Any]


class RowQuestion(NamedTuple):
    """The parts of a question about a table."""

    filters: tuple[Filter, ...] = ()
    """Conditions that must all hold. Comparison ignores case."""
    search: str = ""
    """Text, in lower case, that must occur in one of the columns."""
    sort: str = ""
    """Column that decides the order; empty: the order of the table."""
    is_descending: bool = False
    limit: int = DEFAULT_LIMIT
    offset: int = 0


def parse_question(pairs: Iterable[tuple[str, str]], columns: Sequence[str]) -> RowQuestion:
    """Read a question from the pairs of an address's query. Raises ValueError, which names the wrong part.

    Names that it does not know are an error too: a misspelt filter that did nothing would be taken for an answer.
    """
    filters: list[Filter] = []
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if len(value) > MOST_TEXT:
            raise ValueError(f"{name} is {len(value)} characters long, more than {MOST_TEXT}")
        if name == "filter":
            one = parse(value)
            _check_column(one[0], columns)
            filters.append(one)
        elif name == "search":
            fields["search"] = value.lower()
        elif name == "sort":
            _check_column(value.removeprefix("-"), columns)
            fields |= {"sort": value.removeprefix("-"), "is_descending": value.startswith("-")}
        elif name == "limit":
            fields["limit"] = whole_number(name, value, 1, MAX_LIMIT)
        elif name == "offset":
            fields["offset"] = whole_number(name, value, 0, 10**9)
        else:
            raise ValueError(f"a table has no option {shown(name)}; it has filter, search, sort, limit and offset")
    if len(filters) > MOST_FILTERS:
        raise ValueError(f"{len(filters)} filters are too many; at most {MOST_FILTERS}")
    return RowQuestion(tuple(filters), **fields)


def _check_column(name: str, columns: Sequence[str]) -> None:
    if name not in columns:
        raise ValueError(f"this table has no column {shown(name)}; it has {', '.join(columns)}")


def whole_number(name: str, text: str, least: int, most: int) -> int:
    """Read an option that is a number. Raises ValueError, which names it."""
    if not text.isascii() or not text.isdigit() or not least <= int(text[:12]) <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {shown(text)}")
    return int(text)


def select_rows(rows: Sequence[Row], question: RowQuestion) -> tuple[list[Row], int]:
    """Return the rows of the asked part, and the number of all rows that match."""
    found = [row for row in rows if _holds(row, question)] if question.filters or question.search else list(rows)
    if question.sort:
        known = [row for row in found if row.get(question.sort) not in (None, "")]
        known.sort(key=lambda row: _order(row[question.sort]), reverse=question.is_descending)
        found = known + [row for row in found if row.get(question.sort) in (None, "")]
    return found[question.offset : question.offset + question.limit], len(found)


def _holds(row: Row, question: RowQuestion) -> bool:
    for name, predicate, value in question.filters:
        if (text_of(row.get(name)) == text_of(value)) is not (predicate == "="):
            return False
    return not question.search or any(question.search in text_of(value) for value in row.values())


def text_of(value: Any) -> str:
    """Return a value as filters and searches see it: in lower case, and empty if there is none."""
    return "" if value is None else str(value).lower()


def _order(value: Any) -> tuple[int, float, str]:
    """Return a sort key: numbers come first, by their size, then texts without regard to case."""
    if isinstance(value, bool | int | float):
        return 0, float(value), ""
    return 1, 0.0, str(value).lower()
