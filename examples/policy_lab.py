"""Write a scheduling policy, try it in a simulated cluster, and run it on a real one.

Nodes have a price, which is a label. `CheapestFirst` sends each task to the cheapest node that has room. The policy is named
in `_system_config`, and all nodes import it from this file. So the simulation and the real cluster run the same class.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import minray
from minray.cluster_utils import Cluster
from minray.policies import CandidateNode, PolicyHost, SchedulingQuestion
from minray.simulation.cluster import SimCluster


class CheapestFirst:
    """Choose the cheapest node with room."""

    def __init__(self, host: PolicyHost) -> None:
        self._host = host

    def choose_node(self, question: SchedulingQuestion) -> bytes | None:
        if not question.with_room:
            return None  # The default policy says where the task waits.
        return min(question.with_room, key=self._rank).node_id

    def _rank(self, node: CandidateNode) -> tuple[float, float]:
        """Sort by price; among equal prices draw, so that raylets do not all choose the same node."""
        return price(node), self._host.random()


def price(node: CandidateNode) -> float:
    return float(node.labels.get("price", "inf"))


MINE = "policy_lab:CheapestFirst"
PRICES = [9, 1, 5]
"""Price of each node; the driver is on the first one."""


@minray.remote
def where(seconds: float) -> str:
    time.sleep(seconds)
    return minray.get_runtime_context().get_node_id()


def program(tasks: int, seconds: float) -> dict[str, int]:
    """Run some tasks, one after the other, and return how many of them each price has had."""
    prices = {node["NodeID"]: node["Labels"]["price"] for node in minray.nodes()}
    places = []
    for _ in range(tasks):
        places.append(minray.get(where.remote(seconds)))
        time.sleep(0.1)  # The worker is given back meanwhile, so that each task asks for one.
    return dict(Counter(prices[place] for place in places))


def simulated(policy: str, tasks: int = 8) -> dict[str, int]:
    nodes = [{"num_cpus": 2, "labels": {"price": str(price)}} for price in PRICES]
    with SimCluster(nodes, seed=1, system_config={"scheduling_policy": policy}) as cluster:
        return cluster.run(lambda: program(tasks, 0.1))


@contextmanager
def real_cluster(policy: str) -> Iterator[None]:
    """Start a node for each price, and connect to the first one."""
    cluster = Cluster()
    try:
        for price in PRICES:
            of_the_head = {} if cluster.head_node else {"_system_config": {"scheduling_policy": policy}}
            cluster.add_node(num_cpus=2, labels={"price": str(price)}, **of_the_head)
        cluster.wait_for_nodes()
        minray.init(address=cluster.address)
        yield
    finally:
        minray.shutdown()
        cluster.shutdown()


def main() -> dict[str, dict[str, int]]:
    results = {f"simulated, {policy}": simulated(policy) for policy in ("hybrid", "random", MINE)}
    with real_cluster(MINE):
        results[f"real, {MINE}"] = program(8, 0.01)
    return results


if __name__ == "__main__":
    for name, tasks_by_price in main().items():
        print(f"{name}: {tasks_by_price}")
