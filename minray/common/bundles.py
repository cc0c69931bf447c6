"""The names of what a placement group has reserved: resources of a node like any others.

Ray: src/ray/common/bundle_spec.h (FormatPlacementGroupResource), src/ray/common/placement_group.h

A node that holds bundle 2, ``{CPU: 4}``, of group ``abc`` offers ``CPU_group_2_abc: 4`` and ``CPU_group_abc: 4``, and, so
that work without needs has something to ask for, ``bundle_group_2_abc`` and ``bundle_group_abc``, a thousand each. Who wants
4 CPUs of bundle 2 asks for both of its names; who wants any bundle asks for the second. So a lease in a group is a request
for resources like any other, and no other group or task can take what is reserved.

A request for any bundle may take from several at once what their node has of the group; only GPUs come from one bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from minray.common.resources import CPU, GPU, UNIT, ResourceSet

PACK, SPREAD, STRICT_PACK, STRICT_SPREAD = STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""How bundles may be placed: together if possible, apart if possible, on one node, each on another one."""

ANY_BUNDLE = -1
"""The index of whichever bundle has room."""
BUNDLE = "bundle"
BUNDLE_CAPACITY = 1000 * UNIT
"""How much of ``bundle`` each bundle has."""
BUNDLE_SHARE = UNIT // 1000
"""How much of it each lease takes: more leases than a node can have."""
_INFIX = "_group_"
_RESERVED = re.compile(r"(.+)_group_(?:[0-9]+_)?[0-9a-f]{36}")
"""The name of a resource of a bundle; its first part is what it was called before."""


def group_name(name: str, group_id: bytes, index: int = ANY_BUNDLE) -> str:
    """What a resource of a bundle is called; without an index, of any bundle of the group."""
    return f"{name}{_INFIX}{group_id.hex()}" if index == ANY_BUNDLE else f"{name}{_INFIX}{index}_{group_id.hex()}"


def plain_name(name: str) -> str:
    """What it was called before it was reserved: ``CPU`` of ``CPU_group_2_abc``; other names stay as they are."""
    match = _RESERVED.fullmatch(name)
    return match[1] if match else name


def is_reserved(name: str) -> bool:
    """Whether this is a resource of a bundle."""
    return _RESERVED.fullmatch(name) is not None


def is_cpu(name: str) -> bool:
    """CPUs, wherever they are: those that a blocked worker lends (G101)."""
    return name == CPU or name.startswith(CPU + _INFIX)


def is_gpu(name: str) -> bool:
    return name == GPU or name.startswith(GPU + _INFIX)


def offered(group_id: bytes, index: int, bundle: Mapping[str, int]) -> ResourceSet:
    """What a node has more because it holds this bundle."""
    amounts = {**bundle, BUNDLE: BUNDLE_CAPACITY}
    return {
        group_name(name, group_id, each): amount for name, amount in amounts.items() for each in (ANY_BUNDLE, index)
    }


def within(group_id: bytes, index: int, needs: Mapping[str, int]) -> ResourceSet:
    """What to ask for to have these needs met in a bundle, or in any."""
    amounts = {**needs, BUNDLE: BUNDLE_SHARE}
    indices = (ANY_BUNDLE,) if index == ANY_BUNDLE else (ANY_BUNDLE, index)
    return {group_name(name, group_id, each): amount for name, amount in amounts.items() for each in indices}


def plain(resources: Mapping[str, int]) -> ResourceSet:
    """The needs, without where they are to be met: the reverse of ``within``."""
    return {
        name: amount
        for reserved, amount in resources.items()
        if (name := plain_name(reserved)) != BUNDLE or not is_reserved(reserved)
    }


def without_bundles(resources: Mapping[str, int]) -> ResourceSet:
    """A node's own resources, without those of the bundles that it holds."""
    return {name: amount for name, amount in resources.items() if not is_reserved(name)}
