"""Records that several parts of a core worker pass to each other.

Ray: src/ray/core_worker/task_manager.h (TaskEntry), src/ray/common/ray_object.h

Each file has the records of one noun, with a sentence for every field. No code here waits, sends, or calls another part.
Hence every other package may import it.
"""
