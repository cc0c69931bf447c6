"""This node's view of every node's total and free resources, and the choice among the nodes.

Ray: src/ray/raylet/scheduling/cluster_resource_scheduler.h, cluster_resource_manager.h

The view of the other nodes is always a little old. When a request was just spilled to a node, its resources count as taken
there ("promised") until that node reports again or ``PROMISE_S`` has passed. Otherwise a burst of requests would all be sent
to one free CPU. The view of this node itself is exact: it is the local lease manager's own account.

A node is known once the gcs has named it; reports of a node that is not known yet are kept until it is. Death is final.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from minray.common.ids import short
from minray.common.labels import accepts, matches, preferred, speed_of
from minray.common.resources import fits, subtract
from minray.common.task_spec import LabelSelector
from minray.policies import asking, protocols
from minray.scheduling import policy
from minray.scheduling.lease import LeaseRequest

ANY_NODE = LabelSelector()
PROMISE_S = 0.2
"""Seconds that promised resources count as taken: two reporting periods, so that the node's own report has arrived.

With hundreds of busy nodes it may come later (``Subscription``). A node without room rejects what it is sent meanwhile."""


class NodeView(msgspec.Struct):
    """One node as this raylet sees it."""

    node_id: bytes
    name: str = ""
    known: bool = False
    """Whether the gcs has named the node."""
    alive: bool = False
    death_cause: str = ""
    draining: bool = False
    """Whether the node is being drained: it takes nothing new."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    total: Mapping[str, int] = msgspec.field(default_factory=dict)
    available: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Free resources of the last report, less those promised since."""
    reported: Mapping[str, int] | None = None
    """Free resources of the last report; None before the first, when all of the node counts as free."""
    waiting: int = 0
    """Number of requests that wait there, by the last report."""
    version: int = -1
    """Version of the last report; an older one is ignored."""
    promised_until: float | None = None
    """Time at which promises made since the last report are dropped."""

    def __str__(self) -> str:
        return self.name or short(self.node_id)

    @property
    def speed(self) -> float:
        return speed_of(self.labels)

    def could_hold(self, demand: Mapping[str, int], labels: LabelSelector) -> bool:
        """Tell whether the node could hold a demand if it were empty."""
        return not self.draining and fits(demand, self.total) and accepts(labels, self.labels)


class ClusterResourceScheduler:
    """Holds the views of all nodes and chooses the node that should get a request."""

    def __init__(
        self,
        local: NodeView,
        *,
        spread_threshold: float,
        top_k_fraction: float,
        random: Callable[[], float],
        own_policy: protocols.SchedulingPolicy | None = None,
    ) -> None:
        """``own_policy`` is a program's; it decides instead of the hybrid policy, unless it answers None."""
        self.local = local
        """View of this node; its ``available`` is the local lease manager's own dict."""
        self._views: dict[bytes, NodeView] = {local.node_id: local}
        self._spread_threshold = spread_threshold
        self._top_k_fraction = top_k_fraction
        self._random = random
        self._own_policy = own_policy
        self._last_spread = b""
        """Node that the last SPREAD request went to."""
        self._promised: dict[bytes, NodeView] = {}
        """Views of other nodes on which resources are promised, by node id; the promise that ends first comes first."""
        self.improved: dict[bytes, None] = {}
        """Other nodes that may have more room than when the queued requests were last offered to them."""
        self.must_retry_infeasible = False
        """Whether requests without a node must be tried again, because a node's state, labels or total has changed."""

    # --- Events --------------------------------------------------------------------------------------------------------

    def on_node(
        self,
        node_id: bytes,
        name: str,
        total: Mapping[str, int],
        alive: bool,
        death_cause: str,
        labels: Mapping[str, str],
        draining: bool = False,
    ) -> None:
        """Take in what the gcs says about a node. ``labels`` are all that it has, its id among them (``labels_of``)."""
        view = self._views.setdefault(node_id, NodeView(node_id))
        if view is self.local or (view.known and not view.alive):
            return
        self.must_retry_infeasible = True
        view.known, view.alive, view.death_cause = True, alive, death_cause
        view.name, view.labels, view.draining = name, labels, draining
        if view.reported is None:
            view.total = view.available = total
        self.improved[node_id] = None

    def on_node_forgotten(self, node_id: bytes) -> None:
        if node_id != self.local.node_id:
            self._views.pop(node_id, None)
            self._promised.pop(node_id, None)

    def on_resources(
        self, node_id: bytes, version: int, total: Mapping[str, int], available: Mapping[str, int], waiting: int = 0
    ) -> None:
        view = self._views.setdefault(node_id, NodeView(node_id))
        if view is self.local or version <= view.version:
            return
        if total != view.total:  # It has more or fewer bundles of placement groups.
            view.total = total
            self.must_retry_infeasible = True
        view.version, view.reported, view.available, view.waiting = version, available, available, waiting
        self._end_promise(view)
        self.improved[node_id] = None

    def expire_promises(self, now: float) -> None:
        while (expiry := self.next_expiry()) is not None and expiry <= now:
            view = next(iter(self._promised.values()))
            view.available = view.total if view.reported is None else view.reported
            self._end_promise(view)
            self.improved[view.node_id] = None

    def _end_promise(self, view: NodeView) -> None:
        view.promised_until = None
        self._promised.pop(view.node_id, None)

    def next_expiry(self) -> float | None:
        return next((view.promised_until for view in self._promised.values()), None)

    # --- Questions -----------------------------------------------------------------------------------------------------

    def get(self, node_id: bytes) -> NodeView | None:
        """Return the view of a node; None if the gcs has not named it to this raylet."""
        view = self._views.get(node_id)
        return view if view is not None and view.known else None

    def alive(self) -> list[NodeView]:
        return [view for view in self._views.values() if view.alive]

    def feasible(self, demand: Mapping[str, int], labels: LabelSelector = ANY_NODE) -> list[NodeView]:
        """Return the nodes that could hold a demand if they were empty."""
        return [view for view in self.alive() if view.could_hold(demand, labels)]

    def others_with_room(
        self, demand: Mapping[str, int], labels: LabelSelector = ANY_NODE, among: Sequence[bytes] | None = None
    ) -> Sequence[NodeView]:
        """Return the other nodes that can hold a demand now, those with the best labels; ``among`` narrows the search."""
        views = self._views.values() if among is None else [self._views[key] for key in among if key in self._views]
        others = [view for view in views if view.alive and not view.draining and view is not self.local]
        return preferred(labels, [view for view in others if fits(demand, view.available)])

    # --- Choices -------------------------------------------------------------------------------------------------------

    def best_node(self, request: LeaseRequest, *, spread: bool) -> NodeView | None:
        """Choose a node for a request: one with room, else one where it can wait; None if no node can ever hold it."""
        demand, labels = request.resources, request.shape.labels
        feasible: Sequence[NodeView] = self.feasible(demand, labels)
        if not feasible:
            return None
        with_room = preferred(labels, [view for view in feasible if fits(demand, view.available)])
        feasible = preferred(labels, feasible)
        if labels.soft:
            with_room = [view for view in with_room if matches(labels.soft, view.labels)] or with_room
        if spread:
            chosen = policy.spread([view.node_id for view in with_room or feasible], self._last_spread)
            self._last_spread = chosen
            return self._views[chosen]
        return self.choose(protocols.ARRIVED, request, feasible, with_room)

    def choose(
        self, moment: str, request: LeaseRequest, nodes: Sequence[NodeView], with_room: Sequence[NodeView]
    ) -> NodeView:
        """Return the node that a program's policy chooses, or else the hybrid policy.

        The local node is an answer even if it is not among ``nodes``: the request waits here."""
        chosen = asking.node_for(self._own_policy, moment, request, self.local, nodes, with_room)
        if chosen is not None:
            return self._views[chosen]
        if not with_room and self.local in nodes:
            return self.local
        scores = [(view.node_id, policy.utilisation(view.total, view.available)) for view in with_room or nodes]
        candidates = int(self._top_k_fraction * len(self.alive()))
        return self._views[policy.hybrid(scores, self.local.node_id, self._spread_threshold, candidates, self._random)]

    def promise(self, view: NodeView, demand: Mapping[str, int], now: float) -> None:
        """Count a request's resources as taken on the node it was sent to, until that node reports."""
        assert view is not self.local
        left = dict(view.available)
        subtract(left, demand)
        self._end_promise(view)
        view.available, view.promised_until = left, now + PROMISE_S
        self._promised[view.node_id] = view
