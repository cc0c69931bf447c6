"""Real processes: the zygote that forks them, their session directory, their logs and signals.

Ray: src/ray/util/process.h, python/ray/_private/node.py

A node's ``zygote`` forks gcs, raylet and workers. ``processes`` is how the others ask it to, ``session`` is the
directory that they share and what is left of it.
"""
