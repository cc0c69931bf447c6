"""Progress bars: what they say, and where a process draws them.

Ray: the bar manager of python/ray/experimental/tqdm_ray.py, which draws with tqdm

``minray.progress`` and ``minray.experimental.tqdm_ray`` change a ``Bar`` and call ``ProgressBars.show``. The stream decides
where the bar appears:

* in a worker, the state of the bar goes to the driver, as a marked line of the worker's output;
* in a notebook, the bars of a cell are one piece of HTML below the cell, which is replaced;
* on a terminal, the bars are the last lines, drawn again and again; ``hidden`` takes them away while lines are printed;
* anywhere else, a bar is a line of text now and then, so that a log file stays short.

Rules
  * Every place draws a bar when it is new and when it ends, and in between as often as it can take.
  * A bar of a loop that nobody ends stays as it is until ``end_all``, which a driver calls when it leaves.
  * Drawing never fails the program: a closed stream is ignored.
"""

from __future__ import annotations

import contextvars
import html
import itertools
import shutil
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol

import msgspec

from minray.common import shown
from minray.common.clock import Clock
from minray.common.forks import at_fork
from minray.common.shown import running_shell

TERMINAL_INTERVAL_S = 0.1
"""Seconds between two drawings on a terminal: as often as an eye can follow."""
NOTEBOOK_INTERVAL_S = 0.25
"""Seconds between two drawings in a notebook, each of which is a message to the browser."""
LINES_INTERVAL_S = 5.0
"""Seconds between two lines of one bar where bars cannot be drawn, as in a log file."""
WORKER_INTERVAL_S = 0.5
"""Seconds between two messages about one bar of a worker."""
LEAST_MEASURED_S = 0.01
"""Seconds after which a bar shows a speed; before, it would be that of the first step alone."""
WIDTH = 78
"""Columns of a line about a bar where there is no terminal."""
LEAST_BAR, MOST_BAR = 4, 40
"""Least and most columns of the bar itself."""
MOST_BARS_OF_CELL = 20
"""Most bars that stay below one cell of a notebook; ended ones go first."""
MOST_IDLE_PLACES = 8
"""Most places without a bar that are kept, so that the next bar of a cell is drawn beside its ended ones."""
_BLOCKS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"
"""Blocks of zero to eight eighths of a column."""


class Bar(msgspec.Struct):
    """The state of one bar. A worker sends it to its driver as JSON."""

    number: int
    """Number that no other bar of the process has."""
    description: str = ""
    done: int | float = 0
    total: int | float | None = None
    """Number of steps; None if it is not known."""
    failed: int = 0
    """Number of the ``done`` steps that have failed."""
    unit: str = "it"
    elapsed_s: float = 0.0
    """Seconds since the bar was made; set when the bar is shown."""
    position: int = 0
    """Bars with a smaller number are drawn above."""
    is_left: bool = True
    """Whether the ended bar stays on the terminal."""
    is_ended: bool = False

    def line(self, width: int = WIDTH, *, in_ascii: bool = False) -> str:
        """Return the bar as a line of text of at most ``width`` characters."""
        name = f"{printable(self.description)}: " if self.description else ""
        fraction = self.fraction()
        if fraction is None:
            return f"{name}{self.counts()}"[:width]
        before, behind = f"{name}{fraction * 100:3.0f}%|", f"| {self.counts()}"
        columns = min(MOST_BAR, width - len(before) - len(behind))
        if columns < LEAST_BAR:
            return f"{name}{fraction * 100:.0f}% {self.counts()}"[:width]
        return f"{before}{_drawn(fraction, columns, in_ascii)}{behind}"

    def fraction(self) -> float | None:
        """Return the part that is done, from 0 to 1; None if the total is not known."""
        if self.total is None:
            return None
        return min(1.0, max(0.0, self.done / self.total)) if self.total > 0 else 1.0

    def counts(self) -> str:
        """Return ``12/30 [00:04<00:06, 3.00 it/s, 2 failed]``: steps, time so far and to come, speed, failures."""
        unit = printable(self.unit)
        speed = self.done / self.elapsed_s if self.elapsed_s > LEAST_MEASURED_S else 0.0
        steps = f"{self.done:.10g}" + (f"/{self.total:.10g}" if self.total is not None else f" {unit}")
        left = ""
        if self.total is not None and not self.is_ended:
            left = f"<{_duration((self.total - self.done) / speed) if speed else '?'}"
        parts = [f"{_duration(self.elapsed_s)}{left}", f"{speed:.2f} {unit}/s" if speed else f"? {unit}/s"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        return f"{steps} [{', '.join(parts)}]"

    def html(self) -> str:
        """Return the bar for a notebook: a ``progress`` element, which follows the theme, and text."""
        name = f"{html.escape(printable(self.description))} " if self.description else ""
        value = "" if self.total is None else f' value="{self.fraction()}"'
        bar = f'<progress max="1"{value} style="width:16em;max-width:60%;vertical-align:middle"></progress>'
        text = html.escape(self.counts())
        return f'<div style="margin:2px 0;overflow-wrap:anywhere">{name}{bar} <span>{text}</span></div>'


def printable(text: str) -> str:
    """Return a text without control characters, which could move the cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _drawn(fraction: float, columns: int, in_ascii: bool) -> str:
    if in_ascii:
        return ("#" * int(fraction * columns)).ljust(columns)
    whole, eighths = divmod(int(fraction * columns * 8), 8)
    return (_BLOCKS[8] * whole + (_BLOCKS[eighths] if eighths else "")).ljust(columns)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


class BarPlace(Protocol):
    """Where bars appear."""

    interval_s: float
    """Seconds between two drawings of one bar."""

    def draw(self, key: Hashable, bar: Bar) -> None:
        """Draw a bar that is new, has changed or has ended."""

    def hide(self) -> None:
        """Take the bars away, because lines are printed."""

    def redraw(self) -> None:
        """Draw them again."""


class TerminalBars:
    """The last lines of a terminal."""

    interval_s = TERMINAL_INTERVAL_S

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._in_ascii = not _can_show_blocks(stream)
        self._bars: dict[Hashable, Bar] = {}
        self._drawn = 0
        """Number of lines on the terminal."""

    def draw(self, key: Hashable, bar: Bar) -> None:
        if bar.is_ended:
            self._bars.pop(key, None)
            if bar.is_left:
                self.hide()
                self._write(f"{bar.line(_columns(), in_ascii=self._in_ascii)}\n")
        else:
            self._bars[key] = bar
        self.redraw()

    def hide(self) -> None:
        if self._drawn:
            up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
            self._write(f"\r{up}\x1b[J")
            self._drawn = 0

    def redraw(self) -> None:
        size = shutil.get_terminal_size()
        bars = sorted(self._bars.values(), key=lambda bar: bar.position)
        most = max(1, size.lines - 2)
        lines = [bar.line(size.columns - 1, in_ascii=self._in_ascii) for bar in bars[:most]]
        if len(bars) > most:
            lines[-1] = f"... and {len(bars) - most + 1} more bars"[: size.columns - 1]
        self.hide()
        if lines:
            self._write("\n".join(lines))
            self._drawn = len(lines)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone
            self._stream.write(text)
            self._stream.flush()


class LinesOfBars:
    """A stream that takes whole lines only."""

    interval_s = LINES_INTERVAL_S

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._in_ascii = not _can_show_blocks(stream)

    def draw(self, key: Hashable, bar: Bar) -> None:
        with suppress(OSError, ValueError):
            print(bar.line(in_ascii=self._in_ascii), file=self._stream, flush=True)

    def hide(self) -> None:
        """Do nothing: a line that is printed stays."""

    def redraw(self) -> None:
        """Do nothing, for the same reason."""


class CellBars:
    """The output of one cell of a notebook."""

    interval_s = NOTEBOOK_INTERVAL_S
    _numbers = itertools.count()

    def __init__(self, shell: Any, context: contextvars.Context) -> None:
        self._context = context.copy()
        self._publish = shell.display_pub.publish
        self._transient = {"display_id": f"minray-progress-{id(self)}-{next(self._numbers)}"}
        self._is_new = True
        self._bars: dict[Hashable, Bar] = {}

    def draw(self, key: Hashable, bar: Bar) -> None:
        self._bars[key] = bar
        ended = (key for key, bar in list(self._bars.items()) if bar.is_ended)
        for _ in range(len(self._bars) - MOST_BARS_OF_CELL):
            self._bars.pop(next(ended, None), None)
        bars = sorted(self._bars.values(), key=lambda bar: bar.position)
        data = {"text/html": "".join(map(Bar.html, bars)), "text/plain": "\n".join(map(Bar.line, bars))}
        kind = {"metadata": {}, "transient": self._transient, "update": not self._is_new}
        self._context.run(self._publish, data, **kind)
        self._is_new = False

    def hide(self) -> None:
        """Do nothing: HTML and lines are pieces of their own."""

    def redraw(self) -> None:
        """Do nothing, for the same reason."""


class ForwardedBars:
    """The driver of this worker: bars travel with the worker's output."""

    interval_s = WORKER_INTERVAL_S

    def __init__(self, stream: Any) -> None:
        self._write_bar = stream.write_bar

    def draw(self, key: Hashable, bar: Bar) -> None:
        self._write_bar(msgspec.json.encode(bar).decode())

    def hide(self) -> None:
        """Do nothing: the driver has the bars."""

    def redraw(self) -> None:
        """Do nothing, for the same reason."""


def _can_show_blocks(stream: Any) -> bool:
    try:
        _BLOCKS.encode(getattr(stream, "encoding", None) or "ascii")
    except (LookupError, UnicodeError):
        return False
    return True


def _columns() -> int:
    return shutil.get_terminal_size().columns - 1


class _Shown(msgspec.Struct):
    """A bar that has not ended."""

    bar: Bar
    place: BarPlace
    drawn_ns: int
    """Time of the last drawing."""


class ProgressBars:
    """All bars of one process; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bars: dict[Hashable, _Shown] = {}
        self._places: dict[tuple[str, int], BarPlace] = {}
        """Places by kind and number: one place for all bars of a terminal, and one for those of a cell."""

    def show(
        self,
        key: Hashable,
        bar: Bar,
        stream: Any = None,
        context: contextvars.Context | None = None,
        interval_s: float | None = None,
    ) -> None:
        """Show a bar, or its new state. ``key`` tells it from all others of this process.

        ``stream``: where to; None means standard error. ``context``: names the cell of a notebook; None means the caller's.
        ``interval_s``: least seconds between two drawings; None means that of the place.
        """
        now = Clock.perf_counter_ns()
        with self._lock:
            known = self._bars.get(key)
            if known is None:
                known = self._bars[key] = _Shown(bar, self._place(stream, context), now)
            elif not bar.is_ended and now - known.drawn_ns < (interval_s or known.place.interval_s) * 1e9:
                known.bar = bar
                return
            known.bar, known.drawn_ns = bar, now
            if bar.is_ended:
                del self._bars[key]
            known.place.draw(key, bar)

    def are_drawn_on(self, stream: Any) -> bool:
        """Whether bars for this stream are drawn, and not printed as lines of text; None means standard error."""
        return not isinstance(self._place(stream, None), LinesOfBars)

    def end_all(self, which: Callable[[Hashable], bool] = lambda key: True) -> None:
        """End the bars with these keys as they are, because nothing will end them any more."""
        with self._lock:
            for key in [key for key in self._bars if which(key)]:
                known = self._bars.pop(key)
                known.bar.is_ended = True
                known.place.draw(key, known.bar)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the bars away while the caller prints lines."""
        with self._lock:
            places = {id(known.place): known.place for known in self._bars.values()}.values()
            for place in places:
                place.hide()
            try:
                yield
            finally:
                for place in places:
                    place.redraw()

    def _place(self, stream: Any, context: contextvars.Context | None) -> BarPlace:
        """Return the place for a stream; that of earlier bars if some are still there."""
        stream_or_standard = stream or sys.stderr
        shell = running_shell() if stream is None else None
        if hasattr(stream_or_standard, "write_bar"):
            return ForwardedBars(stream_or_standard)
        if shell is not None and hasattr(shell, "kernel"):
            own = contextvars.copy_context() if context is None else context
            cell = getattr(shell, "execution_count", 0) if context is None else id(context)
            return self._places_with(("cell", cell), lambda: CellBars(shell, own))
        if getattr(stream_or_standard, "isatty", bool)():
            return self._places_with(("terminal", id(stream_or_standard)), lambda: TerminalBars(stream_or_standard))
        return LinesOfBars(stream_or_standard)

    def _places_with(self, name: tuple[str, int], make: Callable[[], BarPlace]) -> BarPlace:
        """Return the place with this name, or make it. Forget the oldest of many that have no bar."""
        if name not in self._places:
            used = {id(known.place) for known in self._bars.values()}
            idle = [other for other, place in self._places.items() if id(place) not in used]
            for other in idle[: -MOST_IDLE_PLACES or None]:
                del self._places[other]
            self._places[name] = make()
        return self._places[name]


_bars: ProgressBars | None = None
_numbers = itertools.count(1)


def progress_bars() -> ProgressBars:
    """Return the bars of this process."""
    global _bars
    if _bars is None:
        _bars = ProgressBars()
        shown.around_lines = _bars.hidden
    return _bars


def new_number() -> int:
    """Return a number that no other bar of this process has."""
    return next(_numbers)


def _after_fork() -> None:
    """Forget the bars of the parent, whose lock another of its threads may hold."""
    global _bars
    _bars = None
    shown.around_lines = nullcontext


at_fork(after_in_child=_after_fork)
