"""Chooses the raylet that is asked first for a worker: that of the node with most bytes of the task's large arguments.

Ray: src/ray/core_worker/lease_policy.h (LocalityAwareLeasePolicy, LocalLeasePolicy)

Pure. An owner knows all copies of its own objects, and one place of each borrowed object. This knowledge may be out of date.
That does no harm: the raylet that is asked decides like any other. It spills the request back if it has no room, and brings
missing arguments to its node. Among nodes with equally many bytes the owner's own node is best, because its raylet is
nearest; then the node with the lowest id. If the policy is switched off, the local raylet is asked first, as for all other
tasks.

Rules
  * Only tasks with the default strategy go where their arguments are; affinity and spreading outrank locality (G103).
  * A node that is known to be dead has no copies: the directory forgets them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from minray.policies import asking, protocols
from minray.protocol.base import Address
from minray.protocol.object_store import Place
from minray.protocol.raylet import Dependency

OwnPolicy = protocols.LocalityPolicy | None
BestRaylet = Callable[[tuple[Dependency, ...]], Address | None]
"""Finds the raylet of the node that has most of these arguments; None: the local one, or no node has any."""
PlaceOf = Callable[[bytes], Place | None]
"""Returns the known place of a large object; None for an object that is small, or not known."""
CopiesOf = Callable[[bytes], tuple[int, Sequence[Address]]]
"""Returns the size of an object, and the raylets of the nodes that have a copy; no raylets if that is not known."""


class LocalityAwareLeasePolicy:
    """Chooses the first raylet for the lease requests of one process."""

    def __init__(
        self, own_node: bytes, own_copies: CopiesOf, place_of: PlaceOf, is_enabled: bool = True, policy: OwnPolicy = None
    ) -> None:
        """``policy`` is a program's; it decides instead of this one, unless it answers None."""
        self._own_node = own_node
        self._own_copies = own_copies
        """Looks up the copies of objects that this process owns."""
        self._place_of = place_of
        """Looks up the place of an object, also of one that this process has borrowed."""
        self._is_enabled = is_enabled
        self._own_policy = policy

    def best_raylet(self, dependencies: Sequence[Dependency]) -> Address | None:
        """Return the raylet to ask first; None if that is the local one, or if no node is known to have an argument."""
        here: Counter[bytes] = Counter()
        raylets: dict[bytes, Address] = {}
        for dependency in dependencies if self._is_enabled else ():
            size, copies = self.copies_of(dependency.object_id)
            for raylet in copies:
                raylets[raylet.node_id] = raylet
                here[raylet.node_id] += size
        if not here:
            return None
        best = asking.first_node(self._own_policy, self._own_node, dependencies, self.copies_of)
        best = best or min(here, key=lambda node_id: (-here[node_id], node_id != self._own_node, node_id))
        return None if best == self._own_node else raylets[best]

    def copies_of(self, object_id: bytes) -> tuple[int, Sequence[Address]]:
        """Return the size of an object and the raylets of nodes that have it; for a borrowed one, of its known place."""
        size, raylets = self._own_copies(object_id)
        place = self._place_of(object_id)
        return (size, raylets) if raylets or place is None else (place.size, [place.raylet])
