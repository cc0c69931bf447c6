"""Small look-ups: the names of actors, and the address and instance id of this node.

Ray: python/ray/util/__init__.py (list_named_actors), python/ray/_private/services.py (the other two)

The first two return what the gcs knows at this moment. Dead actors have lost their names; actors that are being created or
restarted have theirs.
"""

from __future__ import annotations

import os
from typing import Any

from minray.actor import named_actors
from minray.api.calls import connected_api, nodes
from minray.runtime_context import get_runtime_context

__all__ = ["get_node_instance_id", "get_node_ip_address", "list_named_actors"]


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Return the names of all living named actors in this namespace.

    With ``all_namespaces`` return a dict ``{"name": ..., "namespace": ...}`` for each named actor of the cluster.
    """
    named = named_actors(all_namespaces)
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in named]
    return [name for _, name in named]


def get_node_ip_address() -> str:
    """Return the address of this process's node. Raises RuntimeError if the process is not connected to a cluster."""
    if connected_api() is None:
        raise RuntimeError("this process is not connected to a cluster; call minray.init()")
    own = get_runtime_context().get_node_id()
    address: str = next(node["NodeManagerAddress"] for node in nodes() if node["NodeID"] == own)
    return address


def get_node_instance_id() -> str:
    """Return the cloud provider's id of this machine, from the variable ``RAY_CLOUD_INSTANCE_ID``; empty if it is not
    set."""
    return os.environ.get("RAY_CLOUD_INSTANCE_ID", "")
