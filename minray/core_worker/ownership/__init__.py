"""The owner's knowledge of its objects: which processes refer to them, where copies are, what becomes of them.

Ray: src/ray/core_worker/reference_counter.h, src/ray/core_worker/store_provider/memory_store/

The process that calls ``.remote()`` or ``put`` owns the result. Here it counts references, its own and those of
borrowers, and knows which nodes have copies. Parts of this room never submit a task.
"""
