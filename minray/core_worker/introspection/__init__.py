"""Answers about this process: why something waits, what is stored, which stacks there are.

Ray: CoreWorker::HandleGetCoreWorkerStats, python/ray/util/state/

Parts of this room read the others and change nothing.
"""
