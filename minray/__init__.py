"""minray: Ray's core, readable, in pure Python. ``import minray as ray`` and run.

Ray: python/ray/__init__.py

The names that a user types are gathered here: from ``node/init`` (init, shutdown), ``remote_function`` (remote),
``api/calls`` (get, put, wait, cancel, is_initialized, nodes, resources), ``api/explanation`` (why), ``api/progress``,
``api/timeline``, ``actor`` (get_actor, kill, method), ``runtime_context``, ``values`` (references, generators),
``exceptions``, ``util``, ``internal``, ``experimental``, ``runtime_env`` and ``cloudpickle``. The files beside this one have
Ray's names, and little else.

A program that only defines tasks and actors loads no cluster: the names in ``_LATER`` are imported at their first use.
"""

from typing import TYPE_CHECKING, Any

from minray import actor, cloudpickle, exceptions, remote_function, runtime_context, runtime_env, types
from minray._version import __version__
from minray.actor import ActorClass, ActorHandle, exit_actor, get_actor, kill, method
from minray.api import calls as _calls
from minray.api.calls import available_resources, cancel, cluster_resources, get, is_initialized, nodes, put, wait
from minray.api.explanation import why
from minray.common import shown as _shown
from minray.common.ids import ActorID, FunctionID, JobID, NodeID, PlacementGroupID, TaskID, UniqueID, WorkerID
from minray.common.package import imported_at_first_use as _imported_at_first_use
from minray.remote_function import RemoteFunction, remote
from minray.runtime_context import RuntimeContext, get_gpu_ids, get_runtime_context
from minray.values.dynamic_generator import DynamicObjectRefGenerator
from minray.values.object_ref import ObjectID, ObjectRef
from minray.values.object_ref_generator import ObjectRefGenerator

if TYPE_CHECKING:
    from minray import cluster_utils, experimental, internal, util
    from minray.api.progress import progress
    from minray.api.timeline import timeline
    from minray.client_builder import ClientBuilder, client
    from minray.logging_config import LoggingConfig
    from minray.node.init import RayContext, init, shutdown

__all__ = [
    "ActorClass",
    "ActorHandle",
    "ActorID",
    "ClientBuilder",
    "DynamicObjectRefGenerator",
    "FunctionID",
    "JobID",
    "LoggingConfig",
    "NodeID",
    "ObjectID",
    "ObjectRef",
    "ObjectRefGenerator",
    "PlacementGroupID",
    "RayContext",
    "RemoteFunction",
    "RuntimeContext",
    "TaskID",
    "UniqueID",
    "WorkerID",
    "__version__",
    "actor",
    "available_resources",
    "cancel",
    "client",
    "cloudpickle",
    "cluster_resources",
    "cluster_utils",
    "exceptions",
    "exit_actor",
    "experimental",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "internal",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "progress",
    "put",
    "remote",
    "remote_function",
    "runtime_context",
    "runtime_env",
    "shutdown",
    "timeline",
    "types",
    "util",
    "wait",
    "why",
]


_LATER = {
    "ClientBuilder": "minray.client_builder:ClientBuilder",
    "LoggingConfig": "minray.logging_config:LoggingConfig",
    "RayContext": "minray.node.init:RayContext",
    "client": "minray.client_builder:client",
    "cluster_utils": "minray.cluster_utils",
    "experimental": "minray.experimental",
    "init": "minray.node.init:init",
    "internal": "minray.internal",
    "progress": "minray.api.progress:progress",
    "shutdown": "minray.node.init:shutdown",
    "timeline": "minray.api.timeline:timeline",
    "util": "minray.util",
}
"""Names whose modules most of minray stands behind -> their places. ``__getattr__`` imports them."""

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name
    __getattr__ = _imported_at_first_use(__name__, _LATER)


def _auto_init() -> None:
    """Join or start a cluster for a call without ``init``."""
    from minray.node.init import auto_init

    auto_init()


def _html_of(thing: Any) -> str:
    """Describe a value for a notebook."""
    from minray.api.html import html_of

    return html_of(thing)


_calls.auto_init = _auto_init
_shown.html_of = _html_of


def __dir__() -> list[str]:
    """Return the names that a user may use; the rooms of the implementation are attributes too, because Python sets them."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
