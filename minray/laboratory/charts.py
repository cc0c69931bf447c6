"""Plots as inline SVG: a curve, several lines, a distribution, bars, intervals, and lanes of nodes over time.

Ray: has no counterpart

    svg = curve([0.0, 1.0, 2.0], [4.0, 8.0, 2.0], x="seconds", y="busy CPUs")

Rules
  * Each function returns one ``<svg>`` that needs nothing else: colours are in the page's style (``page.STYLE``), by class.
  * Coordinates have one decimal, so that the same figures give the same bytes.
  * Names are data and are escaped. An axis begins at 0, except that of intervals.

Left out: logarithmic axes.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 640, 220
"""Size of a plot in pixels, with its axes."""
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 40
"""Room around the drawing for axes."""
ROW = 22
"""Height of a row in plots with one row for each name."""
NAMES = 190
"""Room for the names of rows."""
MAX_ROWS = 64
"""The largest number of rows that a plot shows; more are named as left out."""

COLOURS = 6
"""Number of colours of lines in the page's style; further lines begin with the first one again."""


class Line(NamedTuple):
    """One line of a plot."""

    name: str
    points: Sequence[tuple[float, float, float, float]]
    """(x, mean, low end, high end) of each point."""


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers from ``low`` to ``high``, about as many as ``about`` says."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def label(number: float) -> str:
    """Return a short text for an axis."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if suffix == 'k' else size):g}{suffix}"
    return f"{number:.4g}"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(parts: Sequence[str], height: float, name: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img"'
    return f'{head} aria-label="{html.escape(name, quote=True)}">{"".join(parts)}</svg>'


class _Frame:
    """The axes of a plot, and the way from values to pixels."""

    def __init__(self, x_max: float, y_max: float, x: str, y: str) -> None:
        self.x_max, self.y_max = x_max or 1.0, y_max or 1.0
        self.bottom, self.right = HEIGHT - BOTTOM, WIDTH - RIGHT
        self.parts: list[str] = []
        for value in ticks(0.0, self.x_max):
            self.parts.append(_text(self.at_x(value), self.bottom + 16, label(value)))
        for value in ticks(0.0, self.y_max, 4):
            height = self.at_y(value)
            self.parts.append(f'<path class="grid" d="M{LEFT} {height:.1f}H{self.right}"/>')
            self.parts.append(_text(LEFT - 6, height + 4, label(value), "end"))
        self.parts.append(_text((LEFT + self.right) / 2, HEIGHT - 6, x))
        self.parts.append(f'<g transform="rotate(-90)">{_text(-(TOP + self.bottom) / 2, 12, y)}</g>')
        self.name = f"{y} by {x}"

    def at_x(self, value: float) -> float:
        return LEFT + (self.right - LEFT) * value / self.x_max

    def at_y(self, value: float) -> float:
        return self.bottom - (self.bottom - TOP) * value / self.y_max

    def path(self, xs: Sequence[float], ys: Sequence[float], kind: str) -> None:
        points = "L".join(f"{self.at_x(one):.1f} {self.at_y(other):.1f}" for one, other in zip(xs, ys, strict=True))
        self.parts.append(f'<path class="{kind}" d="M{points}"/>')


def curve(xs: Sequence[float], ys: Sequence[float], x: str, y: str, limit: float = 0.0) -> str:
    """Draw an area under a curve; ``limit`` is a line that it cannot exceed (0: none)."""
    frame = _Frame(max(xs), max(*ys, limit), x, y)
    frame.path([xs[0], *xs, xs[-1]], [0.0, *ys, 0.0], "area")
    if limit:
        frame.path([0.0, max(xs)], [limit, limit], "limit")
    return _svg(frame.parts, HEIGHT, frame.name)


def lines(shown: Sequence[Line], x: str, y: str, y_max: float = 0.0) -> str:
    """Draw lines with intervals on one frame, and their names below. ``y_max`` cuts off what is higher (0: nothing)."""
    points = [point for line in shown for point in line.points]
    frame = _Frame(1.05 * max(point[0] for point in points), y_max or max(point[3] for point in points), x, y)
    size = f'x="{LEFT}" y="{TOP}" width="{frame.right - LEFT}" height="{frame.bottom - TOP}"'
    frame.parts.append(f'<svg {size} viewBox="{LEFT} {TOP} {frame.right - LEFT} {frame.bottom - TOP}">')
    for index, line in enumerate(shown):
        frame.parts.append(f'<g class="of{index % COLOURS}">')
        frame.path([point[0] for point in line.points], [point[1] for point in line.points], "of")
        for at, mean, low, high in line.points:
            frame.path([at, at], [low, high], "of")
            frame.parts.append(f'<circle cx="{frame.at_x(at):.1f}" cy="{frame.at_y(mean):.1f}" r="3"/>')
        frame.parts.append("</g>")
    frame.parts.append("</svg>")
    for index, line in enumerate(shown):
        left, top = LEFT + index % 3 * (WIDTH - LEFT) // 3, HEIGHT + 14 + index // 3 * ROW
        frame.parts.append(f'<g class="of{index % COLOURS}"><path d="M{left} {top - 4}h20"/></g>')
        frame.parts.append(_text(left + 26, top, line.name, "start"))
    return _svg(frame.parts, HEIGHT + ROW * math.ceil(len(shown) / 3), frame.name)


def distribution(values: Sequence[float], x: str) -> str:
    """Draw for each value which share of all values does not exceed it."""
    ordered = sorted(values) or [0.0]
    chosen = sorted({round(index * (len(ordered) - 1) / 200) for index in range(201)})
    frame = _Frame(ordered[-1], 1.0, x, "share of tasks")
    frame.path([ordered[index] for index in chosen], [(index + 1) / len(ordered) for index in chosen], "line")
    return _svg(frame.parts, HEIGHT, frame.name)


def bars(rows: Sequence[tuple[str, float, str]], name: str) -> str:
    """Draw a bar for each (name, value, text of the value)."""
    shown = rows[:MAX_ROWS]
    highest = max((value for _, value, _ in shown), default=0.0) or 1.0
    parts = []
    for index, (title, value, text) in enumerate(shown):
        top, width = index * ROW + 4, (WIDTH - NAMES - 90) * value / highest
        parts.append(_text(NAMES - 8, top + 13, title, "end"))
        parts.append(f'<rect class="bar" x="{NAMES}" y="{top}" width="{width:.1f}" height="{ROW - 6}"/>')
        parts.append(_text(NAMES + width + 6, top + 13, text, "start"))
    return _svg([*parts, *_left_out(rows, shown)], _height(rows, shown), name)


def intervals(rows: Sequence[tuple[str, float, float, float]], name: str) -> str:
    """Draw (name, mean, low end, high end) as a dot on a line for each row, on one axis."""
    low = min(min(row[1:]) for row in rows)
    high = max(max(row[1:]) for row in rows)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    low, high = low - room, high + room

    def at(value: float) -> float:
        return NAMES + (WIDTH - NAMES - RIGHT) * (value - low) / (high - low)

    parts = []
    for value in ticks(low, high):
        parts.append(f'<path class="grid" d="M{at(value):.1f} 0V{len(rows) * ROW + 6}"/>')
        parts.append(_text(at(value), len(rows) * ROW + 20, label(value)))
    for index, (title, mean, one, other) in enumerate(rows):
        middle = index * ROW + 14
        parts.append(_text(NAMES - 8, middle + 4, title, "end"))
        parts.append(f'<path class="line" d="M{at(one):.1f} {middle}H{at(other):.1f}"/>')
        parts.append(f'<circle class="dot" cx="{at(mean):.1f}" cy="{middle}" r="4"/>')
    return _svg(parts, len(rows) * ROW + 28, name)


def lanes(rows: Sequence[tuple[str, Sequence[float]]], name: str) -> str:
    """Draw a lane for each (name, shares from 0 to 1 over equal slices of time), darker where the share is higher."""
    shown = rows[:MAX_ROWS]
    parts = []
    for index, (title, shares) in enumerate(shown):
        top, width = index * ROW + 4, (WIDTH - NAMES - RIGHT) / len(shares)
        parts.append(_text(NAMES - 8, top + 13, title, "end"))
        for number, share in enumerate(shares):
            if share > 0:
                place = f'x="{NAMES + number * width:.1f}" y="{top}" width="{width + 0.3:.1f}" height="{ROW - 6}"'
                parts.append(f'<rect class="bar" {place} fill-opacity="{min(1.0, share):.2f}"/>')
    return _svg([*parts, *_left_out(rows, shown)], _height(rows, shown), name)


def _height(rows: Sequence[object], shown: Sequence[object]) -> int:
    return len(shown) * ROW + 8 + ROW * (len(rows) > len(shown))


def _left_out(rows: Sequence[object], shown: Sequence[object]) -> list[str]:
    more = len(rows) - len(shown)
    return [_text(NAMES, len(shown) * ROW + 17, f"and {more} more, which are not shown", "start")] if more else []
