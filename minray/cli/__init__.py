"""The command line: ``minray start``, ``status``, ``list``, ``stack`` and others, a file for each group of commands.

Ray: python/ray/scripts/scripts.py

``main`` has the commands that start, stop and drain nodes, and adds those of the other files. ``state`` and ``processes``
have the commands that look at a cluster; ``microbenchmark`` is Ray's microbenchmark.
"""
