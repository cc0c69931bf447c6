"""A driver's connection: ``init``, ``shutdown``, and the choice of the cluster.

Ray: ray.init in python/ray/_private/worker.py

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
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from minray._version import __version__
from minray.api import calls as worker
from minray.api.runtime_environment import SETUP_HOOK, check_job_runtime_env, merge_runtime_env
from minray.common.config import LOCAL, SystemConfig, WorkerConfig, store_endpoint
from minray.common.forks import at_fork
from minray.common.labels import check_labels
from minray.common.resources import CPU
from minray.common.shown import check_encodable, cut, shown
from minray.common.task_spec import RuntimeEnvInfo
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.execution.job_environment import pack_hook
from minray.core_worker.user_threads.user_api import UserApi
from minray.exceptions import LocalRayletDiedError
from minray.node.discovery import NodeFile, candidates, session_token, with_environment
from minray.node.ide_debugger import with_debugger
from minray.node.node import Node, NodeOptions, import_path, start_node
from minray.node.notebook import CellOutput, running_shell
from minray.node.own_thread import OwnThread, join
from minray.node.raylet_restart import successor_of, when_listening
from minray.node.worker_output import LinePrinter
from minray.platform.base import PlatformError
from minray.platform.process import sigterm
from minray.platform.process.host import raise_file_limit
from minray.platform.process.session import LOGS
from minray.platform.threads.user_code import DriverUserCode, LockParker
from minray.protocol.gcs import JobConfig
from minray.protocol.raylet import FlushLogs
from minray.values.object_ref import ObjectRef

if TYPE_CHECKING:
    from minray.node.packages import PackedEnvironment  # see ``_packed``

CONNECT_TIMEOUT_S = 10.0
"""Seconds that a driver has to register with its raylet and gcs before ``init`` fails."""
FLUSH_TIMEOUT_S = 2.0
"""Seconds that ``shutdown`` waits for the last lines of workers, and again for the connection to close."""
logger = logging.getLogger("minray")

IGNORED_ARGUMENTS = (
    "include_dashboard",
    "dashboard_host",
    "dashboard_port",
    "job_config",
    "configure_logging",
    "logging_format",
    "logging_config",
    "enable_resource_isolation",
    "system_reserved_cpu",
    "system_reserved_memory",
    "cgroup_path",
    "proxy_server_url",
    "_node_ip_address",
    "_temp_dir",
    "_plasma_directory",
    "_metrics_export_port",
    "_redis_username",
    "_redis_password",
    "_tracing_startup_hook",
    "_enable_object_reconstruction",
)
"""Arguments of Ray's ``init`` that are accepted and ignored: minray does not have what they configure."""


class RayContext(Mapping[str, Any]):
    """Result of ``init``: a mapping with the cluster's addresses, and a context manager that calls ``shutdown``."""

    dashboard_url = ""
    python_version = sys.version.partition(" ")[0]
    ray_version = __version__

    def __init__(self, address_info: dict[str, Any]) -> None:
        self.address_info = address_info

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


class _DriverConnection:
    """The parts that ``init`` has started and ``shutdown`` must end."""

    def __init__(
        self,
        node: Node | None,
        file: NodeFile,
        thread: OwnThread,
        user_code: DriverUserCode,
        core: CoreWorker,
        printer: LinePrinter,
    ) -> None:
        self.node = node
        """Node that ``init`` has started; None if it joined a cluster."""
        self.file = file
        self.thread = thread
        self.user_code = user_code
        self.core = core
        self.printer = printer
        self.cells: CellOutput | None = None
        """Follower of the cells of the notebook that this program is; None if it is none, or shows no lines."""
        self.pid = os.getpid()
        self.packages: list[ObjectRef[Any]] = []
        """References to the large packages of the runtime environment; they live as long as the connection."""


_connection: _DriverConnection | None = None
_inherited: list[_DriverConnection] = []
"""Connections of the parent in a forked child. They are kept here because garbage collection would close them, and they
still belong to the parent."""


_changing = threading.RLock()
"""Lock held by the thread that connects or disconnects this process."""
_is_leaving = False
"""Whether the interpreter is ending."""
_sigterm_pid = 0
"""Id of the process that has installed the handler of SIGTERM; differs from ``os.getpid()`` in a forked child."""

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def _one_at_a_time(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Decorate a function that connects or disconnects this process, so that only one thread at a time runs it."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        if _is_in_local_worker():  # It changes nothing, and must not wait for a program that ends its worker.
            return function(*args, **kwargs)
        with _changing:
            return function(*args, **kwargs)

    return call


def _after_fork() -> None:
    """Renew the lock, which another thread of the parent may have held, and remove the parent's handler of SIGTERM."""
    global _changing
    _changing = threading.RLock()
    _leave_sigterm()


at_fork(after_in_child=_after_fork)


def _on_sigterm(signal_number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _sigterm_pid:  # a forked child that has not reached ``_after_fork`` yet, where an exception is lost
        sigterm.end_copy()
    sys.exit(signal_number)


def _take_sigterm() -> None:
    """Handle SIGTERM with ``sys.exit``, so that the program cleans up; leave a handler of the program as it is."""
    global _sigterm_pid
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        _sigterm_pid = os.getpid()
        signal.signal(signal.SIGTERM, _on_sigterm)


def _leave_sigterm() -> None:
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == _on_sigterm:
        sigterm.give_back()


def is_initialized() -> bool:
    """Return whether this process is connected to a cluster."""
    return worker.connected_api() is not None


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
    local_mode: bool = False,
    _system_config: dict[str, Any] | None = None,
    _memory: float | None = None,
    _node_name: str | None = None,
    **ignored: Any,
) -> RayContext:
    """Start a cluster on this machine, or join one.

    ``address``: "local" starts a cluster that ends with this process. "auto" joins the ``Cluster`` of this process, or the
    newest cluster that ``minray start`` has started. An address or a session directory names one. None means
    ``$MINRAY_ADDRESS`` (or ``$RAY_ADDRESS``), else "auto" if such a cluster runs, else "local".

    ``local_mode`` starts a whole cluster inside this process, in milliseconds, for tests: ``docs/testing.md``.

    Options of a node that is started (ValueError when joining): ``num_cpus`` (default: this machine's), ``num_gpus``
    (logical, 0), ``resources``, ``labels``, ``object_store_memory`` (bytes), ``_system_config`` and
    ``object_spilling_directory``. The last one is the place for spill files: a directory or URL (``s3://...``), or several
    joined by ``os.pathsep``, which are used in turn.

    ``runtime_env`` applies to all tasks of this driver. Its local ``working_dir`` and ``py_modules`` are packed and
    uploaded, and tasks run in the unpacked copy. Its ``worker_process_setup_hook``, a function or the name of one, is called
    by each worker before its first task. ``log_to_driver=False`` hides what workers print. Returns a mapping with the
    cluster's addresses that is also a context manager. Until ``shutdown``, SIGTERM ends the program with ``sys.exit``, if
    this is the main thread and the program has no handler for that signal.

    Raises RuntimeError if this process is connected already (unless ``ignore_reinit_error``), a node cannot start, or an
    argument is unknown; ConnectionError if the cluster cannot be reached or refuses the token; ValueError and TypeError for
    wrong arguments; RuntimeEnvSetupError if a directory cannot be uploaded.
    """
    global _connection
    _set_aside_inherited()
    _check_arguments(ignored)
    if _connection is not None or worker.connected_api() is not None:
        return _existing_context(ignore_reinit_error)
    _check_types(address=(address, str), namespace=(namespace, str), resources=(resources, dict), labels=(labels, dict))
    _check_types(object_spilling_directory=(object_spilling_directory, str), _node_name=(_node_name, str))
    _check_words(labels or {}, namespace or "")
    _set_level(logging_level)
    address, _system_config = _local(address, local_mode, _system_config)
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
    }
    options = _node_options(**of_the_node)
    packed, job = _packed(runtime_env), _job_config(namespace, runtime_env)
    if files := candidates(address):
        _check_joining(of_the_node)
        _connection = _join(files, job, packed, log_to_driver)
    else:
        _connection = _start(options, job, packed, log_to_driver)
    return RayContext(_address_info_of_driver(_connection.file))


def _check_words(labels: dict[str, str], namespace: str) -> None:
    check_labels(labels)
    check_encodable("namespace", namespace)


def _local(
    address: str | None, local_mode: bool, system_config: dict[str, Any] | None
) -> tuple[str | None, dict[str, Any] | None]:
    """Return address and system config, for local mode those of a cluster inside this process.

    Raises ValueError for the address of another cluster, TypeError for a ``local_mode`` that is no bool.
    """
    _check_types(local_mode=(local_mode, bool))
    if not local_mode:
        return address, system_config
    if address not in (None, "local"):
        raise ValueError(f"local_mode starts a cluster inside this process, so it cannot join {shown(address)}")
    return "local", {**(system_config or {}), "transport": LOCAL}


def _check_types(**arguments: tuple[Any, type]) -> None:
    for name, (value, wanted) in arguments.items():
        if value is not None and not isinstance(value, wanted):
            raise TypeError(f"{name} must be a {wanted.__name__}, not {type(value).__name__}")


def _inherit(connection: _DriverConnection) -> None:
    """In a forked child, keep the parent's connection: its cluster must not end with this process."""
    if connection.node is not None:
        connection.node.zygote.disown()
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
        connection = None if _is_in_local_worker() else _connection
        return RayContext(_address_info_of_worker() if connection is None else _address_info_of_driver(connection.file))
    raise RuntimeError("this process is connected already; call shutdown() first, or pass ignore_reinit_error=True")


def _is_in_local_worker() -> bool:
    """Return whether the caller is a worker inside this process, whose connection is not that of the program."""
    api = worker.current_process_api.get(None)
    return api is not None and api is not worker._process_api


def _node_options(
    *, _system_config: dict[str, Any] | None, object_spilling_directory: str | None, **of_the_node: Any
) -> NodeOptions:
    """Return the options of the node that ``init`` may start; raise ValueError for a wrong ``_system_config``."""
    overrides = with_environment(_system_config)
    if object_spilling_directory is not None:
        overrides["object_spilling_directory"] = object_spilling_directory
    return NodeOptions(
        num_cpus=of_the_node["num_cpus"],
        num_gpus=of_the_node["num_gpus"],
        memory=of_the_node["_memory"],
        object_store_memory=of_the_node["object_store_memory"],
        resources=dict(of_the_node["resources"] or {}),
        labels=dict(of_the_node["labels"] or {}),
        node_name=of_the_node["_node_name"] or "",
        system_config=SystemConfig.from_overrides(overrides),
    )


def _job_config(namespace: str | None, runtime_env: dict[str, Any] | None) -> JobConfig:
    working_dir = _working_directory()  # first, since the path may be relative to it
    return JobConfig(
        sys_path=import_path(),
        working_dir=working_dir,
        namespace=namespace or "",
        entrypoint=_entrypoint(),
        setup_hook=pack_hook(with_debugger((runtime_env or {}).get(SETUP_HOOK))),
    )


def _packed(runtime_env: dict[str, Any] | None) -> PackedEnvironment | None:
    """Check a runtime environment and pack its directories; None if there is no environment."""
    if not runtime_env:
        return None
    check_job_runtime_env("runtime_env", runtime_env)
    # Imported here, because it imports much that a program without a runtime environment does not need.
    from minray.node.packages import pack

    return pack(runtime_env)


def _check_joining(of_the_node: dict[str, Any]) -> None:
    given = [name for name, value in of_the_node.items() if value is not None]
    if given:
        only = "only for a node that init() starts, but it joins a running cluster; address='local' starts one"
        raise ValueError(f"{', '.join(given)}: {only}")


def _check_arguments(ignored: dict[str, Any]) -> None:
    _check_types(_temp_dir=((directory := ignored.get("_temp_dir")), str))
    if directory is not None and not os.path.isabs(directory):
        raise ValueError(f"_temp_dir must be an absolute path or None, not {shown(directory)}")
    if unknown := [name for name in ignored if name not in IGNORED_ARGUMENTS]:
        raise RuntimeError(f"Unknown keyword argument(s): {', '.join(map(cut, unknown))}")


def _set_level(level: int | str) -> None:
    logger.setLevel(level.upper() if isinstance(level, str) else level)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)


def _start(
    options: NodeOptions, job: JobConfig, packed: PackedEnvironment | None, log_to_driver: bool | None
) -> _DriverConnection:
    """Start a cluster that ends with this process, and connect this process as its driver."""
    node = start_node(options)
    try:
        connection = _connect(node, node.file, node.token, job, packed, log_to_driver)
    except BaseException:
        node.close()
        raise
    cpus = worker.nodes()[0]["Resources"].get(CPU, 0)
    logger.info("minray %s started a local cluster with %g CPUs; session %s", __version__, cpus, node.file.session_dir)
    return connection


def _join(
    files: list[NodeFile], job: JobConfig, packed: PackedEnvironment | None, log_to_driver: bool | None
) -> _DriverConnection:
    """Connect this process as a driver to the first of these nodes that answers.

    Raises the first node's ConnectionError if none answers.
    """
    errors: list[ConnectionError] = []
    for file in files:
        try:
            return _join_node(file, job, packed, log_to_driver)
        except RuntimeError as error:
            errors.append(ConnectionError(f"cannot join the cluster at {file.gcs_address}: {error}"))
        except ConnectionError as error:
            errors.append(error)
    raise errors[0]


def _join_node(
    file: NodeFile, job: JobConfig, packed: PackedEnvironment | None, log_to_driver: bool | None
) -> _DriverConnection:
    """Connect this process as a driver to a node, or to the one that has taken its place meanwhile."""
    if file.system_config.transport == LOCAL:
        return _connect(None, file, b"", job, packed, log_to_driver)
    while True:
        file = when_listening(file)
        try:
            return _connect(None, file, session_token(file.session_dir), job, packed, log_to_driver)
        except ConnectionError:
            newer = successor_of(file)
            if newer is None:
                raise
            file = newer


def _connect(
    node: Node | None,
    file: NodeFile,
    token: bytes,
    job: JobConfig,
    packed: PackedEnvironment | None,
    log_to_driver: bool | None,
) -> _DriverConnection:
    thread, user_code, core = _make_core(file, token)
    printer = LinePrinter(file.system_config.log_deduplication_window_s, core.platform.user_code.time)
    if log_to_driver or log_to_driver is None:
        core.on_lines = printer.show
    try:
        thread.run(core.start(job), CONNECT_TIMEOUT_S)
    except BaseException as error:
        with suppress(PlatformError, TimeoutError):
            thread.run(core.close(), FLUSH_TIMEOUT_S)
        thread.stop()
        if not isinstance(error, PlatformError | TimeoutError):
            raise
        raise ConnectionError(
            f"cannot join the cluster at {file.gcs_address}: {error or 'no answer in time'}"
            f" (the logs of its processes are in {os.path.join(file.session_dir, LOGS)})"
        ) from None
    api, connection = UserApi(core.user_port()), _DriverConnection(node, file, thread, user_code, core, printer)
    if packed is not None:
        try:
            connection.packages = packed.upload(api)
        except BaseException:
            _disconnect(connection)
            raise
        core.context.environment = merge_runtime_env(RuntimeEnvInfo(), packed.environment)
    worker.connect_process(api)
    _take_sigterm()
    shell = running_shell()
    if shell is not None and core.on_lines is not None:
        connection.cells = CellOutput(shell, printer.show_in, lambda: _flush_lines(connection))
        connection.cells.start()
    return connection


def _make_core(file: NodeFile, token: bytes) -> tuple[OwnThread, DriverUserCode, CoreWorker]:
    """Make a core worker for this process, on a thread of its own; the caller starts it."""
    raise_file_limit()
    worker_id = secrets.token_bytes(16)
    thread, user_code, platform = join("driver", worker_id, file.gcs_endpoint, token, file.system_config)
    config = WorkerConfig(
        worker_id=worker_id,
        node_id=bytes.fromhex(file.node_id),
        node_ip=file.node_ip,
        raylet_endpoint=file.raylet_endpoint,
        gcs_endpoint=file.gcs_endpoint,
        socket_dir=file.socket_dir,
        tcp_host=file.tcp_host,
        session_dir=file.session_dir,
        is_driver=True,
        system_config=file.system_config,
    )
    async def make() -> CoreWorker:
        return CoreWorker(platform, config)

    return thread, user_code, thread.run(make())


def _working_directory() -> str:
    """Return the working directory of this driver's tasks. Raises RuntimeError if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise RuntimeError("the current directory has been removed; os.chdir() to another one before init()") from None


def _entrypoint() -> str:
    """Return this program's command line as text; bytes of file names that are not text are escaped."""
    return " ".join(sys.argv).encode(errors="backslashreplace").decode()


def _address_info(node: NodeFile | WorkerConfig, gcs_address: str, node_id: bytes) -> dict[str, Any]:
    """Return the addresses with Ray's keys; those of parts that minray does not have are empty or None."""
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


def _address_info_of_driver(file: NodeFile) -> dict[str, Any]:
    return _address_info(file, file.gcs_address, bytes.fromhex(file.node_id))


def _address_info_of_worker() -> dict[str, Any]:
    """Return the addresses for a task that calls ``init(ignore_reinit_error=True)``, as libraries do."""
    config = worker.current_api().config
    return _address_info(config, config.gcs_endpoint.removeprefix("tcp:"), config.node_id)


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
    worker.connect_process(None)
    _leave_sigterm()
    if connection.pid != os.getpid():
        _inherit(connection)
        return
    try:
        _disconnect(connection)
    finally:  # also after Ctrl-C, or an error in the callback of a future that failed just now
        if connection.node is not None:
            connection.node.close()


def _disconnect(connection: _DriverConnection) -> None:
    core = connection.core
    try:
        if connection.cells is not None:
            connection.cells.stop()
        if core.raylet.death is None:  # Also if no lines are shown: they must reach the session's logs.
            _flush_lines(connection)
        connection.thread.run(core.close(tells_threads=not _is_leaving), FLUSH_TIMEOUT_S)
    except (PlatformError, TimeoutError) as error:
        logger.debug("the cluster did not answer while this driver disconnected: %s", error)
    finally:
        connection.thread.stop()
        if not _is_leaving:
            connection.user_code.close(lambda: LocalRayletDiedError(reason="this driver has left its cluster"))


def _flush_lines(connection: _DriverConnection) -> None:
    """Wait until the lines that this node's workers have printed are shown here, or the raylet does not answer."""
    with suppress(PlatformError, TimeoutError):
        connection.thread.run(_flush_logs(connection.core), FLUSH_TIMEOUT_S)
    connection.printer.flush_repetitions()


async def _flush_logs(core: CoreWorker) -> None:
    await core.raylet.call(FlushLogs(core.context.job_id))


def auto_init() -> None:
    """Call ``init`` in the first thread that needs a cluster; other threads wait for it.

    While the interpreter ends, a daemon thread waits here for ever, and the main thread raises RuntimeError.
    """
    with _changing:
        if not _is_leaving and worker.connected_api() is None:
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
