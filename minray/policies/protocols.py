"""The six policies as protocols: one method each, from a question of plain data to an answer.

Ray: ISchedulingPolicy in src/ray/raylet/scheduling/policy/scheduling_policy.h, LeasePolicyInterface, IEvictionPolicy

A policy is made by calling what its name stands for, usually a class, with a ``PolicyHost``. Each process makes its own, so
what a policy remembers is what one node, or one owner, has seen. It lives as long as the process.

Rules
  * A policy takes chance and time from its ``PolicyHost`` alone. So a simulated run can be repeated exactly.
  * It decides at once: it does not wait, start threads, or read files.
  * Questions are views of the process's own tables, without copies. A policy changes nothing in them and keeps none of them.
  * None is always a valid answer, and leaves the decision to the default policy. So does an exception or an impossible
    answer, but that is reported (``guards``).
  * Amounts of resources are in fixed point: 10,000 are one CPU (``UNIT`` in ``minray.common.resources``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

ARRIVED, SPILLED, WAITING = "ARRIVED", "SPILLED", "WAITING"
"""Moments of a scheduling question: a request comes from its owner; another raylet has sent it here and this node is full;
it waits here and another node has room."""
Warn = Callable[[bytes, str], None]
"""Tells the driver of a job a text, such as that a policy has failed."""


class PolicyHost(msgspec.Struct, frozen=True):
    """The process that a policy decides for."""

    random: Callable[[], float]
    """Returns a random number from 0 up to 1; the simulation draws it from its seed."""
    now: Callable[[], float]
    """Returns the time of the process's event loop in seconds; it is virtual in the simulation."""


# --- Scheduling --------------------------------------------------------------------------------------------------------


class CandidateNode(Protocol):
    """A node as a raylet sees it. What is known of other nodes is a little old."""

    @property
    def node_id(self) -> bytes: ...

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> Mapping[str, str]: ...

    @property
    def speed(self) -> float:
        """Relative speed of the node, from its label ``minray.io/speed``; 1.0 without that label.

        A task that takes 10 seconds on a node of speed 1 takes about 5 on a node of speed 2. Nobody measures this: it is
        what the node was started with. No policy of minray uses it.
        """

    @property
    def total(self) -> Mapping[str, int]:
        """All resources of the node."""

    @property
    def available(self) -> Mapping[str, int]:
        """Free resources of the node, less those of requests that were just sent there."""

    @property
    def waiting(self) -> int:
        """Number of requests that wait there, by the node's last report."""


class RequestState(Protocol):
    """A request for a worker. It belongs to tasks with equal needs, not to one task: the worker runs the owner's next."""

    @property
    def lease_id(self) -> bytes:
        """Name of the request. When its owner asks anew, that is another request."""

    @property
    def owner_id(self) -> bytes:
        """Process that submits the tasks."""

    @property
    def job_id(self) -> bytes: ...

    @property
    def resources(self) -> Mapping[str, int]: ...

    @property
    def depth(self) -> int:
        """Nesting depth of the task: 0 if the driver submits it."""

    @property
    def backlog(self) -> int:
        """Number of further tasks with equal needs that wait at the owner."""

    @property
    def for_actor(self) -> bool: ...

    @property
    def dependency_ids(self) -> Sequence[bytes]:
        """Ids of the task's large arguments."""


class SchedulingQuestion(NamedTuple):
    """Asks which node a request goes to."""

    moment: str
    """ARRIVED, SPILLED or WAITING."""
    request: RequestState
    local: CandidateNode
    """The node that asks. To name it at SPILLED or WAITING lets the request wait here."""
    nodes: Sequence[CandidateNode]
    """Nodes that could hold the request if they were empty, those with the best labels."""
    with_room: Sequence[CandidateNode]
    """Nodes that have room now. At SPILLED and WAITING these are other nodes, and all that are asked about."""

class SchedulingPolicy(Protocol):
    """Chooses the node of a lease request without affinity; the strategy SPREAD takes nodes in turn without asking.

    A request that goes to a full node is asked about there again (SPILLED). A policy that sends requests to full nodes lets
    them wait there. Otherwise they go to and fro, with a pause of 50 ms each time. But actors and placement groups may fill
    a node for ever. So a policy that lets requests wait while other nodes have room does that for a limited time.
    """

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        """Return the id of a node of the question."""


# --- Locality ----------------------------------------------------------------------------------------------------------


class LargeArgument(NamedTuple):
    """A large argument of a task, as its owner knows it."""

    object_id: bytes
    size: int
    """Size in bytes."""
    nodes: Sequence[bytes]
    """Nodes that have a copy."""


class LocalityQuestion(NamedTuple):
    """Asks which node's raylet is asked first for a worker."""

    own_node: bytes
    """Node of the owner."""
    arguments: Sequence[LargeArgument]


class LocalityPolicy(Protocol):
    """Chooses where an owner asks first, among its own node and those that have an argument."""

    def choose_first_node(self, question: LocalityQuestion) -> bytes | None:
        """Return the id of ``own_node``, or of a node that has an argument."""


# --- The object store --------------------------------------------------------------------------------------------------


class StoredCopy(Protocol):
    """A copy of an object in the memory of a node."""

    @property
    def object_id(self) -> bytes: ...

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def is_primary(self) -> bool:
        """Whether it is the copy that must stay until the owner frees the object."""


class EvictionPolicy(Protocol):
    """Chooses the copy whose memory another object gets."""

    def choose_copy(self, copies: Sequence[StoredCopy]) -> bytes | None:
        """Return the object id of one of the copies, which are sorted: the least recently used comes first.

        None of them is in use, and each exists elsewhere: on another node, or on this node's disk.
        """


class SpillPolicy(Protocol):
    """Sorts the copies that must be written to disk when memory runs short."""

    def order_copies(self, copies: Sequence[StoredCopy]) -> Sequence[bytes] | None:
        """Return object ids of the copies, those to be written first at the beginning.

        The copies are sorted: the least recently used comes first. Those that the answer leaves out come last, because
        requests wait for their memory.
        """


# --- Transfer ----------------------------------------------------------------------------------------------------------


class TransferQuestion(NamedTuple):
    """Asks from which nodes an object is read."""

    own_node: bytes
    object_id: bytes
    holders: Sequence[bytes]
    """Nodes that have the whole object."""
    receivers: Sequence[bytes]
    """Nodes that are receiving it and began before this one; the latest is last."""


class TransferPolicy(Protocol):
    """Sorts the nodes from which an object can be read."""

    def order_sources(self, question: TransferQuestion) -> Sequence[bytes] | None:
        """Return holders and receivers, the one to be asked first at the beginning.

        The others are asked if that one cannot send. Those that the answer leaves out are asked last.
        """


# --- Placement groups --------------------------------------------------------------------------------------------------


class BundleQuestion(NamedTuple):
    """Asks where the bundles of a placement group go."""

    strategy: str
    """STRICT_PACK, STRICT_SPREAD, PACK or SPREAD."""
    bundles: Mapping[int, Mapping[str, int]]
    """Resources of the bundles that have no node yet, by index."""
    nodes: Mapping[bytes, Mapping[str, int]]
    """Free resources of the nodes, by node id."""
    beside: Sequence[bytes]
    """Nodes of the group's other bundles."""


class BundlePolicy(Protocol):
    """Chooses the nodes of a placement group's bundles."""

    def place_bundles(self, question: BundleQuestion) -> Mapping[int, bytes] | None:
        """Return the node id of each bundle. Resources must fit, and the two strict strategies must hold."""
