"""Parts of Ray's utilities that only authors of libraries for Ray use.

Ray: python/ray/util/

``ray.util`` itself is ``minray/util/``.
"""
