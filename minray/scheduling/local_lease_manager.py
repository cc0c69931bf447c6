"""The order in which this node's resources are given out: the queue of lease requests, and the leases that hold some.

Ray: src/ray/raylet/scheduling/local_lease_manager.h

Rules
  * ``assign`` is called after every change and gives out all that can be given; nothing else allocates.
  * A request that cannot run now never holds up one with other needs.
  * Among the requests that can run, children go before new parents while a leased worker is blocked (nested gets of any
    depth then need few workers). Next comes the owner that holds fewer leases, then the order of arrival.
  * A blocked worker lends its CPUs, and nothing else (G101). It takes them back at once, so ``available`` may be negative
    by exactly what unblocked workers took back.
  * Leases of actors are never idle and have no cap: their resources alone limit them.
  * Worker cap: as many leases of a shape as fit the CPUs are given without delay. More are possible only because blocked
    workers lend; each further one waits, 1 s doubling to 10 s. A request deeper than all blocked ones does not wait: the
    blocked ones may wait for its task.
  * Generators with back-pressure are a shape of their own, and half a step less deep (``LeaseRequest.level``). While one is
    held up, its reader may wait for tasks with the same needs, but not for more such generators.
  * A request with large arguments has no turn before they are here (FETCHING), nor while there is no memory for them
    (``Arguments``, G86). It holds no resources meanwhile, since the task that makes its arguments may need them.

What we do not like about it yet: a large request can starve while small ones keep coming, as in Ray.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from minray.common.bundles import is_cpu
from minray.common.resources import CPU, GPU, UNIT, add, fits, subtract
from minray.common.state_table import NEW, StateMachine
from minray.common.task_spec import LeaseShape
from minray.scheduling.lease import ALLOCATED, ENDING, FETCHING, GRANTED, QUEUED, Assignment, LeaseRequest
from minray.scheduling.local_resource_manager import NO_GPUS, Gpus, LocalResourceManager

_Key = TypeVar("_Key")

ZERO_CPU_LEASES_MIN = 64
ZERO_CPU_LEASES_PER_CPU = 4
"""Worker cap of tasks that need no CPU: 64 leases, or 4 per CPU if that is more. CPUs alone would not limit them."""
REVOKE_PERIOD_S = 0.1
"""Seconds between two requests to an owner to give back idle leases while other requests wait."""


class Arguments(Protocol):
    """Port to the class that knows the large arguments of leases."""

    def may_run(self, lease_id: bytes) -> bool:
        """Tell whether a lease's arguments are here and there is memory to pin them."""

    def on_allocated(self, lease_id: bytes) -> None:
        """Pin a lease's arguments, because the lease has got its resources."""


class Lease(msgspec.Struct, eq=False):
    """A request that holds resources."""

    request: LeaseRequest
    gpus: Gpus = NO_GPUS
    blocked: bool = False
    """Whether its worker waits in ``get`` or ``wait``, so that its CPUs are lent out."""


class LocalLeaseManager:
    """Queues the lease requests of one node, and holds the leases that were given."""

    def __init__(
        self,
        total: Mapping[str, int],
        states: StateMachine,
        *,
        initial_backoff_s: float,
        max_backoff_s: float,
        arguments: Arguments | None = None,
    ) -> None:
        """``arguments``: None if no lease ever has large arguments."""
        self.resources = LocalResourceManager(total)
        self.total, self.available = self.resources.total, self.resources.available
        self.leases: dict[bytes, Lease] = {}
        """Leases that hold resources: ALLOCATED, GRANTED, ENDING."""
        self._states = states
        self._arguments = arguments
        self._fetching: dict[bytes, LeaseRequest] = {}
        """Requests that wait here for their arguments."""
        self._to_fetch: list[LeaseRequest] = []
        """Requests of ``_fetching`` that the raylet has not been told of yet."""
        self._initial_backoff_s = initial_backoff_s
        self._max_backoff_s = max_backoff_s
        self._queues: dict[LeaseShape, dict[bytes, LeaseRequest]] = {}
        """QUEUED requests by shape, in the order of arrival; no empty queues."""
        self._queued: dict[bytes, tuple[int, LeaseRequest]] = {}
        """QUEUED requests by lease id, each with its number in the order of arrival."""
        self._arrivals = 0
        self._queued_by: Counter[tuple[bytes, LeaseShape, tuple[bytes, ...]]] = Counter()
        """Number of queued requests of an owner that one worker could serve (see ``_use``); no zeros."""
        self._held_by_owner: Counter[bytes] = Counter()
        """Number of ``leases`` of each owner; no zeros."""
        self._held_by_shape: Counter[LeaseShape] = Counter()
        self._blocked_levels: Counter[float] = Counter()
        """Number of blocked leases of each level; no zeros."""
        self._over_cap_at: dict[LeaseShape, float] = {}
        """Time at which a shape that has reached its cap may have one lease more."""
        self._revoked_at: dict[bytes, float] = {}
        """Time at which each owner was asked for idle leases, if that is less than REVOKE_PERIOD_S ago.

        It stays when the queue is empty: two owners that take turns would else be asked at each turn."""

    # --- The queue -----------------------------------------------------------------------------------------------------

    def enqueue(self, request: LeaseRequest) -> None:
        assert fits(request.resources, self.total), "a request that this node can never hold was queued here"
        if request.dependency_ids:
            self._states.set(request.lease_id, FETCHING)
            self._fetching[request.lease_id] = request
            self._to_fetch.append(request)
        else:
            self._line_up(request)

    def on_arguments_here(self, lease_id: bytes) -> LeaseRequest | None:
        """Queue a request whose arguments have all arrived, and return it; None if it does not wait any more."""
        request = self._fetching.pop(lease_id, None)
        if request is not None:
            self._line_up(request)
        return request

    def on_arguments_gone(self, lease_id: bytes) -> None:
        """Move a queued request back to FETCHING, because some of its arguments were evicted."""
        _, request = self._queued[lease_id]
        self._states.set(lease_id, FETCHING)
        self._remove(request)
        self._fetching[lease_id] = request

    def _line_up(self, request: LeaseRequest) -> None:
        self._states.set(request.lease_id, QUEUED)
        self._queues.setdefault(request.shape, {})[request.lease_id] = request
        self._queued_by[_use(request)] += 1
        self._arrivals += 1
        self._queued[request.lease_id] = self._arrivals, request

    def unqueue(self, lease_id: bytes) -> None:
        """Remove a queued request that was cancelled or is served by another node."""
        self._states.set(lease_id, NEW)
        self._remove(self._queued[lease_id][1])

    def queued(self) -> list[LeaseRequest]:
        return [request for _, request in self._queued.values()]

    def waiting(self) -> list[LeaseRequest]:
        """Return all requests without resources, including those whose arguments are not here yet."""
        return [*self._fetching.values(), *self.queued()]

    def is_queued(self, lease_id: bytes) -> bool:
        return lease_id in self._queued

    def is_contended(self, request: LeaseRequest) -> bool:
        """Tell whether a request waits here that this request's worker could not serve."""
        return len(self._queued_by) > (_use(request) in self._queued_by)

    def has_room(self, lease_id: bytes) -> bool:
        """Tell whether there are free resources for a request that waits here for its arguments or for its turn."""
        _, request = self._queued.get(lease_id, (0, self._fetching.get(lease_id)))
        return request is not None and self.resources.has_room(request.resources)

    # --- Assignment ----------------------------------------------------------------------------------------------------

    def assign(self, now: float, assignment: Assignment) -> None:
        """Allocate all that can be allocated now, and add it to ``assignment``."""
        assignment.fetching += self._to_fetch
        self._to_fetch = []
        while self._queues:
            candidates = [best for shape in list(self._queues) if (best := self._best_of(shape, now, assignment))]
            if not candidates:
                return
            chosen = min(candidates, key=self._rank)
            self._allocate(chosen, now)
            assignment.allocated.append(chosen)

    def _rank(self, request: LeaseRequest) -> tuple[float, int, int]:
        level = -request.level if self._blocked_levels else 0
        return level, self._held_by_owner[request.owner_id], self._queued[request.lease_id][0]

    def _best_of(self, shape: LeaseShape, now: float, assignment: Assignment) -> LeaseRequest | None:
        """Return the request of a shape that should run first; None if none can run now."""
        queue = self._queues[shape]
        if not self.resources.has_room(next(iter(queue.values())).resources):
            return None
        best = min(queue.values(), key=self._rank)
        if not self._may_run(best):
            others = [request for request in queue.values() if request is not best and self._may_run(request)]
            if not others:
                return None
            best = min(others, key=self._rank)
        held, cap = self._held_by_shape[shape], self.cap(shape)
        if held < cap:
            self._over_cap_at.pop(shape, None)
        elif not best.for_actor and not self._is_deepest(best):
            allowed_at = self._over_cap_at.setdefault(shape, now + self._backoff_s(held - cap))
            if now < allowed_at:
                assignment.wake_no_later_than(allowed_at)
                return None
        return best

    def _may_run(self, request: LeaseRequest) -> bool:
        return not request.dependency_ids or self._arguments is None or self._arguments.may_run(request.lease_id)

    def cap(self, shape: LeaseShape) -> int:
        """Return the number of leases of a shape that are given without a pause."""
        name, need = next(((name, amount) for name, amount in shape.resources if is_cpu(name)), (CPU, 0))
        cpus = self.total.get(name, 0)
        if need == 0:
            return max(ZERO_CPU_LEASES_MIN, ZERO_CPU_LEASES_PER_CPU * cpus // UNIT)
        return max(1, round(cpus / need))

    def _is_deepest(self, request: LeaseRequest) -> bool:
        return bool(self._blocked_levels) and request.level > max(self._blocked_levels)

    def _backoff_s(self, excess: int) -> float:
        return float(min(self._initial_backoff_s * 2 ** min(excess, 30), self._max_backoff_s))

    def _allocate(self, request: LeaseRequest, now: float) -> None:
        self._states.set(request.lease_id, ALLOCATED)
        self._remove(request)
        if request.dependency_ids and self._arguments is not None:
            self._arguments.on_allocated(request.lease_id)
        self.leases[request.lease_id] = Lease(request, self.resources.allocate(request.resources))
        self._held_by_owner[request.owner_id] += 1
        if not request.for_actor:
            self._held_by_shape[request.shape] += 1
        if request.shape in self._over_cap_at and not self._is_deepest(request):
            excess = self._held_by_shape[request.shape] - self.cap(request.shape)
            self._over_cap_at[request.shape] = now + self._backoff_s(max(0, excess))

    def _remove(self, request: LeaseRequest) -> None:
        queue = self._queues[request.shape]
        del queue[request.lease_id], self._queued[request.lease_id]
        if not queue:
            del self._queues[request.shape]
            self._over_cap_at.pop(request.shape, None)
        _decrease(self._queued_by, _use(request))

    # --- The life of a lease -------------------------------------------------------------------------------------------

    def on_worker_found(self, lease_id: bytes) -> None:
        self._states.set(lease_id, GRANTED)

    def on_worker_doomed(self, lease_id: bytes) -> None:
        """Set a lease to ENDING, because its worker is being killed. Its resources stay taken until the worker is dead."""
        self._states.set(lease_id, ENDING)

    def set_blocked(self, lease_id: bytes, blocked: bool) -> None:
        """Lend or take back the CPUs of a lease; do nothing if it already is in that state."""
        lease = self.leases[lease_id]
        if lease.blocked == blocked:
            return
        lease.blocked = blocked
        cpus = {name: amount for name, amount in lease.request.resources.items() if is_cpu(name)}
        if blocked:
            self._blocked_levels[lease.request.level] += 1
            add(self.available, cpus)
        else:
            _decrease(self._blocked_levels, lease.request.level)
            subtract(self.available, cpus)

    def end(self, lease_id: bytes) -> None:
        """End a lease or request in any state, and free all that it held."""
        if lease_id in self._queued:
            self.unqueue(lease_id)
            return
        if self._fetching.pop(lease_id, None) is not None:
            self._states.set(lease_id, NEW)
            self._to_fetch = [request for request in self._to_fetch if request.lease_id != lease_id]
            return
        self.set_blocked(lease_id, False)
        lease = self.leases.pop(lease_id)
        self._states.set(lease_id, NEW)
        self.resources.free(lease.request.resources, lease.gpus)
        _decrease(self._held_by_owner, lease.request.owner_id)
        if not lease.request.for_actor:
            _decrease(self._held_by_shape, lease.request.shape)

    # --- Revocation and explanations -------------------------------------------------------------------------------------

    def owners_to_revoke(self, now: float, assignment: Assignment) -> list[bytes]:
        """Return owners that may hold idle leases while others wait, each at most once per REVOKE_PERIOD_S."""
        if not (self._queues or self._revoked_at):
            return []
        self._revoked_at = {owner_id: at for owner_id, at in self._revoked_at.items() if now < at + REVOKE_PERIOD_S}
        owners: dict[bytes, float] = {}
        for request in (lease.request for lease in self.leases.values() if self._queues):
            if request.owner_id not in self._revoked_at and not request.for_actor and self.is_contended(request):
                owners[request.owner_id] = now
        self._revoked_at |= owners
        if self._revoked_at:
            assignment.wake_no_later_than(min(self._revoked_at.values()) + REVOKE_PERIOD_S)
        return list(owners)

    def lacking(self, request: LeaseRequest) -> list[str]:
        """Return the resources that a queued request waits for; empty if it waits for its turn or for the worker cap."""
        names = [name for name, amount in request.resources.items() if self.available.get(name, 0) < amount]
        return names or ([] if self.resources.has_room(request.resources) else [GPU])

    def over_cap_at(self, request: LeaseRequest) -> float | None:
        """Return when the worker cap allows one more lease of this request's shape; None if the cap is not reached."""
        return self._over_cap_at.get(request.shape)

    def holders(self, name: str) -> list[Lease]:
        """Return the leases that hold some of a resource; blocked ones hold no CPU."""
        return [
            lease
            for lease in self.leases.values()
            if lease.request.resources.get(name) and not (is_cpu(name) and lease.blocked)
        ]


def _use(request: LeaseRequest) -> tuple[bytes, LeaseShape, tuple[bytes, ...]]:
    """Return the key of a request: requests with equal keys can use each other's workers."""
    return request.owner_id, request.shape, request.dependency_ids


def _decrease(counter: Counter[_Key], key: _Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
