"""Placement groups with bundles on nodes of their choice: ``Bundles``, in which tasks run in each bundle.

``Group`` (``groups``) makes groups that exist as soon as the gcs has made them. A group of ``Bundles`` may have to wait
for another driver's, and may be impossible: two bundles on different nodes where there is one node. It is removed then,
while it waits. A task runs in each bundle, by its index, and says where it is. Its child runs in the group too, if that
captures child tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
import minray.util
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.spec.stage import ZONE, Outcome, Stage
from tests.spec.stories import Look, Story, also_in_tasks, look_at
from tests.spec.wishes import BERTH, NO_ZONE, ROOM

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

TIMEOUT = "GetTimeoutError"
REMOVED = "TaskPlacementGroupRemoved"
LATE, UNTOLD = "late", "made, and ready() does not say so"
"""Outcomes of a group in which no task was begun."""
PATIENCE_S = 120.0
"""Seconds for which it waits for a group, or a task in it. A group that has lost a node may be impossible from then on."""


class Bundles(Story, frozen=True):
    """A placement group, with a task in each bundle."""

    bundles: int = 2
    strategy: str = "PACK"
    captures: bool = False
    """Whether child tasks of its tasks run in the group, too."""
    pause_s: float = 1.0
    """Seconds for which the driver waits for a group that cannot be, unless another node joins."""
    is_labelled: bool = False
    """Whether its bundles ask for any node that lacks a label."""

    has_room_for_sure = True
    """Whether nothing else takes what its bundles consist of."""

    def events(self) -> set[str]:
        return {"used", "dropped", "obtained again"}

    def perform(self, stage: Stage) -> Outcome:
        before, looks, after = count_nodes(), self.tell(), count_nodes()
        return {"of": [], "looks": looks, "nodes": before, "has_changed": before != after}

    def tell(self) -> list[Look]:
        """Make the group, run a task in each bundle, and remove it."""
        labels = labels_of_bundles(self.bundles, self.is_labelled)
        group = placement_group([self.bundle()] * self.bundles, self.strategy, bundle_label_selector=labels)
        try:
            if trouble := self.waits_for(group):
                return [("value", trouble)]
            refs = [self._visit(group, index) for index in range(self.bundles)]
            looks = [look_at(ref, PATIENCE_S) for ref in refs]
            return [("value", group.id.hex()), *looks]
        finally:
            remove_placement_group(group)

    def bundle(self) -> dict[str, float]:
        """Resources of each bundle."""
        return {BERTH: 1}

    def waits_for(self, group: Any) -> str:
        """Wait for the group as long as it may take; return an empty text if it is ready, LATE or UNTOLD."""
        return "" if group.wait(PATIENCE_S if self.is_possible(count_nodes()) else self.pause_s) else LATE

    def _visit(self, group: Any, index: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, index, self.captures)
        options = {"num_cpus": 0, "resources": {BERTH: 0.5}, "scheduling_strategy": strategy, "max_retries": -1}
        return visit.options(**options).remote()

    def is_possible(self, nodes: int) -> bool:
        """Whether this number of nodes has room for it."""
        if self.strategy == "STRICT_SPREAD":
            return self.bundles <= nodes
        return self.bundles <= (ROOM if self.strategy == "STRICT_PACK" else ROOM * nodes)

    def errors(self, losses: Losses) -> set[str]:
        found = losses.of_any_task(-1) | ({TIMEOUT} if losses.may_move_bundles() else set())
        return also_in_tasks(found | ({REMOVED} if losses.deaths or losses.silence else set()))

    def busy_s(self) -> float:
        return PATIENCE_S * (1 + self.bundles)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """G102, G104, G105: the group is made if it can be, its strategy places its bundles, and its tasks are there."""
        losses = reading.model.losses
        (_, group), *looks = outcome["looks"]
        is_certain = not (losses.may_move_bundles() or outcome["has_changed"])
        if is_certain and self.has_room_for_sure and (group != LATE) != self.is_possible(outcome["nodes"]):
            yield f"G104: {self.name} with {self.strategy} on {outcome['nodes']} nodes: {group}"
        if is_certain and group == UNTOLD:
            yield f"G104: {self.name} was made, and ready() does not say so"
        for kind, shown in looks:
            if kind == "error" and shown not in self.errors(losses):
                yield f"G17: a task in {self.name} shows {shown}; allowed: {sorted(self.errors(losses)) or 'no error'}"
            elif kind == "value" and shown[1:] != [group, group if self.captures else ""]:
                yield f"G102: a task and its child of {self.name} are in the groups {shown[1:]}, not in {group}"
        places = [shown[0] for kind, shown in looks if kind == "value"]
        if is_certain and self.strategy == "STRICT_SPREAD" and len(set(places)) != len(places):
            yield f"G105: bundles of {self.name} share a node: {places}"
        if is_certain and self.strategy == "STRICT_PACK" and len(set(places)) > 1:
            yield f"G105: bundles of {self.name} are on several nodes: {places}"


class Benches(Bundles, frozen=True):
    """A placement group whose bundles have a CPU each. A task in a bundle waits for its child, which may need that CPU, too.

    Two waits for the group end at different times, and one of them is given up.
    """

    impatience_s: float = 0.01
    """Seconds after which the first wait for the group is given up."""

    has_room_for_sure = False

    def bundle(self) -> dict[str, float]:
        return {BERTH: 1, "CPU": 1}

    def waits_for(self, group: Any) -> str:
        ready = group.ready()
        if not (group.wait(self.impatience_s) or group.wait(10.0)):
            return LATE
        return "" if look_at(ready, PATIENCE_S)[0] == "value" else UNTOLD

    def _visit(self, group: Any, index: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, index, self.captures)
        return visit.options(num_cpus=1, scheduling_strategy=strategy, max_retries=-1).remote(int(self.captures))


class Booths(Bundles, frozen=True):
    """A placement group whose bundles have a GPU each, which the tasks in them share in halves."""

    has_room_for_sure = False

    def bundle(self) -> dict[str, float]:
        return {BERTH: 1, "GPU": 1}

    def needs(self) -> dict[str, float]:
        return {"GPU": 1}

    def waits_for(self, group: Any) -> str:
        return "" if group.wait(0) or group.wait(10.0) else LATE

    def _visit(self, group: Any, index: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, index)
        options = {"num_cpus": 0, "num_gpus": 0.5, "scheduling_strategy": strategy, "max_retries": -1}
        others = [find_group.options(**options).remote() for _ in range(2)]
        return visit_booth.options(**options).remote(others)


class Crowd(Bundles, frozen=True):
    """A placement group whose bundles have a CPU each, for more tasks than that. Some want a certain bundle, some any."""

    has_room_for_sure = False

    def bundle(self) -> dict[str, float]:
        return {BERTH: 1, "CPU": 1}

    def waits_for(self, group: Any) -> str:
        return "" if group.wait(10.0) else LATE

    def _visit(self, group: Any, index: int) -> Any:
        others = [self._strategy(group, other) for other in (-1, index, -1)]
        crowd = [linger.options(num_cpus=1, scheduling_strategy=other, max_retries=-1).remote() for other in others]
        strategy = self._strategy(group, index)
        return visit_after.options(num_cpus=1, scheduling_strategy=strategy, max_retries=-1).remote(*crowd)

    def _strategy(self, group: Any, index: int) -> Any:
        return PlacementGroupSchedulingStrategy(group, index, self.captures)


def labels_of_bundles(count: int, is_labelled: bool) -> list[dict[str, str]] | None:
    """Let each bundle ask for any node that lacks a label, if ``is_labelled``."""
    return [{ZONE: f"!{NO_ZONE}"}] * count if is_labelled else None


def count_nodes() -> int:
    return sum(node["Alive"] for node in minray.nodes())


@minray.remote
def visit(cpus_of_child: int = 0) -> list[str]:
    """Say the node, the placement group, and the group of a child task."""
    own = minray.util.get_current_placement_group()
    child = minray.get(find_group.options(num_cpus=cpus_of_child, max_retries=-1).remote())
    return [minray.get_runtime_context().get_node_id(), "" if own is None else own.id.hex(), child]


@minray.remote
def visit_booth(others: list[Any]) -> list[str]:
    """Say the node, and the group; it has one GPU, a half of which it leaves to others."""
    minray.wait(others, num_returns=len(others), timeout=PATIENCE_S)
    own = minray.util.get_current_placement_group()
    context = minray.get_runtime_context()
    return [context.get_node_id(), "" if own is None or len(minray.get_gpu_ids()) != 1 else own.id.hex(), ""]


@minray.remote
def linger() -> None:
    time.sleep(0.2)


@minray.remote
def visit_after(*_: Any) -> list[str]:
    """Say the node, the placement group, and the group of a child task, which needs no CPU."""
    own = minray.util.get_current_placement_group()
    child = minray.get(find_group.options(num_cpus=0, max_retries=-1).remote())
    return [minray.get_runtime_context().get_node_id(), "" if own is None else own.id.hex(), child]


@minray.remote
def find_group() -> str:
    """Say the placement group in which this runs."""
    group = minray.get_runtime_context().get_placement_group_id()
    return group or ""
