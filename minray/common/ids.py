"""Identifiers of jobs, processes, tasks, objects and actors, as bytes.

Ray: src/ray/common/id.h

Inside minray an id is plain ``bytes``: it hashes, compares and travels at C speed. At the public surface it is one of
the small classes below, which print as hexadecimal and know their kind.

Layout (sizes as in Ray)
  * job id      4 bytes, a counter of the gcs
  * node id, worker id (an incarnation of a process)      16 bytes, random
  * task id    24 bytes: 8 counter of the submitter, 12 of the submitter's worker id, 4 job id
  * object id  28 bytes: the task that creates it, then a 4-byte index: 0 for ``put``, from 1 for return values. Of a
    streaming generator, index 1 is the value that says it has ended (``completed()``), and its items follow from index 2
  * actor id   16 bytes: parts of the id of the task that creates it, its job id last
  * lease id   20 bytes: 8 counter of the asking process, 12 of its worker id
  * placement group id   18 bytes: 14 random, 4 job id

An object id is its task's id plus an index, so that a retry re-creates the same ids (G94); the job is read off any of
them. Ids are never derived from pickled bytes, which differ between runs.
"""

from __future__ import annotations

import os
from typing import ClassVar, Self

JOB_ID_BYTES = 4
UNIQUE_ID_BYTES = 16
TASK_ID_BYTES = 24
OBJECT_ID_BYTES = 28
LEASE_ID_BYTES = 20
PLACEMENT_GROUP_ID_BYTES = 18
PUT_INDEX = b"\0\0\0\0"


class TaskIdFactory:
    """Hands out the task ids of one submitting process; one object per process and job. Safe in any thread."""

    __slots__ = ("_suffix", "_take")

    def __init__(self, worker_id: bytes, job_id: bytes) -> None:
        self._suffix = worker_id[:12] + job_id
        counter = iter(range(1, 1 << 62))
        self._take = counter.__next__

    def next(self) -> bytes:
        return self._take().to_bytes(8, "big") + self._suffix


class LeaseIdFactory:
    """Hands out the lease ids of one process: a fresh one for every request, so that late replies cannot be mixed up."""

    __slots__ = ("_suffix", "_count")

    def __init__(self, worker_id: bytes) -> None:
        self._suffix = worker_id[:12]
        self._count = 0

    def next(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(8, "big") + self._suffix


def return_id(task_id: bytes, index: int) -> bytes:
    """Return the object id of return value ``index`` (from 1) of a task."""
    return task_id + index.to_bytes(4, "big")


def item_id(task_id: bytes, number: int) -> bytes:
    """Return the object id of item ``number`` (from 1) of a streaming generator."""
    return return_id(task_id, number + 1)


def number_of_item(object_id: bytes) -> int:
    """Return the number of an item of a streaming generator; the reverse of ``item_id``."""
    return int.from_bytes(object_id[TASK_ID_BYTES:], "big") - 1


def task_of(object_id: bytes) -> bytes:
    return object_id[:TASK_ID_BYTES]


def job_of(task_or_object_id: bytes) -> bytes:
    return task_or_object_id[TASK_ID_BYTES - JOB_ID_BYTES : TASK_ID_BYTES]


def actor_of(creation_task_id: bytes) -> bytes:
    """Return the id of the actor that a constructor's task creates."""
    return creation_task_id[4:16] + creation_task_id[TASK_ID_BYTES - JOB_ID_BYTES :]


def creation_task_of(actor_id: bytes, owner_id: bytes) -> bytes:
    """Return the id of the task that creates an actor. It is right unless the owner submitted 2^32 tasks before."""
    return bytes(4) + actor_id[:12] + owner_id[8:12] + actor_id[-JOB_ID_BYTES:]


def job_of_actor(actor_id: bytes) -> bytes:
    return actor_id[-JOB_ID_BYTES:]


def short_actor(actor_id: bytes) -> str:
    """Return a short name for logs: four digits of the owner's id, and the number of the actor's creation task."""
    return f"{actor_id[4:6].hex()}-{int.from_bytes(actor_id[:4], 'big')}"


def short(any_id: bytes) -> str:
    """Return a short name for logs: eight hexadecimal digits, or four and the counter if the id begins with a counter."""
    if len(any_id) in (TASK_ID_BYTES, OBJECT_ID_BYTES, LEASE_ID_BYTES):
        return f"{any_id[8:10].hex()}-{int.from_bytes(any_id[:8], 'big')}"
    return any_id[:4].hex()


def lease_tag(lease_id: bytes) -> int:
    """Return eight bytes of a lease id for a worker's marks; they differ also between owners whose counters are equal."""
    return int.from_bytes(lease_id[:8], "little") ^ int.from_bytes(lease_id[8:16], "little")


class BaseID:
    """A typed identifier as users see it (``TaskID``, ``NodeID``, ...): immutable, hashable, ordered by its bytes."""

    __slots__ = ("_binary",)
    SIZE: ClassVar[int] = UNIQUE_ID_BYTES

    def __init__(self, binary: bytes) -> None:
        if not isinstance(binary, bytes):
            raise TypeError(f"{type(self).__name__} takes bytes, not {type(binary).__name__}")
        if len(binary) != self.SIZE:
            raise ValueError(f"{type(self).__name__} takes {self.SIZE} bytes, not {len(binary)}")
        self._binary = binary

    @classmethod
    def from_hex(cls, text: str) -> Self:
        return cls(bytes.fromhex(text))

    @classmethod
    def from_random(cls) -> Self:
        return cls(os.urandom(cls.SIZE))

    @classmethod
    def from_binary(cls, binary: bytes) -> Self:
        return cls(binary)

    @classmethod
    def nil(cls) -> Self:
        return cls(b"\xff" * cls.SIZE)

    def is_nil(self) -> bool:
        return self._binary == b"\xff" * self.SIZE

    def binary(self) -> bytes:
        return self._binary

    def hex(self) -> str:
        return self._binary.hex()

    def __hash__(self) -> int:
        return hash(self._binary)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._binary == self._binary

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self._binary,)


class UniqueID(BaseID):
    __slots__ = ()


class NodeID(BaseID):
    __slots__ = ()


class WorkerID(BaseID):
    __slots__ = ()


class FunctionID(BaseID):
    __slots__ = ()


class ActorID(BaseID):
    __slots__ = ()

    def job_id(self) -> JobID:
        return JobID(job_of_actor(self._binary))


class JobID(BaseID):
    __slots__ = ()
    SIZE = JOB_ID_BYTES


class TaskID(BaseID):
    __slots__ = ()
    SIZE = TASK_ID_BYTES

    def job_id(self) -> JobID:
        return JobID(job_of(self._binary))


class PlacementGroupID(BaseID):
    __slots__ = ()
    SIZE = PLACEMENT_GROUP_ID_BYTES
