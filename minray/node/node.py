"""Start of a node: its session, its zygote, and with the zygote the gcs and the raylet.

Ray: python/ray/_private/node.py, services.py

``cluster_utils`` and the command line call ``start_node``. It starts the zygote, whose program and children are in
``roles``. That file is not imported here, since a driver needs none of it. A driver's ``init`` calls ``begin_node``, and
finishes the node when it has imported the core worker.

A gcs with storage is started again when it ends, at the same endpoints, so its TCP port is chosen before it first runs.
The head node ends when a gcs without storage ends. The raylet of a head that ``minray start`` has started is started again
as well (``raylet_restart``); any other node ends with its raylet.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from minray.common.config import LOCAL, ClientServerConfig, DashboardConfig, GcsConfig, RayletConfig, SystemConfig
from minray.common.environment_variables import is_environment
from minray.common.gpus import NodeGpus
from minray.common.resources import CPU, GPU, MEMORY, OBJECT_STORE_MEMORY, resource_set, to_floats
from minray.common.shown import check_encodable, shown
from minray.node.accelerators import TYPE_LABEL, TYPE_RESOURCE, gpus_at_start
from minray.node.discovery import (
    NODE_FILE,
    NodeFile,
    begin_local_session,
    default_spilling_place,
    discard_local,
    local_nodes,
    make_session,
    make_token,
    new_session_path,
    write_node_file,
)
from minray.node.node_labels import labels_at_start
from minray.platform.base import ExitStatus, Host, PlatformError, SpawnFailed
from minray.platform.process.devices import RealDevices
from minray.platform.process.host import RealHost, raise_file_limit
from minray.platform.process.processes import ChildEnd, start_zygote
from minray.platform.process.session import LOGS, SOCKETS, SPILL, make_spill_directories, remove_session
from minray.platform.real import check_transport
from minray.platform.storage.external_storage import is_external, split_places
from minray.platform.storage.memory import check_arena, most_arena_bytes
from minray.platform.transport.endpoints import check_unix_sockets, free_port
from minray.policies.names import check_policies, has_foreign_policies

START_TIMEOUT_S = 30.0
"""Seconds that the gcs, and then the raylet, has to start."""
LEAST_STORE_BYTES = 1000
"""Least size of an object store in bytes; a smaller store could hold almost nothing."""
FEW_FILES = 4096
"""Number of open files per process below which a warning is logged.

A raylet has three files open for each worker, the gcs two, a driver one for each actor that it calls.
"""
ZYGOTE_PROGRAM = (
    "import os, sys; own_path = sys.path[:]; sys.path[:] = os.fsdecode(sys.stdin.buffer.read()).split(chr(0)); "
    "from minray.node.roles import zygote_main; sys.path[:] = own_path; zygote_main()  # without pydevd"
)
"""Program of a zygote. It is told this process's path, and imports minray from there, and nothing from the current
directory. PyCharm's debugger does not change a command in which the word pydevd stands."""
logger = logging.getLogger("minray")
LOCAL_PRESTARTED = 1
"""Default number of workers that a node inside this process starts before there is work: another one takes a millisecond."""


class NodeOptions(msgspec.Struct):
    """The options with which a node is started."""

    head: bool = True
    gcs_endpoint: str = ""
    """Endpoint of the gcs to join; empty for a head."""
    token: bytes = b""
    """Token of the cluster to join; a head with an empty one makes its own."""
    num_cpus: float | None = None
    """Number of CPUs; None means this machine's. None also stands for the defaults of the next options."""
    num_gpus: float | None = None
    """Number of GPUs; ``start_node`` looks for them."""
    memory: float | None = None
    object_store_memory: float | None = None
    gpus: NodeGpus = NodeGpus()
    """How workers are told their GPUs; ``start_node`` finds that out."""
    resources: dict[str, float] = msgspec.field(default_factory=dict)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    env_vars: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment variables of the node's processes, which replace those of this process."""
    node_name: str = ""
    node_ip: str = "127.0.0.1"
    tcp_host: str = ""
    """Address at which the node also listens for other machines; empty means unix sockets only."""
    tcp_port: int = 0
    """TCP port of the gcs; 0 means any free port."""
    storage: str = ""
    """Path of the file with the gcs's tables; empty means in memory."""
    detached: bool = False
    object_spilling_directory: str = ""
    """Place for this node's spill files; empty means that of the cluster's configuration."""
    client_server_port: int | None = None
    """TCP port of the client server (``remote_client``); 0 means any free port, None that there is none."""
    system_config: SystemConfig = msgspec.field(default_factory=SystemConfig)
    include_dashboard: bool = False
    """Whether a head has a dashboard."""
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int = -1
    """TCP port of the dashboard; 0 means any free port, -1 Ray's default port or the next free one."""


class Supervisor(Protocol):
    """Starts and watches the processes of one node: ``OwnedZygote``, or in one process ``LocalSupervisor``."""

    pid: int
    session_dir: str

    @property
    def ended(self) -> bool: ...

    def spawn(
        self,
        role: str,
        name: str,
        config: bytes,
        *,
        log_path: str = "",
        ready: bool = False,
        control: bool = False,
        essential: bool = False,
        respawn: bool = False,
        timeout_s: float = 10.0,
    ) -> int: ...

    def wait_ready(self, pid: int, timeout_s: float) -> bytes: ...

    def poll_exits(self, timeout_s: float = 0.0) -> list[ChildEnd]: ...

    def living(self) -> dict[int, str]: ...

    def latest(self, name: str) -> int | None: ...

    def status_of(self, pid: int) -> ExitStatus | None: ...

    def wait_end(self, pid: int, timeout_s: float | None) -> None: ...

    def kill(self, pid: int, for_good: bool = False) -> None: ...

    def detach(self) -> None: ...

    def disown(self) -> None: ...

    def close(self) -> None: ...


class Node:
    """A running node, in the process that has started it."""

    def __init__(
        self, zygote: Supervisor, file: NodeFile, token: bytes, *, has_external: bool, gcs: GcsConfig | None, cpus: float
    ) -> None:
        self.zygote = zygote
        self.cpus = cpus
        """Number of CPUs of the node."""
        self.file = file
        self.token = token
        self._has_external = has_external
        """Whether the node may have spill files in external storage, which only its raylet can remove."""
        self._gcs = gcs
        """Configuration of the gcs; None on nodes that are not the head."""
        self.dashboard_url = ""
        """Address of the head's dashboard, with its token; empty if it has none."""

    @property
    def node_id(self) -> str:
        return self.file.node_id

    def processes(self) -> dict[str, int]:
        """Return the pids of the living ``gcs`` (head only) and ``raylet``, by name; both die with the zygote."""
        living = self.zygote.living()
        return {} if self.zygote.ended else {name: pid for pid, name in living.items()}

    def kill(self, name: str) -> None:
        """Kill the ``raylet`` (the node dies: G108) or the ``gcs`` with SIGKILL; do nothing if it has ended."""
        pid = self.processes().get(name)
        if pid is not None:
            self.zygote.kill(pid)

    def start_gcs(self) -> None:
        """Start the gcs again, which was killed for good. Raises RuntimeError if this is no head, or has ended."""
        if self._gcs is None:
            raise RuntimeError("only the head node has a gcs")
        try:
            _start_gcs(self._gcs, self.zygote)
        except SpawnFailed as error:
            advice = "" if self._gcs.storage_path else ": without storage a head ends with its gcs"
            raise RuntimeError(f"the gcs could not be started again{advice}: {error}") from None

    def detach(self) -> None:
        """Let the node live on when this process ends. Raises RuntimeError if the node has just ended."""
        try:
            self.zygote.detach()
        except SpawnFailed as error:
            self.zygote.close()
            raise RuntimeError(f"the node has ended: {error}") from None

    def close(self) -> None:
        """End all processes of this node now. If it may have external spill files, first ask its raylet to remove them."""
        if self._has_external and self.processes():
            from minray.node.cluster_client import end_gracefully  # Few nodes need it.

            with suppress(PlatformError, OSError):
                end_gracefully(self.file, self.token, "its program has ended")
        try:
            self.zygote.close()
        finally:
            discard_local(self.file)


# --- starting ----------------------------------------------------------------------------------------------------------


def node_resources(options: NodeOptions, host: Host) -> dict[str, int]:
    """Return the node's total resources, in fixed point.

    Raises ValueError for impossible amounts and reserved names, TypeError for amounts that are not numbers.
    """
    for name in options.resources:
        if not isinstance(name, str):
            raise TypeError(f"the name of a resource must be a str, not {shown(name)}")
        if name in (CPU, GPU, MEMORY, OBJECT_STORE_MEMORY):
            raise ValueError(f"resource {shown(name)} has an argument of its own; it must not be in resources")
    amounts: dict[str, float] = dict(options.resources)
    amounts[CPU] = host.cpu_count if options.num_cpus is None else options.num_cpus
    amounts[GPU] = options.num_gpus or 0
    amounts[OBJECT_STORE_MEMORY] = _store_bytes(options, host)
    amounts[MEMORY] = options.memory or int(host.memory_bytes * 0.7)
    amounts[f"node:{options.node_ip}"] = 1
    for name, amount in amounts.items():
        if not isinstance(amount, int | float):
            raise TypeError(f"the amount of resource {shown(name)} must be a number, not {shown(amount)}")
    if options.head:
        amounts["node:__internal_head__"] = 1
    return resource_set(amounts)


def _store_bytes(options: NodeOptions, host: Host) -> float:
    given = options.object_store_memory
    if given is None:
        system = options.system_config
        most_bytes = None if system.transport == LOCAL else most_arena_bytes(system.arena)
        bounds = [int(host.memory_bytes * 0.3), most_bytes]
        return max(LEAST_STORE_BYTES, min(bound for bound in bounds if bound is not None))
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"object_store_memory must be a number of bytes, not {shown(given)}")
    if not LEAST_STORE_BYTES <= given <= host.memory_bytes:
        most = f"{host.memory_bytes}, which is all that this machine has"
        raise ValueError(f"object_store_memory must be from {LEAST_STORE_BYTES} bytes to {most}, not {given}")
    return given


def _check_texts(options: NodeOptions) -> None:
    """Check texts of the options. Raises TypeError for anything but str, ValueError for text that UTF-8 cannot encode."""
    if not is_environment(options.env_vars):
        raise TypeError(f"env_vars must be a dict from str to str, not {shown(options.env_vars)}")
    texts = {
        "node_name": options.node_name,
        "the node's ip address": options.node_ip,
        "tcp_host": options.tcp_host,
        "storage": options.storage,
    }
    for name, text in texts.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a str, not {shown(text)}")
        check_encodable(name, text)


def start_node(options: NodeOptions) -> Node:
    """Start a node's gcs (head only) and raylet; return when the raylet is registered.

    Raises RuntimeError if they cannot be started, or if this system lacks what they need; TypeError and ValueError for wrong
    options.
    """
    return begin_node(options)()


def begin_node(options: NodeOptions) -> Callable[[], Node]:
    """Start a node's zygote, and return the function that starts the rest of the node with it, as ``start_node``.

    The zygote needs a tenth of a second until it can fork. The caller may do something else in this time. If the function is
    never called, the zygote ends when that is forgotten. Raises as ``start_node``.
    """
    _check_texts(options)
    check_transport(options.system_config)
    if options.client_server_port is not None:
        check_transport(options.system_config.for_clients())
    check_policies(options.system_config)
    is_local = options.system_config.transport == LOCAL
    if options.include_dashboard:
        _check_dashboard(options, is_local)
    if not is_local:
        check_unix_sockets()
        check_arena(options.system_config.arena)
    environ = {**os.environ, **options.env_vars}
    found = gpus_at_start(options.num_gpus, RealDevices(), environ)
    options.num_gpus, options.gpus = found.count, found.gpus
    if found.model:
        options.resources = {f"{TYPE_RESOURCE}{found.model}": 1, **options.resources}
    resources = node_resources(options, RealHost())
    found_labels = {TYPE_LABEL: found.model} if found.model else {}
    options.labels = labels_at_start(options.labels, "TPU" in resources, environ, found_labels)
    if is_local:
        return partial(_start_local, options, resources)
    if options.tcp_host and not options.detached and not options.system_config.tls_cert:
        from minray.platform.transport.tls import OPEN_TRAFFIC, is_reachable  # Nodes of one program do not need it.

        if is_reachable(options.tcp_host):
            logger.warning(OPEN_TRAFFIC)  # `minray start` prints it.
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
        told = os.fsencode("\0".join(import_path()))
        zygote = start_zygote(["-P", "-c", ZYGOTE_PROGRAM], str(session), options.env_vars, told)
    except (OSError, ValueError) as error:  # ValueError: the name of an environment variable is invalid.
        remove_session(str(session))
        raise RuntimeError(f"the node could not be started: {error}") from None
    return partial(_finish_node, options, resources, token, zygote)


def _finish_node(options: NodeOptions, resources: dict[str, int], token: bytes, zygote: Supervisor) -> Node:
    """Start the processes of a node whose zygote begins. Raises RuntimeError."""
    session = Path(zygote.session_dir)
    with _closed_after_failure(zygote, f"cannot write {session / NODE_FILE}"):
        node = _boot(options, resources, token, f"unix:{session / SOCKETS}", zygote)
        if options.include_dashboard:
            node.dashboard_url = _start_dashboard(options, node.file, zygote)
        write_node_file(node.file)
    return node


def _check_dashboard(options: NodeOptions, is_local: bool) -> None:
    """Check that this node can have a dashboard, before it starts. Raises ValueError, TypeError or RuntimeError."""
    if is_local:
        raise ValueError("include_dashboard needs a cluster with processes of its own, which local_mode does not have")
    if not isinstance(options.dashboard_host, str):
        raise TypeError(f"dashboard_host must be a str, not {shown(options.dashboard_host)}")
    port = options.dashboard_port
    if not isinstance(port, int) or isinstance(port, bool):
        raise TypeError(f"dashboard_port must be an int, not {shown(port)}")
    if not -1 <= port <= 65535:
        raise ValueError(f"dashboard_port must be from 0 to 65535, not {port}")
    from minray.dashboard.process import check_installed  # Only nodes with a dashboard need it.

    check_installed()


@contextmanager
def _closed_after_failure(zygote: Supervisor, what_failed: str, advice: str = "") -> Iterator[None]:
    """Close the zygote if its node cannot be started. Raises RuntimeError for SpawnFailed and OSError.

    ``what_failed`` says what an OSError means, ``advice`` what to do about it.
    """
    try:
        yield
    except SpawnFailed as error:
        zygote.close()
        raise RuntimeError(f"the node could not be started: {error}") from None
    except OSError as error:
        zygote.close()
        raise RuntimeError(f"{what_failed}: {error.strerror}{advice}") from None
    except BaseException:
        zygote.close()
        raise


def _start_local(options: NodeOptions, resources: dict[str, int]) -> Node:
    """Start a node inside this process. Raises as ``start_node``."""
    from minray.in_process.session import LocalSession  # Other programs need nothing of that world.
    from minray.in_process.supervisor import LocalSupervisor

    for name in ("env_vars", "tcp_host"):
        if getattr(options, name):
            raise ValueError(f"{name} needs a node with processes of its own, which local_mode does not have")
    system, replace = options.system_config, msgspec.structs.replace
    prestarted = LOCAL_PRESTARTED if system.num_prestart_workers < 0 else system.num_prestart_workers
    # To end a worker would give little memory back: it is all in this process.
    options.system_config = replace(system, num_prestart_workers=prestarted, memory_monitor_refresh_ms=0)
    path = new_session_path()
    session = LocalSession(str(path), partial(begin_local_session, path))
    supervisor = LocalSupervisor(options.gcs_endpoint, options.system_config, session)
    with _closed_after_failure(supervisor, f"cannot create {path}", "; set MINRAY_TMPDIR to another path"):
        if _places_to_spill(options):
            session.directory()
        node = _boot(options, resources, b"", supervisor.socket_dir, supervisor)
    local_nodes.append(node.file)
    return node


def import_path() -> list[str]:
    """Return this process's ``sys.path`` as absolute paths, with which other processes find its modules.

    The entry "" (an interactive session) means the current directory.
    """
    return [os.path.abspath(entry) for entry in sys.path]


def _boot(options: NodeOptions, resources: dict[str, int], token: bytes, socket_dir: str, zygote: Supervisor) -> Node:
    session = Path(zygote.session_dir)
    gcs_endpoint = options.gcs_endpoint
    gcs_address = gcs_endpoint.removeprefix("tcp:")
    gcs = _gcs_config(options, socket_dir, session) if options.head else None
    if gcs is not None:
        _start_gcs(gcs, zygote)
        gcs_endpoint, gcs_address = gcs.endpoints[0], gcs.endpoints[-1].removeprefix("tcp:")
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
        spill_directories=_spill_directories(options, session),
        gpus=options.gpus,
        policy_path=_policy_path(options.system_config),
    )
    encoded = msgspec.msgpack.encode(config)
    restarts = options.head and options.detached
    _start_process(zygote, "raylet", encoded, control=True, essential=not options.head, respawn=restarts)
    client_server = _start_client_server(options, zygote) if options.client_server_port is not None else ""
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
        client_server=client_server,
    )
    has_external, cpus = any(map(is_external, config.spill_directories)), to_floats(resources).get(CPU, 0)
    return Node(zygote, file, token, has_external=has_external, gcs=gcs, cpus=cpus)


def _places_to_spill(options: NodeOptions) -> str:
    return options.object_spilling_directory or options.system_config.object_spilling_directory


def _spill_directories(options: NodeOptions, session: Path) -> list[str]:
    """Make the directories for spill files of this session. Raises RuntimeError if one cannot be made."""
    places = _places_to_spill(options)
    if options.system_config.transport == LOCAL and not places:
        return [str(session / SPILL / "0")]  # in the session directory, which is made when something is spilled
    try:
        return make_spill_directories(str(session), split_places(places or default_spilling_place(session)))
    except OSError as error:
        raise RuntimeError(f"cannot spill objects to {error.filename}: {error.strerror}") from None


def _gcs_config(options: NodeOptions, socket_dir: str, session: Path) -> GcsConfig:
    """Describe the gcs. Its first endpoint is for this node, its last one for other nodes and drivers."""
    endpoints = [f"{socket_dir}/gcs"]
    if options.tcp_host:
        endpoints.append(f"tcp:{options.tcp_host}:{options.tcp_port}")
    system = options.system_config
    return GcsConfig(endpoints, options.storage, session.name, system, policy_path=_policy_path(system))


def _policy_path(config: SystemConfig) -> list[str]:
    """Return where gcs and raylet find the modules of the program's policies; nothing if it has none."""
    return import_path() if has_foreign_policies(config) else []


def _start_gcs(config: GcsConfig, zygote: Supervisor) -> None:
    durable = bool(config.storage_path)
    _start_process(zygote, "gcs", msgspec.msgpack.encode(config), essential=not durable, respawn=durable)


def _start_dashboard(options: NodeOptions, file: NodeFile, zygote: Supervisor) -> str:
    """Start the dashboard of a head and return its address. It is started again if it crashes, and ends with the node."""
    config = DashboardConfig(
        gcs_endpoint=file.gcs_endpoint,
        gcs_address=file.gcs_address,
        session_dir=file.session_dir,
        host=options.dashboard_host,
        port=options.dashboard_port,
        system_config=options.system_config,
    )
    return _start_process(zygote, "dashboard", msgspec.msgpack.encode(config), respawn=True)


def _start_client_server(options: NodeOptions, zygote: Supervisor) -> str:
    """Start the client server; return its address. It is started again when it crashes, so its port is chosen here."""
    host = options.tcp_host or options.node_ip
    try:
        port = options.client_server_port or free_port(host)
    except PlatformError as error:
        raise RuntimeError(f"the client server could not be started: {error}") from None
    config = ClientServerConfig(zygote.session_dir, host, port, options.system_config)
    return _start_process(zygote, "client_server", msgspec.msgpack.encode(config), respawn=True)


def _start_process(
    zygote: Supervisor, name: str, config: bytes, *, control: bool = False, essential: bool = False, respawn: bool = False
) -> str:
    """Start a process of the node; return when it reports that it is ready, with what it adds to that report.

    Raises RuntimeError if it reports a failure.
    """
    log = os.path.join(zygote.session_dir, LOGS, f"{name}.log")
    pid = zygote.spawn(name, name, config, log_path=log, ready=True, control=control, essential=essential, respawn=respawn)
    words = msgspec.json.decode(zygote.wait_ready(pid, START_TIMEOUT_S), type=list[str])
    if words[0] != "ready":
        raise RuntimeError(f"the {name.replace('_', ' ')} could not be started: {words[1]}")
    return words[1] if len(words) > 1 else ""
