"""Tables of the cluster's state: nodes, actors, jobs, placement groups and resources.

Ray: python/ray/_private/state.py (GlobalState)

``minray/util/state`` is the public way to the same facts. Rows have Ray's keys, without those that nothing here fills
(``Timestamp``, ``stats``).
"""

from __future__ import annotations

from typing import Any

from minray.api.calls import (
    available_resources,
    cluster_resources,
    current_api,
    known_nodes,
    nodes,
    resource_reports,
    state_reader,
)
from minray.api.placement_group import placement_group_table
from minray.api.timeline import timeline
from minray.common.bundles import without_bundles
from minray.common.ids import BaseID, JobID, PlacementGroupID, job_of_actor
from minray.common.resources import to_floats
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.protocol.actor import ActorInfo
from minray.protocol.base import Address
from minray.util.lookup import get_node_ip_address
from minray.util.placement_group import PlacementGroup

__all__ = ["available_resources", "cluster_resources", "nodes", "timeline"]

TIMEOUT_S = 30.0
"""Seconds that the gcs has to answer."""


class GlobalState:
    """The tables of this process's cluster. A process without a connection connects, as ``get`` does."""

    def node_table(self) -> list[dict[str, Any]]:
        return nodes()

    def actor_table(
        self, actor_id: str | None = None, job_id: JobID | None = None, actor_state_name: str | None = None
    ) -> dict[str, Any]:
        """Return a dict of rows by actor id (hex), of all actors or of one job or state.

        With ``actor_id`` return the row of that actor; empty if it is unknown.
        """
        rows = {info.actor_id.hex(): _actor_row(info) for info in ActorApi(current_api()).all()}
        if actor_id is not None:
            return rows.get(actor_id, {})
        return {
            key: row
            for key, row in rows.items()
            if (job_id is None or row["JobID"] == job_id.hex()) and actor_state_name in (None, row["State"])
        }

    def job_table(self) -> list[dict[str, Any]]:
        api = current_api()
        ips = {info.node_id: info.ip for info in known_nodes()}
        return [
            {
                "JobID": job.job_id.hex(),
                "DriverIPAddress": ips.get(job.driver.node_id, ""),
                "DriverPid": job.driver_pid,
                "StartTime": int(job.start_time * 1000),
                "EndTime": int(job.end_time * 1000),
                "IsDead": bool(job.end_time),
                "Entrypoint": job.config.entrypoint,
            }
            for job in api.run_on_loop(lambda: state_reader(api).jobs(TIMEOUT_S))
        ]

    def placement_group_table(self, placement_group_id: BaseID | str | None = None) -> dict[str, Any]:
        """Return the row of a placement group, or with None a dict of all rows by id (hex)."""
        if placement_group_id is None:
            return placement_group_table()
        id_hex = placement_group_id if isinstance(placement_group_id, str) else placement_group_id.hex()
        return placement_group_table(PlacementGroup(PlacementGroupID.from_hex(id_hex)))

    def cluster_resources(self) -> dict[str, float]:
        return cluster_resources()

    def available_resources(self) -> dict[str, float]:
        return available_resources()

    def available_resources_per_node(self) -> dict[str, dict[str, float]]:
        """Return the free resources of each living node by node id (hex), without those that are used up."""
        alive = {info.node_id for info in known_nodes() if info.alive}
        reports = [report for report in resource_reports() if report.node_id in alive]
        return {report.node_id.hex(): _amounts(report.available) for report in reports}

    def total_resources_per_node(self) -> dict[str, dict[str, float]]:
        """Return all resources of each living node by node id (hex)."""
        return {info.node_id.hex(): _amounts(info.resources_total) for info in known_nodes() if info.alive}


def _amounts(resources: dict[str, int]) -> dict[str, float]:
    return {name: amount for name, amount in to_floats(without_bundles(resources)).items() if amount > 0}


def _actor_row(info: ActorInfo) -> dict[str, Any]:
    ips = {node.node_id: node.ip for node in known_nodes()}
    return {
        "ActorID": info.actor_id.hex(),
        "ActorClassName": info.class_name,
        "IsDetached": info.detached,
        "Name": info.name,
        "JobID": job_of_actor(info.actor_id).hex(),
        "Address": _address_row(info.address, ips),
        "OwnerAddress": _address_row(info.owner, ips),
        "State": info.state,
        "NumRestarts": info.restarts,
        "StartTime": int(info.start_time * 1000),
        "EndTime": int(info.end_time * 1000),
        "DeathCause": info.death.message if info.death is not None else None,
        "Pid": info.pid,
    }


def _address_row(address: Address | None, ips: dict[bytes, str]) -> dict[str, Any]:
    if address is None:
        return {"IPAddress": "", "Port": 0, "NodeID": ""}
    port = int(address.tcp_endpoint.rpartition(":")[2] or 0)
    return {"IPAddress": ips.get(address.node_id, ""), "Port": port, "NodeID": address.node_id.hex()}


def current_node_id() -> str:
    """Return the name of the resource that only this process's node has: ``node:`` and the node's address."""
    return f"node:{get_node_ip_address()}"


def node_ids() -> list[str]:
    """Return the names of such resources, of all living nodes."""
    return [f"node:{info.ip}" for info in known_nodes() if info.alive]


state = GlobalState()
actors = state.actor_table
jobs = state.job_table
available_resources_per_node = state.available_resources_per_node
total_resources_per_node = state.total_resources_per_node
