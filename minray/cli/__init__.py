"""The command line: ``minray start``, ``status``, ``list``, ``stack`` and the others, one file for each family.

Ray: python/ray/scripts/scripts.py

``main`` has the group and the commands that start, stop and drain nodes; ``state`` and ``processes`` add the commands that
look at a cluster; ``microbenchmark`` is Ray's microbenchmark.
"""
