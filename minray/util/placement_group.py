"""Resources of several nodes, reserved together: ``placement_group([{"CPU": 4}, {"CPU": 4}], strategy="SPREAD")``.

Ray: python/ray/util/placement_group.py, docs "Placement Groups"

These are Ray's names; what they do is in ``minray/api/placement_group.py``.
"""

from minray.api.placement_group import (
    VALID_PLACEMENT_GROUP_STRATEGIES,
    PlacementGroup,
    check_placement_group_index,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "VALID_PLACEMENT_GROUP_STRATEGIES",
    "PlacementGroup",
    "check_placement_group_index",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]
