"""Simulated processes share what the gcs publishes, and real ones do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minray.common import sharing
from minray.simulation.cluster import SimCluster


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with SimCluster(3, seed=1, show_output=False) as started:
        yield started


def test_raylets_share_what_they_know_of_a_node(cluster: SimCluster) -> None:
    cluster.settle(5.0)
    one, other = (cluster.raylets[name]._broker.nodes for name in ("n1", "n2"))
    (head,) = (node.node_id for node in one.alive() if node.name == "head")
    seen = [nodes.get(head) for nodes in (one, other)]
    assert seen[0] is not None and seen[1] is not None and seen[0] is not seen[1]
    assert seen[0].labels is seen[1].labels and seen[0].total is seen[1].total


def test_the_memory_ends_with_the_simulation() -> None:
    content = bytes(range(40))
    with SimCluster(1, seed=1, show_output=False):
        assert sharing.same(content) is sharing.same(bytes(bytearray(content))) is content
    again = bytes(bytearray(content))
    assert sharing.same(again) is again
