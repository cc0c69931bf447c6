"""Threads in which the user's code runs, beside the loop of its process.

Ray: src/ray/core_worker/task_execution/thread_pool.h, fiber.h

``user_code`` is the border between loop and threads. At a first reading skip the others: ``main_thread`` runs the loop
and tasks in one thread, ``threads_beside`` and ``user_event_loop`` serve actors, ``spinning`` waits without sleeping.
They are there for speed.
"""
