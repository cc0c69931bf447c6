"""Runs the tasks that were pushed to this worker, and the calls of its actor (the executor's side).

Ray: src/ray/core_worker/task_execution/

``task_receiver`` and ``actor_task_receiver`` receive tasks and put them in order, ``task_intake`` fetches their arguments
and answers them, ``task_executor`` runs them in user threads, and ``return_values`` stores their results.
"""
