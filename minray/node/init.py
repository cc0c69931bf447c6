"""A driver's connection: ``init``, ``shutdown``, and the choice of the cluster.

Ray: ray.init in python/ray/_private/calls.py

``init()`` starts a cluster that ends with this process, or joins a running one. ``address`` decides: "local" starts one;
"auto" joins the newest that ``minray start`` has started (ConnectionError if there is none); anything else names a cluster.
None means ``$MINRAY_ADDRESS`` (or ``$RAY_ADDRESS``), else "auto" if such a cluster runs, else "local". A cluster that
another program's ``init()`` has started is joined only by its address. A ``Cluster`` that this process has made comes before
those of ``minray start``.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from minray._version import __version__
from minray.api import calls
from minray.api.runtime_environment import check_job_runtime_env
from minray.common.forks import at_fork
from minray.common.shown import ShownInNotebooks
from minray.node.addresses import addresses_of_driver, addresses_of_worker
from minray.node.arguments import (
    Driver,
    check_ignored,
    check_joining,
    check_logging_config,
    check_texts_and_dicts,
    dashboard_arguments,
    job_config,
    node_options,
    with_local_mode,
)
from minray.node.discovery import NodeFile, candidates, client_server_of
from minray.node.node import NodeOptions, begin_node
from minray.node.termination import leave_sigterm
from minray.platform.base import PROTOCOL_VERSION
from minray.platform.threads.user_code import LockParker

if TYPE_CHECKING:
    from minray.logging_config import LoggingConfig
    from minray.node.driver_connection import DriverConnection
    from minray.node.packages import PackedEnvironment  # see ``_packed``

logger = logging.getLogger("minray")


class RayContext(ShownInNotebooks, Mapping[str, Any]):
    """Result of ``init``: a mapping with the cluster's addresses, and a context manager that calls ``shutdown``."""

    python_version = sys.version.partition(" ")[0]
    ray_version = __version__

    def __init__(self, address_info: dict[str, Any]) -> None:
        self.address_info = address_info

    @property
    def dashboard_url(self) -> str:
        """Host and port of the head's dashboard, as in Ray; empty if it has none, or this process is not connected."""
        return calls.dashboard_address()

    def __getitem__(self, key: str) -> Any:
        return self.address_info[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.address_info)

    def __len__(self) -> int:
        return len(self.address_info)

    def __enter__(self) -> RayContext:
        return self

    def __exit__(self, *_: object) -> None:
        shutdown()

    def disconnect(self) -> None:
        shutdown()

    def __repr__(self) -> str:
        return f"RayContext({self.address_info})"


class ClientContext(RayContext):
    """Result of ``init`` with the address of a client server; it has Ray's fields of such a context."""

    ray_commit = ""
    protocol_version = str(PROTOCOL_VERSION)

    def __init__(self, address_info: dict[str, Any], num_clients: int) -> None:
        super().__init__(address_info)
        self._num_clients = num_clients

    def __repr__(self) -> str:
        return f"ClientContext({self.address_info})"


_connection: DriverConnection | None = None
_inherited: list[DriverConnection] = []
"""Connections of the parent in a forked child. They are kept here because garbage collection would close them, and they
still belong to the parent."""
_changing = threading.RLock()
"""Lock held by the thread that connects or disconnects this process."""
_is_leaving = False
"""Whether the interpreter is ending."""

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def _one_at_a_time(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Decorate a function that connects or disconnects this process, so that only one thread at a time runs it."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        if _is_in_local_worker():  # It changes nothing, and must not wait for a program that ends its calls.
            return function(*args, **kwargs)
        with _changing:
            return function(*args, **kwargs)

    return call


def _after_fork() -> None:
    """Renew the lock, which another thread of the parent may have held."""
    global _changing
    _changing = threading.RLock()


at_fork(after_in_child=_after_fork)


@_one_at_a_time
def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: dict[str, float] | None = None,
    labels: dict[str, str] | None = None,
    object_store_memory: float | None = None,
    object_spilling_directory: str | None = None,
    ignore_reinit_error: bool = False,
    namespace: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    log_to_driver: bool | None = None,
    logging_level: int | str = logging.INFO,
    logging_config: LoggingConfig | None = None,
    local_mode: bool = False,
    include_dashboard: bool | None = None,
    dashboard_host: str | None = None,
    dashboard_port: int | None = None,
    _system_config: dict[str, Any] | None = None,
    _memory: float | None = None,
    _node_name: str | None = None,
    **ignored: Any,
) -> RayContext:
    """Start a cluster on this machine, or join one.

    ``address``: "local" starts a cluster that ends with this process. "auto" joins the ``Cluster`` of this process, or the
    newest cluster that ``minray start`` has started. An address or a session directory names one. "minray://host:port" (or
    "ray://...") is the address of a client server, for a machine without a node: ``docs/remote_clients.md``. None means
    ``$MINRAY_ADDRESS`` (or ``$RAY_ADDRESS``), else "auto" if such a cluster runs, else "local".

    ``include_dashboard`` adds a web page about it, at ``dashboard_host`` and ``dashboard_port``: ``docs/dashboard.md``.

    ``local_mode`` starts a whole cluster inside this process, in milliseconds, for tests: ``docs/testing.md``.

    Options of a node that is started (ValueError when joining): ``num_cpus`` and ``num_gpus`` (default: this machine's),
    ``resources``, ``labels``, ``object_store_memory`` (bytes), ``_system_config`` and ``object_spilling_directory``. The
    last one is the place for spill files: a directory or URL (``s3://...``), or several joined by ``os.pathsep``, which are
    used in turn.

    ``runtime_env`` applies to all tasks of this driver. Its local ``working_dir`` and ``py_modules`` are packed and
    uploaded, and tasks run in the unpacked copy. Its ``worker_process_setup_hook``, a function or the name of one, is called
    by each worker before its first task. ``log_to_driver=False`` hides what workers print. ``logging_config``, a
    ``LoggingConfig``, sets up Python's logging here and in the workers of the job. Returns a mapping with the cluster's
    addresses that is also a context manager. Until ``shutdown``, SIGTERM ends the program with ``sys.exit``, if this is the
    main thread and the program has no handler for that signal.

    Raises RuntimeError if this process is connected already (unless ``ignore_reinit_error``), a node cannot start, or an
    argument is unknown; ConnectionError if the cluster cannot be reached or refuses the token; ValueError and TypeError for
    wrong arguments; RuntimeEnvSetupError if a directory cannot be uploaded.
    """
    _set_aside_inherited()
    check_ignored(ignored)
    if _connection is not None or calls.connected_api() is not None:
        return _existing_context(ignore_reinit_error)
    check_texts_and_dicts(address, namespace, resources, labels, object_spilling_directory, _node_name)
    check_logging_config(logging_config)
    _set_level(logging_level)
    address, _system_config = with_local_mode(address, local_mode, _system_config)
    of_the_node: dict[str, Any] = {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "resources": resources or None,
        "labels": labels or None,
        "object_store_memory": object_store_memory,
        "object_spilling_directory": object_spilling_directory,
        "_system_config": _system_config or None,
        "_memory": _memory,
        "_node_name": _node_name,
        **dashboard_arguments(include_dashboard, dashboard_host, dashboard_port),
    }
    options = node_options(of_the_node)
    driver = Driver(_packed(runtime_env), job_config(namespace, runtime_env, logging_config), log_to_driver in (None, True))
    context = _connect(address, of_the_node, options, driver)
    if logging_config is not None:
        logging_config.apply(also=(logger.name,))
    return context


def _connect(address: str | None, of_the_node: Mapping[str, Any], options: NodeOptions, driver: Driver) -> RayContext:
    """Join the cluster that ``address`` means, or start one with these options."""
    global _connection
    if (server := client_server_of(address)) is not None:
        return _init_as_client(server, driver, of_the_node)
    files = _nodes_to_join(address, of_the_node)
    finish_node = None if files else begin_node(options)
    # The rest of a driver, the core worker before all, is imported while the zygote of its node does its own imports.
    from minray.node import driver_connection

    _connection = driver_connection.start(finish_node, driver) if finish_node else driver_connection.join(files, driver)
    return RayContext(addresses_of_driver(_connection.file))


def _nodes_to_join(address: str | None, of_the_node: Mapping[str, Any]) -> list[NodeFile]:
    """Return the nodes that may be joined; none to start one. Raises ValueError for options of a node, if one is joined."""
    files = candidates(address)
    if files:
        check_joining(of_the_node)
    return files


def _init_as_client(server: str, driver: Driver, of_the_node: Mapping[str, Any]) -> ClientContext:
    """Connect this process to the client server at host and port."""
    global _connection
    check_joining(of_the_node)
    from minray.remote_client.connect import connect_client  # Other programs need none of it.

    _connection, clients = connect_client(server, driver)
    return ClientContext(addresses_of_driver(_connection.file), clients)


def _set_level(level: int | str) -> None:
    logger.setLevel(level.upper() if isinstance(level, str) else level)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)


def _packed(runtime_env: dict[str, Any] | None) -> PackedEnvironment | None:
    """Check a runtime environment and pack its directories; None if there is no environment."""
    if not runtime_env:
        return None
    check_job_runtime_env("runtime_env", runtime_env)
    # Imported here, because it imports much that a program without a runtime environment does not need.
    from minray.node.packages import pack

    return pack(runtime_env)


def _inherit(connection: DriverConnection) -> None:
    """In a forked child, keep the parent's connection: its cluster must not end with this process."""
    connection.disown()
    _inherited.append(connection)


def _set_aside_inherited() -> None:
    """In a forked child, keep the parent's connection without using it."""
    global _connection
    if _connection is not None and _connection.pid != os.getpid() and not _is_in_local_worker():
        _inherit(_connection)
        _connection = None


def _existing_context(ignore_reinit_error: bool) -> RayContext:
    """Return the context of a process that is connected already, or raise RuntimeError."""
    if ignore_reinit_error:
        if _connection is None or _is_in_local_worker():
            return RayContext(addresses_of_worker(calls.current_api().config))
        return RayContext(addresses_of_driver(_connection.file))
    raise RuntimeError("this process is connected already; call shutdown() first, or pass ignore_reinit_error=True")


def _is_in_local_worker() -> bool:
    """Return whether the caller is a worker inside this process, whose connection is not that of the program."""
    api = calls.current_process_api.get(None)
    return api is not None and api is not calls._process_api


@_one_at_a_time
def shutdown() -> None:
    """Disconnect this process. A cluster that ``init`` has started ends, with everything in it.

    Does nothing if this process is not connected, and nothing in a task, whose connection belongs to its worker.
    """
    global _connection
    if _is_in_local_worker():
        return
    if _connection is not None:
        _connection.user_code.refuse_on_loop()
    connection, _connection = _connection, None
    if connection is None:
        return
    calls.connect_process(None)
    leave_sigterm()
    if connection.pid != os.getpid():
        _inherit(connection)
        return
    connection.close(interpreter_ends=_is_leaving)


def auto_init() -> None:
    """Call ``init`` in the first thread that needs a cluster; other threads wait for it.

    While the interpreter ends, a daemon thread waits here for ever, and the main thread raises RuntimeError.
    """
    with _changing:
        if not _is_leaving and calls.connected_api() is None:
            init()
    if _is_leaving and threading.current_thread() is not threading.main_thread():
        LockParker().wait(None)
    if _is_leaving:
        raise RuntimeError("minray has been shut down, because the interpreter is ending")


def _leave() -> None:
    """Disconnect when the interpreter ends. The remaining threads are daemons; ``auto_init`` stops them from connecting."""
    global _is_leaving
    _is_leaving = True
    shutdown()


atexit.register(_leave)
