"""``why`` of tasks that wait for what they take: the chain ends at what is really missing."""

from __future__ import annotations

import re
import time
from typing import Any

import minray
from minray.simulation import SimCluster


@minray.remote
def slow(seconds: float, *needed: Any) -> float:
    time.sleep(seconds)
    return seconds


def test_a_task_whose_argument_is_late() -> None:
    def program() -> str:
        ref = slow.remote(0, slow.remote(50), slow.remote(60))
        time.sleep(2)
        return minray.why(ref)

    with SimCluster() as cluster:
        assert re.search(r"^task slow .* waits for 2 arguments <- task slow .* runs on worker", cluster.run(program))


def test_a_task_whose_function_is_on_its_way_to_the_gcs() -> None:
    def program() -> str:
        cluster.world.loop.call_soon_threadsafe(cluster.world.loop.stall, cluster.processes["gcs"], 5.0)
        time.sleep(0.1)
        ref = minray.remote(lambda: "new").remote()
        time.sleep(1)
        return minray.why(ref)

    with SimCluster() as cluster:
        said = cluster.run(program)
    assert said.endswith("waits for 1 argument <- its function is being exported to the gcs")
