"""Keeps the results of a task for its owner: small values as they are, large ones as places in the object store.

Ray: CoreWorker::AllocateReturnObject and SealReturnObject

This runs in the threads that run user code, which park while a large value is put. A result holds the references inside its
value until their owners have noted the new borrower. No interrupt is raised in this file (see
``platform.threads.main_thread``), so that no stored value is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.common.bounds import BOUNDS
from minray.common.config import TASK_RPC_INLINED_BYTES_LIMIT
from minray.core_worker.fetching.store_provider import LargeValues
from minray.core_worker.records.received_task import Result
from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.base import Address
from minray.values.serialization import Serialized

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""


UNWANTED = Result(StoredObject(b"", (), False, ()), [])
"""Stands for a value that the owner has already, or does not need."""


def check_references(count: int, most: int) -> None:
    """Raise ValueError if this number of references is too large for one answer, which may have ``most``."""
    if count > most:
        raise ValueError(
            f"values hold {count:,} references, and at most {most:,} fit into an answer; put parts of them, and"
            " send references to these parts"
        )


class ResultKeeper:
    """Keeps the results of one process's tasks."""

    def __init__(self, provider: LargeValues, inline_limit: int, most: int = BOUNDS.max_references_per_answer) -> None:
        self._provider = provider
        self._inline_limit = inline_limit
        """Size in bytes above which a result goes to the object store."""
        self._most_references = most
        """Number of references that one answer may hold."""

    def keep_result(
        self,
        object_id: bytes,
        attempt: int,
        value: Serialized,
        owner: Address,
        room: int = TASK_RPC_INLINED_BYTES_LIMIT,
    ) -> Result:
        """Keep a value: copy it if it is small and the answer has ``room`` for it, else put it into this node's store.

        Raises ValueError if the value holds too many references, and the errors of ``LargeValues.put``.
        """
        check_references(len(value.refs), self._most_references)
        size = value.size()
        if size > self._inline_limit or size > room:
            place = self._provider.put(object_id, attempt, value, owner)
            return Result(StoredObject(b"", (), False, (), place), value.refs)
        own = value.copied()
        return Result(StoredObject(own.data, own.buffers, False, ()), value.refs, size)

    def discard_result(self, object_id: bytes, attempt: int, on_discarded: Callable[[], None]) -> None:
        """Drop a result kept for an attempt that ends otherwise; it may be in the store.

        ``on_discarded`` is called on the loop when the store knows it. The attempt's answer waits for that: until it leaves,
        the owner frees what the attempt may have stored if this process dies.
        """
        self._provider.discard_value(object_id, attempt, on_discarded)
