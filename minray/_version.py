"""The version, alone in a file so that nothing has to be imported to read it.

Ray: python/ray/_version.py

``setup.cfg`` names the same number; a test holds them together.
"""

__version__ = "0.1.0"
