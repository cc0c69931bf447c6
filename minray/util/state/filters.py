"""Filters for rows: ``("state", "=", "ALIVE")``, or ``state=ALIVE`` on the command line.

Ray: python/ray/util/state/state_manager.py, filter_fields in python/ray/util/state/util.py

All filters must hold. They compare text and ignore case, so that ``True`` and ``true`` are equal. A field without a value
equals the empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from minray.common.shown import RowsInNotebooks, shown

Filter = tuple[str, str, str | bool | int | float]
"""(name of a field, ``=`` or ``!=``, value)"""
T = TypeVar("T")


def matching(rows: Sequence[T], filters: Sequence[Filter] | None, limit: int) -> list[T]:
    """Return the first ``limit`` rows for which all filters hold."""
    tests = [_test_of(one) for one in filters or ()]
    return RowsInNotebooks([row for row in rows if all(test(row) for test in tests)][:limit])


def check(state: type[Any], filters: Sequence[Filter] | None) -> None:
    """Raise ValueError for a filter that does not fit this class of rows, TypeError if ``filters`` is no list or tuple."""
    if not isinstance(filters, list | tuple | None):
        raise TypeError(f"filters must be a list of filters, not {type(filters).__name__}")
    for one in filters or ():
        if not isinstance(one, list | tuple) or len(one) != 3:
            raise ValueError(f'a filter is a tuple such as ("state", "=", "ALIVE"), not {shown(one)}')
        name, predicate, _ = one
        known = [one.name for one in fields(state)]
        if name not in known:
            what = state.__name__.removesuffix("State").lower()
            raise ValueError(f"{what}s have no {shown(name)} to filter by; they have {', '.join(known)}")
        if predicate not in ("=", "!="):
            raise ValueError(f"a filter compares by = or !=, not by {shown(predicate)}")


def parse(text: str) -> Filter:
    """Parse ``state=ALIVE`` or ``state!=DEAD``. Raises ValueError for other text."""
    name, sign, value = text.partition("=")
    if not sign or not name.rstrip("!"):
        raise ValueError(f"{shown(text)} is not a filter such as state=ALIVE or state!=DEAD")
    return (name[:-1].strip(), "!=", value.strip()) if name.endswith("!") else (name.strip(), "=", value.strip())


def _test_of(wanted: Filter) -> Callable[[Any], bool]:
    name, predicate, value = wanted
    text = _text(value)
    return lambda row: (_text(getattr(row, name)) == text) is (predicate == "=")


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower()
