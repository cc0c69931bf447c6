"""Data that several parts of a core worker pass on: records, and no behaviour of theirs.

Ray: src/ray/core_worker/task_manager.h (TaskEntry), src/ray/common/ray_object.h

Each file has the records of one noun, with a sentence for every field. Nothing here waits, sends or calls another part,
so every other room may import it.
"""
