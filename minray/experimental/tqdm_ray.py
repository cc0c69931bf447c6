"""Progress bars of loops in tasks and actors, drawn at the driver: ``for row in tqdm(rows, desc="load")``.

Ray: python/ray/experimental/tqdm_ray.py

The driver draws a bar for each loop, with the name and pid of its task. As in Ray, an ended bar goes away on a terminal; it
stays in a notebook. ``common/progress_bars.py`` says where bars appear, and what appears where nothing can be drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from minray.common.clock import Clock
from minray.common.progress_bars import Bar, new_number, progress_bars
from minray.common.shown import a

__all__ = ["safe_print", "tqdm"]


def safe_print(*args: Any, **kwargs: Any) -> None:
    """Print without breaking the bars of this process; takes the arguments of ``print``."""
    with progress_bars().hidden():
        print(*args, **kwargs)
        (kwargs.get("file") or sys.stdout).flush()


class tqdm:
    """A progress bar, with a part of tqdm's arguments. Use it as an iterator, or call ``update`` and ``close``."""

    DEFAULT_FLUSH_INTERVAL_SECONDS = 1.0

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str | None = None,
        total: int | None = None,
        unit: str | None = None,
        position: int | None = None,
        flush_interval_s: float | None = None,
    ) -> None:
        """Make a bar. ``total`` defaults to the length of the iterable, if it has one; ``unit`` to "it".

        ``position``: bars with a smaller number are drawn above; 0 by default. ``flush_interval_s``: least seconds between
        two drawings, 1 by default. Raises TypeError for an iterable that is none, and for a total that is no number.
        """
        if iterable is not None and not isinstance(iterable, Iterable):
            raise TypeError(f"tqdm takes an iterable, not {a(iterable)}")
        if total is None:
            total = getattr(iterable, "__len__", lambda: None)()
        if total is not None and (not isinstance(total, int | float) or isinstance(total, bool)):
            raise TypeError(f"total must be a number of steps or None, not {a(total)}")
        self._iterable = iterable
        self._interval_s = self.DEFAULT_FLUSH_INTERVAL_SECONDS if flush_interval_s is None else flush_interval_s
        self._began_ns = Clock.perf_counter_ns()
        self._bar = Bar(new_number(), desc or "", 0, total, unit=unit or "it", position=position or 0, is_left=False)

    @property
    def n(self) -> int | float:
        """Number of steps so far."""
        return self._bar.done

    @property
    def total(self) -> int | float | None:
        """Number of all steps; None if it is not known."""
        return self._bar.total

    def set_description(self, desc: str) -> None:
        """Change the text before the bar."""
        self._bar.description = str(desc)
        self.refresh()

    def update(self, n: int | float = 1) -> None:
        """Count ``n`` steps."""
        if not isinstance(n, int | float):
            raise TypeError(f"update takes a number of steps, not {a(n)}")
        self._bar.done += n
        self.refresh()

    def refresh(self) -> None:
        """Draw the bar, if the last drawing is old enough. Do nothing after ``close``."""
        if not self._bar.is_ended:
            self._show()

    def close(self) -> None:
        """End the bar."""
        if not self._bar.is_ended:
            self._bar.is_ended = True
            self._show()

    def _show(self) -> None:
        self._bar.elapsed_s = (Clock.perf_counter_ns() - self._began_ns) / 1e9
        progress_bars().show(self._bar.number, self._bar, interval_s=self._interval_s)

    def __iter__(self) -> Iterator[Any]:
        """Yield the items and count them; end the bar with the loop. Raises ValueError if there is no iterable."""
        if self._iterable is None:
            raise ValueError("tqdm() was made without an iterable, so there is nothing to iterate over")
        try:
            for item in self._iterable:
                self.update(1)
                yield item
        finally:
            self.close()
