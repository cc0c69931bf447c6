"""Files and memory of a real machine: tables, spilled objects, shared memory.

Ray: src/ray/gcs/store_client/, python/ray/_private/external_storage.py, src/ray/object_manager/plasma/

``storage`` keeps the gcs's tables, ``disk`` and ``external_storage`` spilled objects, ``memory`` and
``shared_memory`` the arena of a node.
``private_paths`` sees to it that no other user can lead any of them elsewhere.
"""
