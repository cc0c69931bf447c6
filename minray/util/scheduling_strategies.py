"""Where tasks and actors run: values of the option ``scheduling_strategy``.

Ray: python/ray/util/scheduling_strategies.py

These are Ray's names; what they mean is in ``minray/api/scheduling_strategies.py``.
"""

from minray.api.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)

__all__ = [
    "DoesNotExist",
    "Exists",
    "In",
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
    "NotIn",
    "PlacementGroupSchedulingStrategy",
]
