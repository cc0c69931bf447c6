"""Builders for the tests of the scheduling machines: requests in a few words, a node, a cluster of views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from minray.common.labels import labels_of
from minray.common.resources import resource_set
from minray.common.state_table import StateMachine
from minray.common.task_spec import (
    STRATEGY_AFFINITY,
    STRATEGY_SPREAD,
    LabelSelector,
    LeaseShape,
    RuntimeEnvInfo,
    SchedulingStrategy,
)
from minray.policies import SchedulingPolicy
from minray.scheduling.cluster_lease_manager import ClusterLeaseManager
from minray.scheduling.cluster_resource_scheduler import ClusterResourceScheduler, NodeView
from minray.scheduling.lease import LEASE_STATES, Assignment, LeaseRequest
from minray.scheduling.local_lease_manager import LocalLeaseManager

JOB = b"job1"
DEFAULT, SPREAD = SchedulingStrategy(), SchedulingStrategy(STRATEGY_SPREAD)
ANYWHERE = LabelSelector()


def to_node(node_id: bytes, soft: bool = False) -> SchedulingStrategy:
    return SchedulingStrategy(STRATEGY_AFFINITY, node_id, soft)


def shape(
    needs: Mapping[str, float], strategy: SchedulingStrategy = DEFAULT, job_id: bytes = JOB, env: str = ""
) -> LeaseShape:
    environment = RuntimeEnvInfo(working_dir=env)
    return LeaseShape(tuple(sorted(resource_set(needs).items())), strategy, environment, job_id)


_last = 0


def request(
    needs: Mapping[str, float] | float = 1,
    *,
    owner: str = "owner",
    depth: int = 0,
    strategy: SchedulingStrategy = DEFAULT,
    second_hop: bool = False,
    env: str = "",
    labels: LabelSelector = ANYWHERE,
    arguments: Sequence[bytes] = (),
    backpressure: bool = False,
) -> LeaseRequest:
    """A request with an id of its own; a number means CPUs. ``arguments`` are the ids of large ones."""
    global _last
    _last += 1
    needs = {"CPU": needs} if isinstance(needs, int | float) else needs
    lease_id = _last.to_bytes(20, "big")
    needed = msgspec.structs.replace(shape(needs, strategy, env=env), labels=labels, may_be_held_up=backpressure)
    return LeaseRequest(lease_id, owner.encode(), needed, depth, 0, second_hop, dependency_ids=tuple(arguments))


class Node:
    """A local lease manager with what a raylet would do around it."""

    def __init__(self, **total: float) -> None:
        self.states = StateMachine("lease", LEASE_STATES, None)
        self.machine = LocalLeaseManager(
            resource_set(total), self.states, initial_backoff_s=1, max_backoff_s=10, arguments=self
        )
        self.must_wait: list[LeaseRequest] = []
        """Requests that may not run, for their arguments."""
        self.pinned: list[bytes] = []
        """Leases whose arguments are kept."""

    def may_run(self, lease_id: bytes) -> bool:
        return lease_id not in [each.lease_id for each in self.must_wait]

    def on_allocated(self, lease_id: bytes) -> None:
        self.pinned.append(lease_id)

    def queue(self, *requests: LeaseRequest) -> None:
        for each in requests:
            self.states.set(each.lease_id, "WAITING")
            self.machine.enqueue(each)

    def assign(self, now: float = 0.0) -> list[LeaseRequest]:
        """Assign leases now, and return them; each of them finds a worker."""
        assignment = Assignment()
        self.machine.assign(now, assignment)
        self.wake_at = assignment.wake_at
        self.fetching = assignment.fetching
        for each in assignment.allocated:
            self.machine.on_worker_found(each.lease_id)
        return assignment.allocated

    def give(self, *requests: LeaseRequest) -> list[LeaseRequest]:
        self.queue(*requests)
        return self.assign()

    def block(self, *requests: LeaseRequest) -> None:
        for each in requests:
            self.machine.set_blocked(each.lease_id, True)

    def end(self, *requests: LeaseRequest) -> None:
        for each in requests:
            self.machine.end(each.lease_id)

    def free(self, name: str = "CPU") -> float:
        return self.machine.available.get(name, 0) / 10_000


class Cluster:
    """The view that the node ``here`` has of a cluster."""

    def __init__(
        self, random: Callable[[], float] = lambda: 0.0, own_policy: SchedulingPolicy | None = None, **total: float
    ) -> None:
        states = StateMachine("lease", LEASE_STATES, None)
        self.local = LocalLeaseManager(resource_set(total), states, initial_backoff_s=1, max_backoff_s=10)
        here = NodeView(b"here", "here", known=True, alive=True, total=self.local.total, available=self.local.available)
        self.nodes = ClusterResourceScheduler(
            here, spread_threshold=0.5, top_k_fraction=0.2, random=random, own_policy=own_policy
        )
        self.machine = ClusterLeaseManager(self.nodes, self.local, states)
        self.version = 0

    def join(self, node_id: bytes, **total: float) -> None:
        self.join_with(node_id, {}, **total)

    def join_with(self, node_id: bytes, labels: dict[str, str], **total: float) -> None:
        self.nodes.on_node(node_id, node_id.decode(), resource_set(total), True, "", labels_of(node_id, labels))

    def die(self, node_id: bytes, cause: str = "it fell") -> None:
        view = self.nodes.get(node_id)
        assert view is not None
        self.nodes.on_node(node_id, view.name, view.total, False, cause, {})

    def report(self, node_id: bytes, **available: float) -> None:
        self.version += 1
        view, free = self.nodes.get(node_id), resource_set(available)
        self.nodes.on_resources(node_id, self.version, view.total if view is not None else free, free)

    def submit(self, *requests: LeaseRequest, now: float = 0.0) -> list[str]:
        """Submit one after the other, and say in short what became of each at once."""
        for each in requests:
            self.machine.submit(each)
            self.assign(now)
        return [self.fate(each) for each in requests]

    fates: dict[bytes, str]

    def assign(self, now: float = 0.0) -> Assignment:
        assignment = self.machine.assign(now)
        self.fates = getattr(self, "fates", {})
        self.fates |= {each.lease_id: "here" for each in assignment.allocated}
        for placement in assignment.placed:
            words = f"{placement.kind} {placement.node_id.decode()}{placement.reason}".strip()
            self.fates[placement.request.lease_id] = words
        return assignment

    def fate(self, request: LeaseRequest) -> str:
        if request.lease_id in self.fates:
            return self.fates[request.lease_id]
        return "queued" if self.local.is_queued(request.lease_id) else "waiting"
