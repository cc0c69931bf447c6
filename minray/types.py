"""Types for annotations: ``minray.types.ObjectRef[int]``.

Ray: python/ray/types.py

Programs that name the types of their references import them from here. An ``ObjectRef`` is generic already, so there is
nothing but the one name.
"""

from minray.values.object_ref import ObjectRef

__all__ = ["ObjectRef"]
