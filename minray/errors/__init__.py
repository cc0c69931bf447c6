"""How exceptions travel between processes: packed, unpacked, with their causes and their tracebacks.

Ray: python/ray/exceptions.py (RayError.to_bytes), python/ray/_private/serialization.py

This room is below ``minray/exceptions.py``, which names the exceptions that users catch. That file registers its classes
here, so that nothing here has to import them.
"""
