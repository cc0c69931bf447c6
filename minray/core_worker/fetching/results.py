"""The results of a task on their way to the owner: small values as they are, large ones as places in the object store.

Ray: CoreWorker::AllocateReturnObject and SealReturnObject

For the threads that run users' code, which park while a large value is put. A result holds the references that its value
contains until the owner has taken note of them. An interrupt is not raised in this file (see ``platform.main_thread``), so
that nothing that was put is forgotten.
"""

from __future__ import annotations

from minray.common.config import MOST_REFERENCES, TASK_RPC_INLINED_BYTES_LIMIT
from minray.core_worker.fetching.store_provider import StoreProvider
from minray.core_worker.records.received_task import Result
from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.base import Address
from minray.values.serialization import Serialized

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""


UNWANTED = Result(StoredObject(b"", (), False, ()), [])
"""In the place of a value that the owner has already, or does not need."""


def check_references(count: int) -> None:
    """Check how many references are in what one answer carries. Raises ValueError."""
    if count > MOST_REFERENCES:
        raise ValueError(
            f"results hold {count:,} references, and at most {MOST_REFERENCES:,} fit into an answer; put parts of them, and"
            " return references to these parts"
        )


class ResultKeeper:
    """The keeper of one process."""

    def __init__(self, provider: StoreProvider, inline_limit: int) -> None:
        self._provider = provider
        self._inline_limit = inline_limit
        """Larger results go to the object store."""

    def keep(
        self,
        object_id: bytes,
        attempt: int,
        value: Serialized,
        owner: Address,
        room: int = TASK_RPC_INLINED_BYTES_LIMIT,
    ) -> Result:
        """Put it into the store of this node, or copy it if it is small, and not more than the answer has room for.

        Raises ValueError if it holds too many references, and what ``StoreProvider.put`` does.
        """
        check_references(len(value.refs))
        size = value.size()
        if size > self._inline_limit or size > room:
            place = self._provider.put(object_id, attempt, value, owner)
            return Result(StoredObject(b"", (), False, (), place), value.refs)
        own = value.copied()
        return Result(StoredObject(own.data, own.buffers, False, ()), value.refs, size)

    def discard(self, object_ids: list[bytes], attempt: int) -> None:
        """Drop what was kept of an attempt that ends otherwise; small values need nothing."""
        self._provider.discard(object_ids, attempt)
