"""Several nodes on this machine, for tests and for learning.

Ray: python/ray/cluster_utils.py

Each node has a zygote, a raylet, workers and a session directory of its own, and can be killed like a machine. The nodes
talk over unix sockets, or over TCP, as nodes of several machines do, if the head is given a ``tcp_host``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from minray.api.calls import connected_api
from minray.common.config import SystemConfig
from minray.common.shown import shown
from minray.node import init as driver
from minray.node.cluster_client import ClusterClient, end_gracefully
from minray.node.discovery import own_heads, with_environment
from minray.node.node import Node, NodeOptions, start_node
from minray.node.node_process import GCS_SERVER, RAYLET, NodeProcess, NodeProcesses, ProcessInfo
from minray.protocol.gcs import NodeInfo

__all__ = ["Cluster", "ClusterNode"]

POLL_S = 0.02

IGNORED_ARGUMENTS = (
    "autoscaling_config",
    "dashboard_agent_listen_port",
    "dashboard_host",
    "dashboard_port",
    "enable_object_reconstruction",
    "gcs_server_port",
    "huge_pages",
    "include_dashboard",
    "include_log_monitor",
    "log_to_stderr",
    "max_worker_port",
    "metrics_agent_port",
    "metrics_export_port",
    "min_worker_port",
    "no_monitor",
    "node_manager_port",
    "num_redis_shards",
    "object_manager_port",
    "plasma_directory",
    "plasma_store_socket_name",
    "proxy_server_url",
    "ray_client_server_port",
    "ray_debugger_external",
    "raylet_socket_name",
    "redirect_output",
    "redis_max_clients",
    "redis_password",
    "redis_port",
    "redis_shard_ports",
    "redis_username",
    "resource_isolation_config",
    "runtime_env_agent_port",
    "runtime_env_dir_name",
    "setup_worker_path",
    "temp_dir",
    "webui",
    "worker_path",
    "worker_port_list",
)
"""Arguments of Ray's ``add_node`` that are accepted and ignored: minray does not have what they configure."""


class ClusterNode:
    """One node of a ``Cluster``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._processes = NodeProcesses(node)

    @property
    def node_id(self) -> str:
        return self._node.node_id

    unique_id = node_id

    @property
    def address(self) -> str:
        return self._node.file.gcs_address

    gcs_address = address

    @property
    def node_ip_address(self) -> str:
        return self._node.file.node_ip

    @property
    def session_dir(self) -> str:
        return self._node.file.session_dir

    @property
    def raylet_socket_name(self) -> str:
        return self._node.file.raylet_endpoint

    def is_head(self) -> bool:
        return self._node.file.is_head

    def kill_raylet(self, check_alive: bool = True) -> None:
        """Kill the raylet with SIGKILL and wait for its end; the node dies.

        With ``check_alive``, raises RuntimeError if it is dead already.
        """
        self._processes.kill(RAYLET, check_alive)

    def kill_gcs_server(self, check_alive: bool = True) -> None:
        """Kill the gcs with SIGKILL and wait for its end, until ``start_gcs_server``; without ``storage`` the head ends.

        With ``check_alive``, raises RuntimeError if it is dead already.
        """
        self._processes.kill(GCS_SERVER, check_alive)

    def start_gcs_server(self) -> None:
        """Start the gcs again. Raises RuntimeError if it lives, or if this head has ended with it."""
        self._processes.start_gcs()

    @property
    def all_processes(self) -> dict[str, list[ProcessInfo]]:
        """The ``raylet`` and, on the head, the ``gcs_server``, without those that ``kill_...`` has ended."""
        return self._processes.all()

    def live_processes(self) -> list[tuple[str, NodeProcess]]:
        """Return kind and process of all living ones of ``all_processes``."""
        return self._processes.living()

    def dead_processes(self) -> list[tuple[str, NodeProcess]]:
        """Return kind and process of those of ``all_processes`` that have ended without ``kill_...``."""
        return self._processes.dead()

    def any_processes_alive(self) -> bool:
        return bool(self.live_processes())

    def remaining_processes_alive(self) -> bool:
        """Return whether all processes live that ``kill_...`` has not ended."""
        return not self.dead_processes()

    def pids(self) -> dict[str, int]:
        """Return the pids of the node's living processes by name: ``zygote``, ``raylet`` and, on the head, ``gcs``.

        Returns an empty dict once the zygote has ended.
        """
        living = self._node.processes()
        return {} if self._node.zygote.ended else {"zygote": self._node.zygote.pid, **living}

    def end(self) -> None:
        """Unregister the node from the cluster, then end its processes."""
        end_gracefully(self._node.file, self._node.token, "the node was removed")
        self.close()

    def close(self) -> None:
        """End the node's processes at once."""
        self._node.close()

    def __repr__(self) -> str:
        return f"ClusterNode({self.node_id[:8]})"


class Cluster:
    """A cluster whose nodes are started and ended one by one."""

    def __init__(
        self,
        initialize_head: bool = False,
        connect: bool = False,
        head_node_args: dict[str, Any] | None = None,
        shutdown_at_exit: bool = True,
    ) -> None:
        """Make a cluster, with ``initialize_head`` also its head node, with ``connect`` also a driver in this process.

        ``head_node_args`` are arguments of ``add_node``. ``shutdown_at_exit`` is accepted because Ray has it, and ignored:
        the nodes always end with this process. Raises RuntimeError for ``connect`` without ``initialize_head``.
        """
        self.head_node: ClusterNode | None = None
        self.worker_nodes: list[ClusterNode] = []
        self._connection: object = None
        """Connection that ``connect`` has made for this process, or None. The process may have left this cluster since."""
        self._client: ClusterClient | None = None
        """Client of the gcs; made at the first question to the gcs."""
        if connect and not initialize_head:
            raise RuntimeError("Cannot connect to uninitialized cluster: connect=True needs initialize_head=True")
        if initialize_head:
            self.add_node(**(head_node_args or {}))
            if connect:
                self.connect()

    @property
    def address(self) -> str | None:
        """The cluster's address, for ``init(address=...)``; None if there is no head node."""
        return None if self.head_node is None else self.head_node.address

    gcs_address = address

    def connect(self, namespace: str | None = None) -> None:
        """Make this process a driver of the cluster. Raises RuntimeError if there is no head node."""
        if self.address is None:
            raise RuntimeError("this cluster has no head yet; call add_node()")
        driver.init(address=self.address, namespace=namespace)
        self._connection = connected_api()

    def add_node(
        self,
        wait: bool = True,
        *,
        num_cpus: float = 1,
        num_gpus: float = 0,
        resources: dict[str, float] | None = None,
        labels: dict[str, str] | None = None,
        memory: float | None = None,
        object_store_memory: float = 150 * 1024 * 1024,
        object_spilling_directory: str | None = None,
        env_vars: dict[str, str] | None = None,
        node_name: str | None = None,
        node_ip_address: str = "127.0.0.1",
        tcp_host: str = "",
        storage: str = "",
        _system_config: dict[str, Any] | None = None,
        **ignored: Any,
    ) -> ClusterNode:
        """Start a node and return it when the cluster knows it. The first node is the head.

        ``wait`` is accepted because Ray has it; this method always waits. ``memory`` and ``object_store_memory`` are in
        bytes. The node's processes and workers get ``env_vars`` in addition to this process's environment. Only the head
        takes ``tcp_host``, the host at which all nodes listen, and ``storage``, the path of a file with which the cluster
        survives the death of its gcs. Raises RuntimeError if the node cannot be started, TypeError and ValueError for wrong
        arguments, such as ``storage`` for a node that is not the head.
        """
        for name in ignored:
            if name not in IGNORED_ARGUMENTS:
                raise TypeError(f"add_node() got an unexpected argument {shown(name)}")
        options = NodeOptions(
            head=self.head_node is None,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            memory=memory,
            object_store_memory=object_store_memory,
            resources=dict(resources or {}),
            labels=dict(labels or {}),
            env_vars=env_vars or {},
            object_spilling_directory=object_spilling_directory or "",
            node_name=node_name or "",
            node_ip=node_ip_address,
            tcp_host=tcp_host,
            storage=storage,
        )
        if self.head_node is None:
            options.system_config = SystemConfig.from_overrides(with_environment(_system_config))
            self.head_node = ClusterNode(start_node(options))
            own_heads.append(self.head_node.session_dir)
            return self.head_node
        if _system_config or tcp_host or storage:
            raise ValueError("_system_config, tcp_host and storage belong to the head node; they hold for the whole cluster")
        return self._add_to(self.head_node, options)

    def _add_to(self, head_node: ClusterNode, options: NodeOptions) -> ClusterNode:
        """Start a node that joins the head, with the head's token, transport and system configuration."""
        if not head_node.pids():
            raise RuntimeError("the head of this cluster has ended; call remove_node() for it, then add_node()")
        head = head_node._node
        options.tcp_host = head.file.tcp_host
        options.gcs_endpoint = f"tcp:{head.file.gcs_address}" if options.tcp_host else head.file.gcs_endpoint
        options.token = head.token
        options.system_config = head.file.system_config
        node = ClusterNode(start_node(options))
        self.worker_nodes.append(node)
        return node

    def remove_node(self, node: ClusterNode, allow_graceful: bool = True) -> None:
        """Unregister a node and end it. With ``allow_graceful=False`` kill its raylet, as if the machine had failed.

        Raises ValueError for a node that is not in this cluster.
        """
        if node not in self.list_all_nodes():
            raise ValueError(f"{node!r} is not a node of this cluster")
        if node is self.head_node:
            self._disconnect()
            self.head_node = None
        else:
            self.worker_nodes.remove(node)
        if allow_graceful:
            node.end()
        else:
            node._node.kill("raylet")
            node.close()

    def list_all_nodes(self) -> list[ClusterNode]:
        head = [self.head_node] if self.head_node is not None else []
        return head + self.worker_nodes

    def remaining_processes_alive(self) -> bool:
        """Return whether all processes of all nodes live that ``kill_raylet`` and ``kill_gcs_server`` have not ended."""
        return all(node.remaining_processes_alive() for node in self.list_all_nodes())

    def wait_for_nodes(self, timeout: float = 30) -> None:
        """Wait until the gcs counts all nodes of this cluster as living. Raises TimeoutError after ``timeout`` seconds."""
        expected = len(self.list_all_nodes())
        self._wait(lambda alive: len(alive) == expected, f"not {expected}", timeout)

    def wait_for_node(self, node: ClusterNode, timeout: float = 30) -> None:
        """Wait until the gcs counts this node as living. Raises TimeoutError after ``timeout`` seconds."""
        self._wait(lambda alive: node.node_id in [info.node_id.hex() for info in alive], f"{node!r} not among them", timeout)

    def _wait(self, condition: Callable[[list[NodeInfo]], bool], wanting: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            alive = [info for info in self._gcs().nodes() if info.alive]
            if condition(alive):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout_s:g} s the gcs counts {len(alive)} living nodes, {wanting}")
            time.sleep(POLL_S)

    def _gcs(self) -> ClusterClient:
        if self._client is None:
            if self.head_node is None:
                raise RuntimeError("this cluster has no head yet; call add_node()")
            head = self.head_node._node
            self._client = ClusterClient(head.file.gcs_endpoint, head.token, head.file.system_config)
        return self._client

    def _disconnect(self) -> None:
        """Disconnect this process if it is a driver of this cluster, and close the gcs client."""
        if self._connection is not None and self._connection is connected_api():
            driver.shutdown()
        self._connection = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def shutdown(self) -> None:
        """End all nodes."""
        self._disconnect()
        for node in reversed(self.list_all_nodes()):
            node.close()
        self.head_node, self.worker_nodes = None, []
