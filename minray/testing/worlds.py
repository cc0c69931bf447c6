"""The worlds in which a test can run, and the clusters that its fixtures start there.

Ray: has no counterpart

A test runs in the world of its mark ``minray_world``, else of ``--minray-world``, else of its fixture. With
``--minray-world=ray``, ``minray`` is Ray, so a test that is marked for another world is skipped; processes are Ray's world
too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from minray.common.config import LOCAL as LOCAL_TRANSPORT
from minray.testing.local_cluster import LOCAL, OF_CONNECTION, PROCESSES, LocalCluster
from minray.testing.ray_world import RayCluster

SIMULATION, RAY = "simulation", "ray"
WORLDS = (LOCAL, PROCESSES, SIMULATION, RAY)
VARIABLE = "MINRAY_TRANSPORT"
"""The environment variable that decides what ``init`` and ``Cluster`` start if their caller does not say it."""
INIT, NODES, WORLD, LEAKS = "minray_init", "minray_nodes", "minray_world", "minray_leaks"


@dataclass(frozen=True)
class Described:
    """A cluster as a test's marks describe it."""

    world: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``init``."""
    nodes: Sequence[Mapping[str, Any]] | None = None
    """Arguments of ``add_node`` for each node; None: ``init`` starts the only one."""

    def make(self) -> LocalCluster | RayCluster:
        """Make the cluster, which is still to be started."""
        if self.world == RAY:
            return RayCluster(self.nodes or [{}], self.nodes is None, self.arguments)
        return LocalCluster(1 if self.nodes is None else self.nodes, world=self.world, leaks="off", **self.arguments)


def world_of(item: pytest.Item, chosen: str | None, own: str) -> str:
    """Return the world of a test: ``chosen`` is that of the run, ``own`` that of its fixture."""
    marked = _one_of(item, WORLD, WORLDS)
    if chosen == RAY and marked not in (None, RAY, PROCESSES):
        pytest.skip(f"marked for the world {marked!r}, which --minray-world=ray does not have")
    if chosen == RAY:
        return RAY
    return marked or chosen or own


def check_of(item: pytest.Item, chosen: str, checks: Sequence[str]) -> str:
    """Return what happens if a test leaves something."""
    return _one_of(item, LEAKS, checks) or chosen


def _one_of(item: pytest.Item, name: str, choices: Sequence[str]) -> str | None:
    mark = item.get_closest_marker(name)
    if mark is None:
        return None
    if len(mark.args) != 1 or mark.kwargs or mark.args[0] not in choices:
        pytest.fail(f'{name} takes one of {", ".join(choices)}, as in {name}("{choices[0]}")', pytrace=False)
    return str(mark.args[0])


def arguments_of(item: pytest.Item) -> dict[str, Any]:
    """Return the arguments of ``init`` in a test's marks; a closer mark replaces arguments of those around it."""
    arguments: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(INIT))):
        if mark.args:
            pytest.fail(f"{INIT} takes keyword arguments only, as in {INIT}(num_cpus=4); got {mark.args!r}", pytrace=False)
        arguments.update(mark.kwargs)
    return arguments


def nodes_of(item: pytest.Item) -> list[dict[str, Any]]:
    """Return the nodes in a test's mark, the head first; without a mark one node."""
    mark = item.get_closest_marker(NODES)
    if mark is None:
        return [{}]
    first = mark.args[0] if len(mark.args) == 1 else None
    if isinstance(first, int) and not isinstance(first, bool) and first > 0:
        return [dict(mark.kwargs) for _ in range(first)]
    if isinstance(first, Sequence) and first and all(isinstance(node, Mapping) for node in first) and not mark.kwargs:
        return [dict(node) for node in first]
    pytest.fail(f"{NODES} takes a number or a list of dicts, as in {NODES}(2, num_cpus=1); got {mark!r}", pytrace=False)


def check_arguments_of_nodes(arguments: Mapping[str, Any]) -> None:
    """Fail a test that describes the nodes of ``minray_cluster`` by ``minray_init``."""
    wrong = sorted(set(arguments) - OF_CONNECTION - {"_system_config"})
    if wrong:
        pytest.fail(f"{wrong[0]} belongs to {NODES}: {NODES}(2, {wrong[0]}=...), as minray_cluster has many nodes", False)


@contextmanager
def transport_of(world: str) -> Iterator[None]:
    """Make ``init`` and ``Cluster`` start their nodes in this world until the block ends."""
    before = os.environ.get(VARIABLE)
    if world == LOCAL:
        os.environ[VARIABLE] = LOCAL_TRANSPORT
    elif world == PROCESSES and before == LOCAL_TRANSPORT:
        del os.environ[VARIABLE]
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
