"""Starting a node: its session, its zygote, and through that gcs and raylet.

Ray: python/ray/_private/node.py, services.py

``start_node`` is called by whoever begins a node: a driver's ``init``, ``cluster_utils``, the command line. It starts the
zygote, whose program and children are in ``roles``; that file is not imported here, since a driver needs none of it.

A gcs with storage is started again when it ends, at the same endpoints, so its TCP port is chosen before it first runs.
The head node lives as long as its gcs, any other as long as its raylet.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from minray.common.config import GcsConfig, RayletConfig, SystemConfig
from minray.common.environment_variables import is_environment
from minray.common.labels import check_labels
from minray.common.resources import CPU, GPU, MEMORY, OBJECT_STORE_MEMORY, resource_set
from minray.node.cluster_client import end_gracefully
from minray.node.discovery import NODE_FILE, SOCKETS, NodeFile, default_spilling_place, make_session, make_token
from minray.platform.base import Host, PlatformError, SpawnFailed
from minray.platform.process.host import RealHost, raise_file_limit
from minray.platform.process.processes import OwnedZygote, start_zygote
from minray.platform.process.session import LOGS, make_spill_directories, remove_session
from minray.platform.real import check_transport
from minray.platform.storage.external_storage import is_external, split_places
from minray.platform.transport.endpoints import free_port

START_TIMEOUT_S = 30.0
LEAST_STORE_BYTES = 1000
FEW_FILES = 4096
"""A raylet has three open for each worker, the gcs two, a driver one for each actor that it calls."""
logger = logging.getLogger("minray")


@dataclass(slots=True)
class NodeOptions:
    """What a node is started with."""

    head: bool = True
    gcs_endpoint: str = ""
    """Of the cluster to join, if not head."""
    token: bytes = b""
    """Of the cluster to join; a head makes its own if it is empty."""
    num_cpus: float | None = None
    """None: what the machine has; likewise below."""
    num_gpus: float | None = None
    memory: float | None = None
    object_store_memory: float | None = None
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    env_vars: dict[str, str] = field(default_factory=dict)
    """Of its processes, beside and before what this process has."""
    node_name: str = ""
    node_ip: str = "127.0.0.1"
    tcp_host: str = ""
    """Listen for other machines on this address too; empty: unix sockets only."""
    tcp_port: int = 0
    """Of the gcs; 0: any that is free."""
    storage: str = ""
    """Where the gcs keeps its tables; empty: in memory."""
    detached: bool = False
    object_spilling_directory: str = ""
    """Of this node; empty: as the cluster's configuration says."""
    system_config: SystemConfig = field(default_factory=SystemConfig)


class Node:
    """A running node, as the process that began it sees it."""

    def __init__(self, zygote: OwnedZygote, file: NodeFile, token: bytes, has_external: bool) -> None:
        self.zygote = zygote
        self.file = file
        self.token = token
        self._has_external = has_external
        """Whether it may have objects where only its raylet can remove them."""

    @property
    def node_id(self) -> str:
        return self.file.node_id

    def processes(self) -> dict[str, int]:
        """The pids of what lives of ``gcs`` (head only) and ``raylet``; they die with the zygote."""
        living = self.zygote.living()
        return {} if self.zygote.ended else {name: pid for pid, name in living.items()}

    def kill(self, name: str) -> None:
        """``kill -9`` of the ``raylet`` (the node dies: G108) or the ``gcs``; harmless if it has ended."""
        pid = self.processes().get(name)
        if pid is not None:
            self.zygote.kill(pid)

    def detach(self) -> None:
        """Let the node live on when this process ends. RuntimeError if it has just ended."""
        try:
            self.zygote.detach()
        except SpawnFailed as error:
            self.zygote.close()
            raise RuntimeError(f"the node has ended: {error}") from None

    def close(self) -> None:
        """End everything on this node, now; but for what is elsewhere, its raylet is asked first."""
        if self._has_external and self.processes():
            with suppress(PlatformError, OSError):
                end_gracefully(self.file, self.token, "its program has ended")
        self.zygote.close()


# --- starting ----------------------------------------------------------------------------------------------------------


def node_resources(options: NodeOptions, host: Host) -> dict[str, int]:
    """What the node offers, in fixed point. Raises ValueError for amounts that make no sense, TypeError for no numbers."""
    for name in options.resources:
        if not isinstance(name, str):
            raise TypeError(f"the name of a resource must be a str, not {name!r}")
        if name in (CPU, GPU, MEMORY, OBJECT_STORE_MEMORY):
            raise ValueError(f"resource {name!r} has an argument of its own; resources are for others")
    amounts: dict[str, float] = dict(options.resources)
    amounts[CPU] = host.cpu_count if options.num_cpus is None else options.num_cpus
    amounts[GPU] = options.num_gpus or 0
    amounts[OBJECT_STORE_MEMORY] = _store_bytes(options.object_store_memory, host)
    amounts[MEMORY] = options.memory or int(host.memory_bytes * 0.7)
    amounts[f"node:{options.node_ip}"] = 1
    for name, amount in amounts.items():
        if not isinstance(amount, int | float):
            raise TypeError(f"the amount of resource {name!r} must be a number, not {amount!r}")
    if options.head:
        amounts["node:__internal_head__"] = 1
    return resource_set(amounts)


def _store_bytes(given: float | None, host: Host) -> float:
    if given is None:
        return int(host.memory_bytes * 0.3)
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"object_store_memory must be a number of bytes, not {given!r}")
    if not LEAST_STORE_BYTES <= given <= host.memory_bytes:
        most = f"{host.memory_bytes}, which is all that this machine has"
        raise ValueError(f"object_store_memory must be from {LEAST_STORE_BYTES} bytes to {most}, not {given}")
    return given


def _check_texts(options: NodeOptions) -> None:
    """Raises TypeError for what is no text, ValueError for text that no message can say."""
    check_labels(options.labels)
    if not is_environment(options.env_vars):
        raise TypeError(f"env_vars must be a dict from str to str, not {options.env_vars!r}")
    texts = {
        "node_name": options.node_name,
        "the node's ip address": options.node_ip,
        "tcp_host": options.tcp_host,
        "storage": options.storage,
    }
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a str, not {text!r}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} is not text that can be written: {error}") from None


def start_node(options: NodeOptions) -> Node:
    """Start gcs (head only) and raylet; returns when the raylet is registered. RuntimeError says what went wrong."""
    _check_texts(options)
    check_transport(options.system_config)
    resources = node_resources(options, RealHost())
    files = raise_file_limit()
    if files < FEW_FILES:
        logger.warning("a process may open %d files at most, which may be too few; allow more with: ulimit -n 8192", files)
    if options.head and options.tcp_host and not options.tcp_port:
        try:
            options.tcp_port = free_port(options.tcp_host)
        except PlatformError as error:
            raise RuntimeError(f"the node could not be started: {error}") from None
    token = options.token or make_token()
    session = make_session(token)
    try:
        zygote = start_zygote(["-P", "-c", _zygote_program()], str(session), options.env_vars)
    except (OSError, ValueError) as error:  # A variable may have a name that cannot be one.
        remove_session(str(session))
        raise RuntimeError(f"the node could not be started: {error}") from None
    try:
        return _boot(options, resources, token, session, zygote)
    except SpawnFailed as error:
        zygote.close()
        raise RuntimeError(f"the node could not be started: {error}") from None
    except BaseException:
        zygote.close()
        raise


def import_path() -> list[str]:
    """Where others must look for the modules that this process can import; "" (an interactive session) is the directory."""
    return [os.path.abspath(entry) for entry in sys.path]


def _zygote_program() -> str:
    """It imports minray from where this process has it, and nothing from the current directory."""
    return (
        f"import sys; own_path = sys.path[:]; sys.path[:] = {import_path()}; "
        "from minray.node.roles import zygote_main; sys.path[:] = own_path; zygote_main()"
    )


def _boot(options: NodeOptions, resources: dict[str, int], token: bytes, session: Path, zygote: OwnedZygote) -> Node:
    socket_dir = f"unix:{session / SOCKETS}"
    gcs_endpoint = options.gcs_endpoint
    gcs_address = gcs_endpoint.removeprefix("tcp:")
    if options.head:
        gcs_endpoint, gcs_address = _start_gcs(options, socket_dir, session, zygote)
    node_id = secrets.token_bytes(16)
    config = RayletConfig(
        node_id=node_id,
        node_name=options.node_name or ("head" if options.head else node_id[:3].hex()),
        node_ip=options.node_ip,
        gcs_endpoint=gcs_endpoint,
        socket_dir=socket_dir,
        tcp_host=options.tcp_host,
        tcp_port=0,
        session_dir=str(session),
        resources=resources,
        labels=options.labels,
        is_head=options.head,
        system_config=options.system_config,
        spill_directories=_spill_directories(
            session, options.object_spilling_directory or options.system_config.object_spilling_directory
        ),
    )
    _start_process(zygote, "raylet", msgspec.msgpack.encode(config), control=True, essential=not options.head)
    file = NodeFile(
        node_id=node_id.hex(),
        node_ip=options.node_ip,
        node_name=config.node_name,
        gcs_endpoint=gcs_endpoint,
        gcs_address=gcs_address,
        raylet_endpoint=f"{socket_dir}/raylet",
        socket_dir=socket_dir,
        tcp_host=options.tcp_host,
        session_dir=str(session),
        is_head=options.head,
        detached=options.detached,
        system_config=options.system_config,
        zygote_pid=zygote.pid,
    )
    try:
        (session / NODE_FILE).write_bytes(msgspec.json.encode(file))
    except OSError as error:
        raise RuntimeError(f"cannot write {session / NODE_FILE}: {error.strerror}") from None
    return Node(zygote, file, token, any(map(is_external, config.spill_directories)))


def _spill_directories(session: Path, places: str) -> list[str]:
    """Made for this session. RuntimeError if one cannot be."""
    try:
        return make_spill_directories(str(session), split_places(places or default_spilling_place(session)))
    except OSError as error:
        raise RuntimeError(f"cannot spill objects to {error.filename}: {error.strerror}") from None


def _start_gcs(options: NodeOptions, socket_dir: str, session: Path, zygote: OwnedZygote) -> tuple[str, str]:
    """Returns its endpoint for this node, and its address for everybody."""
    endpoints = [f"{socket_dir}/gcs"]
    if options.tcp_host:
        endpoints.append(f"tcp:{options.tcp_host}:{options.tcp_port}")
    config = GcsConfig(endpoints, options.storage, session.name, options.system_config)
    durable = bool(options.storage)
    _start_process(zygote, "gcs", msgspec.msgpack.encode(config), essential=not durable, respawn=durable)
    return endpoints[0], endpoints[-1].removeprefix("tcp:")


def _start_process(
    zygote: OwnedZygote, name: str, config: bytes, *, control: bool = False, essential: bool = False, respawn: bool = False
) -> None:
    """Returns when it says that it is ready."""
    log = os.path.join(zygote.session_dir, LOGS, f"{name}.log")
    pid = zygote.spawn(
        name, name, config, log_path=log, ready=True, control=control, essential=essential, respawn=respawn
    )
    words = msgspec.json.decode(zygote.wait_ready(pid, START_TIMEOUT_S), type=list[str])
    if words[0] != "ready":
        raise RuntimeError(f"the {name} could not be started: {words[1]}")
