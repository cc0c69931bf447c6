"""How the processes of a node come to be: ``init``, the command line, and the zygote's children.

Ray: python/ray/_private/node.py, python/ray/_private/services.py, python/ray/_private/worker.py (init)

``discovery`` finds the nodes of this machine, ``node`` starts one, ``roles`` says what each of its processes is, ``init``
makes this process a driver, and ``cluster_client`` asks a cluster from outside.
"""
