"""Addresses of the cluster, as ``init`` returns them.

Ray: ray.init in python/ray/_private/worker.py

A driver has its node's file, a worker has its configuration. Both know the same addresses, which are returned under Ray's
keys. Those of parts that minray does not have are empty or None.
"""

from __future__ import annotations

from typing import Any

from minray.common.config import WorkerConfig, store_endpoint
from minray.node.discovery import NodeFile


def addresses_of_driver(file: NodeFile) -> dict[str, Any]:
    """Return the addresses for a driver that is connected to this node."""
    return _addresses(file, file.gcs_address, bytes.fromhex(file.node_id))


def addresses_of_worker(config: WorkerConfig) -> dict[str, Any]:
    """Return the addresses for a task that calls ``init(ignore_reinit_error=True)``, as libraries do."""
    return _addresses(config, config.gcs_endpoint.removeprefix("tcp:"), config.node_id)


def _addresses(node: NodeFile | WorkerConfig, gcs_address: str, node_id: bytes) -> dict[str, Any]:
    return {
        "address": gcs_address,
        "gcs_address": gcs_address,
        "node_id": node_id.hex(),
        "node_ip_address": node.node_ip,
        "session_dir": node.session_dir,
        "raylet_socket_name": node.raylet_endpoint.removeprefix("unix:"),
        "object_store_address": store_endpoint(node.socket_dir, node_id).removeprefix("unix:"),
        "webui_url": "",
        "redis_address": None,
        "metrics_export_port": None,
        "dashboard_agent_listen_port": None,
    }
