"""The arguments of ``init``: which there are, what is checked, and what follows from them for a node and a job.

Ray: ray.init in python/ray/_private/worker.py

All checks come before anything is started, so that a wrong argument leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from minray.api.runtime_environment import SETUP_HOOK
from minray.common.config import LOCAL, SystemConfig
from minray.common.labels import check_labels
from minray.common.shown import check_encodable, cut, shown
from minray.node.discovery import with_environment
from minray.node.node import NodeOptions, import_path
from minray.protocol.gcs import JobConfig

if TYPE_CHECKING:
    from minray.logging_config import LoggingConfig
    from minray.node.packages import PackedEnvironment

IGNORED = (
    "job_config",
    "configure_logging",
    "logging_format",
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


class Driver(msgspec.Struct, frozen=True, eq=False):
    """A program, as it joins a cluster: its job, its environment and its wishes."""

    packed: PackedEnvironment | None
    """The directories of its runtime environment, to be uploaded; None if it has no environment."""
    job: JobConfig
    shows_lines: bool
    """Whether it shows what workers print."""


def check_ignored(ignored: Mapping[str, Any]) -> None:
    """Check the arguments that ``init`` ignores. Raises RuntimeError for one that Ray does not have either."""
    check_types(_temp_dir=((directory := ignored.get("_temp_dir")), str))
    if directory is not None and not os.path.isabs(directory):
        raise ValueError(f"_temp_dir must be an absolute path or None, not {shown(directory)}")
    if unknown := [name for name in ignored if name not in IGNORED]:
        raise RuntimeError(f"Unknown keyword argument(s): {', '.join(map(cut, unknown))}")


def check_types(**arguments: tuple[Any, type]) -> None:
    """Check that each argument, given as (value, type), is None or of its type. Raises TypeError."""
    for name, (value, wanted) in arguments.items():
        if value is not None and not isinstance(value, wanted):
            raise TypeError(f"{name} must be a {wanted.__name__}, not {type(value).__name__}")


def check_logging_config(logging_config: LoggingConfig | None) -> None:
    """Raise TypeError for an argument that is neither a LoggingConfig nor None."""
    if logging_config is not None:
        from minray.logging_config import LoggingConfig as Wanted  # Few programs have one.

        check_types(logging_config=(logging_config, Wanted))


def check_texts_and_dicts(
    address: Any, namespace: Any, resources: Any, labels: Any, object_spilling_directory: Any, node_name: Any
) -> None:
    """Check these arguments of ``init``. Raises TypeError for a wrong type, ValueError for wrong labels or texts."""
    check_types(address=(address, str), namespace=(namespace, str), resources=(resources, dict), labels=(labels, dict))
    check_types(object_spilling_directory=(object_spilling_directory, str), _node_name=(node_name, str))
    check_labels(labels or {})
    check_encodable("namespace", namespace or "")


def check_joining(of_the_node: Mapping[str, Any]) -> None:
    """Raise ValueError if an option of a node was given, although ``init`` joins a cluster and starts none."""
    given = [name for name, value in of_the_node.items() if value is not None]
    if given:
        only = "only for a node that init() starts, but it joins a running cluster; address='local' starts one"
        raise ValueError(f"{', '.join(given)}: {only}")


def with_local_mode(
    address: str | None, local_mode: bool, system_config: dict[str, Any] | None
) -> tuple[str | None, dict[str, Any] | None]:
    """Return address and system config, for local mode those of a cluster inside this process.

    Raises ValueError for the address of another cluster, TypeError for a ``local_mode`` that is no bool.
    """
    check_types(local_mode=(local_mode, bool))
    if not local_mode:
        return address, system_config
    if address not in (None, "local"):
        raise ValueError(f"local_mode starts a cluster inside this process, so it cannot join {shown(address)}")
    return "local", {**(system_config or {}), "transport": LOCAL}


def dashboard_arguments(include: bool | None, host: str | None, port: int | None) -> dict[str, Any]:
    """Return the options of a node about its dashboard. Without one its host and port mean nothing, as in Ray."""
    if not include:
        return {"include_dashboard": None}
    return {"include_dashboard": True, "dashboard_host": host, "dashboard_port": port}


def node_options(of_the_node: Mapping[str, Any]) -> NodeOptions:
    """Return the options of the node that ``init`` may start, from its arguments; those that are None are left out.

    The spilling directory is that of the whole cluster, so it belongs to the system config. Raises ValueError for a wrong
    ``_system_config``.
    """
    given = {name.removeprefix("_"): value for name, value in of_the_node.items() if value is not None}
    overrides = with_environment(given.pop("system_config", None))
    place = given.pop("object_spilling_directory", None)
    if place is not None:
        overrides["object_spilling_directory"] = place
    return NodeOptions(system_config=SystemConfig.from_overrides(overrides), **given)


def job_config(
    namespace: str | None, runtime_env: Mapping[str, Any] | None, logging_config: LoggingConfig | None = None
) -> JobConfig:
    """Return the configuration of this program's job. Raises RuntimeError if the working directory has been removed."""
    working_dir = _working_directory()  # first, since the path may be relative to it
    hook = _with_debugger((runtime_env or {}).get(SETUP_HOOK))
    return JobConfig(
        sys_path=import_path(),
        working_dir=working_dir,
        namespace=namespace or "",
        entrypoint=_entrypoint(),
        setup_hook=_packed_hook(hook),
        logging_config=logging_config.encode() if logging_config is not None else "",
    )


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise RuntimeError("the current directory has been removed; os.chdir() to another one before init()") from None


def _entrypoint() -> str:
    """Return this program's command line as text; bytes of file names that are not text are escaped."""
    return " ".join(sys.argv).encode(errors="backslashreplace").decode()


def _packed_hook(hook: Callable[[], Any] | str | None) -> bytes:
    """Pickle the setup hook of workers; return nothing for None. Raises TypeError if it cannot be pickled."""
    if hook is None:
        return b""
    from minray.core_worker.execution.job_environment import pack_hook  # Few programs have a hook.

    return pack_hook(hook)


def _with_debugger(hook: Callable[[], Any] | str | None) -> Callable[[], Any] | str | None:
    """Return the setup hook of workers, which also attaches them to the debugger of this process if there is one."""
    if "debugpy" not in sys.modules:
        return hook
    from minray.node.ide_debugger import with_debugger  # Few programs run under a debugger.

    return with_debugger(hook)
