"""Values that must be made again because values that were made of them are lost: ``Lineage``.

An owner frees a value that it has let go, and remembers the task or call that has made it as long as the value of another
needs it. If that other value is lost, all that it was made of is made again first (G67). So the maker runs again although
nothing has struck it. That uses up a retry of the maker (G70).

Rules
  * A taker is a task, call or generator that takes a value, or a reference to it. An actor is no taker: the arguments of
    its constructor are held as long as it may restart.
  * A maker runs again at most once for each time that a taker runs again because its own value was lost. The taker's value
    must be lost itself, or made again for another taker. A taker without retries never runs again.
  * A value that an owner still holds is not made again for its takers. A driver holds all that it has not dropped until it
    has done its work. What an actor keeps may outlive that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.spec.actors import Create
from tests.spec.fates import DRIVER, Fates, retries_of, walk
from tests.spec.programs import Call, Drop, Generate, Program, Submit

if TYPE_CHECKING:
    from tests.spec.model import Losses


class Lineage:
    """Takers of all values of a program."""

    def __init__(self, program: Program, losses: Losses, fates: Fates) -> None:
        self._losses = losses
        self._fates = fates
        self._takers: dict[str, dict[str, Submit | Call | Generate]] = {}
        """Maker -> by name, the takers of its values that it may have to make again."""
        pairs = [pair for driver in program.drivers for pair in walk(driver, DRIVER)]
        self._makers = {part: one.name for _, one in pairs if isinstance(one, Submit | Call) for part in one.parts()}
        """Object -> the task, call or generator that has made it."""
        self._makers |= {item: one.name for _, one in pairs if isinstance(one, Generate) for item in one.item_names()}
        owners = {one.name: owner for owner, one in pairs if isinstance(one, Submit | Call | Generate)}
        dropped = {one.ref for owner, one in pairs if isinstance(one, Drop) and owner == DRIVER}
        actors_keep = any(one.nested if isinstance(one, Create) else isinstance(one, Call) and one.keep for _, one in pairs)
        for _, taker in pairs:
            if isinstance(taker, Submit | Call | Generate):
                for name in _taken_by(taker):
                    maker = self._makers.get(name)
                    if maker is not None and (actors_keep or owners[maker] != DRIVER or name in dropped):
                        self._takers.setdefault(maker, {})[taker.name] = taker

    def most_remakings(self, maker: str) -> float:
        """How often a task, call or generator may run again because others have lost what they had made of its values."""
        return sum(map(self._most_lost, self._takers.get(maker, {}).values()))

    def _most_lost(self, taker: Submit | Call | Generate) -> float:
        """How often it may run again because its own values were lost, each alone, or have to be made again for others."""
        losses = self._losses.of(taker.name, self._makers_of(_taken_by(taker)))
        values = 1 + taker.yields if isinstance(taker, Generate) else len(taker.parts())
        own = (losses.deaths - losses.memory) * values if losses.objects else 0
        return min(self._retries_of(taker), own + self.most_remakings(taker.name))

    def _makers_of(self, names: Iterable[str]) -> list[str]:
        return [self._makers.get(name, name) for name in names]

    def _retries_of(self, taker: Submit | Call | Generate) -> float:
        """How often it may be retried; without limit, too, if nothing is known of its actor."""
        if isinstance(taker, Submit) or not taker.actor:
            retries = taker.max_retries
        else:
            fate = self._fates.of(taker.actor)
            retries = -1 if fate is None else retries_of(taker, fate)
        return math.inf if retries < 0 else retries


def _taken_by(taker: Submit | Call | Generate) -> tuple[str, ...]:
    """Names of the objects whose values or references it takes."""
    return taker.refs if isinstance(taker, Generate) else taker.args + taker.nested
