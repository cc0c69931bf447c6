"""Makes the faults of a failing run few: delta debugging over the oracle's answers.

Ray: has no counterpart. The method is that of Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input".

``FaultShrinker`` knows nothing of the program that fails. A subclass runs it with other faults and says whether it still
fails alike. There are two: that of the campaigns (``tests/spec/shrink.py``), which also makes its generated programs
smaller, and that of users' programs (``minray/testing/search.py``), which stay as they are.

Rules
  * With few faults runs are alike, so that loud faults alone are tried first. Quiet faults come in hundreds; most go in
    groups: those of a kind, of a process, or of a message.
  * Many faults may seem to be needed only because each shifts the others. Then one fault is tried alone, at other points
    of its shape, which a dry run finds.
  * The order of the tries is a function of the answers alone. The same failure shrinks to the same faults.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from minray.simulation.faults import LOUD, Key

GROUPS = 50
"""A group with less than one fiftieth of all faults is not tried."""
MANY = 100
"""With more faults than this, faults are left out in parts only, not one by one."""
PARTS = 16
"""Number of parts of the faults down to which the coarse passes divide them."""
FEW = 4
"""With this many faults or fewer none is tried alone."""
POINTS = 10
"""Number of points at which one fault is tried."""
ALONE = 20
"""Number of faults, of different shapes, that are tried alone: loud ones first, then ``TELLING``, the latest first."""
TELLING = ("duplicate", "break")
"""Quiet faults that change more than the time."""

Answers = tuple[tuple[Key, int], ...]
"""The faults of a run in the order in which they struck: the key of each question, with an answer that is not 0."""
Shape = tuple[str, ...]
"""A key without the names of processes and tasks, and without the count."""


class FaultShrinker(ABC):
    """Leaves out the faults that a failure does not need; the base of both shrinkers."""

    @property
    @abstractmethod
    def faults(self) -> Answers:
        """The faults of the smallest failing run so far."""

    @abstractmethod
    def take_faults(self, faults: Answers) -> bool:
        """Run with exactly these faults. If the run fails alike, make it the smallest so far and return True."""

    @abstractmethod
    def points_of(self, kinds: Iterable[str]) -> dict[Shape, list[Key]]:
        """Run without faults. Return shape -> the points at which faults of these kinds could strike."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether no more runs may be made."""

    def keep_loud(self) -> bool:
        """Leave out all quiet faults; return whether the run still fails."""
        return self.take_faults(tuple(fault for fault in self.faults if fault[0][0] in LOUD))

    def keep_beginning(self) -> None:
        """Try without the later faults. A failed run often goes on for long, and most faults strike after the failure."""
        faults = self.faults
        enough, too_few = len(faults), 0
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            if self.take_faults(faults[:middle]):
                enough = middle
            else:
                too_few = middle

    def leave_out_faults(self, coarse: bool = False) -> None:
        """Leave out halves, quarters, eighths and so on of the faults; down to single ones, unless ``coarse``."""
        leave_out(self.faults, self.take_faults, coarse)

    def thin_out(self) -> None:
        """Leave out large parts of many faults, again and again: with less else in the way, fewer of them are needed."""
        while len(before := self.faults) > MANY:
            self.leave_out_faults(coarse=True)
            self.drop_groups()
            if self.faults == before:
                return

    def drop_groups(self) -> None:
        """Try without all faults of one kind, of one process or link, at one step or message; the largest groups first.

        Small groups are left alone: a run for each of them would take most of the time.
        """
        for part in range(3):
            groups = Counter(name_in(key, part) for key, _ in self.faults)
            del groups[None]
            for name, count in groups.most_common():
                if count * GROUPS < len(self.faults):
                    break
                self.take_faults(tuple(fault for fault in self.faults if name_in(fault[0], part) != name))

    def single_out(self) -> None:
        """Try one fault alone: where it struck, and at other points of its shape, which a dry run finds."""
        if len(self.faults) > FEW:
            self._try_alone(self.faults)

    def _try_alone(self, faults: Answers) -> None:
        of_shapes = {(shape(key), answer): (key, answer) for key, answer in faults}
        latest = sorted(of_shapes.values(), key=lambda one: -faults.index(one))
        alone = sorted(latest, key=lambda one: (one[0][0] not in LOUD, one[0][0] not in TELLING))[:ALONE]
        if any(self.take_faults((one,)) for one in alone):
            return
        points = self.points_of(key[0] for key, _ in alone)
        for key, answer in alone:
            for point in some(points.get(shape(key), [])):
                if self.take_faults(((point, answer),)):
                    return

    def shrink_faults(self) -> None:
        """Leave out faults as long as that changes anything.

        Where a loud fault strikes often depends on hundreds of quiet ones. So each loud one is tried alone first.
        """
        if len(self.faults) > 1 and not self.keep_loud():
            self._try_alone(tuple(fault for fault in self.faults if fault[0][0] in LOUD))
        if len(self.faults) > FEW:
            self.keep_beginning()
            self.thin_out()
        self.leave_out_faults(coarse=True)
        self.single_out()
        before = None
        while self.faults != before and not self.is_over():
            before = self.faults
            self.thin_out()
            self.leave_out_faults(coarse=len(self.faults) > MANY)


def leave_out(items: Any, take: Callable[[Any], bool], coarse: bool = False) -> None:
    """Leave out halves, quarters, eighths and so on of a list or tuple, down to single items unless ``coarse``.

    ``take`` is called with the items that stay, and returns whether they are enough.
    """
    size = count = max(1, len(items))
    while items:
        start = 0
        while start < len(items):
            kept = items[:start] + items[start + size :]
            if take(kept):
                items = kept
            else:
                start += size
        if size == 1 or (coarse and size * PARTS <= count):
            return
        size = (size + 1) // 2


def describe_fault(key: Key) -> str:
    """Describe a fault in words: ``crash at worker/1f3c user_code 2``."""
    return f"{key[0]} at {' '.join(map(str, key[1:]))}"


def some(points: list[Key]) -> list[Key]:
    """Pick a few points, spread over all of them."""
    return points[:: max(1, len(points) // POINTS)]


def shape(key: Key) -> Shape:
    """Return the shape of a key: faults of one shape strike like places of a run."""
    return tuple(re.sub(r"/\w+|\(.*", "", part) for part in key if isinstance(part, str))


def name_in(key: Key, part: int) -> str | None:
    """Return the name at this place of a key; None if the key is shorter or has a count there."""
    name = key[part] if part < len(key) else None
    return name if isinstance(name, str) else None
