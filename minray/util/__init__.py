"""Tools built on the public API, and small helpers for users.

Ray: python/ray/util/

This package imports actor pools, queues between processes, and results in the order in which they are ready. It imports
scheduling strategies, placement groups, custom serializers, a check why a value cannot be serialized, and an ``Executor``
like those of ``concurrent.futures``.

A program imports these by name: ``minray.util.state`` (the cluster's state), ``minray.util.metrics`` (its own metrics),
``minray.util.multiprocessing`` (a ``Pool``), ``minray.util.joblib`` (a joblib backend), ``minray.util.dask`` (a scheduler).
"""

from typing import TYPE_CHECKING

from minray.common.package import imported_at_first_use as _imported_at_first_use
from minray.util.actor_pool import ActorPool
from minray.util.debug import log_once
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

if TYPE_CHECKING:
    from minray.util import queue
    from minray.util import rpdb as pdb
    from minray.util.check_serialize import inspect_serializability
    from minray.util.executor import Executor

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
    "pdb",
    "placement_group",
    "placement_group_table",
    "queue",
    "register_serializer",
    "remove_placement_group",
]

_LATER = {
    "Executor": "minray.util.executor:Executor",
    "inspect_serializability": "minray.util.check_serialize:inspect_serializability",
    "pdb": "minray.util.rpdb",
    "queue": "minray.util.queue",
}
"""Names that few programs use -> their places, which are imported at the first use."""

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name
    __getattr__ = _imported_at_first_use(__name__, _LATER)
