"""The messages between processes: one record per message, grouped by the receiver or the subject.

Ray: src/ray/protobuf/*.proto

``base`` holds their common base classes. ``gcs``, ``raylet`` and ``core_worker`` hold the messages that these processes
understand. A message is a frozen record, its name is its handler's name (``RequestWorkerLease`` ->
``handle_RequestWorkerLease``), and a request names its reply as its type parameter. Decoding validates: a malformed record
is refused, never half used.
"""
