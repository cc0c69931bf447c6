"""Scheduling strategies: where a task or actor may run, for the option ``scheduling_strategy=``.

Ray: python/ray/util/scheduling_strategies.py, docs "Scheduling"

Beside the strings "DEFAULT" and "SPREAD" there are node affinity, placement groups, and node labels. A wrong argument raises
when the strategy is made. Whether the strategy fits a task is checked when the task is submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex

from minray.common.labels import DOES_NOT_EXIST, EXISTS, IN, NOT_IN, Term, check_key, describe_terms
from minray.common.shown import shown
from minray.errors.tracebacks import hides_from_pytest

__tracebackhide__ = hides_from_pytest

if TYPE_CHECKING:
    from minray.api.placement_group import PlacementGroup


class NodeAffinitySchedulingStrategy:
    """Run on one node.

    ``node_id`` is the hexadecimal id from ``minray.nodes()`` or ``get_runtime_context().get_node_id()``. With ``soft=True``
    the task runs on another node if that one is dead or can never hold it. Otherwise ``get`` then raises
    TaskUnschedulableError.
    """

    __module__ = "minray.util.scheduling_strategies"

    def __init__(self, node_id: str, soft: bool) -> None:
        if not isinstance(node_id, str):
            raise TypeError(f"node_id must be a hexadecimal string, not {type(node_id).__name__}")
        try:
            binary = bytes.fromhex(node_id)
        except ValueError:
            binary = b""
        if len(binary) != 16:
            example = "as in minray.nodes()[0]['NodeID']"
            raise ValueError(f"node_id must be 32 hexadecimal digits, {example}, not {shown(node_id)}")
        if not isinstance(soft, bool):
            raise TypeError(f"soft must be True or False, not {type(soft).__name__}")
        self.node_id = node_id
        self.soft = soft

    def __repr__(self) -> str:
        return f"NodeAffinitySchedulingStrategy(node_id={self.node_id!r}, soft={self.soft})"


class PlacementGroupSchedulingStrategy:
    """Run in a placement group: in the bundle with this index, or with index -1 in any bundle that has room.

    With ``placement_group_capture_child_tasks=True`` the tasks that a task submits also run in the group, unless they have a
    strategy of their own; None: as for the submitting task. With ``placement_group=None`` a task runs outside of any group,
    even if its parent's group would capture it.
    """

    __module__ = "minray.util.scheduling_strategies"

    def __init__(
        self,
        placement_group: PlacementGroup | None,
        placement_group_bundle_index: SupportsIndex = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        if placement_group is not None and not hasattr(placement_group, "bundle_specs"):
            raise TypeError(f"placement_group must be a PlacementGroup or None, not {type(placement_group).__name__}")
        if not isinstance(placement_group_bundle_index, SupportsIndex) or isinstance(placement_group_bundle_index, bool):
            index = type(placement_group_bundle_index).__name__
            raise TypeError(f"placement_group_bundle_index must be an int, not {index}")
        if placement_group_capture_child_tasks not in (None, True, False):
            raise TypeError("placement_group_capture_child_tasks must be True, False or None")
        self.placement_group = placement_group
        self.placement_group_bundle_index = int(placement_group_bundle_index)
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks

    def __repr__(self) -> str:
        return f"PlacementGroupSchedulingStrategy({self.placement_group!r}, {self.placement_group_bundle_index})"


class _Values:
    """Accepts a label by its values."""

    operator = ""

    def __init__(self, *values: str) -> None:
        if not values or not all(isinstance(value, str) for value in values):
            raise ValueError(f"{type(self).__name__} takes one or more strings, not {shown(values)}")
        self.values = tuple(sorted(values))

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.values}"


class In(_Values):
    """Accepts a label with one of these values."""

    __module__ = "minray.util.scheduling_strategies"

    operator = IN


class NotIn(_Values):
    """Accepts a label with none of these values, or a missing label."""

    __module__ = "minray.util.scheduling_strategies"

    operator = NOT_IN


class Exists:
    """Accepts a label with any value."""

    __module__ = "minray.util.scheduling_strategies"

    operator, values = EXISTS, ()


class DoesNotExist:
    """Accepts a missing label."""

    __module__ = "minray.util.scheduling_strategies"

    operator, values = DOES_NOT_EXIST, ()


class NodeLabelSchedulingStrategy:
    """Run on a node by its labels: ``NodeLabelSchedulingStrategy(hard={"zone": In("a", "b")}, soft={"disk": Exists()})``.

    All conditions of ``hard`` must hold; the task waits for such a node. Nodes for which ``soft`` holds too are preferred.
    """

    __module__ = "minray.util.scheduling_strategies"

    def __init__(self, hard: Mapping[str, Any], *, soft: Mapping[str, Any] | None = None) -> None:
        self.hard, self.soft = _terms("hard", hard or {}), _terms("soft", soft or {})
        if not self.hard and not self.soft:
            raise ValueError("The `hard` and `soft` parameter of NodeLabelSchedulingStrategy cannot both be empty.")

    def __repr__(self) -> str:
        return f"NodeLabelSchedulingStrategy(hard={describe_terms(self.hard)}, soft={describe_terms(self.soft)})"


def _terms(name: str, expressions: Any) -> tuple[Term, ...]:
    if not isinstance(expressions, Mapping):
        raise ValueError(f"{name} must be a dict from label to In, NotIn, Exists or DoesNotExist, not {shown(expressions)}")
    for key, value in expressions.items():
        if not isinstance(key, str) or not isinstance(value, In | NotIn | Exists | DoesNotExist):
            pair = f"{shown(key)}: {shown(value)}"
            raise ValueError(f"{name} maps labels to In, NotIn, Exists or DoesNotExist, but has {pair}")
        check_key(key)
    return tuple(sorted((key, value.operator, value.values) for key, value in expressions.items()))
