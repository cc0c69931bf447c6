"""The sentences: one record per message, grouped by who receives it.

Ray: src/ray/protobuf/*.proto

``base`` holds what they share; ``gcs``, ``raylet`` and ``core_worker`` the messages that these three understand. A
message is a frozen record, its name is its handler's name (``RequestWorkerLease`` -> ``handle_RequestWorkerLease``), and
a request names its reply as its type parameter. Decoding validates: a malformed record is refused, never half used.
"""
