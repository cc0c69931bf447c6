"""References, generators and ids, which Ray's compiled module holds and many programs import from there.

Ray: python/ray/_raylet.pyx

The connection to the core (``CoreWorker``, ``GcsClient``) is left out: minray's has other methods.
"""

from minray.common.ids import ActorID, FunctionID, JobID, NodeID, PlacementGroupID, TaskID, UniqueID, WorkerID
from minray.values.object_ref import ObjectID, ObjectRef
from minray.values.object_ref_generator import ObjectRefGenerator

__all__ = [
    "ActorID",
    "FunctionID",
    "JobID",
    "NodeID",
    "ObjectID",
    "ObjectRef",
    "ObjectRefGenerator",
    "PlacementGroupID",
    "TaskID",
    "UniqueID",
    "WorkerID",
]
