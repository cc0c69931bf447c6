"""Tasks and placement groups that want the same resource: ``Contest``.

What other groups reserve, nobody else needs, so the nodes that the gcs chooses for them always have room. Here the tasks of
a driver take the same resource just before. The gcs hears of that a little later, so it chooses nodes that are full by then.
A node then refuses some bundles of an attempt, has reserved others, and has to give these back. All tasks end by themselves,
so every group is made in the end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import minray
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.spec.bundles import PATIENCE_S, REMOVED, TIMEOUT, count_nodes, find_group
from tests.spec.stories import Look, Story, look_at
from tests.spec.wishes import BERTH, ROOM

if TYPE_CHECKING:
    from tests.spec.model import Losses

DONE, INSIDE = "done", "inside"
LATE = ("error", TIMEOUT)


class Contest(Story, frozen=True):
    """Rounds of tasks that take a resource, and a placement group of it."""

    rounds: int = 3
    rivals: int = 3
    """Number of tasks of a round, of which each takes a whole berth."""
    seconds: float = 0.2
    """Seconds that such a task takes."""
    bundles: int = 2
    strategy: str = "PACK"
    fills_nodes: bool = False
    """Whether a bundle takes all berths of a node, if there are enough nodes and it need not share one."""
    pause_s: float = 0.01
    """Seconds between the tasks and the group: nodes tell the gcs what is free every tenth of a second."""

    def tell(self) -> list[Look]:
        return [look for _ in range(self.rounds) for look in self._round()]

    def _round(self) -> list[Look]:
        options = {"num_cpus": 0, "resources": {BERTH: 1}, "max_retries": -1}
        refs = [take_berth.options(**options).remote(self.seconds) for _ in range(self.rivals)]
        time.sleep(self.pause_s)
        fills = self.fills_nodes and self.strategy != "STRICT_PACK" and count_nodes() >= self.bundles
        group = placement_group([{BERTH: ROOM if fills else 1}] * self.bundles, self.strategy)
        try:
            inside = self._visit(group) if group.wait(PATIENCE_S) else LATE
        finally:
            remove_placement_group(group)
        return [inside, *(look_at(ref, PATIENCE_S) for ref in refs)]

    def _visit(self, group: Any) -> Look:
        strategy = PlacementGroupSchedulingStrategy(group, self.bundles - 1)
        options = {"num_cpus": 0, "resources": {BERTH: 0.5}, "scheduling_strategy": strategy, "max_retries": -1}
        kind, shown = look_at(find_group.options(**options).remote(), PATIENCE_S)
        return (kind, INSIDE) if shown == group.id.hex() else (kind, shown)

    def wanted(self) -> list[Any]:
        return [INSIDE, *[DONE] * self.rivals] * self.rounds

    def errors(self, losses: Losses) -> set[str]:
        late = {TIMEOUT} if losses.may_move_bundles() else set()
        return losses.of_any_task(-1) | late | ({REMOVED} if losses.deaths or losses.silence else set())

    def busy_s(self) -> float:
        return self.rounds * (2 + self.rivals) * PATIENCE_S


@minray.remote
def take_berth(seconds: float) -> str:
    time.sleep(seconds)
    return DONE
