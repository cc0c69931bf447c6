"""Freeing by hand in programs: any holder of a reference may free the value, although other references exist.

The value may not be made yet, be on its way, spilled to disk, an error, or freed already. The process that has freed it gets
an ObjectFreedError from then on. Others may have got the value before. ``local_only`` drops only this node's spare copies,
which are fetched again when they are needed.
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
    """Whether only spare copies of this node are dropped."""

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
