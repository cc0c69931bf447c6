"""Issues of Ray about placement groups."""

from __future__ import annotations

from typing import Any

import pytest

import minray as ray
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.real.support import PATIENCE_S

pytestmark = pytest.mark.usefixtures("cluster")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@ray.remote(num_cpus=1)
class Actor:
    def answer(self) -> str:
        return "answer"


@pytest.mark.ray_issue(ray="right")
def test_ray_27287_a_wait_for_a_group_that_cannot_be_placed_ends_at_its_timeout() -> None:
    """`PlacementGroup.wait` with a timeout never returns if no node can have the group."""
    group = placement_group([{"CPU": 1000}])
    assert group.wait(0.1) is False
    remove_placement_group(group)


@pytest.mark.ray_issue(ray="right")
def test_ray_51124_a_group_is_removed_while_an_actor_waits_for_its_bundle() -> None:
    """The raylet ends with a failed check when a group is removed and an actor waits for one of its bundles."""
    group = placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
    actor = Actor.options(scheduling_strategy=strategy).remote()
    assert get(actor.answer.remote()) == "answer"
    waiting = [Actor.options(scheduling_strategy=strategy).remote() for _ in range(3)]
    remove_placement_group(group)
    assert get(Actor.remote().answer.remote()) == "answer"
    del actor, waiting


@pytest.mark.ray_issue(ray="right: without the death of a node, which takes more luck")
def test_ray_64693_groups_that_are_removed_while_they_are_prepared_hold_up_no_other() -> None:
    """A group that is removed while its bundles are prepared keeps what is prepared, and later groups are not placed."""
    for _ in range(10):
        remove_placement_group(placement_group([{"CPU": 1}, {"CPU": 1}]))
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    assert group.wait(PATIENCE_S)
    remove_placement_group(group)
