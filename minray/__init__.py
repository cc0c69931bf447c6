"""minray: Ray's core, readable, in pure Python. ``import minray as ray`` and run.

Ray: python/ray/__init__.py

What a user types is gathered here from the front porch: ``driver`` (init, shutdown), ``remote_function`` (remote),
``worker`` (get, put, wait, cancel, nodes, resources), ``explanation`` (why), ``chrome_trace`` (timeline),
``actor`` (get_actor, kill, method), ``runtime_context``, ``object_ref``, ``object_ref_generator``, ``exceptions``,
``util``, ``internal``, ``experimental``, ``runtime_env`` and ``cloudpickle``.
"""

from minray import actor, cloudpickle, cluster_utils, exceptions, experimental, internal, runtime_env, types, util
from minray._version import __version__
from minray.actor import ActorClass, ActorHandle, exit_actor, get_actor, kill, method
from minray.api.calls import available_resources, cancel, cluster_resources, get, nodes, put, wait
from minray.api.explanation import why
from minray.common.ids import ActorID, FunctionID, JobID, NodeID, PlacementGroupID, TaskID, UniqueID, WorkerID
from minray.node.init import RayContext, init, is_initialized, shutdown
from minray.observability.chrome_trace import timeline
from minray.remote_function import RemoteFunction, remote
from minray.runtime_context import RuntimeContext, get_gpu_ids, get_runtime_context
from minray.values.object_ref import ObjectID, ObjectRef
from minray.values.object_ref_generator import ObjectRefGenerator

__all__ = [
    "ActorClass",
    "ActorHandle",
    "ActorID",
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
    "runtime_env",
    "shutdown",
    "timeline",
    "types",
    "util",
    "wait",
    "why",
]
