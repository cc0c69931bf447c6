"""Write the results of a run as one page without scripts: ``python -m benchmarks.page FILE.json ...`` writes FILE.html.

If several files are given, tables of later files replace those of earlier ones, so that one part can be measured again.
Each table names its run.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.document import RAY
from benchmarks.drawing import plot
from benchmarks.results import amount, geometric_mean, spread

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid #8886; }
svg { width: 100%; height: auto; }
svg text { fill: currentColor; font-size: 11px; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: #8884; } .spread { stroke: currentColor; }
.original { fill: none; stroke: currentColor; stroke-width: 1.5; }
.about, figcaption { color: #777; }
figure { margin: 1rem 0; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 1px 9px; text-align: right; border-bottom: 1px solid #8883; }
th:first-child, td:first-child { text-align: left; }
.missed { font-weight: bold; color: #c0392b; }
"""
EXPLAINED = (
    "Each number is a median; beside it, how many times as fast minray is as that system: the median of the ratios of this "
    "one run, and their spread: least and greatest, or quartiles. Systems took turns. Numbers of different runs or machines "
    "cannot be compared, those of the original documents least of all: they stand here to show the shape."
)


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the tables of all runs; tables of later runs replace those of earlier ones."""
    result = runs[-1] | {"documents": []}
    titles = dict.fromkeys(document["title"] for run in runs for document in run["documents"])
    for title in titles:
        whole: dict[str, Any] = {"title": title, "tables": {}, "failures": {}}
        for run in runs:
            for document in run["documents"]:
                if document["title"] == title:
                    whole["source"] = document["source"]
                    filled = {name: table | {"of": _of(run)} for name, table in document["tables"].items() if table["rows"]}
                    whole["tables"] |= filled
                    measured = {name: why for name, why in whole["failures"].items() if name not in filled}
                    whole["failures"] = measured | document["failures"]
        if whole["tables"]:
            result["documents"].append(whole)
    return result


def _of(run: dict[str, Any]) -> str:
    told = f"Size: {run['size']}; measured {run['machine']['begun']} at commit {run['machine']['commit']}."
    return f"{told} {run['note']}".strip()


def page(run: dict[str, Any]) -> str:
    mean, count = geometric_mean(run["documents"], RAY)
    headline = f"<p>Of {count} rows that Ray has too, the geometric mean is {mean:.1f} times as fast.</p>" if count else ""
    body = "".join(_document(document) for document in run["documents"])
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width"><title>minray beside Ray and Dask</title>'
        f"<style>{STYLE}</style></head><body><h1>minray beside Ray and Dask</h1>"
        f'<p class="about">{escape(machine.sentence(run["machine"]))}</p>{headline}<p>{EXPLAINED}</p>{body}</body></html>'
    )


def _document(document: dict[str, Any]) -> str:
    tables = "".join(_table(table) for table in document["tables"].values() if table["rows"])
    failures = "".join(
        f"<li>{escape(part)}, {escape(system)}: {escape(why)}</li>"
        for part, failed in document["failures"].items()
        for system, why in failed.items()
    )
    failed = f"<p>Not measured to the end:</p><ul>{failures}</ul>" if failures else ""
    return f'<h2>{escape(document["title"])}</h2><p class="about">{escape(document["source"])}</p>{tables}{failed}'


def _table(table: dict[str, Any]) -> str:
    systems = list(dict.fromkeys(system for row in table["rows"] for system in row["samples"]))
    unit = f" ({escape(table['unit'])})" if table["unit"] else ""
    better = "more is better" if table["more_is_better"] else "less is better"
    original = f"<p><em>Original:</em> {escape(table['original'])}</p>" if table["original"] else ""
    head = "".join(f"<th>{escape(system)}</th>" for system in systems)
    rows = "".join(_row(table, row, systems) for row in table["rows"])
    return (
        f"<h3>{escape(table['title'])}{unit}</h3>{original}<figure>{plot(table)}"
        f"<figcaption>{better}. {escape(table.get('of', ''))}</figcaption></figure>"
        f"<details><summary>Numbers</summary><table><tr><th>row</th>{head}<th>original</th><th>target</th></tr>{rows}</table></details>"
    )


def _row(table: dict[str, Any], row: dict[str, Any], systems: list[str]) -> str:
    place = "" if row["x"] is None else f", {row['x']:g} {table['axis']}"
    cells = "".join(f"<td>{_cell(row, system)}</td>" for system in systems)
    points = [point for point in table["original_rows"] if point["x"] == row["x"]]
    same = [point for point in points if row["x"] is not None or point["row"] == row["row"]]
    original = ", ".join(amount(point["value"]) for point in same)
    target = row["target"]
    missed = "" if not target or target["met"] else ' class="missed"'
    told = f"{escape(target['text'])}, {'met' if target['met'] else 'missed'}" if target else ""
    return f"<tr><td>{escape(row['row'] + place)}</td>{cells}<td>{original}</td><td{missed}>{told}</td></tr>"


def _cell(row: dict[str, Any], system: str) -> str:
    if system not in row["medians"]:
        return ""
    ratio = row["ratios"].get(system)
    compared = f" · {ratio['median']:.3g}x ({spread(ratio)})" if ratio else ""
    return amount(row["medians"][system]) + compared


def write_page(*paths: Path) -> Path:
    """Write the page of these runs beside the last file; return its path."""
    target = paths[-1].with_suffix(".html")
    target.write_text(page(merged([json.loads(path.read_text()) for path in paths])), encoding="utf-8")
    return target


if __name__ == "__main__":
    print(write_page(*map(Path, sys.argv[1:])))
