"""The walk over a process at rest sees what is planted there, and its exceptions are attributes that exist."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.object_manager.push_manager import PushManager
from minray.raylet.local_object_manager import LocalObjectManager
from minray.simulation import SimCluster
from tests.simulation.residue import MAY_DIFFER, norm, residue
from tests.simulation.tables import PACKAGE, ROOMS


@minray.remote
def rest() -> None:
    time.sleep(0.1)


def work() -> None:
    minray.get([rest.remote() for _ in range(4)])


def residue_after(body: Callable[[], None], spoil: Callable[[Any], None]) -> list[str]:
    norm()
    with SimCluster([{"num_cpus": 2}], 1, show_output=False) as cluster:
        cluster.wait_for(cluster.start_driver(body))
        cluster.settle()
        spoil(cluster.raylets["head"])
        return residue(cluster, ("raylet", "gcs"))


def nothing(_: Any) -> None:
    """Spoil nothing."""


def leave_bytes_in_flight(raylet: Any) -> None:
    pushes: PushManager = raylet.objects.pushes
    pushes.bytes_in_flight = 5


def leave_a_flag(raylet: Any) -> None:
    raylet._broker.nodes.must_retry_infeasible = True


def leave_a_count(raylet: Any) -> None:
    manager: LocalObjectManager = raylet.io_workers._manager
    manager.writing = 1


def leave_a_reason(raylet: Any) -> None:
    raylet._broker._why_closed = "no reason"


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (leave_bytes_in_flight, "PushManager.bytes_in_flight"),
        (leave_a_flag, "ClusterResourceScheduler.must_retry_infeasible"),
        (leave_a_count, "LocalObjectManager.writing"),
        (leave_a_reason, "LeaseBroker._why_closed"),
    ],
)
def test_l2_what_a_process_keeps_is_seen(spoil: Callable[[Any], None], name: str) -> None:
    assert residue_after(work, nothing) == []
    (problem,) = residue_after(work, spoil)
    assert name in problem


def test_exceptions_are_attributes_that_there_are() -> None:
    names = set()
    for room in ROOMS:
        for path in (PACKAGE / room).rglob("*.py"):
            for owner in [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]:
                words = {node.attr for node in ast.walk(owner) if isinstance(node, ast.Attribute)}
                words |= {ast.unparse(node.target) for node in owner.body if isinstance(node, ast.AnnAssign)}
                names |= {f"{owner.name}.{word}" for word in words}
    assert MAY_DIFFER - names == set()
