"""Quantities of resources in fixed-point arithmetic, so that a thousand small leases add up without a rounding error.

Ray: src/ray/common/scheduling/resource_set.h, fixed_point.h, resource_instance_set.h

A resource set maps a name (``CPU``, ``GPU``, ``memory``, a custom one) to a whole number of ten-thousandths; names with
zero are left out. It is a plain dict, which records carry as it is. GPUs have instances, so that a task learns which GPUs
it may use. Nothing here knows about nodes or time.

The node's own name ``node:<ip>`` is a custom resource of amount 1, as in Ray.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from minray.common.shown import check_encodable, shown

UNIT = 10_000
"""Integer for an amount of 1: resources are counted in ten-thousandths (Ray: kResourceUnitScaling)."""

MOST_INTEGER = (1 << 63) - 1
"""Largest amount, in ten-thousandths: a signed 64-bit integer, the largest that a message holds."""

ResourceSet = dict[str, int]
"""Map from a resource's name to its amount in ten-thousandths; never zero."""

CPU, GPU, MEMORY, OBJECT_STORE_MEMORY = "CPU", "GPU", "memory", "object_store_memory"


def resource_set(amounts: Mapping[str, float]) -> ResourceSet:
    """Build a resource set from the amounts that a user wrote.

    Raises ValueError for negative, infinite and too large amounts, for fractions above one GPU, and for names that cannot
    be encoded."""
    result: ResourceSet = {}
    for name, amount in amounts.items():
        what = f"the amount of resource {shown(name)}"
        if amount < 0:
            raise ValueError(f"{what} must not be negative, but is {shown(amount)}")
        if isinstance(amount, float) and not math.isfinite(amount):
            raise ValueError(f"{what} must be finite, but is {shown(amount)}")
        if amount > MOST_INTEGER // UNIT:
            raise ValueError(f"{what} must be at most {MOST_INTEGER // UNIT}, but is {shown(amount)}")
        fixed = round(amount * UNIT)
        if amount > 0 and fixed == 0:
            raise ValueError(f"{what} is {shown(amount)}, less than the granularity of {1 / UNIT}")
        check_encodable("the name of a resource", name)
        if name == GPU and fixed > UNIT and fixed % UNIT:
            raise ValueError(f"num_gpus above 1 must be a whole number, but is {shown(amount)}")
        if fixed:
            result[name] = fixed
    return result


def to_floats(resources: Mapping[str, int]) -> dict[str, float]:
    """Convert a resource set to the amounts that users see: ``{"CPU": 2.0}``."""
    return {name: amount / UNIT for name, amount in resources.items()}


def describe(resources: Mapping[str, int]) -> str:
    """Format a resource set for messages: ``{CPU: 1, GPU: 0.5}``."""
    return "{" + ", ".join(f"{name}: {amount / UNIT:g}" for name, amount in sorted(resources.items())) + "}"


def fits(demand: Mapping[str, int], available: Mapping[str, int]) -> bool:
    return all(available.get(name, 0) >= amount for name, amount in demand.items())


def lack_of(demand: Mapping[str, int], totals: Iterable[Mapping[str, int]], where: str = "") -> str:
    """Explain why no node with these ``totals`` can ever meet a demand; ``where`` names further conditions on the node."""
    needs = f"needs {describe(demand)}{where}; "
    most: dict[str, int] = {}
    for total in totals:
        for name, amount in total.items():
            most[name] = max(most.get(name, 0), amount)
    nowhere = [name for name in demand if not most.get(name)]
    if nowhere:
        return f"{needs}no node has {' or '.join(nowhere)}"
    short = {name: most[name] for name, amount in demand.items() if most[name] < amount}
    if short:
        return f"{needs}the most that a node has is {describe(short)}"
    return f"{needs}no single node has all of it"


def add(target: ResourceSet, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        target[name] = target.get(name, 0) + amount


def subtract(target: ResourceSet, amounts: Mapping[str, int]) -> None:
    """Subtract amounts, also below zero: CPUs that unblocked tasks take back (G101) oversubscribe a node for a while."""
    for name, amount in amounts.items():
        target[name] = target.get(name, 0) - amount


class GpuInstances:
    """Tracks which logical GPUs are free. A whole GPU goes to one task; a fraction goes to the fullest GPU with room."""

    __slots__ = ("_free", "_whole")

    def __init__(self, shares: Mapping[int, int]) -> None:
        """``shares``: the amount of each GPU by its index; a bundle may hold only a part of one."""
        self._whole = dict(shares)
        self._free = dict(shares)

    def allocate_gpus(self, amount: int) -> dict[int, int]:
        """Take GPUs, and return the amount taken of each index. Empty: no fitting GPU is left (fragmentation), so wait."""
        if amount >= UNIT:
            chosen = [index for index, free in self._free.items() if free == UNIT][: amount // UNIT]
            taken = dict.fromkeys(chosen, UNIT)
        else:
            fitting = [(free, index) for index, free in self._free.items() if free >= amount]
            taken = {min(fitting)[1]: amount} if fitting else {}
        if sum(taken.values()) != amount:
            return {}
        for index, share in taken.items():
            self._free[index] -= share
        return taken

    def free_gpus(self, taken: Mapping[int, int]) -> None:
        for index, share in taken.items():
            self._free[index] += share
            assert self._free[index] <= self._whole[index], "a GPU share was freed twice"
