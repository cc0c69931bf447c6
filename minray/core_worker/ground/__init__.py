"""The ground of a core worker: the records of its process and of its job, which every other part may hold.

Ray: src/ray/core_worker/core_worker_options.h, src/ray/core_worker/core_worker_process.h

No part takes the whole ``CoreWorker``: it takes these records, the parts that it uses by name, and ports for the few calls
that go the other way. So a reader sees in a constructor what a part can do, and a test makes it without a fake process.
"""
