"""A counter that loses nothing and counts nothing twice, although its node is killed with `kill -9`.

The counter is an actor. It begins anew on another node when its own is gone (`max_restarts`), and calls that were on their
way are made again (`max_task_retries`): so a call may be executed twice. Two things make that harmless. Each increment has
a number that its client chose, and one that was counted before is not counted again; and the counter writes into a ledger,
an actor on a node that lives on, before it answers, and reads that when it begins anew.
"""

import argparse
from typing import Any

import minray as ray
from minray.cluster_utils import Cluster


@ray.remote(num_cpus=0, resources={"ledger": 1})
class Ledger:
    """What must survive: how often each client has counted, by its own numbers."""

    def __init__(self) -> None:
        self.last: dict[str, int] = {}

    def write(self, client: str, number: int) -> None:
        self.last[client] = max(number, self.last.get(client, 0))

    def read(self) -> dict[str, int]:
        return self.last


@ray.remote(num_cpus=0, resources={"service": 1}, max_restarts=-1, max_task_retries=-1)
class Counter:
    def __init__(self, ledger: "ray.ActorHandle") -> None:
        self.ledger = ledger
        self.last = ray.get(ledger.read.remote())

    def increment(self, client: str, number: int) -> int:
        """Count a client's increment with this number, unless it was counted before; returns the sum over all clients."""
        if number > self.last.get(client, 0):
            ray.get(self.ledger.write.remote(client, number))
            self.last[client] = number
        return sum(self.last.values())

    def where(self) -> tuple[str, bool]:
        """The node that it lives on, and whether it has begun anew."""
        context = ray.get_runtime_context()
        return context.get_node_id(), context.was_current_actor_reconstructed


@ray.remote(num_cpus=0)
def count(counter: "ray.ActorHandle", client: str, increments: int) -> int:
    for number in range(1, increments + 1):
        total = ray.get(counter.increment.remote(client, number))
    return total


def main(clients: int = 3, increments: int = 200) -> dict[str, object]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"ledger": 1}})
    try:
        serving = [cluster.add_node(num_cpus=1, resources={"service": 1}) for _ in range(2)]
        ray.init(address=cluster.address)
        try:
            return serve(cluster, serving, clients, increments)
        finally:
            ray.shutdown()
    finally:
        cluster.shutdown()


def serve(cluster: Cluster, serving: list[Any], clients: int, increments: int) -> dict[str, object]:
    ledger = Ledger.remote()
    counter = Counter.remote(ledger)
    first_home, _ = ray.get(counter.where.remote())
    counting = [count.remote(counter, f"client {number}", increments) for number in range(clients)]
    while ray.get(counter.increment.remote("main", 1)) < clients * increments // 3:
        pass
    (victim,) = [node for node in serving if node.node_id == first_home]
    cluster.remove_node(victim, allow_graceful=False)  # kill -9 of all its processes
    ray.get(counting)
    second_home, has_begun_anew = ray.get(counter.where.remote())
    return {
        "counted": ray.get(counter.increment.remote("main", 1)) - 1,
        "it was another node": second_home != first_home,
        "it has begun anew": has_begun_anew,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--increments", type=int, default=200, help="of each client")
    arguments = parser.parse_args()
    for name, value in main(arguments.clients, arguments.increments).items():
        print(f"{name}: {value}")
