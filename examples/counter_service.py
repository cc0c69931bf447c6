"""Run a counter that loses no increment and counts none twice, although its node is killed with `kill -9`.

The counter is an actor. It restarts on another node when its own dies (`max_restarts`), and unanswered calls are retried
(`max_task_retries`), so a call may be executed twice. Two measures make that harmless. Each increment has a number that its
client chose, and the counter ignores a number that it has counted. Before it answers, it writes to a ledger, an actor on a
node that lives on; when it restarts, it reads the ledger.
"""

import argparse
from typing import Any

import minray as ray
from minray.cluster_utils import Cluster


@ray.remote(num_cpus=0, resources={"ledger": 1})
class Ledger:
    """The counts that must survive: the last number of each client."""

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
        """Count a client's increment, unless this number was counted before; return the sum over all clients."""
        if number > self.last.get(client, 0):
            ray.get(self.ledger.write.remote(client, number))
            self.last[client] = number
        return sum(self.last.values())

    def where(self) -> tuple[str, bool]:
        """Return the id of this actor's node, and whether the actor has been restarted."""
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
    parser.add_argument("--increments", type=int, default=200, help="number of increments of each client")
    arguments = parser.parse_args()
    for name, value in main(arguments.clients, arguments.increments).items():
        print(f"{name}: {value}")
