"""What travels between processes: references, generators of references, and serialized values.

Ray: python/ray/includes/object_ref.pxi, python/ray/_private/serialization.py

A value becomes bytes, large buffers beside them, and the references that it holds. A reference tells its process when it is
made and when it is dropped, through hooks, so that this room knows nothing of core workers.
"""
