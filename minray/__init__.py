"""minray: Ray's core, readable, in pure Python. ``import minray as ray`` and run.

Ray: python/ray/__init__.py

The names that a user types are gathered here: from ``node/init`` (init, shutdown), ``remote_function`` (remote),
``api/calls`` (get, put, wait, cancel, nodes, resources), ``api/explanation`` (why), ``api/timeline``, ``actor`` (get_actor,
kill, method), ``runtime_context``, ``values`` (references, generators), ``exceptions``, ``util``, ``internal``,
``experimental``, ``runtime_env`` and ``cloudpickle``. The files beside this one have Ray's names, and little else.
"""

from minray import (
    actor,
    cloudpickle,
    cluster_utils,
    exceptions,
    experimental,
    internal,
    remote_function,
    runtime_context,
    runtime_env,
    types,
    util,
)
from minray._version import __version__
from minray.actor import ActorClass, ActorHandle, exit_actor, get_actor, kill, method
from minray.api.calls import available_resources, cancel, cluster_resources, get, nodes, put, wait
from minray.api.explanation import why
from minray.api.timeline import timeline
from minray.common.ids import ActorID, FunctionID, JobID, NodeID, PlacementGroupID, TaskID, UniqueID, WorkerID
from minray.node.init import RayContext, init, is_initialized, shutdown
from minray.remote_function import RemoteFunction, remote
from minray.runtime_context import RuntimeContext, get_gpu_ids, get_runtime_context
from minray.values.dynamic_generator import DynamicObjectRefGenerator
from minray.values.object_ref import ObjectID, ObjectRef
from minray.values.object_ref_generator import ObjectRefGenerator

__all__ = [
    "ActorClass",
    "ActorHandle",
    "ActorID",
    "DynamicObjectRefGenerator",
    "FunctionID",
    "JobID",
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


def __dir__() -> list[str]:
    """Return the names that a user may use; the rooms of the implementation are attributes too, because Python sets them."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
