"""Everybody is asked, and the answers are put together: who refers to what, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

from minray.core_worker.state_reader import ClusterObjects, ObjectUse, StateReader, reference_type
from minray.core_worker.stats import Statistician
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import CoreWorkerStats, GetCoreWorkerStats, ObjectRefInfo
from minray.protocol.gcs import JOBS, JobConfig, JobInfo, NodeInfo, Poll, PollReply
from minray.protocol.object_store import CopyInfo, GetObjectsInfo, ObjectsInfo
from minray.protocol.raylet import NodeStats, WorkerStatus
from minray.rpc.connection import PeerUnreachable
from minray.simulation.loop import SimLoop

T = TypeVar("T")
A, B, X, Y = b"worker-a", b"worker-b", b"object-x", b"object-y"
NODE = b"node"


def reference(object_id: bytes, owner: bytes = A, size: int = -1, **counts: Any) -> ObjectRefInfo:
    known = ObjectRefInfo(object_id, owner, 0, 0, 0, 0, False, size, "NIL", 0, "disabled")
    return msgspec.structs.replace(known, **counts)


def process(worker_id: bytes, *references: ObjectRefInfo, total: int | None = None) -> CoreWorkerStats:
    return CoreWorkerStats(worker_id, NODE, 1, False, len(references) if total is None else total, list(references))


def copy(object_id: bytes, size: int = 5, readers: tuple[bytes, ...] = ()) -> CopyInfo:
    return CopyInfo(object_id, 2, size, A, "SEALED", True, len(readers), list(readers))


def store(*copies: CopyInfo, total: int | None = None) -> ObjectsInfo:
    return ObjectsInfo(NODE, 100, 10, 90, len(copies) if total is None else total, list(copies))


def uses(processes: list[CoreWorkerStats], *stores: ObjectsInfo) -> list[ObjectUse]:
    described = {str(number).encode(): one for number, one in enumerate(stores)}
    return ClusterObjects({}, described, processes, []).uses()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"local": 1}, "LOCAL_REFERENCE"),
        ({"is_pickled": True}, "LOCAL_REFERENCE"),
        ({"local": 1, "submitted": 1}, "USED_BY_PENDING_TASK"),
        ({"local": 1, "contained": 1}, "LOCAL_REFERENCE"),
        ({"contained": 1}, "CAPTURED_IN_OBJECT"),
        ({"borrowers": 2}, "UNKNOWN_STATUS"),
    ],
)
def test_why_a_process_refers_to_an_object(counts: dict[str, Any], expected: str) -> None:
    assert reference_type(reference(X, **counts)) == expected


def test_who_reads_an_object_has_it_pinned_and_others_have_not() -> None:
    found = uses([process(A, reference(X, local=1)), process(B, reference(X, submitted=1))], store(copy(X, readers=(B,))))
    assert [(use.worker_id, use.reference_type) for use in found] == [(A, "LOCAL_REFERENCE"), (B, "PINNED_IN_MEMORY")]


def test_who_reads_without_a_reference_is_told_too_and_who_is_silent_is_not() -> None:
    (use,) = uses([process(A)], store(copy(X, 7, (A, B))))
    assert (use.object_id, use.worker_id, use.reference_type, use.size, use.attempt) == (X, A, "PINNED_IN_MEMORY", 7, 2)


def test_a_size_that_one_of_them_knows_is_known() -> None:
    processes = [process(A, reference(X, local=1), reference(Y, local=1)), process(B, reference(Y, size=3))]
    found = uses(processes, store(copy(X)))
    assert {(use.worker_id, use.object_id): use.size for use in found} == {(A, X): 5, (A, Y): 3, (B, Y): 3}
    assert [use.size for use in uses([process(A, reference(X, local=1))])] == [-1]


def test_what_did_not_fit_into_an_answer_is_counted() -> None:
    objects = ClusterObjects({}, {NODE: store(copy(X), total=11)}, [process(A, reference(X), total=6)], [])
    assert objects.left_out() == 15


# --- asking


class Pretended:
    """A gcs with two nodes, one of them dead, two jobs, one of them over; and all whom it names."""

    def __init__(self, worker: Any) -> None:
        """``worker`` is what the only worker answers: its statistics, an error, or None for silence."""
        self.answers = {A: process(A), B: worker}
        self.asked: list[bytes] = []

    def to(self, address: Address) -> Pretended.Peer:
        return Pretended.Peer(self, address.worker_id)

    class Peer:
        def __init__(self, world: Pretended, name: bytes) -> None:
            self._world = world
            self._name = name

        async def call(self, request: Any) -> Any:
            if isinstance(request, Poll):
                return self._news(request.channel)
            if isinstance(request, GetObjectsInfo):
                return store(copy(X))
            if isinstance(request, GetCoreWorkerStats):
                return await self._stats()
            workers = [WorkerStatus(name, 7, "IDLE", b"", b"", False, to) for name, to in ((B, at(B)), (b"starting", None))]
            return NodeStats(NODE, 1, {}, {}, workers, [])

        async def _stats(self) -> Any:
            self._world.asked.append(self._name)
            answer = self._world.answers[self._name]
            if answer is None:
                await asyncio.Event().wait()
            if isinstance(answer, Exception):
                raise answer
            return answer

        def _news(self, channel: str) -> PollReply:
            alive = NodeInfo(NODE, "first", "10.0.0.1", "host", at(b"raylet"), {}, {}, True)
            nodes = [alive, msgspec.structs.replace(alive, node_id=b"dead", alive=False)]
            job = JobInfo(b"job1", at(A), 1, JobConfig([], "", "", ""), 1.0)
            jobs = [job, msgspec.structs.replace(job, driver=at(b"over"), end_time=2.0)]
            rows = jobs if channel == JOBS else nodes
            return PollReply(b"", 1, True, [(str(number).encode(), encode(row)) for number, row in enumerate(rows)])


def at(worker_id: bytes) -> Address:
    return Address(worker_id, NODE, "sim:")


def unreachable(is_certain: bool) -> PeerUnreachable:
    error = PeerUnreachable("it is gone")
    error.is_certain = is_certain
    return error


def in_virtual_time(reading: Coroutine[Any, Any, T]) -> T:
    loop = SimLoop()
    try:
        return loop.run_until_complete(reading)
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("worker", "answered", "silent"),
    [
        (process(B, reference(X, local=1)), [A, B], []),
        (unreachable(True), [A], []),
        (unreachable(False), [A], [f"process 7 of node {NODE.hex()}"]),
        (None, [A], [f"process 7 of node {NODE.hex()}"]),
    ],
)
def test_the_living_are_asked_and_who_is_silent_is_named(worker: Any, answered: list[bytes], silent: list[str]) -> None:
    world: Any = Pretended(worker)
    objects = in_virtual_time(StateReader(world, world.to(at(b"gcs"))).read(0.01))
    assert world.asked == [A, B] and [one.worker_id for one in objects.processes] == answered
    assert objects.silent == silent and list(objects.nodes) == [NODE] and objects.stores == {NODE: store(copy(X))}


def test_a_process_answers_for_itself() -> None:
    world: Any = Pretended(process(B))
    own: Any = Statistician.__new__(Statistician)
    own.stats = lambda request: process(A, reference(X))
    objects = in_virtual_time(StateReader(world, world.to(at(b"gcs")), A, own).read(1))
    assert world.asked == [B] and process(A, reference(X)) in objects.processes
