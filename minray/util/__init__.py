"""What is built on the public API, and small helpers for users.

Ray: python/ray/util/

Pools of actors, queues between processes, results as they come, the scheduling strategies, what cannot be sent and why.
``minray.util.state`` is what the cluster says of itself.
"""

from minray.util import queue
from minray.util.actor_pool import ActorPool
from minray.util.check_serialize import inspect_serializability
from minray.util.helpers import as_completed, map_unordered
from minray.util.lookup import get_node_ip_address, list_named_actors
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = [
    "ActorPool",
    "NodeAffinitySchedulingStrategy",
    "as_completed",
    "get_node_ip_address",
    "inspect_serializability",
    "list_named_actors",
    "map_unordered",
    "queue",
]
