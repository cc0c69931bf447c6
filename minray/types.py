"""Types for annotations: ``minray.types.ObjectRef[int]``.

Ray: python/ray/types.py

Programs import the types of their annotations from here. ``ObjectRef`` is generic itself, so it is the only name needed.
"""

from minray.values.object_ref import ObjectRef

__all__ = ["ObjectRef"]
