"""The choice of the node that serves a lease request: this one, another one, or none yet.

Ray: src/ray/raylet/scheduling/cluster_lease_manager.h

Every request goes through ``submit`` and the next ``assign``. It is served here if this is the best node. Otherwise it is
spilled back: its owner learns which raylet to ask, and asks there with ``grant_or_reject`` (``LeaseClient``). The second
node does not spill it back again. It grants the request, perhaps after a wait. It rejects the request if it can never hold
it, or if it has no room and another node has. The owner of a rejected request makes a new one, at the raylet that it would
ask first (``lease_policy``).

  * A request that no node can ever hold waits until a node joins that can (G100).
  * A request with affinity waits at its node if that node is alive and can hold it. If the node is dead or can never hold
    it, a hard request fails and a soft one goes anywhere (G102). A node that is unknown here counts as dead only after the
    gcs was asked about it.
  * A request that waits here is spilled back to another node as soon as that node reports room. If it was spilled back to
    this node before, it is rejected instead.
  * A draining node counts as dead for new requests; those that wait there are spilled back, or rejected.
"""

from __future__ import annotations

from minray.common.labels import accepts, describe_selector
from minray.common.resources import ResourceSet, describe, fits, lack_of
from minray.common.state_table import NEW, StateMachine
from minray.common.task_spec import STRATEGY_AFFINITY, STRATEGY_SPREAD, LabelSelector
from minray.policies import protocols
from minray.scheduling.cluster_resource_scheduler import ClusterResourceScheduler, NodeView
from minray.scheduling.lease import REJECT, SPILLBACK, UNSCHEDULABLE, WAITING, Assignment, LeaseRequest, Placement
from minray.scheduling.local_lease_manager import LocalLeaseManager

ASK_AGAIN_S = 1.0
"""Seconds after which a program's policy is asked again about a request that it lets wait at a full node."""


class ClusterLeaseManager:
    """Places the lease requests of this node that have no lease yet: here, on another node, or in a waiting list."""

    def __init__(self, nodes: ClusterResourceScheduler, local: LocalLeaseManager, states: StateMachine) -> None:
        self._nodes = nodes
        self._local = local
        self._states = states
        self._arrived: dict[bytes, LeaseRequest] = {}
        """Requests submitted since the last ``assign``."""
        self._complete: dict[bytes, LeaseRequest] = {}
        """Requests whose arguments have come to this node since the last ``assign``."""
        self._infeasible: dict[bytes, LeaseRequest] = {}
        """Requests that no node can ever hold."""
        self._unknown: dict[bytes, LeaseRequest] = {}
        """Requests with affinity to a node that the gcs has not named; ``on_nodes_confirmed`` decides about them."""
        self._confirmed: dict[bytes, None] = {}
        """Nodes that the gcs was asked about; one that is still unknown does not exist."""

    # --- Events --------------------------------------------------------------------------------------------------------

    def submit(self, request: LeaseRequest) -> None:
        self._states.set(request.lease_id, WAITING)
        self._arrived[request.lease_id] = request

    def withdraw(self, lease_id: bytes) -> None:
        """Forget a WAITING request."""
        self._states.set(lease_id, NEW)
        for requests in (self._arrived, self._infeasible, self._unknown):
            requests.pop(lease_id, None)

    def on_arguments_here(self, lease_id: bytes) -> None:
        """Queue a request of this node whose arguments have arrived."""
        request = self._local.on_arguments_here(lease_id)
        if request is not None:
            self._complete[lease_id] = request

    def drain(self) -> None:
        """Stop taking new requests, and submit those that wait here again so that they go to other nodes."""
        self._nodes.local.draining = True
        for request in self._local.waiting():
            self._local.end(request.lease_id)
            self.submit(request)

    def unknown_nodes(self) -> list[bytes]:
        """Return nodes that requests want and the gcs has not named: ask it, then call ``on_nodes_confirmed``."""
        return list(dict.fromkeys(request.shape.strategy.node_id for request in self._unknown.values()))

    def on_nodes_confirmed(self, node_ids: list[bytes]) -> None:
        """Decide the requests for unknown nodes anew, because the gcs has since named all its nodes."""
        self._confirmed.update(dict.fromkeys(node_ids))
        self._arrived.update(self._unknown)
        self._unknown.clear()

    # --- Assignment ----------------------------------------------------------------------------------------------------

    def assign(self, now: float) -> Assignment:
        """Decide all requests that can be decided now. The raylet calls this after every change."""
        assignment = Assignment()
        self._nodes.expire_promises(now)
        arrived, self._arrived = self._arrived, {}
        if self._nodes.must_retry_infeasible:
            self._nodes.must_retry_infeasible = False
            arrived = {**self._infeasible, **self._unknown, **arrived}
            self._infeasible, self._unknown = {}, {}
        for request in arrived.values():
            placement = self._place(request, now)
            if placement is not None:
                self._states.set(request.lease_id, NEW)
                assignment.placed.append(placement)
            elif request.lease_id in self._infeasible:
                assignment.infeasible.append(request)
        self._local.assign(now, assignment)
        complete, self._complete = self._complete, {}
        self._offer_queued({**arrived, **complete}, now, assignment)
        return assignment

    def _place(self, request: LeaseRequest, now: float) -> Placement | None:
        """Queue a request here or keep it (None), or return the placement that ends it here."""
        demand, strategy, labels = request.resources, request.shape.strategy, request.shape.labels
        if strategy.kind == STRATEGY_AFFINITY:
            view = self._nodes.get(strategy.node_id)
            if view is None and strategy.node_id not in self._confirmed:
                self._unknown[request.lease_id] = request
                return None
            if view is not None and view.alive and view.could_hold(demand, labels):
                return self._send(request, view)
            if not strategy.soft:
                return Placement(request, UNSCHEDULABLE, reason=_why_not(strategy.node_id, view, demand, labels))
        if request.grant_or_reject:
            return self._grant_or_reject(request, now)
        best = self._nodes.best_node(request, spread=strategy.kind == STRATEGY_SPREAD)
        if best is None:
            self._infeasible[request.lease_id] = request
            return None
        if best is not self._nodes.local and fits(demand, best.available):
            self._nodes.promise(best, demand, now)
        return self._send(request, best)

    def _send(self, request: LeaseRequest, view: NodeView) -> Placement | None:
        if view is self._nodes.local:
            self._local.enqueue(request)
            return None
        if request.grant_or_reject:
            return Placement(request, REJECT)
        return Placement(request, SPILLBACK, view.node_id)

    def _grant_or_reject(self, request: LeaseRequest, now: float) -> Placement | None:
        """Decide a spilled-back request: take it if this node has room now, or no other node has; else reject it."""
        local, demand, labels = self._nodes.local, request.resources, request.shape.labels
        if local.could_hold(demand, labels):
            others = [] if fits(demand, local.available) else self._nodes.others_with_room(demand, labels)
            chosen = self._nodes.choose(protocols.SPILLED, request, others, others) if others else local
            if chosen is local:
                return self._send(request, local)
            self._nodes.promise(chosen, demand, now)
        return Placement(request, REJECT)

    def _offer_queued(self, arrived: dict[bytes, LeaseRequest], now: float, assignment: Assignment) -> None:
        """Offer waiting requests to other nodes: all requests to nodes with news, new requests to every node."""
        improved, self._nodes.improved = list(self._nodes.improved), {}
        full: set[tuple[tuple[tuple[str, int], ...], LabelSelector]] = set()
        for request in self._local.queued() if improved else arrived.values():
            among = None if request.lease_id in arrived else improved
            if not self._local.is_queued(request.lease_id) or self._is_bound_here(request):
                continue
            kind_of_need = request.shape.resources, request.shape.labels
            if among is not None and kind_of_need in full:
                continue
            others = self._nodes.others_with_room(request.resources, request.shape.labels, among)
            if not others:
                full.add(kind_of_need)
                continue
            chosen = self._nodes.choose(protocols.WAITING, request, others, others)
            if chosen is self._nodes.local:  # The policy may choose otherwise later, though nothing has changed then.
                self._nodes.improved.update((view.node_id, None) for view in others)
                assignment.wake_no_later_than(now + ASK_AGAIN_S)
                continue
            self._nodes.promise(chosen, request.resources, now)
            self._local.unqueue(request.lease_id)
            kind, node_id = (REJECT, b"") if request.grant_or_reject else (SPILLBACK, chosen.node_id)
            assignment.placed.append(Placement(request, kind, node_id))
        expiry = self._nodes.next_expiry()
        if expiry is not None:
            assignment.wake_no_later_than(expiry)

    def _is_bound_here(self, request: LeaseRequest) -> bool:
        strategy = request.shape.strategy
        return strategy.kind == STRATEGY_AFFINITY and strategy.node_id == self._nodes.local.node_id

    # --- Explanations --------------------------------------------------------------------------------------------------

    def infeasible(self) -> list[LeaseRequest]:
        return list(self._infeasible.values())

    def waiting(self) -> list[LeaseRequest]:
        """Return all requests in state WAITING."""
        return [*self._arrived.values(), *self._infeasible.values(), *self._unknown.values()]

    def why_infeasible(self, request: LeaseRequest) -> str:
        """Explain for users which need no node can meet (G100)."""
        demand, labels = request.resources, request.shape.labels
        where = f" on a node with labels {describe_selector(labels)}" if labels.hard else ""
        nodes = [view for view in self._nodes.alive() if accepts(labels, view.labels)]
        if not nodes:
            return f"needs {describe(demand)}{where}; no node has such labels"
        return lack_of(demand, [view.total for view in nodes], where)


def _why_not(node_id: bytes, view: NodeView | None, demand: ResourceSet, labels: LabelSelector) -> str:
    """Explain why hard affinity to a node cannot be met (G102)."""
    if view is None:
        return f"node affinity: there is no node {node_id.hex()}"
    if not view.alive:
        cause = f" ({view.death_cause})" if view.death_cause else ""
        return f"node affinity: node {view.name or node_id.hex()} ({node_id.hex()}) is dead{cause}"
    if view.draining:
        return f"node affinity: node {view} ({node_id.hex()}) is to leave the cluster, and takes nothing new"
    if not accepts(labels, view.labels):
        return f"node affinity: the labels of node {view} are not {describe_selector(labels)}"
    total = {name: view.total.get(name, 0) for name in demand}
    return f"node affinity: node {view} can never hold {describe(demand)}; it has {describe(total)} in all"
