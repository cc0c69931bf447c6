"""Issues of Ray about scheduling on several nodes."""

from __future__ import annotations

from typing import Any

import pytest

import minray as ray
from tests.real.support import PATIENCE_S


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@pytest.mark.ray_issue(ray="wrong: one actor waits for ever")
def test_ray_20933_parts_of_gpus_are_counted_for_each_gpu(ray_start_cluster: Any) -> None:
    """An actor that needs 0.6 of a GPU waits at a node whose GPUs have 0.4 left each, though another node has room."""

    @ray.remote(num_gpus=0.6, num_cpus=0)
    class Actor:
        def gpus(self) -> list[Any]:
            return list(ray.get_gpu_ids())

    for _ in range(2):
        ray_start_cluster.add_node(num_cpus=1, num_gpus=2)
    ray.init(address=ray_start_cluster.address)
    actors = [Actor.remote() for _ in range(4)]
    assert sorted(int(gpus[0]) for gpus in get([actor.gpus.remote() for actor in actors])) == [0, 0, 1, 1]
