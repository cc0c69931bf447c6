"""Submits tasks for their owner: resolves arguments, leases workers or calls actors, decides outcomes and retries.

Ray: src/ray/core_worker/task_submission/, src/ray/core_worker/task_manager.h, src/ray/core_worker/actor_management/

A task waits for its arguments (``dependency_resolver``), goes to a leased worker (``normal_task_submitter``) or to an
actor (``actor_task_submitter``), and ends in ``outcomes``, which retries it or stores its results.
"""
