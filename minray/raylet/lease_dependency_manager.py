"""Which leases may run, by the large arguments of their tasks, and which arguments are brought here next.

Ray: src/ray/raylet/lease_dependency_manager.h, LocalLeaseManager::PinLeaseArgsIfMemoryAvailable

Pure. A lease may run when its arguments are here and there is memory to keep them. What a lease that runs has *pinned* can
go neither to disk nor elsewhere, and what running tasks make needs memory as well; so their arguments together take a part
of the store at most (``max_task_args_memory_fraction``), each object counted once, and leases beyond that wait (G86).

Rules
  * One lease may always run, however large its arguments are. So may one more when all that run are blocked in ``get`` or
    ``wait``, for they may wait for it: children before parents, also while the children's arguments are on their way. Nobody
    keeps back for children for which there are no resources: who holds them may wait for the one behind.
  * Nothing is pinned for a lease that has no resources yet. Of leases that wait for each other's CPUs none keeps memory that
    another one needs. What came early may have gone again when its lease has its turn; then it is fetched once more.
  * So that leases do not take the memory of each other's arguments again and again, what comes *ahead* of running, together
    with what is pinned, keeps within the same limit. A lease is ahead until it runs, or until ``on_late`` says that this
    takes too long: the one behind it may be what it waits for.
  * What cannot be brought here is excused: the worker asks for it once more and tells its task why there is none.

What we do not like about it yet: a lease with large arguments can starve while others with small ones keep coming.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec


class _Lease(msgspec.Struct, eq=False):
    """One of them."""

    needed: dict[bytes, int]
    """Its arguments, but for those that cannot be brought here, with their sizes."""
    level: float
    """See LeaseRequest."""
    runs: bool = False
    """It has resources, and its arguments are pinned."""
    is_blocked: bool = False


class LeaseDependencyManager:
    """The arguments of all leases of one node."""

    def __init__(
        self, limit_bytes: float, is_here: Callable[[bytes], bool], has_resources: Callable[[bytes], bool]
    ) -> None:
        self._limit_bytes = limit_bytes
        self._is_here = is_here
        """Whether an object can be read on this node at once."""
        self._has_resources = has_resources
        """Whether a lease that waits here, for its arguments too, could be given resources at once."""
        self._leases: dict[bytes, _Lease] = {}
        """Those with large arguments, from request to end."""
        self._waiting: dict[bytes, None] = {}
        """Leases whose arguments are to be fetched when there is memory for them, oldest first."""
        self._ahead: dict[bytes, None] = {}
        """Leases whose arguments are being fetched, or have come, and that do not run yet."""
        self._has_changed = False
        """More may be fetched than when it was last asked."""
        self._users: Counter[bytes] = Counter()
        """How many running leases take an object; no zeros."""
        self._pinned: dict[bytes, int] = {}
        """The same objects, and as how large each is counted: leases may name different sizes, the first one's holds."""
        self.pinned_bytes = 0
        """What these objects take together."""
        self._active_count = 0
        """Leases that run and are not blocked."""
        self._missing: dict[bytes, None] = {}
        """Leases that could have run, had their arguments been here."""

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease_id: bytes, sizes: Mapping[bytes, int], level: float) -> None:
        """A lease was asked for; these are its arguments."""
        self._leases[lease_id] = _Lease(dict(sizes), level)

    def needed(self, lease_id: bytes) -> list[bytes]:
        lease = self._leases.get(lease_id)
        return list(lease.needed) if lease is not None else []

    # --- fetching

    def want(self, lease_id: bytes) -> None:
        """It is to run here, and not all of its arguments are here."""
        self._ahead.pop(lease_id, None)
        self._waiting[lease_id] = None
        self._has_changed = True

    def begin(self) -> list[bytes]:
        """Leases whose arguments shall be fetched now."""
        begun: list[bytes] = []
        if not self._has_changed:
            return begun
        self._has_changed = False
        ahead = (self._leases[lease_id] for lease_id in self._ahead)
        taken_bytes = self.pinned_bytes + sum(map(self._more_bytes, ahead))
        for lease_id in sorted(self._waiting, key=lambda lease_id: -self._leases[lease_id].level):
            lease = self._leases[lease_id]
            more_bytes = self._more_bytes(lease)
            if taken_bytes + more_bytes <= self._limit_bytes or (self.is_stuck() and self._is_next(lease_id)):
                taken_bytes += more_bytes
                del self._waiting[lease_id]
                self._ahead[lease_id] = None
                begun.append(lease_id)
        return begun

    def _is_next(self, lease_id: bytes) -> bool:
        """Whether none is ahead that is as deep, or none of these has resources, and this one has."""
        level = self._leases[lease_id].level
        deeper = [other_id for other_id in self._ahead if self._leases[other_id].level >= level]
        return not deeper or (self._has_resources(lease_id) and not any(map(self._has_resources, deeper)))

    def on_late(self, lease_id: bytes) -> None:
        """It has been ahead for long: others need not keep back for it any more."""
        if lease_id in self._ahead:
            del self._ahead[lease_id]
            self._has_changed = True

    def excuse(self, lease_id: bytes, object_id: bytes) -> None:
        """It will not come."""
        self._leases[lease_id].needed.pop(object_id, None)

    # --- running

    def may_run(self, lease_id: bytes) -> bool:
        """Asked when there are resources for it. If arguments are missing, ``take_missing`` names the lease."""
        if not all(map(self._is_here, self._leases[lease_id].needed)):
            self._missing[lease_id] = None
            return False
        return self.has_memory(lease_id)

    def has_memory(self, lease_id: bytes) -> bool:
        """Whether its arguments may be pinned now, wherever they are."""
        lease = self._leases[lease_id]
        more_bytes = self._more_bytes(lease)
        if not more_bytes or self.pinned_bytes + more_bytes <= self._limit_bytes:
            return True
        return self.is_stuck() and not self._is_behind(lease)

    def _is_behind(self, lease: _Lease) -> bool:
        """Whether a deeper one could run if its arguments were here."""
        deeper = (lease_id for lease_id, other in self._leases.items() if not other.runs and other.level > lease.level)
        return any(map(self._has_resources, deeper))

    def is_stuck(self) -> bool:
        """No lease runs that would give memory back, unless others run."""
        return not self._active_count

    def _more_bytes(self, lease: _Lease) -> int:
        return sum(size for object_id, size in lease.needed.items() if object_id not in self._users)

    def take_missing(self) -> list[bytes]:
        missing, self._missing = self._missing, {}
        return [lease_id for lease_id in missing if lease_id in self._leases]

    def on_allocated(self, lease_id: bytes) -> None:
        """It was given resources: from now on its arguments are pinned."""
        lease = self._leases[lease_id]
        self.pinned_bytes += self._more_bytes(lease)
        self._users.update(lease.needed.keys())
        for object_id, size in lease.needed.items():
            self._pinned.setdefault(object_id, size)
        lease.runs = True
        self._ahead.pop(lease_id, None)
        self._active_count += 1

    def set_blocked(self, lease_id: bytes, is_blocked: bool) -> None:
        lease = self._leases.get(lease_id)
        if lease is not None and lease.runs and lease.is_blocked != is_blocked:
            lease.is_blocked = is_blocked
            self._active_count += -1 if is_blocked else 1
            self._has_changed = True

    def end(self, lease_id: bytes) -> None:
        """The lease is over, whatever state it was in."""
        self.set_blocked(lease_id, False)
        lease = self._leases.pop(lease_id, None)
        self._waiting.pop(lease_id, None)
        self._ahead.pop(lease_id, None)
        self._has_changed = True
        if lease is None or not lease.runs:
            return
        self._active_count -= 1
        for object_id in lease.needed:
            self._users[object_id] -= 1
            if not self._users[object_id]:
                del self._users[object_id]
                self.pinned_bytes -= self._pinned.pop(object_id)
