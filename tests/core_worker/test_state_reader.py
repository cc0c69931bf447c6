"""The state of a cluster, put together from the answers of all processes: who refers to an object, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

from minray.common.task_rows import ROW
from minray.observability.state_reader import ClusterObjects, ObjectUse, StateReader, reference_type
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import CoreWorkerStats, GetCoreWorkerStats, ObjectRefInfo
from minray.protocol.gcs import JOBS, NODES, WORKER_DEATHS, JobConfig, JobInfo, NodeInfo, Poll, PollReply, WorkerDeath
from minray.protocol.metrics import EndedMetrics, GetEndedMetrics
from minray.protocol.object_store import CopyInfo, GetObjectsInfo, ObjectsInfo
from minray.protocol.raylet import NodeStats, WorkerStatus
from minray.protocol.state import (
    GetMetrics,
    GetProfileEvents,
    GetStacks,
    GetTaskEvents,
    GetTasksInfo,
    ProcessMetrics,
    ProcessStacks,
    ProfileEvent,
    ProfileEvents,
    TaskEvents,
    TaskInfo,
    TasksInfo,
    WorkerTaskEvents,
)
from minray.simulation.loop import SimLoop
from tests.core_worker.peers import unreachable

T = TypeVar("T")
A, B, X, Y = b"worker-a", b"worker-b", b"object-x", b"object-y"
NODE = b"node"
DEATH = WorkerDeath(b"dead-worker", NODE, 9, "exit code 1")


def reference(object_id: bytes, owner: bytes = A, size: int = -1, **counts: Any) -> ObjectRefInfo:
    known = ObjectRefInfo(object_id, owner, 0, 0, 0, 0, False, size, "NIL", 0, "disabled")
    return msgspec.structs.replace(known, **counts)


def process(worker_id: bytes, *references: ObjectRefInfo, total: int | None = None) -> CoreWorkerStats:
    return CoreWorkerStats(worker_id, NODE, 1, False, len(references) if total is None else total, list(references))


def tasks_of(worker_id: bytes) -> TasksInfo:
    return TasksInfo(NODE, worker_id, 1, False, 0, [], [])


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
        """``worker`` is what the only worker answers: its statistics or tasks, an error, or None for silence."""
        self.answers = {A: tasks_of(A) if isinstance(worker, TasksInfo) else process(A), B: worker}
        self.asked: list[bytes] = []
        self.tellers: dict[bytes, Owner | Runner] = {}
        self.is_node_silent = self.is_gcs_silent = False
        self.kept = [TaskEvents([], [], 0, True, 0)]
        """The gcs's answer for each number of the newest entry that the reader has."""

    def to(self, address: Address) -> Pretended.Peer:
        return Pretended.Peer(self, address.worker_id)

    class Peer:
        def __init__(self, world: Pretended, name: bytes) -> None:
            self._world = world
            self._name = name

        async def call(self, request: Any) -> Any:
            if self._world.is_gcs_silent and self._name == b"gcs":
                await asyncio.Event().wait()
            if isinstance(request, Poll):
                return self._news(request.channel)
            if isinstance(request, GetTaskEvents):
                return self._world.kept[request.after]
            if isinstance(request, GetObjectsInfo):
                return store(copy(X))
            if isinstance(request, GetEndedMetrics):
                return EndedMetrics([metrics_of(b"ended")] if b"ended" not in request.told else [], 2)
            if isinstance(request, GetTasksInfo | GetProfileEvents) and self._name in self._world.tellers:
                return self._world.tellers[self._name].tell(request)
            if isinstance(request, GetCoreWorkerStats | GetTasksInfo | GetProfileEvents | GetStacks | GetMetrics):
                return await self._stats()
            if self._world.is_node_silent:
                await asyncio.Event().wait()
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
            rows = {JOBS: jobs, NODES: nodes, WORKER_DEATHS: [DEATH]}[channel]
            return PollReply(b"", 1, True, [(str(number).encode(), encode(row)) for number, row in enumerate(rows)])


class Answers:
    """Plays ``StateAnswers``: a process that answers what the test has told it about, and notes who asks for which tasks."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[GetTasksInfo] = []
        self._answers = answers

    def stats(self, request: GetCoreWorkerStats) -> Any:
        return self._answers["stats"]

    def tasks(self, request: GetTasksInfo) -> Any:
        self.asked.append(request)
        return self._answers["tasks"]

    def profile(self, request: GetProfileEvents) -> Any:
        return self._answers["profile"]

    def stacks(self) -> Any:
        return self._answers["stacks"]

    def metrics(self) -> Any:
        return self._answers["metrics"]


def at(worker_id: bytes) -> Address:
    return Address(worker_id, NODE, "sim:")


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


@pytest.mark.parametrize("own_id", [b"", A])
def test_the_tasks_of_the_living_are_told_and_each_answers_for_itself(own_id: bytes) -> None:
    world: Any = Pretended(tasks_of(B))
    own: Any = Answers(tasks=tasks_of(A)) if own_id else None
    told = in_virtual_time(StateReader(world, world.to(at(b"gcs")), own_id, own).tasks(1, [b"task"]))
    assert [one.worker_id for one in told.processes] == [A, B] and told.silent == []
    assert world.asked == ([B] if own_id else [A, B])
    assert own is None or own.asked == [GetTasksInfo(task_ids=[b"task"])]


class Owner:
    """An owner of many tasks, which tells as many as it is asked for."""

    def __init__(self, worker_id: bytes, total: int) -> None:
        self.worker_id, self.total = worker_id, total
        self.limits: list[int] = []

    def tell(self, request: GetTasksInfo) -> TasksInfo:
        self.limits.append(request.limit)
        told = [TaskInfo(b"task", 0, "f", "NORMAL_TASK", "RUNNING", b"")] * min(request.limit, self.total)
        return TasksInfo(NODE, self.worker_id, 1, False, self.total, told, [])


@pytest.mark.parametrize(
    ("totals", "most", "limits", "told"),
    [
        ((900, 5), 1000, ([500, 995], [500]), [900, 5]),  # The room of those that have few goes to the others.
        ((900, 800), 1000, ([500], [500]), [500, 500]),
        ((900, 5), 2, ([10], [10]), [10, 5]),  # Everybody tells a few.
        ((900, 5), None, ([10_000], [10_000]), [900, 5]),
        ((900, 5), 50_000, ([10_000], [10_000]), [900, 5]),
    ],
)
def test_processes_share_the_room_for_tasks(
    totals: tuple[int, int], most: int | None, limits: tuple[list[int], list[int]], told: list[int]
) -> None:
    owners = [Owner(name, total) for name, total in zip((A, B), totals, strict=True)]
    world: Any = Pretended(tasks_of(B))
    world.tellers = {owner.worker_id: owner for owner in owners}
    found = in_virtual_time(StateReader(world, world.to(at(b"gcs"))).tasks(1, most=most))
    assert [len(one.tasks) for one in found.processes] == told and [one.total for one in found.processes] == [*totals]
    assert (owners[0].limits, owners[1].limits) == limits


def test_of_tasks_too_who_is_silent_is_named() -> None:
    world: Any = Pretended(None)
    world.answers[A] = tasks_of(A)
    told = in_virtual_time(StateReader(world, world.to(at(b"gcs"))).tasks(0.01))
    assert [one.worker_id for one in told.processes] == [A] and told.silent == [f"process 7 of node {NODE.hex()}"]


def profile_of(worker_id: bytes) -> ProfileEvents:
    return ProfileEvents(NODE, "10.0.0.1", worker_id, 7, 0, [])


@pytest.mark.parametrize("own_id", [b"", B])
def test_what_workers_have_run_is_told_by_them_and_drivers_are_not_asked(own_id: bytes) -> None:
    world: Any = Pretended(profile_of(B))
    own: Any = Answers(profile=profile_of(B)) if own_id else None
    told = in_virtual_time(StateReader(world, world.to(at(b"gcs")), own_id, own).profile(1))
    assert told.workers == [profile_of(B)] and told.silent == [] and world.asked == ([] if own_id else [B])


def rows_of(worker_id: bytes, name: bytes) -> WorkerTaskEvents:
    row = ROW.pack(name.ljust(24), b"", 2000, 6, 1, 0, 0, 0, name)
    return WorkerTaskEvents(node_id=NODE, node_ip="10.0.0.1", worker_id=worker_id, pid=9, zero_us=1, rows=row)


def test_what_the_gcs_keeps_is_read_part_by_part_after_the_living_have_answered() -> None:
    world: Any = Pretended(tasks_of(B))
    failed = TaskInfo(b"task", 0, "f", "NORMAL_TASK", "FAILED", b"")
    parts = ([failed], [rows_of(b"v", b"g")], 1, False, 3), ([], [rows_of(b"w", b"h")], 2, True, 3)
    world.kept = [TaskEvents(*part) for part in parts]
    kept = in_virtual_time(StateReader(world, world.to(at(b"gcs"))).tasks(1)).kept
    assert (kept.failed, kept.dropped) == ([failed], 3) and [worker.worker_id for worker in kept.workers] == [b"v", b"w"]
    events = [event for worker in kept.workers for event in worker.events().events]
    assert [(event.name, event.start_us) for event in events] == [("g", 3), ("h", 3)]


def test_a_worker_that_has_died_since_it_answered_is_in_a_profile_once() -> None:
    world: Any = Pretended(profile_of(B))
    world.kept = [TaskEvents([], [rows_of(B, b"g"), rows_of(b"w", b"h")], 2, True, 0)]
    told = in_virtual_time(StateReader(world, world.to(at(b"gcs"))).profile(1))
    assert [worker.worker_id for worker in told.workers] == [B, b"w"] and told.workers[0] == profile_of(B)


class Runner:
    """A worker that has run many tasks, and tells as many as it is asked for."""

    def __init__(self, worker_id: bytes, total: int) -> None:
        self.worker_id, self.total = worker_id, total

    def tell(self, request: GetProfileEvents) -> ProfileEvents:
        told = [ProfileEvent(b"task", 0, "f", "NORMAL_TASK", b"", 1, 1, "FINISHED")] * min(request.limit, self.total)
        return ProfileEvents(NODE, "10.0.0.1", self.worker_id, 7, self.total, told)


@pytest.mark.parametrize(("most", "told"), [(None, [900, 30]), (100, [100, 30]), (20, [20, 10]), (1, [1, 1])])
def test_living_and_dead_workers_share_the_room_of_a_profile_and_count_what_they_leave_out(
    most: int | None, told: list[int]
) -> None:
    world: Any = Pretended(None)
    world.tellers = {B: Runner(B, 900)}
    dead = rows_of(b"w", b"h")
    world.kept = [TaskEvents([], [msgspec.structs.replace(dead, rows=dead.rows * 30)], 1, True, 0)]
    found = in_virtual_time(StateReader(world, world.to(at(b"gcs"))).profile(1, most))
    assert [len(worker.events) for worker in found.workers] == told
    assert [worker.total for worker in found.workers] == [900, 30]


def stacks_of(worker_id: bytes) -> ProcessStacks:
    return ProcessStacks(NODE, worker_id, 7, worker_id == A, [], [])


@pytest.mark.parametrize("own_id", [b"", A])
def test_what_drivers_and_workers_do_is_told_by_them(own_id: bytes) -> None:
    world: Any = Pretended(stacks_of(B))
    world.answers[A] = stacks_of(A)
    own: Any = Answers(stacks=stacks_of(A)) if own_id else None
    told = in_virtual_time(StateReader(world, world.to(at(b"gcs")), own_id, own).stacks(1))
    assert told.processes == [stacks_of(A), stacks_of(B)] and told.silent == [] and list(told.nodes) == [NODE]
    assert world.asked == ([B] if own_id else [A, B])


def metrics_of(worker_id: bytes) -> ProcessMetrics:
    return ProcessMetrics("10.0.0.1", worker_id, b"job1", [])


@pytest.mark.parametrize("own_id", [b"", A])
def test_what_drivers_and_workers_have_measured_is_told_by_them(own_id: bytes) -> None:
    world: Any = Pretended(None)
    world.answers[A] = metrics_of(A)
    own: Any = Answers(metrics=metrics_of(A)) if own_id else None
    told = in_virtual_time(StateReader(world, world.to(at(b"gcs")), own_id, own).metrics(0.01))
    assert told.processes == [metrics_of(A), metrics_of(b"ended")] and told.left_out == 2
    assert told.silent == [f"process 7 of node {NODE.hex()}"]
    assert world.asked == ([B] if own_id else [A, B])


def test_a_worker_that_does_not_say_what_it_has_run_is_named() -> None:
    world: Any = Pretended(None)
    told = in_virtual_time(StateReader(world, world.to(at(b"gcs"))).profile(0.01))
    assert told.workers == [] and told.silent == [f"process 7 of node {NODE.hex()}"]


def test_workers_that_live_are_those_of_living_nodes_and_jobs_that_go_on() -> None:
    world: Any = Pretended(None)
    told = in_virtual_time(StateReader(world, world.to(at(b"gcs"))).workers(1))
    assert told.living == [("DRIVER", A, NODE, 1), ("WORKER", B, NODE, 7)], "one that is being started has no pid yet"
    assert [node.node_id for node in told.nodes] == [NODE, b"dead"] and [job.end_time for job in told.jobs] == [0.0, 2.0]
    assert told.deaths == [DEATH] and told.silent == []


def test_the_workers_of_a_node_that_is_silent_are_not_known() -> None:
    world: Any = Pretended(None)
    world.is_node_silent = True
    reader = StateReader(world, world.to(at(b"gcs")))
    told = in_virtual_time(reader.workers(1))
    assert told.living == [("DRIVER", A, NODE, 1)] and told.silent == ["node first"]
    objects = in_virtual_time(reader.read(1))
    assert [one.worker_id for one in objects.processes] == [A] and objects.silent == ["node first"]
    assert objects.stores == {NODE: store(copy(X))}


def test_a_gcs_that_is_silent_is_not_waited_for() -> None:
    world: Any = Pretended(None)
    world.is_gcs_silent = True
    reader: Any = StateReader(world, world.to(at(b"gcs")))
    of_processes = (reader.read, reader.tasks, reader.profile, reader.stacks, reader.metrics, reader.workers)
    for question in (*of_processes, reader.nodes, reader.jobs, reader.actors):
        with pytest.raises(TimeoutError):
            in_virtual_time(question(1))


def test_a_process_answers_for_itself() -> None:
    world: Any = Pretended(process(B))
    own: Any = Answers(stats=process(A, reference(X)))
    objects = in_virtual_time(StateReader(world, world.to(at(b"gcs")), A, own).read(1))
    assert world.asked == [B] and process(A, reference(X)) in objects.processes
