"""The connection of this process, as programs read it: ``global_worker`` and ``_global_node``.

Ray: python/ray/_private/worker.py

The public way to most of this is ``minray.get_runtime_context()``. The methods of Ray's worker that act (``put_object``,
``run_function_on_all_workers``, ``core_worker``) are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minray.api.calls import cancel, connected_api, current_api, dashboard_address, get, is_initialized, nodes, put, wait
from minray.common.ids import ActorID, JobID, NodeID, PlacementGroupID, TaskID
from minray.node.init import RayContext, init, shutdown
from minray.platform.process.session import LOGS
from minray.runtime_context import get_gpu_ids, get_runtime_context

__all__ = [
    "RayContext",
    "cancel",
    "get",
    "get_dashboard_url",
    "get_gpu_ids",
    "init",
    "is_initialized",
    "put",
    "shutdown",
    "wait",
]

SCRIPT_MODE, WORKER_MODE = 0, 1
"""Values of ``global_worker.mode`` in a driver and in a worker."""

BaseContext = RayContext
"""Base class of all contexts in Ray, of which minray has one kind."""


def get_dashboard_url() -> str:
    """Return host and port of the dashboard; empty if the cluster has none."""
    return dashboard_address()


class _GlobalNode:
    """The node of this process."""

    @property
    def address_info(self) -> dict[str, Any]:
        return init(ignore_reinit_error=True).address_info

    @property
    def address(self) -> str:
        address: str = self.address_info["address"]
        return address

    gcs_address = address

    @property
    def node_ip_address(self) -> str:
        address: str = self.address_info["node_ip_address"]
        return address

    @property
    def webui_url(self) -> str:
        return dashboard_address()

    @property
    def node_id(self) -> str:
        return get_runtime_context().get_node_id()

    @property
    def raylet_socket_name(self) -> str:
        name: str = self.address_info["raylet_socket_name"]
        return name

    @property
    def session_name(self) -> str:
        return get_runtime_context().get_session_name()

    @property
    def head(self) -> bool:
        return self.is_head()

    def is_head(self) -> bool:
        return any(node["IsHead"] for node in nodes() if node["NodeID"] == self.node_id)

    def get_session_dir_path(self) -> str:
        return current_api().config.session_dir

    def get_logs_dir_path(self) -> str:
        return str(Path(self.get_session_dir_path()) / LOGS)

    def get_temp_dir_path(self) -> str:
        return get_runtime_context().get_temp_dir()


class _GlobalWorker:
    """This process, as a member of a cluster. Only ``connected``, ``mode`` and ``node`` may be read without a connection."""

    @property
    def connected(self) -> bool:
        return is_initialized()

    @property
    def mode(self) -> int | None:
        """Return SCRIPT_MODE or WORKER_MODE; None without a connection."""
        api = connected_api()
        return None if api is None else SCRIPT_MODE if api.config.is_driver else WORKER_MODE

    @property
    def node(self) -> _GlobalNode | None:
        return _GlobalNode() if is_initialized() else None

    def check_connected(self) -> None:
        """Raise RuntimeError if this process is not connected."""
        if not is_initialized():
            raise RuntimeError("this process is not connected to a cluster; call init() first")

    @property
    def node_ip_address(self) -> str:
        self.check_connected()
        return current_api().config.node_ip

    @property
    def namespace(self) -> str:
        return get_runtime_context().namespace

    @property
    def runtime_env(self) -> str:
        return get_runtime_context().get_runtime_env_string()

    @property
    def worker_id(self) -> bytes:
        self.check_connected()
        return current_api().config.worker_id

    @property
    def current_job_id(self) -> JobID:
        return JobID.from_hex(get_runtime_context().get_job_id())

    @property
    def current_node_id(self) -> NodeID:
        return NodeID.from_hex(get_runtime_context().get_node_id())

    @property
    def current_task_id(self) -> TaskID:
        """Return the id of the running task; the nil id in a driver."""
        task_id = get_runtime_context().get_task_id()
        return TaskID.from_hex(task_id) if task_id is not None else TaskID.nil()

    @property
    def current_task_name(self) -> str | None:
        return get_runtime_context().get_task_name()

    @property
    def actor_id(self) -> ActorID:
        """Return the id of this process's actor; the nil id outside of actors."""
        actor_id = get_runtime_context().get_actor_id()
        return ActorID.from_hex(actor_id) if actor_id is not None else ActorID.nil()

    @property
    def actor_name(self) -> str:
        return get_runtime_context().get_actor_name() or ""

    @property
    def placement_group_id(self) -> PlacementGroupID:
        """Return the id of the group in which this task or actor runs; the nil id outside of groups."""
        group_id = get_runtime_context().get_placement_group_id()
        return PlacementGroupID.from_hex(group_id) if group_id is not None else PlacementGroupID.nil()

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        return get_runtime_context().should_capture_child_tasks_in_placement_group


global_worker = _GlobalWorker()


def __getattr__(name: str) -> Any:
    """Return ``_global_node``, which is None without a connection."""
    if name == "_global_node":
        return global_worker.node
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
