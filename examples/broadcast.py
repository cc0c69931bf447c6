"""Give one large array to many tasks on several nodes: it is put once, and each node fetches it once.

Pass a large value to tasks as a reference, not by value. `ray.put` writes it into the object store of this node, and a
task's worker reads it there without a copy. By default tasks run where their arguments are; here node affinity spreads them
over the nodes. A node without the array fetches it before the task begins. If several nodes fetch it at the same time, each
passes on the parts that it has, so that no node sends the array to all others.
"""

import numpy as np

import minray as ray
from minray.cluster_utils import Cluster
from minray.experimental import get_object_locations
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote
def total(array: np.ndarray) -> tuple[str, float]:
    """Return the id of this task's node, and the sum. The array is read-only: all tasks of a node share its memory."""
    return ray.get_runtime_context().get_node_id(), float(array.sum())


def main(megabytes: int = 100, tasks: int = 30, nodes: int = 3) -> dict[str, object]:
    store = {"object_store_memory": 3 * megabytes * 1_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **store})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1, **store)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address)
        try:
            array = np.ones(megabytes * 1_000_000 // 8)
            ref = ray.put(array)
            there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
            spread = [total.options(scheduling_strategy=there[number % nodes]) for number in range(tasks)]
            results = ray.get([task.remote(ref) for task in spread])
            copies = get_object_locations([ref])[ref]["node_ids"]
        finally:
            ray.shutdown()
    finally:
        cluster.shutdown()
    return {
        "tasks": len(results),
        "sums are right": {value for _, value in results} == {float(array.size)},
        "nodes that ran tasks": len({node for node, _ in results}),
        "nodes that have a copy": len(copies),
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name}: {value}")
