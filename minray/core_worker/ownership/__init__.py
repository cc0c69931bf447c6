"""Keeps an owner's knowledge of its objects: which processes refer to them, and where copies are.

Ray: src/ray/core_worker/reference_counter.h, src/ray/core_worker/store_provider/memory_store/

The process that calls ``.remote()`` or ``put`` owns the result. This package counts its references, including those of
borrowers, and knows which nodes have copies. No part of this package submits a task.
"""
