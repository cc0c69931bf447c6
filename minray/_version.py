"""The version, alone in a file so that nothing has to be imported to read it.

Ray: python/ray/_version.py

This is the one place that says it: ``setup.cfg`` reads it from here when a package is built, and the front porch and the
command line import it.
"""

__version__ = "0.1.0"
