"""Start three nodes on one machine, and choose the node of a task in three ways.

A custom resource is a name and a number; a task that requests it runs on a node that has it. SPREAD distributes tasks over
the nodes. Node affinity names a node; `soft` says whether the task may run on another node when that one is gone.
"""

import time
from collections import Counter

import minray as ray
from minray.cluster_utils import Cluster
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote
def where(seconds: float = 0.0) -> str:
    """Return the id of the node on which this task runs."""
    time.sleep(seconds)
    return ray.get_runtime_context().get_node_id()


def main(tasks: int = 12) -> dict[str, object]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        with_disk = cluster.add_node(num_cpus=1, resources={"fast_disk": 2})
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address)
        try:
            nodes = [node["NodeID"] for node in ray.nodes()]
            by_resource = ray.get([where.options(resources={"fast_disk": 1}).remote() for _ in range(4)])
            chosen = [NodeAffinitySchedulingStrategy(node_id=node, soft=False) for node in nodes]
            by_affinity = ray.get([where.options(scheduling_strategy=strategy).remote() for strategy in chosen])
            spread = ray.get([where.options(scheduling_strategy="SPREAD").remote(0.05) for _ in range(tasks)])
        finally:
            ray.shutdown()
    finally:
        cluster.shutdown()
    return {
        "nodes": len(nodes),
        "the resource led to its node": set(by_resource) == {with_disk.node_id},
        "tasks per node with SPREAD": sorted(Counter(spread).values()),
        "affinity led to each node": by_affinity == nodes,
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name}: {value}")
