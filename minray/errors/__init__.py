"""How exceptions travel between processes: packed, unpacked, with their causes and their tracebacks.

Ray: python/ray/exceptions.py (RayError.to_bytes), python/ray/_private/serialization.py

This room is below ``minray/exceptions.py``, which defines the exceptions that users catch and imports the base classes from
here. Nothing here imports that file.
"""
