"""Describes a large object whose value is not in this process yet.

Ray: RayObject::IsInPlasmaError in src/ray/common/ray_object.h (the marker that stands for a value in plasma)

A large value is in the object store of some node. This record has the data that ``StoreProvider.fetch`` needs to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.base import Address
from minray.protocol.core_worker import RefInfo


class LargeObject(NamedTuple):
    """One large object, as ``StoreProvider.fetch`` needs it."""

    object_id: bytes
    owner: Address
    nested: Sequence[RefInfo]
    attempt: int

    @classmethod
    def known(cls, object_id: bytes, owner: Address, stored: StoredObject) -> LargeObject:
        """Describe an object from its entry in the memory store."""
        assert stored.place is not None
        return cls(object_id, owner, stored.nested, stored.place.attempt)
