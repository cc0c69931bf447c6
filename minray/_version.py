"""The version number, in a file of its own so that reading it imports nothing else.

Ray: python/ray/_version.py

``setup.cfg`` reads the number from here when a package is built, and the front porch and the command line import it. It
stands nowhere else.
"""

__version__ = "0.1.0"
