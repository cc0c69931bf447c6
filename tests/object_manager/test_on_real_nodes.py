"""Objects between real nodes of this machine: over unix sockets and TCP, on several lanes and on none, to many at once."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import minray
from minray.cluster_utils import Cluster

MEBIBYTE = 1 << 20
SIZE = 24 * MEBIBYTE + 7
CHUNK = MEBIBYTE + 1
READERS = 3


@minray.remote
def make(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)


@minray.remote
def digest(array: Any) -> str:
    return hashlib.sha256(array).hexdigest()


@pytest.fixture(params=[("", 2), ("127.0.0.1", 2), ("127.0.0.1", 0)], ids=["unix", "tcp", "tcp without lanes"])
def nodes(request: pytest.FixtureRequest) -> Generator[Cluster, None, None]:
    """A head, and further nodes with resources ``node 0`` to ``node 3``."""
    tcp_host, lanes = request.param
    config = {"object_manager_lanes": lanes, "object_manager_default_chunk_size": CHUNK}
    cluster = Cluster(True, True, {"num_cpus": 1, "tcp_host": tcp_host, "_system_config": config})
    try:
        for number in range(READERS + 1):
            cluster.add_node(num_cpus=1, resources={f"node {number}": 1})
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def on(number: int, function: Any) -> Any:
    return function.options(resources={f"node {number}": 1})


@pytest.mark.slow
def test_one_array_arrives_at_many_nodes_at_once_and_whole(nodes: Cluster) -> None:
    for seed in range(2):
        made = on(0, make).remote(seed)
        digests = minray.get([on(number, digest).remote(made) for number in range(1, READERS + 1)])
        assert digests == [hashlib.sha256(minray.get(made)).hexdigest()] * READERS


@pytest.mark.slow
def test_g66_a_source_that_is_killed_is_replaced_by_another(nodes: Cluster) -> None:
    made = on(0, make).remote(0)
    expected = minray.get(on(1, digest).remote(made))
    reading = [on(number, digest).remote(made) for number in (2, 3)]
    nodes.worker_nodes[1].kill_raylet()
    assert minray.get(reading) == [expected] * 2
