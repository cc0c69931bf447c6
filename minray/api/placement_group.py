"""Placement groups: resources of several nodes, reserved together.

Ray: python/ray/util/placement_group.py, docs "Placement Groups"

    group = placement_group([{"CPU": 4}, {"CPU": 4}], strategy="SPREAD")

A group is made as a whole or not at all; until then it waits and reserves nothing. Tasks run in it with
``scheduling_strategy=PlacementGroupSchedulingStrategy(group)``. A group ends when it is removed, or with the job that has
made it (unless ``lifetime="detached"``). Its end kills all tasks and actors in it. When a node dies, its bundles move
to other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minray.api import calls as worker
from minray.common.bundles import STRATEGIES
from minray.common.ids import PlacementGroupID
from minray.common.labels import Term, parse_selector
from minray.common.resources import resource_set, to_floats
from minray.common.shown import check_encodable, cut, shown
from minray.errors.tracebacks import hides_from_pytest
from minray.protocol.placement_group import PLACEMENT_GROUPS, Bundle, PlacementGroupInfo
from minray.values.object_ref import ObjectRef

__tracebackhide__ = hides_from_pytest

VALID_PLACEMENT_GROUP_STRATEGIES = STRATEGIES


class PlacementGroup:
    """A handle of a placement group. It can be passed to other processes, and does not keep the group alive."""

    __module__ = "minray.util.placement_group"

    @staticmethod
    def empty() -> PlacementGroup:
        """Return the handle of no group: a task with it runs outside of any group."""
        return PlacementGroup(PlacementGroupID.nil())

    def __init__(self, id: PlacementGroupID, bundle_cache: list[dict[str, float]] | None = None) -> None:
        self.id = id
        self.bundle_cache = bundle_cache

    @property
    def is_empty(self) -> bool:
        return self.id.is_nil()

    def ready(self) -> ObjectRef[PlacementGroup]:
        """Return a reference that is ready when the group is, and whose value is this handle. For a removed group its value
        is an error."""
        self._check("ready")
        return worker.current_api().placement_group_ready(self.id.binary(), self)

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Wait until the group is ready, at most ``timeout_seconds``; return whether it is. With 0, do not wait."""
        self._check("wait")
        worker.check_timeout(timeout_seconds)
        api, group_id = worker.current_api(), self.id.binary()
        return bool(api.run_on_loop(lambda: api.placement_groups.wait_for_group(group_id, timeout_seconds)))

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """The requested bundles: for each a dict from resource name to amount."""
        if self.bundle_cache is None and not self.is_empty:
            self.bundle_cache = _bundles_of(self.id.binary())
        return self.bundle_cache or []

    @property
    def bundle_count(self) -> int:
        return len(self.bundle_specs)

    def _settle(self) -> None:
        """Wait until the gcs knows the group, before this handle is sent to another process."""
        api = worker.connected_api()
        if api is not None and not api.placement_groups.is_known(self.id.binary()):
            api.run_on_loop(lambda: api.placement_groups.settle(self.id.binary()))

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return self.__dict__

    def _check(self, method: str) -> None:
        if self.is_empty:
            raise ValueError(f"{method}() needs a placement group, and this is PlacementGroup.empty()")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()})"


def _bundles_of(group_id: bytes) -> list[dict[str, float]]:
    api = worker.current_api()
    bundles = api.run_on_loop(lambda: api.placement_groups.bundles_of(group_id))
    return [to_floats(bundle) for bundle in bundles]


def placement_group(
    bundles: list[dict[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
    *,
    bundle_label_selector: list[dict[str, str]] | None = None,
) -> PlacementGroup:
    """Request a placement group and return its handle at once. ``ready`` and ``wait`` tell when the group is reserved.

    ``bundles``: for each bundle a dict from resource name to amount. ``strategy``: PACK (few nodes), SPREAD (many),
    STRICT_PACK (one node, or wait), STRICT_SPREAD (a node for each bundle, or wait). ``name`` is for
    ``get_placement_group``, in this job's namespace. With ``lifetime="detached"`` the group outlives the job, until it is
    removed. ``bundle_label_selector``: for each bundle the labels of its node, as in the option ``label_selector`` of tasks;
    an empty dict for any node. Raises ValueError for other arguments and for a name that is taken.
    """
    described = _check_bundles(bundles)
    selectors = _check_selectors(bundle_label_selector, len(described))
    if strategy not in STRATEGIES:
        supported = f"Supported strategies are: {', '.join(STRATEGIES)}."
        raise ValueError(f"Invalid placement group strategy {shown(strategy)}. {supported}")
    if lifetime not in (None, "detached"):
        raise ValueError(f"placement group `lifetime` argument must be either `None` or 'detached', not {shown(lifetime)}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    check_encodable("name", name)
    api = worker.current_api()
    groups = api.placement_groups
    to_place = [Bundle(needs, labels=terms) for needs, terms in zip(described, selectors, strict=True)]
    group = groups.describe(to_place, strategy, name, lifetime == "detached")
    if name:
        api.run_on_loop(lambda: groups.create_named(group))
    else:
        groups.announce(group)
        api.post(groups.create, group)
    return PlacementGroup(PlacementGroupID(group.group_id), [to_floats(bundle) for bundle in described])


def _check_bundles(bundles: Any) -> list[dict[str, int]]:
    """Return bundles as resource sets. Raises ValueError for bundles that are invalid or empty."""
    if not isinstance(bundles, list):
        raise ValueError(f"Placement group bundles must be a list, got {type(bundles).__name__}.")
    if not bundles:
        raise ValueError("Placement group bundles must not be an empty list: a group has at least one bundle.")
    described = []
    for bundle in bundles:
        is_dict = isinstance(bundle, dict) and all(isinstance(name, str) for name in bundle)
        if not is_dict or not all(_is_number(amount) for amount in bundle.values()):
            raise ValueError(f"Bundles must be dicts from resource name to amount, such as {{'CPU': 1}}. Bundles: {bundles}")
        described.append(resource_set(bundle))
        if not described[-1]:
            raise ValueError(f"Bundles cannot be an empty dictionary or resources with only 0 values. Bundles: {bundles}")
    return described


def _check_selectors(selectors: Any, count: int) -> list[tuple[Term, ...]]:
    """Return the terms of each of ``count`` bundles. Raises ValueError for invalid, missing and superfluous selectors."""
    if selectors is None:
        return [()] * count
    if not isinstance(selectors, list):
        raise ValueError(f"Placement group bundle_label_selector must be a list, got {type(selectors).__name__}.")
    if len(selectors) != count:
        raise ValueError(f"bundle_label_selector must have one dict for each of the {count} bundles, but is {selectors}")
    for selector in selectors:
        if not isinstance(selector, dict) or not all(isinstance(text, str) for pair in selector.items() for text in pair):
            raise ValueError(f"bundle_label_selector must be a list of dicts from label to value, but has {shown(selector)}")
    return [parse_selector(selector) for selector in selectors]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Remove a placement group. Tasks and actors in it are killed, and its resources are free a moment later.

    Returns at once if this process has made the group without a name. Otherwise it returns when the gcs has removed the
    group, so that its name is free and no process finds it by that name any more. Later calls of this process about
    placement groups are answered as if the group had ended already.
    """
    if not isinstance(placement_group, PlacementGroup):
        raise TypeError(f"remove_placement_group takes a PlacementGroup, not {type(placement_group).__name__}")
    api, group_id = worker.current_api(), placement_group.id.binary()
    groups = api.placement_groups
    may_have_name = groups.may_have_name(group_id)
    api.post(groups.remove, group_id)
    if may_have_name:
        api.run_on_loop(lambda: groups.settle(group_id))


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the group of this name in this job's namespace. Raises ValueError if there is none (any more)."""
    if not isinstance(placement_group_name, str):
        raise TypeError(f"get_placement_group takes a name, not {type(placement_group_name).__name__}")
    if not placement_group_name:
        raise ValueError("Please supply a non-empty value to get_placement_group")
    check_encodable("placement_group_name", placement_group_name)
    api = worker.current_api()
    group = api.run_on_loop(lambda: api.placement_groups.named(placement_group_name))
    if group is None:
        raise ValueError(f"Failed to look up placement group with name: {cut(placement_group_name)}")
    return PlacementGroup(PlacementGroupID(group.group_id), [to_floats(bundle.resources) for bundle in group.bundles])


def get_current_placement_group() -> PlacementGroup | None:
    """Return the group in which the running task or this actor runs; None outside of any group, and in a driver."""
    strategy = worker.current_api().placed()
    return PlacementGroup(PlacementGroupID(strategy.group_id)) if strategy is not None and strategy.group_id else None


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return a dict with the name, bundles, their nodes, strategy and state of a group; empty if it is unknown.

    With None, return such a dict for each group that the gcs knows, by the group's id (hex). The states are PENDING,
    PREPARED, CREATED, RESCHEDULING (bundles were lost with their node) and REMOVED.
    """
    if not isinstance(placement_group, PlacementGroup | None):
        raise TypeError(f"placement_group_table takes a PlacementGroup or None, not {type(placement_group).__name__}")
    api = worker.current_api()
    if placement_group is None:
        api.run_on_loop(api.placement_groups.settle_all)
        return {group.group_id.hex(): _row(group) for group in worker.read_gcs(PLACEMENT_GROUPS, PlacementGroupInfo)}
    group_id = placement_group.id.binary()
    group = api.run_on_loop(lambda: api.placement_groups.get_group(group_id))
    return _row(group) if group is not None else {}


def _row(group: Any) -> dict[str, Any]:
    return {
        "placement_group_id": group.group_id.hex(),
        "name": group.name,
        "bundles": {index: to_floats(bundle.resources) for index, bundle in enumerate(group.bundles)},
        "bundles_to_node_id": {index: bundle.node_id.hex() for index, bundle in enumerate(group.bundles)},
        "strategy": group.strategy,
        "state": group.state,
    }


def check_placement_group_index(placement_group: PlacementGroup, bundle_index: int) -> None:
    """Raise ValueError for a bundle index that the group does not have."""
    if placement_group.is_empty:
        if bundle_index != -1:
            raise ValueError("If placement group is not set, the value of bundle index must be -1.")
    elif not -1 <= bundle_index < placement_group.bundle_count:
        raise ValueError(
            f"placement group bundle index {bundle_index} is invalid. "
            f"Valid placement group indexes: 0-{placement_group.bundle_count - 1}, or -1 for any"
        )


def check_fits(placement_group: PlacementGroup, bundle_index: int, needs: dict[str, float]) -> None:
    """Raise ValueError for resources that no bundle (or not the one with this index) can ever have."""
    bundles: Sequence[dict[str, float]] = placement_group.bundle_specs
    if bundle_index >= 0:
        bundles = bundles[bundle_index : bundle_index + 1]
    if bundles and not any(all(bundle.get(name, 0) >= amount for name, amount in needs.items()) for bundle in bundles):
        which = "any bundle" if bundle_index < 0 else f"bundle {bundle_index}"
        raise ValueError(
            f"Cannot schedule this in the placement group, because the resource request {needs} cannot fit into "
            f"{which} of the placement group, {list(bundles)}."
        )
