"""Plots as SVG: bars for rows, lines over an axis. They are written without a library, so that a page is a single file.

A bar or point is the median of its samples, and the thin line through it goes from the least to the greatest. A diamond is
the number of the original document. A scale is logarithmic if its numbers are too far apart for a linear one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from benchmarks.document import DASK, DASK_ON_MINRAY, DASK_ON_RAY, DASK_THREADS, HYPERQUEUE, MINRAY, RAY
from benchmarks.results import amount

COLOURS = {
    MINRAY: "#1f6feb",
    DASK_ON_MINRAY: "#1f6feb",
    RAY: "#d9730d",
    DASK_ON_RAY: "#d9730d",
    DASK: "#2a9d5c",
    DASK_THREADS: "#8bbf3f",
    HYPERQUEUE: "#8250df",
}
OTHERS = ("#8e5bd0", "#7a7a7a", "#c2417c", "#b08900", "#3aa6b9", "#a0522d")
WIDTH, LABELS, BAR, GAP, HEIGHT = 860, 300, 11, 9, 300
FAR_APART = 30
"""Ratio of the greatest to the least number above which a scale is logarithmic."""
ORIGINAL = "the original"


class Scale:
    """A mapping from numbers to places in the plot."""

    def __init__(self, numbers: Sequence[float], start: float, end: float, *, from_zero: bool = True) -> None:
        positive = [number for number in numbers if number > 0] or [1.0]
        self.least, self.greatest = min(positive), max(positive)
        self.is_logarithmic = self.greatest / self.least > FAR_APART
        self._start, self._end = start, end
        if self.is_logarithmic:
            self.least, self.greatest = 10 ** math.floor(math.log10(self.least)), 10 ** math.ceil(math.log10(self.greatest))
        elif from_zero or self.least == self.greatest:
            self.least = 0.0

    def place(self, number: float) -> float:
        if self.is_logarithmic:
            number = max(number, self.least)
            share = math.log(number / self.least) / math.log(self.greatest / self.least)
        else:
            share = (number - self.least) / (self.greatest - self.least)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self.is_logarithmic:
            exponents = range(round(math.log10(self.least)), round(math.log10(self.greatest)) + 1)
            return [10.0**exponent for exponent in exponents]
        step = 10 ** math.floor(math.log10(self.greatest))
        step = next(step * part for part in (0.2, 0.5, 1, 2) if self.greatest / (step * part) <= 6)
        return [step * number for number in range(math.ceil(self.least / step), math.floor(self.greatest / step) + 1)]


def colours_of(systems: Sequence[str]) -> dict[str, str]:
    others = iter(OTHERS * len(systems))
    return {system: COLOURS.get(system) or next(others) for system in systems}


def plot(table: dict[str, Any]) -> str:
    """Draw a table as bars, or as lines if it has an axis."""
    systems = list(dict.fromkeys(system for row in table["rows"] for system in row["samples"]))
    colours = colours_of(systems)
    body, height = (_lines if table["axis"] else _bars)(table, colours)
    originals = {ORIGINAL: "currentColor"} if table["original_rows"] else {}
    return (
        f'<svg viewBox="0 0 {WIDTH} {height + 24}" role="img" aria-label="{escape(table["title"])}">'
        f"<title>{escape(table['title'])}</title>{_legend(colours | originals)}"
        f'<g transform="translate(0 24)">{body}</g></svg>'
    )


def _bars(table: dict[str, Any], colours: dict[str, str]) -> tuple[str, float]:
    originals = {entry["row"]: entry["value"] for entry in table["original_rows"]}
    shown = [number for row in table["rows"] for samples in row["samples"].values() for number in samples]
    shown += [originals[row["row"]] for row in table["rows"] if row["row"] in originals]
    scale = Scale(shown, LABELS, WIDTH - 70)
    parts, y = [], 4.0
    for row in table["rows"]:
        begun = y
        for system, samples in row["samples"].items():
            end, middle = scale.place(row["medians"][system]), y + BAR / 2
            parts.append(
                _bar(LABELS, y, max(1, end - LABELS), colours[system])
                + _line(scale.place(min(samples)), middle, scale.place(max(samples)), middle)
                + _text(max(end, scale.place(max(samples))) + 5, y + BAR - 2, amount(row["medians"][system]), "number")
            )
            y += BAR
        if row["row"] in originals:
            parts.append(_diamond(scale.place(originals[row["row"]]), (begun + y) / 2))
        parts.append(_text(LABELS - 8, (begun + y) / 2 + 4, row["row"], "label end"))
        y += GAP
    grid = "".join(_line(scale.place(tick), 0, scale.place(tick), y, "grid") for tick in scale.ticks())
    ticks = "".join(_text(scale.place(tick), y + 14, amount(tick), "number middle") for tick in scale.ticks())
    unit = _text(WIDTH - 4, y + 28, table["unit"] + _kind(scale), "number end")
    return grid + "".join(parts) + ticks + unit, y + 34


def _lines(table: dict[str, Any], colours: dict[str, str]) -> tuple[str, float]:
    lines: dict[tuple[str, str], list[tuple[float, list[float], float]]] = {}
    for row in table["rows"]:
        for system, samples in row["samples"].items():
            lines.setdefault((row["row"], system), []).append((row["x"], samples, row["medians"][system]))
    names = list(dict.fromkeys(row for row, _ in lines))
    points = [(entry["x"], entry["value"]) for entry in table["original_rows"]]
    across = Scale([row["x"] for row in table["rows"]] + [x for x, _ in points], 70, WIDTH - 190, from_zero=False)
    shown = [number for row in table["rows"] for samples in row["samples"].values() for number in samples]
    up = Scale(shown + [value for _, value in points], HEIGHT, 8)
    parts = [_line(70, up.place(tick), WIDTH - 190, up.place(tick), "grid") for tick in up.ticks()]
    parts += [_text(64, up.place(tick) + 4, amount(tick), "number end") for tick in up.ticks()]
    for x in dict.fromkeys(row["x"] for row in table["rows"]):
        parts.append(_text(across.place(x), HEIGHT + 16, f"{x:g}", "number middle"))
    taken: list[float] = []
    for (row, system), found in lines.items():
        dashes = f' stroke-dasharray="{2 + 4 * names.index(row)} 4"' if names.index(row) else ""
        path = " ".join(f"{across.place(x):.1f},{up.place(median):.1f}" for x, _, median in found)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[system]}" stroke-width="2"{dashes}/>')
        for x, samples, median in found:
            parts.append(_line(across.place(x), up.place(min(samples)), across.place(x), up.place(max(samples))))
            parts.append(f'<circle cx="{across.place(x):.1f}" cy="{up.place(median):.1f}" r="3" fill="{colours[system]}"/>')
        y = up.place(found[-1][2]) + 4
        while any(abs(y - other) < 12 for other in taken):
            y -= 12
        taken.append(y)
        name = system if len(names) == 1 else f"{system}, {row}"
        parts.append(_text(across.place(found[-1][0]) + 8, y, name, "number"))
    parts += [_diamond(across.place(x), up.place(value)) for x, value in points]
    parts.append(_text((WIDTH - 120) / 2, HEIGHT + 34, table["axis"] + _kind(across), "number middle"))
    parts.append(_text(70, 4, table["unit"] + _kind(up), "number end"))
    return "".join(parts), HEIGHT + 40


def _kind(scale: Scale) -> str:
    return " (logarithmic)" if scale.is_logarithmic else ""


def _legend(colours: dict[str, str]) -> str:
    parts, x = [], 4.0
    for name, colour in colours.items():
        sign = _diamond(x + 5, 9) if name == ORIGINAL else _bar(x, 4, 10, colour)
        parts.append(sign + _text(x + 15, 13, name, "number"))
        x += 30 + 7.2 * len(name)
    return "".join(parts)


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 1}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str = "spread") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _diamond(x: float, y: float) -> str:
    return f'<path d="M{x:.1f} {y - 6:.1f} l6 6 l-6 6 l-6 -6 z" class="original"/>'
