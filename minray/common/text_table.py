"""Lines of aligned columns for the command line.

Ray: the tables that python/ray/scripts/scripts.py prints with ``tabulate``

Cells are strings already; the last column is not filled up, so that no line ends in blanks.

A table of the command line fits ``WIDTH`` columns. Its ids are short: as many digits as tell the ids of a column apart, so
that ``minray get`` accepts them. Then columns without content go, long texts are cut, and columns from the right are left
out, which a last line names.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from os.path import commonprefix
from textwrap import wrap

WIDTH = 100
"""Most columns of a table, in characters."""
LEAST_DIGITS = 8
"""Least digits of a short id."""
TEXT_WIDTH = 30
"""Width to which texts may be cut before columns are left out."""
LEAST_WIDTH = 8
"""Width below which no column is cut."""
GAP = 2
"""Blanks between two columns."""


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """An empty line and the table; nothing without rows."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    aligned = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows))
    return ["", *("  ".join(row).rstrip() for row in aligned)]


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return for each id as many of its first digits as tell it apart from the others, the same number for all."""
    ordered = sorted(set(ids))
    common = (len(commonprefix(pair)) for pair in pairwise(ordered))
    digits = max([LEAST_DIGITS, *(length + 1 for length in common)])
    return {one: one[:digits] for one in ordered}


def fitted(
    header: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    needed: Sequence[str],
    *,
    whole: Sequence[str] = (),
    all_columns: str = "--detail",
) -> list[str]:
    """Return a table of at most ``WIDTH`` columns; nothing without rows.

    Columns in ``needed`` stay, and the cells of those in ``whole`` are not cut. ``all_columns`` is the option with which the
    command leaves out nothing.
    """
    columns = [[head, *cells] for head, *cells in zip(header, *rows, strict=True)]
    left_out: list[str] = []
    if _width(columns) > WIDTH:
        columns = [column for column in columns if column[0] in needed or any(column[1:])]
    for column in [column for column in reversed(columns) if column[0] not in needed]:
        if _width([one if one[0] in whole else _cut(one, TEXT_WIDTH) for one in columns]) > WIDTH:
            columns.remove(column)
            left_out.append(column[0])
    cells = list(zip(*_shrunk(columns, whole), strict=True))
    lines = table(cells[0], cells[1:]) if rows else []
    if left_out:
        words = f"Left out for lack of room: {', '.join(reversed(left_out))}. All: {all_columns}"
        lines += ["", *wrap(words, WIDTH, break_on_hyphens=False)]
    return lines


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) for column in columns) + GAP * (len(columns) - 1)


def _shrunk(columns: list[list[str]], whole: Sequence[str]) -> list[list[str]]:
    """Make the widest columns narrower until the table fits, or none can be."""
    widths = {index: max(map(len, column)) for index, column in enumerate(columns)}
    excess = _width(columns) - WIDTH
    may_shrink = [index for index, column in enumerate(columns) if column[0] not in whole]
    while excess > 0:
        widest = max(may_shrink, key=lambda index: widths[index] - len(columns[index][0]), default=None)
        if widest is None or widths[widest] <= max(LEAST_WIDTH, len(columns[widest][0])):
            break
        widths[widest] -= 1
        excess -= 1
    return [_cut(column, widths[index]) for index, column in enumerate(columns)]


def _cut(column: Sequence[str], width: int) -> list[str]:
    """Cut the cells of a column, and not its head."""
    return [column[0], *(cell if len(cell) <= width else f"{cell[: width - 1]}…" for cell in column[1:])]
