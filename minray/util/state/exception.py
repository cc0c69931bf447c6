"""What the state functions raise.

Ray: python/ray/util/state/exception.py

A wrong argument is a ValueError, as everywhere.
"""


class RayStateApiException(Exception):
    """The state cannot be told, or not all of it."""
