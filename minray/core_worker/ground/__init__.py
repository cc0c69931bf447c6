"""The records of a core worker's process and of its job, which every other part may hold.

Ray: src/ray/core_worker/core_worker_options.h, src/ray/core_worker/core_worker_process.h

No part takes the whole ``CoreWorker``. A part takes these records, the other parts that it uses, and ports for the few calls
in the other direction. Hence a constructor shows what its part can do, and a test makes the part without a fake process.
"""
