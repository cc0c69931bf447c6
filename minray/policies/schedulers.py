"""Scheduling policies beside the default one: random, round-robin, least-loaded, data-locality, and two of Sparrow's.

Ray: src/ray/raylet/scheduling/policy/ has random and spread; the others are from the literature

The default, Ray's hybrid policy, is in ``minray/scheduling/policy.py``. The names of these classes in ``_system_config``
are in ``SCHEDULERS``.

  * Sparrow (Ousterhout, Wendell, Zaharia, Stoica: Sparrow, SOSP 2013) asks two random nodes for each task, and takes the
    shorter queue (``power_of_two``). A queue's length says little about the wait in it. So Sparrow queues a *reservation* at
    both, and the task goes to the node that is free first: late binding (``sparrow``).
  * A lease request is such a reservation. It has no task: the owner chooses one when a node grants the lease, and cancels
    the requests that it does not need then. So ``sparrow`` only has to send each request to a random node and let it wait
    there. ``lease_requests_per_task: 2`` has the owner make two of them for each task.

A node may be full for ever, of actors and placement groups. So a request waits there for a limited time (``Patience``). Then
it goes where the default policy says, as soon as another node has room.

No policy here looks at the speed of a node, and neither does the default: like Ray, they place by resources.

Actors are left to the default policy: an actor may hold its node for ever, so no request can wait behind it.

Left out: Sparrow probes d * m nodes for the m tasks of a job together. Here each request draws its node alone, so that two
reservations may meet at one node. An owner has at most ``max_pending_lease_requests_per_scheduling_category`` of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from minray.common.tombstones import remember
from minray.policies.protocols import ARRIVED, CandidateNode, PolicyHost, RequestState, SchedulingQuestion

LOCALITY_WAIT_S = 3.0
"""Seconds that a request waits for the node with its data while others have room, as ``spark.locality.wait``."""
RESERVATION_WAIT_S = 10.0
"""Seconds that a reservation waits at its node while others have room; most queues of short tasks are shorter."""


class RandomScheduling:
    """Draws one of the nodes with room; if there is none, the default policy says where the request waits."""

    def __init__(self, host: PolicyHost) -> None:
        self._host = host

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        if not question.with_room:
            return None
        return drawn(question.with_room, self._host).node_id


class RoundRobinScheduling:
    """Takes the nodes with room in turn, in the order of their ids."""

    def __init__(self, host: PolicyHost) -> None:
        self._last = b""

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        ring = sorted(node.node_id for node in question.with_room)
        if not ring:
            return None
        self._last = next((node_id for node_id in ring if node_id > self._last), ring[0])
        return self._last


class LeastLoadedScheduling:
    """Takes the node with room that has the smallest used share; among equals it draws one."""

    def __init__(self, host: PolicyHost) -> None:
        self._host = host

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        if not question.with_room:
            return None
        loads = [load(node, question.request) for node in question.with_room]
        least = min(loads)
        return drawn([node for node, its in zip(question.with_room, loads, strict=True) if its == least], self._host).node_id


class Patience:
    """Knows how long requests have waited on this node, and for which of them that is too long."""

    def __init__(self, host: PolicyHost, limit_s: float) -> None:
        self._host = host
        self._limit_s = limit_s
        self._since: OrderedDict[bytes, float] = OrderedDict()
        """Time of the first question at which each request waited. The oldest are forgotten, and begin anew."""

    def may_wait(self, question: SchedulingQuestion) -> bool:
        """Tell whether a request that waits here may wait on."""
        lease_id, now = question.request.lease_id, self._host.now()
        since = self._since.get(lease_id, now)
        remember(self._since, lease_id, since)
        return now - since < self._limit_s


class DataLocalityScheduling:
    """Keeps a request with large arguments where its owner sent it: on the node that has most of them, even if that is full.

    The owner's choice is the ``locality_policy``. Requests without large arguments go where the default policy says.
    """

    def __init__(self, host: PolicyHost) -> None:
        self._patience = Patience(host, LOCALITY_WAIT_S)

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        if not question.request.dependency_ids:
            return None
        may_wait = question.local in question.nodes if question.moment == ARRIVED else self._patience.may_wait(question)
        return question.local.node_id if may_wait else None


class PowerOfTwoScheduling:
    """Draws two nodes and takes the less loaded one; a task waits there if it is full.

    The load is the used share, and among nodes that are equally full the number of requests that wait.
    """

    def __init__(self, host: PolicyHost) -> None:
        self._host = host
        self._patience = Patience(host, RESERVATION_WAIT_S)

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        if question.request.for_actor:
            return None
        if question.moment != ARRIVED:
            return question.local.node_id if self._patience.may_wait(question) else None
        nodes = list(question.nodes)
        first = drawn(nodes, self._host)
        rest = [node for node in nodes if node is not first]
        probed = [first, drawn(rest, self._host)] if rest else [first]
        return min(probed, key=lambda node: (load(node, question.request), node.waiting)).node_id


class SparrowScheduling:
    """Sends each task's request to a random node, where it waits; ``lease_requests_per_task: 2`` belongs to it."""

    def __init__(self, host: PolicyHost) -> None:
        self._host = host
        self._patience = Patience(host, RESERVATION_WAIT_S)

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        if question.request.for_actor:
            return None
        if question.moment != ARRIVED:
            return question.local.node_id if self._patience.may_wait(question) else None
        return drawn(question.nodes, self._host).node_id


def drawn(nodes: Sequence[CandidateNode], host: PolicyHost) -> CandidateNode:
    """Draw one of these nodes, each with the same chance."""
    return nodes[int(host.random() * len(nodes))]


def load(node: CandidateNode, request: RequestState) -> float:
    """Return the largest used share among the resources that a request needs; 0 if it needs none."""
    shares = [1 - node.available.get(name, 0) / node.total[name] for name in request.resources if node.total.get(name)]
    return max(shares, default=0.0)


SCHEDULERS = {
    "random": RandomScheduling,
    "round_robin": RoundRobinScheduling,
    "least_loaded": LeastLoadedScheduling,
    "data_locality": DataLocalityScheduling,
    "power_of_two": PowerOfTwoScheduling,
    "sparrow": SparrowScheduling,
}
"""Names in ``_system_config`` of the scheduling policies beside the default."""
