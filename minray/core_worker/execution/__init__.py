"""The executor's side: tasks that were pushed to this worker, and the actor that lives here.

Ray: src/ray/core_worker/task_execution/

``task_intake`` fetches arguments, ``task_receiver`` and ``actor_task_receiver`` put tasks in order, ``task_executor``
runs them in the threads of the user's code, and ``return_values`` keeps what they return.
"""
