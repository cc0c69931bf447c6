"""Builders of questions in a few words, and policies that fail in the ways in which a program's own may fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from minray.common.resources import resource_set
from minray.policies import ARRIVED, PolicyHost, SchedulingQuestion
from minray.policies.guards import Guard, GuardedLocality
from minray.scheduling.cluster_resource_scheduler import NodeView
from minray.scheduling.lease import LeaseRequest
from tests.scheduling.machines import request


def host(*chances: float) -> PolicyHost:
    """A host that draws these numbers in turn, and then 0."""
    left = list(chances)
    return PolicyHost(random=lambda: left.pop(0) if left else 0.0, now=lambda: 0.0)


def node(name: str, free: float, total: float = 4) -> NodeView:
    amounts = {"total": resource_set({"CPU": total}), "available": resource_set({"CPU": free})}
    return NodeView(name.encode(), name, known=True, alive=True, **amounts)


def question(
    free: Mapping[str, float], moment: str = ARRIVED, local: str = "a", needs: LeaseRequest | None = None
) -> SchedulingQuestion:
    """A question of node ``local`` about these nodes, given their free CPUs of four; the request needs one."""
    nodes = {name: node(name, amount) for name, amount in free.items()}
    here = nodes.get(local) or node(local, 0)
    asked = [view for name, view in nodes.items() if moment == ARRIVED or name != local]
    with_room = [view for view in asked if view.available.get("CPU", 0) >= 10_000]
    if moment != ARRIVED:
        asked = with_room
    return SchedulingQuestion(moment, needs or request(1), here, asked, with_room)


def guarded(kind: type[Guard[Any]], policy: Callable[[PolicyHost], Any]) -> Any:
    """Make a policy and its guard; that of a locality policy makes it at the first question."""
    made = policy(host())
    return kind("some_policy", "mine", (lambda: made) if kind is GuardedLocality else made)


class Broken:
    """Raises for every question."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def _raise(self, *question: object) -> NoReturn:
        raise ZeroDivisionError("there is no good node")

    choose_node = choose_first_node = choose_copy = order_copies = order_sources = place_bundles = _raise


class Lost:
    """Answers ids that do not exist."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def choose_node(self, question: object) -> bytes:
        return b"nowhere"

    choose_first_node = choose_copy = choose_node

    def order_copies(self, copies: object) -> Sequence[bytes]:
        return [b"nothing"]

    def order_sources(self, question: object) -> Sequence[bytes]:
        return [b"nowhere"]

    def place_bundles(self, question: Any) -> Mapping[int, bytes]:
        return dict.fromkeys(question.bundles, b"nowhere")


class Undecided:
    """Leaves every decision to the default policy."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def choose_node(self, question: object) -> None:
        return None

    choose_first_node = choose_copy = order_copies = order_sources = place_bundles = choose_node


class Unfinished:
    """Has no method."""

    def __init__(self, host: PolicyHost) -> None:
        pass


class Unmade:
    """Cannot be made."""

    def __init__(self, host: PolicyHost) -> None:
        raise OSError("no such table")


NO_CLASS = 7


class Patient:
    """Sends every request to one node and lets it wait there."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        if question.moment != ARRIVED:
            return question.local.node_id
        return max(node.node_id for node in question.nodes)


class Fastest:
    """Sends every request to the fastest node, and lets it wait there."""

    def __init__(self, host: PolicyHost) -> None:
        pass

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        if question.moment != ARRIVED:
            return question.local.node_id
        return max(question.nodes, key=lambda node: node.speed).node_id


class SomeCopy(NamedTuple):
    object_id: bytes
    size: int
    is_primary: bool = True


def copies(*sizes: int) -> list[SomeCopy]:
    """Copies of these sizes, the least recently used first."""
    return [SomeCopy(bytes([index]) * 28, size) for index, size in enumerate(sizes, 1)]
