"""Lines of aligned columns for the command line.

Ray: the tables that python/ray/scripts/scripts.py prints with ``tabulate``

Cells are strings already; the last column is not filled up, so that no line ends in blanks.
"""

from __future__ import annotations

from collections.abc import Sequence


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """An empty line and the table; nothing without rows."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    aligned = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows))
    return ["", *("  ".join(row).rstrip() for row in aligned)]
