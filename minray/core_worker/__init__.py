"""The core worker, one in every driver and worker: it owns objects, submits tasks and, in workers, runs them.

Ray: src/ray/core_worker/

``core_worker`` is the entrance of this package and puts its parts together. Each other file is named for one noun. Examples
are references (``reference_counter``), small values (``memory_store``), events that concern both (``objects``), and
submitted tasks (``task_manager``, ``dependency_resolver``, ``normal_task_submitter``, ``lease_client``). In workers there
are received tasks, too (``task_receiver``, ``task_executor``).
"""
