"""Which raylet is asked first for a worker: the one whose node has most bytes of the task's large arguments.

Ray: src/ray/core_worker/lease_policy.h (LocalityAwareLeasePolicy, LocalLeasePolicy)

Pure. An owner knows the copies of its own objects, and of borrowed ones the place that it has seen. What it knows may be
old: the raylet that is asked decides as any other, sends the owner on if it has no room, and brings here what is missing.
Among nodes that have equally much the owner's own is best, for its raylet is next door; then the one with the least id.
Where the policy is switched off, the local raylet is asked first, as for all other tasks.

Rules
  * Only tasks that may run anywhere go where their arguments are; affinity and spreading say more than locality (G103).
  * A node that is known to be dead has nothing: the directory forgets its copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from minray.protocol.base import Address
from minray.protocol.object_store import Place
from minray.protocol.raylet import Dependency

PlaceOf = Callable[[bytes], Place | None]
"""Where a large object was seen; None for an object that is small, or not known."""
CopiesOf = Callable[[bytes], tuple[int, Sequence[Address]]]
"""How large an object is, and the raylets of the nodes that have it; none, if that is not known."""


class LocalityAwareLeasePolicy:
    """The policy of one process."""

    def __init__(self, own_node: bytes, own_copies: CopiesOf, place_of: PlaceOf, is_enabled: bool = True) -> None:
        self._own_node = own_node
        self._own_copies = own_copies
        """Knows the objects that this process owns."""
        self._place_of = place_of
        """Knows the objects that this process has borrowed, too."""
        self._is_enabled = is_enabled

    def best_raylet(self, dependencies: Sequence[Dependency]) -> Address | None:
        """None: the local one is best, or no node is known to have anything."""
        here: Counter[bytes] = Counter()
        raylets: dict[bytes, Address] = {}
        for dependency in dependencies if self._is_enabled else ():
            size, copies = self.copies_of(dependency.object_id)
            for raylet in copies:
                raylets[raylet.node_id] = raylet
                here[raylet.node_id] += size
        if not here:
            return None
        best = min(here, key=lambda node_id: (-here[node_id], node_id != self._own_node, node_id))
        return None if best == self._own_node else raylets[best]

    def copies_of(self, object_id: bytes) -> tuple[int, Sequence[Address]]:
        """Tell how large an object is and which nodes have it; of a borrowed one, the node where it was seen."""
        size, raylets = self._own_copies(object_id)
        place = self._place_of(object_id)
        return (size, raylets) if raylets or place is None else (place.size, [place.raylet])
