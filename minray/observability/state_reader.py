"""Questions to all processes of a cluster about its objects, tasks, stacks, metrics and breakpoints.

Ray: python/ray/util/state/state_manager.py, python/ray/dashboard/state_aggregator.py

The gcs knows nodes, drivers, actors, and tasks of processes that have ended; each raylet knows its store and its workers;
each process knows its references and tasks. All processes are asked at once, and after them the gcs about what a process
that has just ended has left. A dead process is left out, and ``silent`` names each process that does not answer in
time. ``ClusterObjects.uses`` combines the answers about objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from minray.common.ids import short
from minray.platform.base import PlatformError
from minray.protocol.actor import ActorInfo, ListActors
from minray.protocol.base import Address, Record, Request, decode
from minray.protocol.core_worker import NIL, UNKNOWN_SIZE, CoreWorkerStats, GetCoreWorkerStats, ObjectRefInfo
from minray.protocol.gcs import (
    JOBS,
    NODES,
    RESOURCES,
    WORKER_DEATHS,
    JobInfo,
    NodeInfo,
    NodeResources,
    WorkerDeath,
)
from minray.protocol.metrics import GcsMetrics, GetEndedMetrics, GetGcsMetrics, GetNodeMetrics, NodeMetrics
from minray.protocol.object_store import MOST_ENTRIES, CopyInfo, GetObjectsInfo, ObjectsInfo
from minray.protocol.placement_group import PLACEMENT_GROUPS, PlacementGroupInfo
from minray.protocol.raylet import GetNodeStats, NodeStats
from minray.protocol.state import (
    MOST_TASKS,
    GetBreakpoints,
    GetMetrics,
    GetProfileEvents,
    GetStacks,
    GetTaskEvents,
    GetTasksInfo,
    ProcessBreakpoints,
    ProcessMetrics,
    ProcessStacks,
    ProfileEvents,
    StateAnswers,
    TaskInfo,
    TasksInfo,
    WorkerTaskEvents,
)
from minray.rpc.connection import Peer, Peers, PeerUnreachable
from minray.rpc.pubsub import read_table

R = TypeVar("R", bound=Record)
S = TypeVar("S", TasksInfo, ProfileEvents)

PINNED_IN_MEMORY, USED_BY_PENDING_TASK, LOCAL_REFERENCE, CAPTURED_IN_OBJECT, UNKNOWN_STATUS = (
    "PINNED_IN_MEMORY",
    "USED_BY_PENDING_TASK",
    "LOCAL_REFERENCE",
    "CAPTURED_IN_OBJECT",
    "UNKNOWN_STATUS",
)
"""Ray's names for why a process refers to an object, in this order: it reads the object in the store; a submitted task takes
the object as an argument; the program has an ObjectRef; another value contains the object. UNKNOWN_STATUS: the process keeps
the object only for its borrowers."""


LEAST_TASKS = 10
"""Fewest tasks for which a process is asked, however many processes share the room."""


class ObjectUse(NamedTuple):
    """One process and one object that it refers to, or reads."""

    object_id: bytes
    worker_id: bytes
    node_id: bytes
    pid: int
    is_driver: bool
    reference_type: str
    size: int
    """Size in bytes; -1 if no process that answered knows it."""
    call_site: str
    task_status: str
    attempt: int
    owner_id: bytes
    borrowers: int


class ClusterObjects(NamedTuple):
    """Answers of all raylets, drivers and workers about objects."""

    nodes: dict[bytes, NodeInfo]
    """Living nodes, by node id."""
    stores: dict[bytes, ObjectsInfo]
    """Object stores, by node id."""
    processes: list[CoreWorkerStats]
    silent: list[str]
    """Names of the nodes and processes that did not answer."""

    def left_out(self) -> int:
        """Return the number of references and copies that the answers leave out because there are too many."""
        references = sum(process.total - len(process.references) for process in self.processes)
        return references + sum(store.total - len(store.copies) for store in self.stores.values())

    def uses(self) -> list[ObjectUse]:
        """Return an entry for each reference, and for each object that a process reads without having a reference."""
        copies = {copy.object_id: copy for store in self.stores.values() for copy in store.copies}
        sizes = {info.object_id: info.size for process in self.processes for info in process.references if info.size >= 0}
        sizes |= {copy.object_id: copy.size for copy in copies.values()}
        reads: dict[bytes, dict[bytes, CopyInfo]] = {}
        for store in self.stores.values():
            for copy in store.copies:
                for reader in copy.readers:
                    reads.setdefault(reader, {})[copy.object_id] = copy
        found: list[ObjectUse] = []
        for process in self.processes:
            read = reads.get(process.worker_id, {})
            found += [_use(process, info, info.object_id in read, sizes) for info in process.references]
            known = {info.object_id for info in process.references}
            found += [_read_use(process, copy) for copy in read.values() if copy.object_id not in known]
        return found


def _use(process: CoreWorkerStats, info: ObjectRefInfo, is_read: bool, sizes: dict[bytes, int]) -> ObjectUse:
    return ObjectUse(
        object_id=info.object_id,
        worker_id=process.worker_id,
        node_id=process.node_id,
        pid=process.pid,
        is_driver=process.is_driver,
        reference_type=PINNED_IN_MEMORY if is_read else reference_type(info),
        size=sizes.get(info.object_id, UNKNOWN_SIZE),
        call_site=info.call_site,
        task_status=info.task_status,
        attempt=info.attempt,
        owner_id=info.owner_id,
        borrowers=info.borrowers,
    )


def _read_use(process: CoreWorkerStats, copy: CopyInfo) -> ObjectUse:
    return ObjectUse(
        object_id=copy.object_id,
        worker_id=process.worker_id,
        node_id=process.node_id,
        pid=process.pid,
        is_driver=process.is_driver,
        reference_type=PINNED_IN_MEMORY,
        size=copy.size,
        call_site="",
        task_status=NIL,
        attempt=copy.attempt,
        owner_id=copy.owner_id,
        borrowers=0,
    )


def reference_type(info: ObjectRefInfo) -> str:
    """Return why a process refers to an object that it does not read."""
    if info.submitted:
        return USED_BY_PENDING_TASK
    if info.local or info.is_pickled:
        return LOCAL_REFERENCE
    return CAPTURED_IN_OBJECT if info.contained else UNKNOWN_STATUS


class _ClusterQuestion:
    """One question to many processes, and the names of those that have not answered."""

    def __init__(self, timeout_s: float, limit: int = 0, object_ids: list[bytes] | None = None) -> None:
        self.limit = limit
        self.object_ids = object_ids
        self.silent: list[str] = []
        self.timeout_s = timeout_s

    async def ask(self, name: str, answer: Awaitable[R]) -> R | None:
        """Await an answer; return None if the process is dead or does not answer in time."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return await answer
        except TimeoutError:
            self._note(name)
        except PlatformError as error:
            if not (isinstance(error, PeerUnreachable) and error.is_certain):
                self._note(name)
        return None

    def _note(self, name: str) -> None:
        if name not in self.silent:
            self.silent.append(name)


class KeptTasks(NamedTuple):
    """The tasks that the gcs keeps."""

    failed: list[TaskInfo]
    """Failed tasks, as their owners have reported them, oldest first."""
    workers: list[WorkerTaskEvents]
    """Tasks that each dead worker has run, still packed."""
    dropped: int
    """Number of tasks that the gcs does not keep because there were too many."""


def describe_dropped(count: int) -> str:
    """Say how many tasks the gcs has dropped; nothing if it has dropped none."""
    limits = "task_events_max_num_task_in_gcs and task_events_max_bytes_in_gcs"
    return f"{count} older tasks of ended processes are not kept any more; the limits are {limits}" if count else ""


class ClusterTasks(NamedTuple):
    processes: list[TasksInfo]
    kept: KeptTasks
    silent: list[str]


class ClusterProfile(NamedTuple):
    workers: list[ProfileEvents]
    """Tasks that each worker has run; living and dead workers."""
    silent: list[str]
    dropped: int
    """Number of tasks of ended processes that the gcs does not keep because there were too many."""


class ClusterStacks(NamedTuple):
    nodes: dict[bytes, NodeInfo]
    """Living nodes, by node id."""
    processes: list[ProcessStacks]
    silent: list[str]


class ClusterBreakpoints(NamedTuple):
    nodes: dict[bytes, NodeInfo]
    """Living nodes, by node id."""
    processes: list[ProcessBreakpoints]
    silent: list[str]


class ClusterMetrics(NamedTuple):
    """Values of programs, and the figures of drivers and workers about the system."""

    processes: list[ProcessMetrics]
    """Living drivers and workers, and what the nodes keep of workers that have ended."""
    silent: list[str]
    left_out: int = 0
    """Number of values that the nodes could not keep."""


class ClusterFigures(NamedTuple):
    """All that the system metrics are made of."""

    metrics: ClusterMetrics
    nodes: list[NodeInfo]
    resources: list[NodeResources]
    """The newest report of each living node."""
    of_nodes: list[NodeMetrics]
    gcs: GcsMetrics | None
    """Figures of the gcs; None if it does not answer."""
    jobs: list[JobInfo]
    actors: list[ActorInfo]
    groups: list[PlacementGroupInfo]
    silent: list[str]


class ClusterWorkers(NamedTuple):
    nodes: list[NodeInfo]
    jobs: list[JobInfo]
    living: list[tuple[str, bytes, bytes, int]]
    """Living processes: DRIVER or WORKER, worker id, node id, pid."""
    deaths: list[WorkerDeath]
    """Deaths of processes that the gcs still remembers."""
    silent: list[str]


class ClusterCensus(NamedTuple):
    """The nodes of a cluster with their resources and stores, and all its processes with their addresses."""

    nodes: list[NodeInfo]
    jobs: list[JobInfo]
    reports: dict[bytes, NodeResources]
    """Newest report of each node, by node id."""
    stats: dict[bytes, NodeStats]
    """Workers and waiting leases of each node that has answered, by node id."""
    stores: dict[bytes, ObjectsInfo]
    """Object stores without their copies, by node id."""
    drivers: list[tuple[Address, int]]
    """Addresses and pids of the drivers that run."""
    silent: list[str]

    def processes(self) -> dict[bytes, tuple[Address, int]]:
        """Return the addresses and pids of all drivers and workers, by worker id."""
        found = [*self.drivers, *_addresses(list(self.stats.values()))]
        return {address.worker_id: (address, pid) for address, pid in found}


class StateReader:
    """A reader that asks the gcs and the processes that it knows. Each of them has ``timeout_s`` seconds to answer.

    Raises PlatformError if the gcs cannot be reached, TimeoutError if it does not answer.
    """

    def __init__(self, peers: Peers, gcs: Peer, own_id: bytes = b"", own: StateAnswers | None = None) -> None:
        """Make a reader. If this process belongs to the cluster, ``own_id`` is its id, and ``own`` gives its answers."""
        self._peers = peers
        self._gcs = gcs
        self._own_id = own_id
        self._own = own

    async def read(
        self, timeout_s: float, limit: int = MOST_ENTRIES, object_ids: Sequence[bytes] | None = None
    ) -> ClusterObjects:
        """Ask for the largest objects of each node and process, at most ``limit``, or for these objects."""
        question = _ClusterQuestion(timeout_s, limit, None if object_ids is None else list(object_ids))
        alive, drivers = await self._living(timeout_s)
        of_nodes = await asyncio.gather(*(self._read_node(question, node) for node in alive.values()))
        workers = _addresses([stats for _, stats in of_nodes])
        request = GetCoreWorkerStats(question.limit, question.object_ids)
        processes = await self._ask_all(question, request, lambda own: own.stats(request), [*drivers, *workers])
        stores = {store.node_id: store for store, _ in of_nodes if store is not None}
        return ClusterObjects(alive, stores, processes, question.silent)

    async def tasks(
        self, timeout_s: float, task_ids: Sequence[bytes] | None = None, most: int | None = None
    ) -> ClusterTasks:
        """Ask for the newest tasks of each process, or for these tasks; and for all tasks that the gcs keeps.

        ``most`` is about the number of tasks that all processes together tell; None: each tells up to ``MOST_TASKS``.
        Unfinished tasks come first, and each process counts those that it does not tell.
        """
        question = _ClusterQuestion(timeout_s)
        _, drivers, workers = await self._processes(question)
        processes = [*drivers, *workers]
        wanted = None if task_ids is None else list(task_ids)

        async def ask(limit: int, some: Sequence[tuple[Address, int]]) -> list[TasksInfo]:
            request = GetTasksInfo(limit, wanted)
            return await self._ask_all(question, request, lambda own: own.tasks(request), some)

        infos = await _in_shares(processes, most, LEAST_TASKS, ask, lambda info: len(info.tasks))
        return ClusterTasks(infos, await self._kept(timeout_s), question.silent)

    async def profile(self, timeout_s: float, most: int | None = None) -> ClusterProfile:
        """Ask each worker for the tasks that it has run recently, and the gcs for those that dead workers have run.

        ``most`` is about the number of tasks that are told; None: each worker tells up to ``MOST_TASKS``. Of each worker
        those that ended last are told, and the others are counted.
        """
        question = _ClusterQuestion(timeout_s)
        _, _, workers = await self._processes(question)

        async def ask(limit: int, some: Sequence[tuple[Address, int]]) -> list[ProfileEvents]:
            request = GetProfileEvents(limit)
            return await self._ask_all(question, request, lambda own: own.profile(request), some)

        profiles = await _in_shares(workers, most, 1, ask, lambda profile: len(profile.events))
        kept = await self._kept(timeout_s)
        told = {profile.worker_id for profile in profiles}
        dead = [worker for worker in kept.workers if worker.worker_id not in told]
        share = _share(most, len(profiles) + len(dead), 1)
        return ClusterProfile(profiles + [worker.events(share) for worker in dead], question.silent, kept.dropped)

    async def stacks(self, timeout_s: float) -> ClusterStacks:
        """Ask each driver and worker for its current stacks."""
        question = _ClusterQuestion(timeout_s)
        alive, drivers, workers = await self._processes(question)
        stacks = await self._ask_all(question, GetStacks(), lambda own: own.stacks(), [*drivers, *workers])
        return ClusterStacks(alive, stacks, question.silent)

    async def breakpoints(self, timeout_s: float) -> ClusterBreakpoints:
        """Ask each worker for the breakpoints at which it waits."""
        question = _ClusterQuestion(timeout_s)
        alive, _, workers = await self._processes(question)
        found = await self._ask_all(question, GetBreakpoints(), lambda own: own.breakpoints(), workers)
        return ClusterBreakpoints(alive, found, question.silent)

    async def metrics(self, timeout_s: float) -> ClusterMetrics:
        """Ask each driver and worker for its metrics, and then each node for those of workers that have ended."""
        question = _ClusterQuestion(timeout_s)
        alive, drivers, workers = await self._processes(question)
        return await self._metrics(question, [*alive.values()], [*drivers, *workers])

    async def _metrics(
        self, question: _ClusterQuestion, nodes: Sequence[NodeInfo], processes: Sequence[tuple[Address, int]]
    ) -> ClusterMetrics:
        told = await self._ask_all(question, GetMetrics(), lambda own: own.metrics(), processes)
        request = GetEndedMetrics([process.worker_id for process in told])
        kept = await self._ask_nodes(question, request, nodes)
        ended = [process for of_node in kept for process in of_node.processes]
        return ClusterMetrics(told + ended, question.silent, sum(of_node.left_out for of_node in kept))

    async def figures(self, timeout_s: float) -> ClusterFigures:
        """Ask every process for its metrics, and the gcs for its tables."""
        question = _ClusterQuestion(timeout_s)
        async with asyncio.timeout(timeout_s):
            nodes, resources, jobs, groups = await asyncio.gather(
                self.rows(NODES, NodeInfo),
                self.rows(RESOURCES, NodeResources),
                self.rows(JOBS, JobInfo),
                self.rows(PLACEMENT_GROUPS, PlacementGroupInfo),
            )
            actors = (await self._gcs.call(ListActors())).actors
        alive = {node.node_id: node for node in nodes if node.alive}
        of_nodes = await asyncio.gather(*(self._read_workers(question, node) for node in alive.values()))
        answering = [node for node, stats in zip(alive.values(), of_nodes, strict=True) if stats is not None]
        processes = [*_drivers(jobs, alive), *_addresses(of_nodes)]
        metrics, node_metrics, gcs = await asyncio.gather(
            self._metrics(question, answering, processes),
            self._ask_nodes(question, GetNodeMetrics(), answering),
            question.ask("the gcs", self._gcs.call(GetGcsMetrics())),
        )
        return ClusterFigures(
            metrics=metrics,
            nodes=nodes,
            resources=resources,
            of_nodes=node_metrics,
            gcs=gcs,
            jobs=jobs,
            actors=actors,
            groups=groups,
            silent=question.silent,
        )

    async def workers(self, timeout_s: float) -> ClusterWorkers:
        """Ask for all drivers and workers, and for those that died recently."""
        question = _ClusterQuestion(timeout_s)
        async with asyncio.timeout(timeout_s):
            nodes, jobs, deaths = await asyncio.gather(
                self.rows(NODES, NodeInfo), self.rows(JOBS, JobInfo), self.rows(WORKER_DEATHS, WorkerDeath)
            )
        alive = {node.node_id: node for node in nodes if node.alive}
        of_nodes = await asyncio.gather(*(self._read_workers(question, node) for node in alive.values()))
        living = [("DRIVER", driver.worker_id, driver.node_id, pid) for driver, pid in _drivers(jobs, alive)]
        living += [("WORKER", worker.worker_id, worker.node_id, pid) for worker, pid in _addresses(of_nodes)]
        return ClusterWorkers(nodes=nodes, jobs=jobs, living=living, deaths=deaths, silent=question.silent)

    async def census(self, timeout_s: float) -> ClusterCensus:
        """Ask the gcs for nodes, jobs and resources, and each raylet for its workers and the state of its store."""
        question = _ClusterQuestion(timeout_s)
        async with asyncio.timeout(timeout_s):
            nodes, jobs, reports = await asyncio.gather(
                self.rows(NODES, NodeInfo), self.rows(JOBS, JobInfo), self.rows(RESOURCES, NodeResources)
            )
        alive = {node.node_id: node for node in nodes if node.alive}
        of_nodes = await asyncio.gather(*(self._read_node(question, node) for node in alive.values()))
        return ClusterCensus(
            nodes=nodes,
            jobs=jobs,
            reports={report.node_id: report for report in reports},
            stats={stats.node_id: stats for _, stats in of_nodes if stats is not None},
            stores={store.node_id: store for store, _ in of_nodes if store is not None},
            drivers=_drivers(jobs, alive),
            silent=question.silent,
        )

    async def nodes(self, timeout_s: float) -> list[NodeInfo]:
        async with asyncio.timeout(timeout_s):
            return await self.rows(NODES, NodeInfo)

    async def jobs(self, timeout_s: float) -> list[JobInfo]:
        async with asyncio.timeout(timeout_s):
            return await self.rows(JOBS, JobInfo)

    async def placement_groups(self, timeout_s: float) -> list[PlacementGroupInfo]:
        async with asyncio.timeout(timeout_s):
            return await self.rows(PLACEMENT_GROUPS, PlacementGroupInfo)

    async def actors(self, timeout_s: float) -> list[ActorInfo]:
        async with asyncio.timeout(timeout_s):
            return (await self._gcs.call(ListActors())).actors

    async def _kept(self, timeout_s: float) -> KeptTasks:
        """Read the gcs's table of tasks, part by part."""
        async with asyncio.timeout(timeout_s):
            part = await self._gcs.call(GetTaskEvents())
            failed, workers = [*part.failed], [*part.workers]
            while not part.is_complete:
                part = await self._gcs.call(GetTaskEvents(part.last))
                failed += part.failed
                workers += part.workers
        return KeptTasks(failed, workers, part.dropped)

    async def _living(self, timeout_s: float) -> tuple[dict[bytes, NodeInfo], list[tuple[Address, int]]]:
        """Return the living nodes by id, and the addresses and pids of their drivers."""
        async with asyncio.timeout(timeout_s):
            nodes, jobs = await asyncio.gather(self.rows(NODES, NodeInfo), self.rows(JOBS, JobInfo))
        alive = {node.node_id: node for node in nodes if node.alive}
        return alive, _drivers(jobs, alive)

    async def ask_raylet(self, node: NodeInfo, request: Request[R]) -> R:
        """Ask a node's raylet. Raises PlatformError if it cannot be reached; waits for its answer without a limit."""
        return await self._peers.to(node.address).call(request)

    async def rows(self, channel: str, record: type[R]) -> list[R]:
        """Return all rows of a channel of the gcs."""
        return [decode(record, value) for value in await read_table(self._gcs, channel)]

    async def _read_node(self, question: _ClusterQuestion, node: NodeInfo) -> tuple[ObjectsInfo | None, NodeStats | None]:
        objects_info = GetObjectsInfo(question.limit, question.object_ids)
        store = question.ask(_name(node), self._peers.to(node.address).call(objects_info))
        return await asyncio.gather(store, self._read_workers(question, node))

    async def _read_workers(self, question: _ClusterQuestion, node: NodeInfo) -> NodeStats | None:
        return await question.ask(_name(node), self._peers.to(node.address).call(GetNodeStats()))

    async def _ask_nodes(
        self, question: _ClusterQuestion, request: Request[R], nodes: Sequence[NodeInfo]
    ) -> list[R]:
        """Ask the raylets of these nodes, but those that have not answered this question before; return the answers."""
        asked = [node for node in nodes if _name(node) not in question.silent]
        told = await asyncio.gather(
            *(question.ask(_name(node), self._peers.to(node.address).call(request)) for node in asked)
        )
        return [one for one in told if one is not None]

    async def _processes(
        self, question: _ClusterQuestion
    ) -> tuple[dict[bytes, NodeInfo], list[tuple[Address, int]], list[tuple[Address, int]]]:
        """Return the living nodes by id, and the addresses and pids of their drivers and of their workers."""
        alive, drivers = await self._living(question.timeout_s)
        of_nodes = await asyncio.gather(*(self._read_workers(question, node) for node in alive.values()))
        return alive, drivers, _addresses(of_nodes)

    async def _ask_all(
        self,
        question: _ClusterQuestion,
        request: Request[R],
        answer: Callable[[StateAnswers], R],
        processes: Sequence[tuple[Address, int]],
    ) -> list[R]:
        """Ask these processes, and return the answers. ``answer`` makes this process's own, if it is one of them."""

        async def ask(to: Address, pid: int) -> R | None:
            if self._own is not None and to.worker_id == self._own_id:
                return answer(self._own)
            return await question.ask(_name_of_process(to, pid), self._peers.to(to).call(request))

        told = await asyncio.gather(*(ask(*one) for one in processes))
        return [one for one in told if one is not None]


def _share(most: int | None, processes: int, least: int) -> int:
    """Return how many tasks each process tells if all together tell about ``most``; a process tells at least ``least``."""
    return MOST_TASKS if most is None else max(least, min(MOST_TASKS, most // max(1, processes)))


async def _in_shares(
    processes: Sequence[tuple[Address, int]],
    most: int | None,
    least: int,
    ask: Callable[[int, Sequence[tuple[Address, int]]], Awaitable[list[S]]],
    count: Callable[[S], int],
) -> list[S]:
    """Ask processes for about ``most`` tasks together. Those that have more get the room of those that have fewer.

    ``ask`` asks some of the processes for a limited number of tasks each, and ``count`` counts those in an answer.
    """
    first = _share(most, len(processes), least)
    told = await ask(first, processes)
    if most is None or first == MOST_TASKS:
        return told
    cut = {one.worker_id for one in told if count(one) < one.total}
    room = most - sum(count(one) for one in told if one.worker_id not in cut)
    share = min(MOST_TASKS, room // max(1, len(cut)))
    if not cut or share <= first:
        return told
    longer = await ask(share, [(address, pid) for address, pid in processes if address.worker_id in cut])
    by_id = {one.worker_id: one for one in longer}
    return [by_id.get(one.worker_id, one) for one in told]


def _drivers(jobs: Sequence[JobInfo], alive: dict[bytes, NodeInfo]) -> list[tuple[Address, int]]:
    return [(job.driver, job.driver_pid) for job in jobs if not job.end_time and job.driver.node_id in alive]


def _addresses(of_nodes: Sequence[NodeStats | None]) -> list[tuple[Address, int]]:
    """Return the addresses and pids of the workers that have registered."""
    workers = [worker for stats in of_nodes if stats is not None for worker in stats.workers]
    return [(worker.address, worker.pid) for worker in workers if worker.address is not None]


def _name(node: NodeInfo) -> str:
    return f"node {node.name or short(node.node_id)}"


def _name_of_process(address: Address, pid: int) -> str:
    return f"process {pid} of node {short(address.node_id)}"
