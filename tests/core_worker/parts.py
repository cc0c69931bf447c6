"""Small parts for the tests of the core worker: names as ids, templates, tasks, and ports that write down what is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.common.config import SystemConfig
from minray.common.ids import LeaseIdFactory, TaskIdFactory
from minray.common.task_spec import LeaseShape, RuntimeEnvInfo, SchedulingStrategy, TaskTemplate
from minray.core_worker.records.pending_task import FunctionExport, PendingTask, PreparedTemplate
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.normal_task_submitter import LeasedWorker, WorkerRequest
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import RefInfo, TaskHeader

JOB = b"job1"


def id_of(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


def object_id(name: str) -> bytes:
    return name.encode().ljust(28, b"-")


def address(name: str) -> Address:
    return Address(id_of(name), id_of(f"node-of-{name}"), f"sim:{name}")


OWN = address("owner")
task_ids = TaskIdFactory(OWN.worker_id, JOB)


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


def prepare(name: str = "f", mean_us: float | None = None, exported: bool = True, **fields: Any) -> PreparedTemplate:
    made = template(name, **fields)
    prepared = PreparedTemplate(made, encode(TaskHeader(made, OWN)), FunctionExport(made.function_id, exported))
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
