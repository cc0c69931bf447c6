"""Answers questions about this process: why an object is not ready, which references, tasks, metrics and stacks it has.

Ray: CoreWorker::HandleGetCoreWorkerStats, python/ray/util/state/

The parts of this package read the state of the other packages and change nothing.
"""
