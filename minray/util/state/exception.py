"""The exception of the state functions.

Ray: python/ray/util/state/exception.py

A wrong argument raises ValueError, as everywhere.
"""


class RayStateApiException(Exception):
    """The state, or a part of it, could not be read; the message says which part."""
