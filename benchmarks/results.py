"""Results of a run: samples by document, table and row, and their medians, ratios and targets.

Only ratios within one run count. The first sample of one system is compared with the first of another, the second with the
second, and so on. The median of these ratios and their spread are reported: the least and the greatest, or from ``MANY``
ratios on their quartiles, which one bad moment of the machine does not move. A ratio above one says that minray is faster.
All results are plain data, as in the JSON file.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.document import OURS, Document, Sample, Table, Target

MANY = 8
"""Number of ratios from which on quartiles say more than the least and the greatest."""

Row = dict[str, Any]
"""A row with ``row``, ``x``, ``samples`` (system -> numbers), and later ``medians``, ``ratios`` and ``target``."""


def empty(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Return results without rows for these documents."""
    return [
        {
            "title": document.title,
            "source": document.source,
            "failures": {},
            "tables": {table.name: {"rows": []} for table in document.tables},
        }
        for document in documents
    ]


def add(gathered: dict[str, Any], system: str, samples: Sequence[Sample]) -> None:
    """Put the samples of one process into its document."""
    for sample in samples:
        rows: list[Row] = gathered["tables"][sample.table]["rows"]
        row = next((row for row in rows if (row["row"], row["x"]) == (sample.row, sample.x)), None)
        if row is None:
            row = {"row": sample.row, "x": sample.x, "samples": {}}
            rows.append(row)
        row["samples"].setdefault(sample.system or system, []).append(sample.value)


def conclude(documents: Sequence[Document], gathered: list[dict[str, Any]]) -> None:
    """Add the medians, the ratios to each peer, and whether each target is met."""
    for document, found in zip(documents, gathered, strict=True):
        for table in document.tables:
            entry = found["tables"][table.name]
            entry |= {
                "title": table.title,
                "unit": table.unit,
                "axis": table.axis,
                "more_is_better": table.more_is_better,
                "original": table.original,
                "original_rows": [
                    {"row": row, "x": x, "value": value}
                    for row, points in table.original_rows.items()
                    for x, value in points.items()
                ],
            }
            for row in entry["rows"]:
                row["medians"] = {system: statistics.median(values) for system, values in row["samples"].items()}
                row["ratios"] = ratios_of(row["samples"], table.more_is_better)
                row["target"] = verdict(table, row)


def ratios_of(samples: dict[str, list[float]], more_is_better: bool) -> dict[str, dict[str, float]]:
    """Return minray's speed as a multiple of each peer's: the median ratio, the extremes, and of many the quartiles."""
    ours = next((system for system in OURS if system in samples), None)
    if ours is None:
        return {}
    ratios = {}
    for peer, theirs in samples.items():
        pairs = list(zip(samples[ours], theirs, strict=False))
        if peer != ours and all(mine and other for mine, other in pairs):
            each = [mine / other if more_is_better else other / mine for mine, other in pairs]
            ratios[peer] = {"median": statistics.median(each), "least": min(each), "greatest": max(each), "count": len(each)}
            if len(each) >= MANY:
                lower, _, upper = statistics.quantiles(each, n=4, method="inclusive")
                ratios[peer] |= {"lower quartile": lower, "upper quartile": upper}
    return ratios


def verdict(table: Table, row: Row) -> dict[str, Any] | None:
    """Return a row's target in words, and whether it is met; None without a target or without the samples to decide."""
    target: Target | None = table.target(row["row"])
    ours = next((system for system in OURS if system in row["samples"]), None)
    if target is None or ours is None:
        return None
    if target.limit is not None:
        sign = ">=" if table.more_is_better else "<="
        mine = row["medians"][ours]
        met = mine >= target.limit if table.more_is_better else mine <= target.limit
        return {"text": f"{sign} {target.limit:g} {table.unit}".strip(), "met": met}
    if target.peer not in row["ratios"]:
        return None
    return {"text": f">= {target.ratio:g}x {target.peer}", "met": row["ratios"][target.peer]["median"] >= target.ratio}


def geometric_mean(gathered: list[dict[str, Any]], peer: str) -> tuple[float, int]:
    """Return the geometric mean of all rows' ratios to a peer, and the number of these rows."""
    ratios = [
        row["ratios"][peer]["median"]
        for document in gathered
        for table in document["tables"].values()
        for row in table["rows"]
        if peer in row.get("ratios", {})
    ]
    return (statistics.geometric_mean(ratios), len(ratios)) if ratios else (0.0, 0)


def as_text(gathered: list[dict[str, Any]]) -> str:
    """Return all tables as text for a terminal."""
    lines = []
    for document in gathered:
        lines += ["", document["title"]]
        for table in document["tables"].values():
            if table["rows"]:
                lines += ["", f"  {table['title']} ({table['unit']})"]
                lines += [f"    {line}" for row in table["rows"] for line in _row_lines(table, row)]
        for part, failed in document["failures"].items():
            lines += [f"  {part}, {system}: {why}" for system, why in failed.items()]
    return "\n".join(lines)


def spread(ratio: dict[str, float]) -> str:
    """Return how far the ratios to a peer lie apart: ``4.1-6.2``, or ``quartiles of 10: 4.8-5.6``."""
    if "lower quartile" in ratio:
        return f"quartiles of {ratio['count']}: {ratio['lower quartile']:.2g}-{ratio['upper quartile']:.2g}"
    return f"{ratio['least']:.2g}-{ratio['greatest']:.2g}"


def _row_lines(table: dict[str, Any], row: Row) -> list[str]:
    place = "" if row["x"] is None else f", {row['x']:g} {table['axis']}"
    cells = []
    for system, median in row["medians"].items():
        ratio = row["ratios"].get(system)
        compared = f" ({ratio['median']:.2g}x, {spread(ratio)})" if ratio else ""
        cells.append(f"{system} {amount(median)}{compared}")
    target = row["target"]
    told = f"; {target['text']} {'met' if target['met'] else 'MISSED'}" if target else ""
    return [f"{row['row']}{place}: {', '.join(cells)}{told}"]


def amount(value: float) -> str:
    """Return a number as text with about three significant digits."""
    if value == 0:
        return "0"
    digits = max(0, 2 - len(str(int(abs(value)))) + 1) if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}" if abs(value) >= 0.01 else f"{value:.2g}"
