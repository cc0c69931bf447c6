"""Brings a value to the thread that asked for it: from this process, its node, or its owner.

Ray: src/ray/core_worker/future_resolver.h, src/ray/core_worker/store_provider/plasma_store_provider.h

``future_resolver`` asks owners for small values, ``store_provider`` reads large ones in shared memory, and
``value_fetcher`` combines both. ``waiting_threads`` has the threads that wait in ``get`` and ``wait``, and ``blocked_tasks``
lends the CPUs of their tasks meanwhile.
"""
