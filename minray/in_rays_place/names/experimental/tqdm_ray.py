"""Progress of loops in tasks and actors, as lines of text: ``for row in tqdm(rows, desc="load")``.

Ray: python/ray/experimental/tqdm_ray.py

In Ray the driver draws a bar for each. Here a process prints a line, at most once in ``flush_interval_s``, and a driver
shows it like every line of its workers: ``load: 120/1000 it``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from minray.common.clock import Clock

safe_print = print
"""Print without breaking a bar: here lines do not disturb each other."""


class tqdm:
    """A counter that prints how far it is. The arguments are a part of those of ``tqdm.tqdm``."""

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
        """Make a counter. ``position`` is accepted because Ray has it: lines have no place on the screen."""
        self._iterable = iterable
        self._desc = desc or ""
        self._unit = unit or "it"
        self._interval_s = self.DEFAULT_FLUSH_INTERVAL_SECONDS if flush_interval_s is None else flush_interval_s
        self._next_line_ns = 0
        self._is_closed = False
        self.total = getattr(iterable, "__len__", lambda: None)() if total is None else total
        self.n = 0

    def set_description(self, desc: str) -> None:
        self._desc = desc
        self.refresh()

    def update(self, n: int = 1) -> None:
        """Count ``n`` steps."""
        self.n += n
        self.refresh()

    def refresh(self) -> None:
        """Print a line, if the last one is old enough."""
        if Clock.perf_counter_ns() >= self._next_line_ns:
            self._print()

    def close(self) -> None:
        """Print the last line."""
        if not self._is_closed:
            self._is_closed = True
            self._print()

    def _print(self) -> None:
        self._next_line_ns = Clock.perf_counter_ns() + int(self._interval_s * 1e9)
        name = f"{self._desc}: " if self._desc else ""
        safe_print(f"{name}{self.n}{'' if self.total is None else f'/{self.total}'} {self._unit}", file=sys.stderr)

    def __iter__(self) -> Iterator[Any]:
        if self._iterable is None:
            raise ValueError("tqdm() was made without an iterable, so there is nothing to iterate over")
        for item in self._iterable:
            self.update(1)
            yield item
