"""Code behind the names that a user types: calls, definitions, signatures, options, explanations.

Ray: python/ray/_private/worker.py, python/ray/_common/signature.py, python/ray/_private/ray_option_utils.py

The files directly in ``minray/`` have the names that a user of Ray imports, and little else. The code that they share is
here. It reaches the core worker through the port that ``core_worker/user_threads`` offers, and never starts a process.
"""
