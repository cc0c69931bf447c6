"""Names of the resources that a placement group has reserved: a node offers them like any other resources.

Ray: src/ray/common/bundle_spec.h (FormatPlacementGroupResource), src/ray/common/placement_group.h

A node that holds bundle 2, ``{CPU: 4}``, of group ``abc`` offers ``CPU_group_2_abc: 4`` and ``CPU_group_abc: 4``. It also
offers ``bundle_group_2_abc`` and ``bundle_group_abc``, a thousand each: a task without needs has something to ask for.
A lease for 4 CPUs of bundle 2 asks for both CPU names; a lease for any bundle asks for the second name only. So a lease in a
group is an ordinary request for resources, and no other group or task can take what is reserved.

A request for any bundle may take CPUs from several bundles that its node holds. GPUs always come from one bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from minray.common.resources import CPU, GPU, UNIT, ResourceSet

PACK, SPREAD, STRICT_PACK, STRICT_SPREAD = STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""Strategies for placing bundles: together if possible, apart if possible, on one node, each on a node of its own."""

ANY_BUNDLE = -1
"""Bundle index that means "any bundle of the group that has room"."""
BUNDLE = "bundle"
BUNDLE_CAPACITY = 1000 * UNIT
"""Amount of the resource ``bundle`` in each bundle: 1000, as in Ray."""
BUNDLE_SHARE = UNIT // 1000
"""Amount of ``bundle`` that one lease takes: 0.001, so a bundle has room for a million leases, more than a node can run."""
_INFIX = "_group_"
_RESERVED = re.compile(r"(.+)_group_(?:[0-9]+_)?[0-9a-f]{36}")
"""The name of a resource of a bundle; its first part is what it was called before."""


def group_name(name: str, group_id: bytes, index: int = ANY_BUNDLE) -> str:
    """Return the name of a reserved resource: of one bundle, or of the whole group if ``index`` is ANY_BUNDLE."""
    return f"{name}{_INFIX}{group_id.hex()}" if index == ANY_BUNDLE else f"{name}{_INFIX}{index}_{group_id.hex()}"


def plain_name(name: str) -> str:
    """Return the name before reservation: ``CPU`` for ``CPU_group_2_abc``. Other names come back unchanged."""
    match = _RESERVED.fullmatch(name)
    return match[1] if match else name


def is_reserved(name: str) -> bool:
    """Tell whether a name is that of a bundle's resource."""
    return _RESERVED.fullmatch(name) is not None


def is_cpu(name: str) -> bool:
    """Tell whether a resource is CPU, inside a bundle or not: a blocked worker lends these (G101)."""
    return name == CPU or name.startswith(CPU + _INFIX)


def is_gpu(name: str) -> bool:
    return name == GPU or name.startswith(GPU + _INFIX)


def offered(group_id: bytes, index: int, bundle: Mapping[str, int]) -> ResourceSet:
    """Return the resources that a node gains by holding this bundle."""
    amounts = {**bundle, BUNDLE: BUNDLE_CAPACITY}
    return {
        group_name(name, group_id, each): amount for name, amount in amounts.items() for each in (ANY_BUNDLE, index)
    }


def within(group_id: bytes, index: int, needs: Mapping[str, int]) -> ResourceSet:
    """Translate needs into the reserved names to ask for: those of one bundle, or of any bundle of the group."""
    amounts = {**needs, BUNDLE: BUNDLE_SHARE}
    indices = (ANY_BUNDLE,) if index == ANY_BUNDLE else (ANY_BUNDLE, index)
    return {group_name(name, group_id, each): amount for name, amount in amounts.items() for each in indices}


def plain(resources: Mapping[str, int]) -> ResourceSet:
    """Translate reserved names back into plain needs: the reverse of ``within``."""
    return {
        name: amount
        for reserved, amount in resources.items()
        if (name := plain_name(reserved)) != BUNDLE or not is_reserved(reserved)
    }


def without_bundles(resources: Mapping[str, int]) -> ResourceSet:
    """Return a node's own resources, without those of the bundles that it holds."""
    return {name: amount for name, amount in resources.items() if not is_reserved(name)}
