"""Freeing by hand in programs: whoever has a reference may say that the value is not needed, although references are about.

It may not be made yet, be on its way, on a disk, an error, or freed already. Who has freed a value gets an ObjectFreedError
from then on; others may have got the value before, or have it already. Copies that only this node does without come again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import minray.internal
from tests.spec.stage import Outcome, Stage, Tagged

if TYPE_CHECKING:
    from tests.spec.model import Reading, Scope

FREED = "ObjectFreedError"


class Free(Tagged, frozen=True):
    """``minray.internal.free``."""

    name: str
    refs: tuple[str, ...] = ()
    local_only: bool = False
    """Whether only copies go that this node need not have."""

    def perform(self, stage: Stage) -> Outcome:
        names = stage.bound(self.refs)
        minray.internal.free([stage.refs[name] for name in names], self.local_only)
        return {"of": names}

    def foresee(self, scope: Scope) -> None:
        if not self.local_only:
            scope.foresee_free(self.refs)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, self.refs, outcome)
        if not self.local_only:
            reading.freed.update(outcome["of"])
