"""Small parts for the tests of the core worker: names as ids, templates, tasks, and ports that write down what is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.common.config import SystemConfig
from minray.common.ids import LeaseIdFactory, TaskIdFactory
from minray.common.task_spec import LeaseShape, RuntimeEnvInfo, SchedulingStrategy, TaskTemplate
from minray.core_worker.records.leased_worker import KeyQueue, LeasedWorker, WorkerRequest
from minray.core_worker.records.pending_task import ActorClient, FunctionExport, PendingTask, PreparedTemplate
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import pack_exception
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import FIRST_RUN, RefInfo, TaskHeader
from minray.protocol.raylet import GRANTED, LeaseReply

JOB = b"job1"


def id_of(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


def object_id(name: str) -> bytes:
    return name.encode().ljust(28, b"-")


def address(name: str) -> Address:
    return Address(id_of(name), id_of(f"node-of-{name}"), f"sim:{name}")


OWN, WORKER = address("owner"), address("worker")
task_ids = TaskIdFactory(OWN.worker_id, JOB)
RECEIVED_ID = task_ids.next()


def shape(cpus: int = 1, **env_vars: str) -> LeaseShape:
    return LeaseShape((("CPU", cpus * 10_000),), SchedulingStrategy(), RuntimeEnvInfo(tuple(env_vars.items())), JOB)


def template(name: str = "f", **fields: Any) -> TaskTemplate:
    values: dict[str, Any] = {
        "function_id": id_of(name),
        "name": name,
        "shape": shape(),
        "num_returns": 1,
        "max_retries": 3,
        "retry_exceptions": False,
        "retry_exception_types": b"",
        "max_calls": 0,
        **fields,
    }
    return TaskTemplate(**values)


def prepare(
    name: str = "f", mean_us: float | None = None, exported: bool = True, client: ActorClient | None = None, **fields: Any
) -> PreparedTemplate:
    made = template(name, **fields)
    prepared = PreparedTemplate(made, encode(TaskHeader(made, OWN)), FunctionExport(made.function_id, exported), client)
    prepared.mean_us = mean_us
    return prepared


def pending(
    prepared: PreparedTemplate,
    slots: tuple[tuple[bytes, Address], ...] = (),
    nested: tuple[RefInfo, ...] = (),
    depth: int = 0,
    parent_id: bytes = b"",
) -> PendingTask:
    retries = prepared.template.max_retries
    return PendingTask(task_ids.next(), prepared, b"args", slots, nested, (), parent_id, depth, retries)


def submit(tasks: TaskManager, task: PendingTask, *steps: str) -> PendingTask:
    """Note a task in the table, and take it through these states."""
    tasks.add_task(task)
    for step in steps:
        tasks.move(task, step)
    return task


def leased(worker: Address = WORKER, granted_at: float = 0.0) -> LeasedWorker:
    """Make a worker, of pid 5, that this process has leased."""
    return LeasedWorker(request_for(), LeaseReply(GRANTED, worker, pid=5), granted_at)


def request_for(raylet: Address | None = None) -> WorkerRequest:
    """Make a request for a worker of a node."""
    return WorkerRequest(id_of("lease"), KeyQueue(shape()), raylet, False, 0, 0)


def received(made: TaskTemplate, owner: Address = OWN, **fields: Any) -> ReceivedTask:
    """Make a task that was pushed to this process; ``fields`` are its own."""
    values: dict[str, Any] = {
        "task_id": RECEIVED_ID, "attempt": 2, "actor_id": b"", "lease_tag": 0, "sequence": 1, "depth": 0, "gpu_ids": (),
        "rerun": FIRST_RUN, "takes_arguments": False, "calls": (), **fields,
    }  # fmt: skip
    return ReceivedTask(header=TaskHeader(made, owner), **values)


def packed(error: BaseException, name: str = "f") -> bytes:
    """Pack an error of a task as the process that runs it does."""
    return pack_exception(error, task_name=name, pid=1, node_id="", ip="")


def stored(data: bytes = b"value", is_error: bool = False, buffers: list[Any] | None = None) -> StoredObject:
    return StoredObject(data, buffers or [], is_error, ())


class Asked:
    """The submitter's ``Actions``: everything that it asks for, in order."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.pushed: list[tuple[LeasedWorker, PendingTask]] = []
        self.requests: list[WorkerRequest] = []
        self.cancelled: list[WorkerRequest] = []
        self.returned: list[tuple[LeasedWorker, bool, str]] = []
        self.reclaimed: list[LeasedWorker] = []
        self.timers: list[float] = []
        """When to call ``on_timer``."""
        self.turns = 0
        """How often ``on_turn`` is to be called."""

    def push(self, worker: LeasedWorker, task: PendingTask) -> None:
        self.pushed.append((worker, task))

    def request_lease(self, request: WorkerRequest) -> None:
        self.requests.append(request)

    def cancel_lease(self, request: WorkerRequest) -> None:
        self.cancelled.append(request)

    def return_lease(self, worker: LeasedWorker, kill_worker: bool, reason: str) -> None:
        self.returned.append((worker, kill_worker, reason))

    def reclaim(self, worker: LeasedWorker) -> None:
        self.reclaimed.append(worker)

    def wake_after(self, delay_s: float) -> None:
        self.timers.append(self._now() + delay_s)

    def wake_soon(self) -> None:
        self.turns += 1


def lease_ids() -> LeaseIdFactory:
    return LeaseIdFactory(OWN.worker_id)


def config(**overrides: Any) -> SystemConfig:
    return SystemConfig.from_overrides(overrides)
