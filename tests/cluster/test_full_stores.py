"""Full stores of several nodes: what only garbage keeps makes room, although its owner is on another node."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

import minray
from minray.cluster_utils import Cluster

SIZE = 100 << 20
"""Bytes of an object that fills most of a store, which has 150 MiB."""


@minray.remote(resources={"a": 1})
def make() -> Any:
    return np.ones(SIZE, np.uint8)


@minray.remote(resources={"a": 1})
def put_there() -> int:
    return len(minray.get(minray.put(np.zeros(SIZE, np.uint8))))


def hold_in_a_cycle() -> None:
    cycle: list[Any] = [make.remote()]
    cycle.append(cycle)
    minray.wait(cycle[:1], fetch_local=False)


def test_g59_the_owner_of_what_fills_another_node_collects_its_garbage(ray_start_cluster: Cluster) -> None:
    system = {"automatic_object_spilling_enabled": False}
    ray_start_cluster.add_node(num_cpus=1, _system_config=system)
    ray_start_cluster.add_node(num_cpus=1, resources={"a": 1})
    ray_start_cluster.connect()
    threshold = gc.get_threshold()
    gc.set_threshold(0)
    try:
        hold_in_a_cycle()
        assert minray.get(put_there.remote()) == SIZE
    finally:
        gc.set_threshold(*threshold)
