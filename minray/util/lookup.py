"""Small questions to the cluster: which actors have names, and which address this node has.

Ray: python/ray/util/__init__.py (list_named_actors), python/ray/_private/services.py (the other two)

The first two answer from what the gcs knows at this moment. Actors that are dead have lost their names; those that are being
created or restarted have them.
"""

from __future__ import annotations

import os
from typing import Any

from minray.actor import named_actors
from minray.api.calls import connected_api, nodes
from minray.runtime_context import get_runtime_context


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """The names of all living actors that have one, in this namespace; with ``all_namespaces`` a dict for each, with
    ``name`` and ``namespace``."""
    named = named_actors(all_namespaces)
    if all_namespaces:
        return [{"name": name, "namespace": namespace} for namespace, name in named]
    return [name for _, name in named]


def get_node_ip_address() -> str:
    """The address by which others reach the node of this process. Raises RuntimeError if it is not connected."""
    if connected_api() is None:
        raise RuntimeError("this process is not connected to a cluster; call minray.init()")
    own = get_runtime_context().get_node_id()
    address: str = next(node["NodeManagerAddress"] for node in nodes() if node["NodeID"] == own)
    return address


def get_node_instance_id() -> str:
    """What whoever has made this machine in a cloud has called it, in ``RAY_CLOUD_INSTANCE_ID``; else empty."""
    return os.environ.get("RAY_CLOUD_INSTANCE_ID", "")
