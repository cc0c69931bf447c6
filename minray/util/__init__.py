"""What is built on the public API, and small helpers for users.

Ray: python/ray/util/

Pools of actors, queues between processes, results as they come, the scheduling strategies, placement groups, what cannot be
sent and why, and how it can be; an ``Executor`` like those of ``concurrent.futures``. To be imported by name:
``minray.util.state``, what the cluster says of itself; ``minray.util.metrics``, what a program measures;
``minray.util.multiprocessing``, a ``Pool``; ``minray.util.joblib``, a backend.
"""

from minray.util import queue
from minray.util.actor_pool import ActorPool
from minray.util.check_serialize import inspect_serializability
from minray.util.debug import log_once
from minray.util.executor import Executor
from minray.util.helpers import as_completed, map_unordered
from minray.util.lookup import get_node_instance_id, get_node_ip_address, list_named_actors
from minray.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from minray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from minray.util.serializers import deregister_serializer, register_serializer

__all__ = [
    "ActorPool",
    "Executor",
    "NodeAffinitySchedulingStrategy",
    "NodeLabelSchedulingStrategy",
    "PlacementGroupSchedulingStrategy",
    "as_completed",
    "deregister_serializer",
    "get_current_placement_group",
    "get_node_instance_id",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "log_once",
    "map_unordered",
    "placement_group",
    "placement_group_table",
    "queue",
    "register_serializer",
    "remove_placement_group",
]
