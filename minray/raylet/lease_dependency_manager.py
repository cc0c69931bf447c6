"""Admission of leases by the large arguments of their tasks: which lease may run, and whose arguments are pulled next.

Ray: src/ray/raylet/lease_dependency_manager.h, LocalLeaseManager::PinLeaseArgsIfMemoryAvailable

Pure. A lease may run when its arguments are here and there is memory to pin them. *Pinned* arguments can be neither spilled
nor evicted, and the results of running tasks need memory as well. So the arguments of running leases take at most a part of
the store (``max_task_args_memory_fraction``), each object counted once; leases beyond that wait (G86).

Rules
  * One lease may always run, however large its arguments are. One more may run when all running leases are blocked in
    ``get`` or ``wait``, since they may wait for it. Children go before parents, also while the children's arguments are
    being pulled. A child for which there are no resources holds nothing back: the holder of the resources may wait for the
    lease behind it.
  * A lease without resources gives way: its arguments are unpinned when another process needs their memory and nothing can
    be spilled instead. So leases that wait for each other's CPUs never hold memory that another one needs. If such arguments
    have been evicted when their lease has its turn, they are pulled once more.
  * Arguments that come *ahead* of running, together with the pinned ones, keep within the same limit, each object counted
    once. Otherwise leases would evict each other's arguments again and again. A lease is ahead until it runs, or until
    ``on_late`` says that this takes too long: it may wait for the lease behind it.
  * An argument that cannot be pulled is excused: the lease is granted without it. The worker asks for it once more, and
    tells its task why it is missing.

What we do not like about it yet: a lease with large arguments can starve while others with small ones keep coming.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping

import msgspec


class _WaitingLease(msgspec.Struct, eq=False):
    """A lease with large arguments."""

    needed: dict[bytes, int]
    """Sizes of its arguments by object id, without the excused ones."""
    level: float
    """See ``LeaseRequest.level``."""
    runs: bool = False
    """Whether it has resources, so that its arguments are pinned."""
    is_blocked: bool = False


class LeaseDependencyManager:
    """Decides about the large arguments of all leases of one node."""

    def __init__(
        self, limit_bytes: float, is_here: Callable[[bytes], bool], has_resources: Callable[[bytes], bool]
    ) -> None:
        self._limit_bytes = limit_bytes
        self._is_here = is_here
        """Tells whether an object can be read on this node at once."""
        self._has_resources = has_resources
        """Tells whether there are resources for a lease that waits here, for its arguments or for its turn."""
        self._leases: dict[bytes, _WaitingLease] = {}
        """Leases with large arguments, from request to end."""
        self._waiting: dict[bytes, None] = {}
        """Leases whose arguments are pulled as soon as there is memory for them, oldest first."""
        self._ahead: dict[bytes, None] = {}
        """Leases whose arguments are being pulled, or have come, and that do not run yet."""
        self._has_changed = False
        """Whether ``begin`` may find more than at its last call."""
        self._users: Counter[bytes] = Counter()
        """Number of running leases that take an object; no zeros."""
        self._pinned: dict[bytes, int] = {}
        """Counted size of each pinned object. Leases may name different sizes; that of the first lease counts."""
        self.pinned_bytes = 0
        """Total size of the pinned objects."""
        self._active_count = 0
        """Number of leases that run and are not blocked."""
        self._missing: dict[bytes, None] = {}
        """Leases that could have run, had their arguments been here."""

    def __len__(self) -> int:
        return len(self._leases)

    def add_lease(self, lease_id: bytes, sizes: Mapping[bytes, int], level: float) -> None:
        """Note a lease request and the sizes of its arguments."""
        self._leases[lease_id] = _WaitingLease(dict(sizes), level)

    def needed(self, lease_id: bytes) -> list[bytes]:
        lease = self._leases.get(lease_id)
        return list(lease.needed) if lease is not None else []

    # --- pulling

    def want(self, lease_id: bytes) -> None:
        """Queue a lease of this node whose arguments must be pulled."""
        self._ahead.pop(lease_id, None)
        self._waiting[lease_id] = None
        self._has_changed = True

    def begin_pulls(self) -> list[bytes]:
        """Return the leases whose arguments must be pulled now, deepest first."""
        begun: list[bytes] = []
        if not self._has_changed:
            return begun
        self._has_changed = False
        counted, taken_bytes = set(self._pinned), self.pinned_bytes
        deepest_first = sorted(self._waiting, key=lambda lease_id: -self._leases[lease_id].level)
        for lease_id in [*self._ahead, *deepest_first]:
            lease = self._leases[lease_id]
            more_bytes = self._more_bytes(lease, counted)
            if lease_id in self._waiting:
                if taken_bytes + more_bytes > self._limit_bytes and not (self.is_stuck() and self._is_next(lease_id)):
                    continue
                del self._waiting[lease_id]
                self._ahead[lease_id] = None
                begun.append(lease_id)
            taken_bytes += more_bytes
            counted.update(lease.needed)
        return begun

    def _is_next(self, lease_id: bytes) -> bool:
        """Tell whether a lease is next: none as deep is ahead, or no such lease has resources and this one has."""
        level = self._leases[lease_id].level
        deeper = [other_id for other_id in self._ahead if self._leases[other_id].level >= level]
        return not deeper or (self._has_resources(lease_id) and not any(map(self._has_resources, deeper)))

    def on_late(self, lease_id: bytes) -> None:
        """Stop holding others back for a lease that has been ahead for too long."""
        if lease_id in self._ahead:
            del self._ahead[lease_id]
            self._has_changed = True

    def excuse(self, lease_id: bytes, object_id: bytes) -> None:
        """Excuse an argument that will not come: the lease is granted without it."""
        self._leases[lease_id].needed.pop(object_id, None)

    # --- running

    def may_run(self, lease_id: bytes) -> bool:
        """Tell whether a lease for which there are resources may run; if not all arguments are here, note it as missing."""
        if not all(map(self._is_here, self._leases[lease_id].needed)):
            self._missing[lease_id] = None
            return False
        return self.has_memory(lease_id)

    def has_memory(self, lease_id: bytes) -> bool:
        """Tell whether the limit lets a lease's arguments be pinned now, here or not."""
        lease = self._leases[lease_id]
        more_bytes = self._more_bytes(lease, self._pinned)
        if not more_bytes or self.pinned_bytes + more_bytes <= self._limit_bytes:
            return True
        return self.is_stuck() and not self._is_behind(lease)

    def _is_behind(self, lease: _WaitingLease) -> bool:
        """Tell whether a deeper lease could run if its arguments were here."""
        deeper = (lease_id for lease_id, other in self._leases.items() if not other.runs and other.level > lease.level)
        return any(map(self._has_resources, deeper))

    def is_stuck(self) -> bool:
        """Tell whether all running leases are blocked, so that none gives memory back by itself."""
        return not self._active_count

    def _more_bytes(self, lease: _WaitingLease, counted: Container[bytes]) -> int:
        return sum(size for object_id, size in lease.needed.items() if object_id not in counted)

    def take_missing(self) -> list[bytes]:
        missing, self._missing = self._missing, {}
        return [lease_id for lease_id in missing if lease_id in self._leases]

    def on_allocated(self, lease_id: bytes) -> None:
        """Count the arguments of a lease that got resources as pinned."""
        lease = self._leases[lease_id]
        self.pinned_bytes += self._more_bytes(lease, self._pinned)
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

    def end_lease(self, lease_id: bytes) -> None:
        """Remove a lease in any state, and count its arguments as pinned no more."""
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
