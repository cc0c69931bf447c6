"""Values that travel between processes: references, generators of references, and serialized values.

Ray: python/ray/includes/object_ref.pxi, python/ray/_private/serialization.py

A value becomes bytes, large buffers apart from them, and the list of references that it contains. A reference tells its
process through hooks when it is made and when it is dropped, so that this room does not depend on core workers.
"""
