"""Tools built on the public API, and small helpers for users.

Ray: python/ray/util/

This package imports actor pools, queues between processes, and results in the order in which they are ready. It imports
scheduling strategies, placement groups, custom serializers, a check why a value cannot be serialized, and an ``Executor``
like those of ``concurrent.futures``.

A program imports these by name: ``minray.util.state`` (the cluster's state), ``minray.util.metrics`` (its own metrics),
``minray.util.multiprocessing`` (a ``Pool``), ``minray.util.joblib`` (a joblib backend), ``minray.util.dask`` (a scheduler).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    "Executor": "minray.util.executor",
    "inspect_serializability": "minray.util.check_serialize",
    "pdb": "minray.util.rpdb",
    "queue": "minray.util.queue",
}
"""Names that few programs use -> their modules, which are imported at the first use."""

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name of ``_LATER`` when it is first used, and keep it. Raises AttributeError for any other name."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_LATER[name])
        globals()[name] = found = module if name in ("pdb", "queue") else getattr(module, name)
        return found
