"""Which node an actor is created on, decided without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from minray.common.task_spec import STRATEGY_DEFAULT, STRATEGY_SPREAD, LeaseShape, RuntimeEnvInfo, SchedulingStrategy
from minray.gcs.actor_scheduler import ActorScheduler
from minray.gcs.gcs_actor_manager import ActorRow
from minray.protocol.actor import ActorCreation, ActorInfo
from minray.protocol.gcs import NodeInfo
from tests.gcs.world import address, id_of, node_info
from tests.platform_record import FakeHost, platform_record

JOB = b"job1"
CPU = 10_000


class Nodes:
    """A cluster: what each node has in all, and what of it is free."""

    def __init__(self, **nodes: tuple[int, int]) -> None:
        self._nodes = nodes

    def open_nodes(self) -> list[NodeInfo]:
        return [node_info(name, resources_total={"CPU": total * CPU}) for name, (total, _) in self._nodes.items()]

    def node(self, node_id: bytes) -> NodeInfo | None:
        return next((node for node in self.open_nodes() if node.node_id == node_id), None)

    def available(self, node_id: bytes) -> Mapping[str, int]:
        return {"CPU": next(free for name, (_, free) in self._nodes.items() if id_of(name) == node_id) * CPU}

    def death_cause(self, node_id: bytes) -> str | None:
        return None


def row(
    cpus: int, owners_node: str = "elsewhere", strategy: int = STRATEGY_DEFAULT, is_without_options: bool = False
) -> ActorRow:
    needs = [("CPU", cpus * CPU)] if cpus else []
    held = () if is_without_options else tuple(needs)
    shape = LeaseShape(held, SchedulingStrategy(strategy), RuntimeEnvInfo(), JOB)
    creation = ActorCreation(b"t" * 24, shape, needs, b"", b"")
    owner = address("owner", owners_node)
    info = ActorInfo(b"actor-------job1", "PENDING_CREATION", "A", "", "", owner, False, 0, 0, b"")
    return ActorRow(info, creation)


def scheduler(nodes: Nodes, random: float = 0.0) -> Any:
    """With a host whose chance is fixed."""
    nobody: Any = None
    return ActorScheduler(platform_record(host=FakeHost(chance=random)), nobody, nobody, nodes, nobody)


def choice(nodes: Nodes, wanted: ActorRow, random: float = 0.0) -> str | None:
    chosen = scheduler(nodes, random)._choose(wanted)
    return None if chosen is None else chosen.name


@pytest.mark.parametrize(
    ("nodes", "cpus", "owner", "chosen"),
    [
        ({"a": (4, 4), "b": (4, 4)}, 1, "b", "b"),
        ({"a": (4, 4), "b": (4, 0)}, 1, "b", "a"),
        ({"a": (4, 0), "b": (4, 0)}, 1, "b", "b"),
        ({"a": (1, 1), "b": (4, 0)}, 2, "a", "b"),
        ({"a": (1, 1), "b": (1, 1)}, 2, "a", None),
        ({"a": (4, 0)}, 0, "b", "a"),
        ({}, 0, "a", None),
    ],
    ids=["the owner's", "one that is free", "the owner's, if none is free", "one that can hold it", "none can", "any for 0",
         "no nodes"],
)  # fmt: skip
def test_the_owners_node_if_it_is_free_then_any_free_one_then_any_that_can(
    nodes: dict[str, tuple[int, int]], cpus: int, owner: str, chosen: str | None
) -> None:
    assert choice(Nodes(**nodes), row(cpus, owner)) == chosen


def test_elsewhere_chance_decides() -> None:
    nodes = Nodes(a=(4, 4), b=(4, 4), c=(4, 0))
    assert [choice(nodes, row(1), random) for random in (0.0, 0.49, 0.5, 0.99)] == ["a", "a", "b", "b"]


def test_an_actor_that_holds_nothing_goes_to_any_node_with_a_free_cpu_also_the_owners() -> None:
    nodes = Nodes(a=(4, 4), b=(4, 4), c=(4, 0))
    of_a = row(1, "a", is_without_options=True)
    assert [choice(nodes, of_a, random) for random in (0.0, 0.49, 0.5, 0.99)] == ["a", "a", "b", "b"]
    of_b = row(0, "b")
    assert [choice(nodes, of_b, random) for random in (0.0, 0.34, 0.99)] == ["a", "b", "c"]


def test_who_chooses_by_a_strategy_is_asked_at_the_owners_node() -> None:
    """The raylet of that node knows the place; it names another node if it must."""
    assert choice(Nodes(a=(4, 4), b=(4, 0)), row(1, "b", STRATEGY_SPREAD)) == "b"
    assert choice(Nodes(a=(4, 4)), row(8, "b", STRATEGY_SPREAD)) == "a"
