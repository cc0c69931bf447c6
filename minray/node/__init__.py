"""How the processes of a node start: ``init``, the command line, and the zygote's children.

Ray: python/ray/_private/node.py, python/ray/_private/services.py, python/ray/_private/worker.py (init)

``discovery`` finds the nodes of this machine, and ``node`` starts one. ``roles`` composes each of its processes. ``init``
makes this process a driver. ``cluster_client`` asks a cluster from outside.
"""
