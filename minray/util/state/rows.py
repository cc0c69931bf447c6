"""Turns the answers of a cluster's processes into rows of the state API.

Ray: python/ray/dashboard/state_aggregator.py

Each function asks through a ``StateReader`` and returns rows, and in words what is missing. The same functions serve
programs (``minray.util.state``) and the command line (``minray list``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from minray.common.ids import job_of, job_of_actor
from minray.common.labels import labels_of
from minray.common.resources import to_floats
from minray.common.shown import shown
from minray.observability.state_reader import (
    ClusterObjects,
    ClusterTasks,
    ClusterWorkers,
    KeptTasks,
    StateReader,
    describe_dropped,
)
from minray.protocol.actor import KINDS_OF_DEATH, ActorInfo
from minray.protocol.gcs import DRIVER_LEFT, JobInfo, NodeInfo, WorkerDeath
from minray.protocol.placement_group import PlacementGroupInfo
from minray.protocol.state import ProfileEvent, ProfileEvents, TaskInfo, TasksInfo, func_or_class_name
from minray.util.state.common import (
    ActorState,
    JobState,
    NodeState,
    ObjectState,
    PlacementGroupState,
    TaskState,
    WorkerState,
)

MS = 1000
MOST_NAMED = 10
"""Most ids that an error names."""


class Listing(NamedTuple):
    """The rows that were found, and what is missing."""

    rows: list[Any]
    missing: str = ""
    """The processes that have not answered and the number of rows left out, in words; empty if nothing is missing."""
    dropped: str = ""
    """The number of ended tasks that the gcs does not keep any more, in words; empty if it keeps all."""
    silent: Sequence[str] = ()
    """Names of the processes that have not answered."""
    left_out: int = 0
    """Number of rows left out, because a process or node has more than it can describe."""


class Kind(NamedTuple):
    """One kind of rows, such as actors: their class and the function that reads them."""

    state: type[Any]
    read: Callable[[StateReader, float, str | None], Coroutine[Any, Any, Listing]]
    """Reads the rows with one id (hex), or with None all rows."""

    def id_of(self, row: Any) -> str:
        """Return a row's id, which is the first field of every class of rows."""
        text: str = getattr(row, fields(self.state)[0].name)
        return text


def plain_id(text: str) -> str:
    """Return an id in lower-case hex. Raises ValueError for text that is no hexadecimal number."""
    try:
        return bytes.fromhex(text).hex()
    except ValueError:
        raise ValueError(f"{shown(text)} is no id: an id has hexadecimal digits only") from None


def beginning_of_id(text: str) -> str:
    """Return the beginning of an id in lower-case hex. Raises ValueError for text that is no hexadecimal number."""
    try:
        return bytes.fromhex(text + "0" * (len(text) % 2)).hex()[: len(text)]
    except ValueError:
        return plain_id(text)


async def find(kind: Kind, reader: StateReader, timeout_s: float, digits: str) -> Listing:
    """Read the rows whose id is this, or else begins so (``beginning_of_id``). Raises ValueError if several ids do."""
    listing = await kind.read(reader, timeout_s, digits) if len(digits) % 2 == 0 else Listing([])
    if listing.rows:
        return listing
    every = await kind.read(reader, timeout_s, None)
    rows = [row for row in every.rows if kind.id_of(row).startswith(digits)]
    ids = sorted({kind.id_of(row) for row in rows})
    if len(ids) > 1:
        named = ", ".join(ids[:MOST_NAMED]) + (", ..." if len(ids) > MOST_NAMED else "")
        raise ValueError(f"{len(ids)} ids begin with {digits}: {named}")
    return every._replace(rows=rows)


async def actors(reader: StateReader, timeout_s: float, id: str | None) -> Listing:
    """Read the actors, newest first; dead ones too, as long as the gcs remembers them."""
    infos = [info for info in await reader.actors(timeout_s) if id is None or info.actor_id.hex() == id]
    return Listing([actor_state(info) for info in sorted(infos, key=lambda info: -info.start_time)])


def actor_state(info: ActorInfo) -> ActorState:
    death = None
    if info.death is not None:
        death = {"kind": KINDS_OF_DEATH[info.death.kind], "message": info.death.message}
    return ActorState(
        actor_id=info.actor_id.hex(),
        class_name=info.class_name,
        state=info.state,
        job_id=job_of_actor(info.actor_id).hex(),
        name=info.name,
        node_id=info.address.node_id.hex() if info.address is not None else None,
        pid=info.pid,
        ray_namespace=info.namespace,
        death_cause=death,
        is_detached=info.detached,
        num_restarts=info.restarts,
    )


async def tasks(reader: StateReader, timeout_s: float, id: str | None) -> Listing:
    """Read the tasks, newest of each process first: all unfinished ones, the last finished ones, and those that the gcs
    keeps."""
    task_id = None if id is None else bytes.fromhex(id)
    return task_listing(await reader.tasks(timeout_s, None if task_id is None else [task_id]), task_id)


def task_listing(found: ClusterTasks, task_id: bytes | None = None) -> Listing:
    """Make the rows of the tasks that were found, or of one of them."""
    received = {(one.task_id, one.attempt): (process, one.state) for process in found.processes for one in process.received}
    rows = {
        task.task_id: task_state(task, received.get((task.task_id, task.attempt)))
        for one in found.processes
        for task in one.tasks
    }
    _add_kept(rows, found.kept, task_id)
    left_out = sum(process.total - len(process.tasks) for process in found.processes)
    parts = _silent(found.silent) + ([f"{left_out} tasks are left out, because their owner has so many"] if left_out else [])
    dropped = describe_dropped(found.kept.dropped)
    missing = "; ".join(parts)
    return Listing(list(rows.values()), missing, dropped, silent=found.silent, left_out=left_out)


def _add_kept(rows: dict[bytes, TaskState], kept: KeptTasks, task_id: bytes | None) -> None:
    """Add the tasks that only the gcs knows, newest first, and the errors that the owners have forgotten.

    An owner's record says more than a worker's row, and the last attempt counts."""
    for task in reversed(kept.failed):
        row = rows.get(task.task_id)
        if row is None:
            if task_id in (None, task.task_id):
                rows[task.task_id] = task_state(task, None)
        elif row.state == "FAILED" and row.error_message is None:
            row.error_type, row.error_message = task.error_type or None, task.error or None
    workers = [worker.events() for worker in kept.workers]
    run = [(event, worker) for worker in workers for event in worker.events if task_id in (None, event.task_id)]
    for event, worker in sorted(run, key=lambda one: (-one[0].attempt, -one[0].start_us)):
        if event.task_id not in rows:
            rows[event.task_id] = _row_of_event(event, worker)


def _row_of_event(event: ProfileEvent, worker: ProfileEvents) -> TaskState:
    """Make the row of a task of which only its worker has told. A cancelled task has failed, as its owner would say."""
    is_cancelled = event.state == "CANCELLED"
    return TaskState(
        task_id=event.task_id.hex(),
        attempt_number=event.attempt,
        name=event.name,
        state="FAILED" if is_cancelled else event.state,
        job_id=job_of(event.task_id).hex(),
        actor_id=event.actor_id.hex() or None,
        type=event.kind,
        func_or_class_name=func_or_class_name(event),
        parent_task_id="",
        node_id=worker.node_id.hex(),
        worker_id=worker.worker_id.hex(),
        worker_pid=worker.pid,
        required_resources={},
        error_type="TASK_CANCELLED" if is_cancelled else None,
    )


def task_state(task: TaskInfo, received: tuple[TasksInfo, str] | None) -> TaskState:
    """Make the row of a task from its owner's record and the record of the process to which it was sent."""
    process, state = received if received is not None else (None, task.state)
    return TaskState(
        task_id=task.task_id.hex(),
        attempt_number=task.attempt,
        name=task.name,
        state=state,
        job_id=job_of(task.task_id).hex(),
        actor_id=task.actor_id.hex() or None,
        type=task.kind,
        func_or_class_name=func_or_class_name(task),
        parent_task_id=task.parent_id.hex(),
        node_id=(process.node_id if process is not None else task.node_id).hex() or None,
        worker_id=(process.worker_id if process is not None else task.worker_id).hex() or None,
        worker_pid=(process.pid if process is not None else task.pid) or None,
        required_resources=to_floats(task.resources),
        error_type=task.error_type or None,
        error_message=task.error or None,
    )


async def nodes(reader: StateReader, timeout_s: float, id: str | None) -> Listing:
    """Read all nodes, also those that have left the cluster."""
    infos = [info for info in await reader.nodes(timeout_s) if id is None or info.node_id.hex() == id]
    return Listing([node_state(info) for info in infos])


def node_state(info: NodeInfo) -> NodeState:
    return NodeState(
        node_id=info.node_id.hex(),
        node_ip=info.ip,
        is_head_node=info.is_head,
        state="ALIVE" if info.alive else "DEAD",
        state_message=info.death_cause or (f"draining: {info.drain.message}" if info.drain is not None else None),
        node_name=info.name,
        resources_total=to_floats(info.resources_total),
        labels=labels_of(info.node_id, info.labels),
    )


async def workers(reader: StateReader, timeout_s: float, id: str | None) -> Listing:
    """Read the living drivers and workers, and the dead ones that the gcs remembers."""
    return worker_listing(await reader.workers(timeout_s), id)


def worker_listing(found: ClusterWorkers, id: str | None = None) -> Listing:
    """Make the rows of the processes that were found, or of one of them."""
    ips = {info.node_id: info.ip for info in found.nodes}
    rows = [
        WorkerState(
            worker_id=worker_id.hex(),
            is_alive=True,
            worker_type=kind,
            exit_type=None,
            node_id=node_id.hex(),
            ip=ips.get(node_id, ""),
            pid=pid,
        )
        for kind, worker_id, node_id, pid in found.living
    ]
    rows += [_dead_worker(death, ips.get(death.node_id, ""), found.jobs) for death in found.deaths]
    rows = [row for row in rows if id in (None, row.worker_id)]
    return Listing(rows, "; ".join(_silent(found.silent)), silent=found.silent)


def _dead_worker(death: WorkerDeath, ip: str, jobs: Sequence[JobInfo]) -> WorkerState:
    kind = "DRIVER" if any(job.driver.worker_id == death.worker_id for job in jobs) else "WORKER"
    if death.cause == DRIVER_LEFT:
        exit_type = "INTENDED_USER_EXIT"
    else:
        exit_type = "INTENDED_SYSTEM_EXIT" if death.cause.startswith("exit code 0") else "SYSTEM_ERROR"
    return WorkerState(
        worker_id=death.worker_id.hex(),
        is_alive=False,
        worker_type=kind,
        exit_type=exit_type,
        node_id=death.node_id.hex(),
        ip=ip,
        pid=death.pid,
        exit_detail=death.cause,
    )


async def jobs(reader: StateReader, timeout_s: float, id: str | None) -> Listing:
    """Read the jobs: drivers that run and drivers that have ended."""
    infos = [info for info in await reader.jobs(timeout_s) if id is None or info.job_id.hex() == id]
    ips = {node.node_id: node.ip for node in await reader.nodes(timeout_s)}
    return Listing([job_state(info, ips.get(info.driver.node_id, "")) for info in infos])


def job_state(info: JobInfo, ip: str) -> JobState:
    return JobState(
        job_id=info.job_id.hex(),
        type="DRIVER",
        status="SUCCEEDED" if info.end_time else "RUNNING",
        entrypoint=info.config.entrypoint,
        driver_info={"id": info.job_id.hex(), "node_ip_address": ip, "pid": str(info.driver_pid)},
        start_time=int(info.start_time * MS),
        end_time=int(info.end_time * MS) or None,
    )


async def placement_groups(reader: StateReader, timeout_s: float, id: str | None) -> Listing:
    """Read the placement groups that the gcs remembers, removed ones too."""
    groups = [group for group in await reader.placement_groups(timeout_s) if id is None or group.group_id.hex() == id]
    return Listing([placement_group_state(group) for group in groups])


def placement_group_state(group: PlacementGroupInfo) -> PlacementGroupState:
    bundles = [
        {"bundle_index": index, "unit_resources": to_floats(bundle.resources), "node_id": bundle.node_id.hex() or None}
        for index, bundle in enumerate(group.bundles)
    ]
    return PlacementGroupState(
        placement_group_id=group.group_id.hex(),
        name=group.name,
        creator_job_id=group.job_id.hex(),
        state=group.state,
        bundles=bundles,
        is_detached=group.detached,
    )


async def objects(reader: StateReader, timeout_s: float, id: str | None) -> Listing:
    """Read the objects, largest first, with a row for each process and object."""
    found = await reader.read(timeout_s, object_ids=None if id is None else [bytes.fromhex(id)])
    parts = _silent(found.silent)
    if left_out := found.left_out():
        parts.append(f"{left_out} references or copies are left out, because their process or node has so many")
    return Listing(object_states(found), "; ".join(parts))


def object_states(objects: ClusterObjects) -> list[ObjectState]:
    states = [
        ObjectState(
            object_id=use.object_id.hex(),
            object_size=use.size,
            task_status=use.task_status,
            attempt_number=use.attempt + 1,
            reference_type=use.reference_type,
            call_site=use.call_site,
            type="DRIVER" if use.is_driver else "WORKER",
            pid=use.pid,
            ip=objects.nodes[use.node_id].ip,
        )
        for use in objects.uses()
    ]
    return sorted(states, key=lambda state: -state.object_size)


def _silent(names: Sequence[str]) -> list[str]:
    return [f"{name} does not answer" for name in names]


KINDS = {
    "actors": Kind(ActorState, actors),
    "jobs": Kind(JobState, jobs),
    "nodes": Kind(NodeState, nodes),
    "objects": Kind(ObjectState, objects),
    "placement-groups": Kind(PlacementGroupState, placement_groups),
    "tasks": Kind(TaskState, tasks),
    "workers": Kind(WorkerState, workers),
}
