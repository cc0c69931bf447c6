"""Puts the questions of the raylet and the owner into the words of the policies, if a program has named any.

Ray: none, its raylet calls its own policies

Each function is called where a default decides, with the policy of a program or None. Without a policy it makes no question,
so a default costs one call. It returns None, or what it was given, if the default decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from minray.policies.protocols import (
    CandidateNode,
    EvictionPolicy,
    LargeArgument,
    LocalityPolicy,
    LocalityQuestion,
    RequestState,
    SchedulingPolicy,
    SchedulingQuestion,
    SpillPolicy,
    StoredCopy,
    TransferPolicy,
    TransferQuestion,
)


class OnNode(Protocol):
    """A process on some node."""

    @property
    def node_id(self) -> bytes: ...


class Named(Protocol):
    """An object that is known by its id."""

    @property
    def object_id(self) -> bytes: ...


C = TypeVar("C", bound=StoredCopy)
R = TypeVar("R", bound=OnNode)


def node_for(
    policy: SchedulingPolicy | None,
    moment: str,
    request: RequestState,
    local: CandidateNode,
    nodes: Sequence[CandidateNode],
    with_room: Sequence[CandidateNode],
) -> bytes | None:
    """Return the node to which the policy sends a request."""
    if policy is None:
        return None
    question = SchedulingQuestion(moment=moment, request=request, local=local, nodes=nodes, with_room=with_room)
    return policy.choose_node(question)


def first_node(
    policy: LocalityPolicy | None,
    own_node: bytes,
    dependencies: Iterable[Named],
    copies_of: Callable[[bytes], tuple[int, Sequence[OnNode]]],
) -> bytes | None:
    """Return the node that the policy asks first for a task with these large arguments."""
    if policy is None:
        return None
    known = [(argument.object_id, *copies_of(argument.object_id)) for argument in dependencies]
    arguments = [LargeArgument(each, size, [raylet.node_id for raylet in raylets]) for each, size, raylets in known]
    return policy.choose_first_node(LocalityQuestion(own_node, arguments))


def evicted_copy(policy: EvictionPolicy | None, copies: Iterable[StoredCopy]) -> bytes | None:
    """Return the copy that the policy evicts; ``copies`` is only read if there is a policy."""
    return None if policy is None else policy.choose_copy(list(copies))


def sorted_copies(policy: SpillPolicy | None, copies: Iterable[C]) -> Iterable[C]:
    """Return copies to spill as the policy sorts them."""
    if policy is None:
        return copies
    by_id = {copy.object_id: copy for copy in copies}
    order = policy.order_copies(list(by_id.values())) if by_id else None
    return by_id.values() if order is None else [by_id[object_id] for object_id in order]


def sorted_sources(
    policy: TransferPolicy | None, own_node: bytes, object_id: bytes, holders: Sequence[R], receivers: Sequence[R]
) -> list[R]:
    """Return the raylets from which an object is read, the last one first. Raylets of the own node are left out.

    By default receivers come before holders of copies, and later receivers before earlier ones. A policy may ask in any
    order. It cannot make nodes wait for each other in a circle: a receiver with a later turn refuses to send.
    """
    sources = [raylet for raylet in [*holders, *receivers] if raylet.node_id != own_node]
    if policy is None or not sources:
        return sources
    by_id = {raylet.node_id: raylet for raylet in sources}
    known = [[raylet.node_id for raylet in raylets if raylet.node_id in by_id] for raylets in (holders, receivers)]
    order = policy.order_sources(TransferQuestion(own_node, object_id, known[0], known[1]))
    return sources if order is None else [by_id[node_id] for node_id in reversed(order)]
