"""Address and instance id of this process's node.

Ray: python/ray/_private/services.py

Ray starts its processes in this module; here ``minray/node/`` does, in its own way.
"""

from __future__ import annotations

from minray.api.calls import connected_api
from minray.node.node import NodeOptions
from minray.util.lookup import get_node_instance_id
from minray.util.lookup import get_node_ip_address as address_of_node

__all__ = ["get_node_instance_id", "get_node_ip_address"]


def get_node_ip_address(address: str | None = None) -> str:
    """Return the address of this process's node. Without a connection: the address of a node that ``init()`` would start.

    ``address`` is accepted because Ray has it, and ignored.
    """
    return address_of_node() if connected_api() is not None else NodeOptions().node_ip
