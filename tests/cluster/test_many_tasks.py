"""Many tasks at once over several nodes."""

from __future__ import annotations

from collections import Counter

import pytest

import minray
from minray.cluster_utils import Cluster

TASKS = 100_000


@pytest.mark.slow
def test_a_hundred_thousand_tasks_complete_on_three_nodes(ray_start_cluster: Cluster) -> None:
    for _ in range(3):
        ray_start_cluster.add_node(num_cpus=1)
    ray_start_cluster.connect()

    @minray.remote
    def double(number: int) -> tuple[int, str]:
        return 2 * number, minray.get_runtime_context().get_node_id()

    results = minray.get([double.remote(number) for number in range(TASKS)], timeout=100)
    assert [doubled for doubled, _ in results] == list(range(0, 2 * TASKS, 2))
    assert len(Counter(place for _, place in results)) == 3
