"""The owner: every driver and every worker has one core worker.

Ray: src/ray/core_worker/

``core_worker`` is the room's door; the other files are one noun each: who holds what (``reference_counter``), small
values (``memory_store``), what happens to both together (``objects``), tasks on their way (``task_manager``,
``dependency_resolver``, ``normal_task_submitter``, ``lease_client``) and, in workers, tasks that arrive
(``task_receiver``, ``task_executor``).
"""
