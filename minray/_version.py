"""The version number, in a file of its own so that reading it imports nothing else.

Ray: python/ray/_version.py

``setup.cfg`` has the same number; a test compares them.
"""

__version__ = "0.1.0"
