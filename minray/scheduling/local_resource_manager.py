"""The resources of one node: its totals, what is free of them, and which lease holds which GPUs.

Ray: src/ray/raylet/scheduling/local_resource_manager.h, src/ray/common/scheduling/resource_instance_set.h

Leases allocate and free resources, and blocked leases lend their CPUs. Bundles of placement groups change the totals:
``reserve`` takes a bundle's resources out of general use, and ``open_bundle`` offers them under the bundle's own names
(``common.bundles``). Nothing here decides which request gets resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minray.common.bundles import ANY_BUNDLE, group_name, is_gpu, offered
from minray.common.resources import GPU, UNIT, GpuInstances, ResourceSet, add, fits, subtract


class Gpus(NamedTuple):
    """The GPUs of one lease or bundle."""

    taken: Mapping[int, int]
    """Amount taken of each GPU, by its index."""
    source: GpuInstances | None
    """Pool that they go back to; None if there are none."""


NO_GPUS = Gpus({}, None)


class LocalResourceManager:
    """Accounts for the resources of one node: total, free, and reserved by bundles."""

    def __init__(self, total: Mapping[str, int]) -> None:
        self.total: ResourceSet = dict(total)
        """The node's own resources and those of its bundles. Like ``available``, it stays the same dict: others read it."""
        self.available: ResourceSet = dict(total)
        """Total, less the resources that leases hold and bundles reserve, plus those that blocked leases lend."""
        self.reserved: ResourceSet = {}
        """Amounts of the node's own resources that bundles reserve; never zero."""
        whole = dict.fromkeys(range(self.total.get(GPU, 0) // UNIT), UNIT)
        self._gpus: dict[str, list[GpuInstances]] = {GPU: [GpuInstances(whole)]}
        """GPU pools by resource name: that of the node, of a bundle, or of each bundle of a group; no empty lists."""

    # --- Leases

    def has_room(self, demand: Mapping[str, int]) -> bool:
        if not fits(demand, self.available):
            return False
        if not _gpu_name(demand):
            return True
        gpus = self._allocate_gpus(demand)  # The sum may fit although no single GPU has enough.
        _free_gpus(gpus)
        return bool(gpus.taken)

    def allocate(self, demand: Mapping[str, int]) -> Gpus:
        """Take the resources for which ``has_room`` was true."""
        subtract(self.available, demand)
        return self._allocate_gpus(demand)

    def free(self, demand: Mapping[str, int], gpus: Gpus) -> None:
        add(self.available, demand)
        _free_gpus(gpus)

    def spare(self) -> ResourceSet:
        """Return the free resources for reports. Amounts below zero (CPUs that unblocked workers took back) become zero."""
        return {name: max(0, amount) for name, amount in self.available.items()}

    def _allocate_gpus(self, demand: Mapping[str, int]) -> Gpus:
        name = _gpu_name(demand)
        for instances in self._gpus.get(name, ()):
            if taken := instances.allocate_gpus(demand[name]):
                return Gpus(taken, instances)
        return NO_GPUS

    # --- Bundles

    def reserve(self, bundle: Mapping[str, int]) -> Gpus | None:
        """Reserve resources for a bundle; return None if there is no room."""
        if not self.has_room(bundle):
            return None
        add(self.reserved, bundle)
        return self.allocate(bundle)

    def release(self, bundle: Mapping[str, int], gpus: Gpus) -> None:
        """Undo ``reserve``."""
        for name, amount in bundle.items():
            self.reserved[name] -= amount
            if not self.reserved[name]:
                del self.reserved[name]
        self.free(bundle, gpus)

    def open_bundle(self, group_id: bytes, index: int, bundle: Mapping[str, int], gpus: Gpus) -> None:
        """Offer a reserved bundle's resources under its own names, so that leases can ask for them."""
        new = offered(group_id, index, bundle)
        add(self.total, new)
        add(self.available, new)
        if gpus.taken:
            instances = GpuInstances(gpus.taken)
            for each in (ANY_BUNDLE, index):
                self._gpus.setdefault(group_name(GPU, group_id, each), []).append(instances)

    def close_bundle(self, group_id: bytes, index: int, bundle: Mapping[str, int], gpus: Gpus) -> None:
        """Undo ``open_bundle``; no lease may hold resources of the bundle any more."""
        for name, amount in offered(group_id, index, bundle).items():
            self.total[name] -= amount
            self.available[name] -= amount
            if not self.total[name]:
                del self.total[name], self.available[name]
        if gpus.taken:
            (instances,) = self._gpus.pop(group_name(GPU, group_id, index))
            anywhere = group_name(GPU, group_id)
            self._gpus[anywhere].remove(instances)
            if not self._gpus[anywhere]:
                del self._gpus[anywhere]


def _gpu_name(demand: Mapping[str, int]) -> str:
    """Return the GPU resource of a demand, that of one bundle rather than that of any bundle; empty if there is none."""
    return max((name for name in demand if is_gpu(name)), key=len, default="")


def _free_gpus(gpus: Gpus) -> None:
    if gpus.source is not None:
        gpus.source.free_gpus(gpus.taken)
