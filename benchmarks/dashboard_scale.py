"""The cost of each view of the dashboard in a large cluster, whose processes are simulated.

``python -m benchmarks.dashboard_scale [NODES] [ACTORS] [TASKS]`` serves the dashboard of a cluster with 1,000 nodes, 10,000
actors and 1,000,000 tasks, and prints a line for each question of the page. The server, its reader of states and what it
sends are the real ones. The processes of the cluster are simulated: each answer is decoded anew, as one from the network.

Columns: processor seconds of the first answer, and seconds that the visitor waited; the same for a repeated question, while
the answer is kept; bytes as they travel; memory of this process afterwards, without the simulation's; rows that match.
"""

from __future__ import annotations

import gzip
import http.client
import json
import sys
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import msgspec
import psutil

from minray.common.config import SystemConfig
from minray.common.ids import OBJECT_ID_BYTES, PLACEMENT_GROUP_ID_BYTES, TASK_ID_BYTES, UNIQUE_ID_BYTES
from minray.dashboard.access import cookie_name, dashboard_token
from minray.dashboard.cluster_state import DashboardState
from minray.dashboard.connection import Target
from minray.dashboard.server import DashboardServer
from minray.observability.state_reader import StateReader
from minray.platform.process.host import RealHost
from minray.platform.threads.user_code import IoThread
from minray.protocol.actor import ALIVE, ActorInfo, ActorsReply, ListActors
from minray.protocol.base import Address, Record, Request, decode, encode, reply_class
from minray.protocol.core_worker import (
    CoreWorkerStats,
    Explain,
    ExplainRun,
    Explanation,
    GetCoreWorkerStats,
    ObjectRefInfo,
)
from minray.protocol.gcs import (
    JOBS,
    NODES,
    RESOURCES,
    WORKER_DEATHS,
    JobConfig,
    JobInfo,
    NodeInfo,
    NodeResources,
)
from minray.protocol.logs import ListLogs, LogFile, LogFiles
from minray.protocol.metrics import EndedMetrics, GcsMetrics, GetEndedMetrics, GetGcsMetrics, GetNodeMetrics, NodeMetrics
from minray.protocol.object_store import GetObjectsInfo, ObjectsInfo
from minray.protocol.placement_group import PLACEMENT_GROUPS, Bundle, PlacementGroupInfo
from minray.protocol.raylet import GetNodeStats, NodeStats, WorkerStatus
from minray.protocol.state import (
    MOST_TASKS,
    GetMetrics,
    GetProfileEvents,
    GetTaskEvents,
    GetTasksInfo,
    ProcessMetrics,
    ProfileEvent,
    SystemValue,
    TaskEvents,
    TaskInfo,
    TasksInfo,
)

R = TypeVar("R", bound=Record)
SIZES = (1_000, 10_000, 1_000_000)
"""Default numbers of nodes, actors and tasks."""
OBJECTS_OF_DRIVER, EVENTS_OF_WORKER, LOGS_OF_NODE, GROUPS = 1_000, 100, 20, 1_000
NAMES = ("load", "decode", "shuffle_map", "shuffle_reduce", "train_step", "evaluate")
STATES = ("FINISHED", "FINISHED", "FINISHED", "RUNNING", "PENDING_NODE_ASSIGNMENT", "FAILED")
CPU = 10_000
"""Number that stands for one CPU in messages."""
TOTAL = {"CPU": 16 * CPU, "memory": 64 << 30, "object_store_memory": 16 << 30}
TOKEN = b"t" * 32
GCS = Address(b"gcs", b"", "unix:/gcs")
QUESTIONS = {
    "Overview": ("/api/cluster", "/api/tasks/summary", "/api/tasks?filter=state=FAILED&limit=10"),
    "Who waits": ("/api/waits",),
    "Nodes": ("/api/nodes?limit=100", "/api/nodes?filter=health=silent&limit=100"),
    "Workers": ("/api/workers?limit=100",),
    "Jobs": ("/api/jobs?limit=100",),
    "Actors": ("/api/actors?limit=100", "/api/actors?search=actor-9999&limit=100"),
    "Tasks": ("/api/tasks?limit=100", "/api/tasks?search=train&sort=-name&limit=100"),
    "Objects": ("/api/objects?limit=100",),
    "Placement groups": ("/api/placement_groups?limit=100",),
    "Timeline": ("/api/timeline?limit=20000", "/api/timeline"),
    "Logs": ("/api/logs?limit=100",),
    "Metrics": ("/api/metrics/history", "/metrics"),
}
"""Paths for which the page asks in each view; some have a search or a filter."""


def id_of(number: int, size: int = UNIQUE_ID_BYTES, job: int = 0) -> bytes:
    return number.to_bytes(size - 4, "big") + job.to_bytes(4, "big")


class EncodedTasks(NamedTuple):
    """A ``TasksInfo`` whose tasks are encoded one by one."""

    node_id: bytes
    worker_id: bytes
    pid: int
    is_driver: bool
    total: int
    tasks: list[msgspec.Raw]
    received: tuple[()] = ()

    def cut(self, request: GetTasksInfo) -> EncodedTasks:
        """Return the answer to a request. An id is the number of a task, and that of its job."""
        if request.task_ids is None:
            return self._replace(tasks=self.tasks[: request.limit])
        job = (self.pid - 40_000).to_bytes(4, "big")
        numbers = [int.from_bytes(task_id[:-4], "big") for task_id in request.task_ids if task_id.endswith(job)]
        return self._replace(tasks=[self.tasks[number] for number in numbers], total=len(numbers))


class EncodedEvents(NamedTuple):
    """A ``ProfileEvents`` whose events are encoded one by one."""

    node_id: bytes
    node_ip: str
    worker_id: bytes
    pid: int
    total: int
    events: list[msgspec.Raw]


class Cluster:
    """The answers of all processes of a cluster, encoded."""

    def __init__(self, nodes: int, actors: int, tasks: int) -> None:
        self.nodes, self.jobs = nodes, max(1, tasks // MOST_TASKS)
        self._tables: dict[str, list[bytes]] = {WORKER_DEATHS: []}
        self._answers: dict[tuple[bytes, type], bytes] = {}
        """By id of the process and kind of request."""
        self._tasks: dict[bytes, EncodedTasks] = {}
        """By id of the driver, which tells as many as it is asked for."""
        homes = [Address(id_of(n, job=9), id_of(n % nodes + 1), f"unix:/tmp/worker{n}") for n in range(actors)]
        self._events: dict[bytes, EncodedEvents] = {}
        """By id of the worker, which tells as many as it is asked for."""
        self._run = [
            msgspec.Raw(encode(ProfileEvent(
                task_id=id_of(number, TASK_ID_BYTES), attempt=0, name=NAMES[number % 6], kind="ACTOR_TASK",
                actor_id=b"", start_us=10**15 + number * 1000, duration_us=900, state="FINISHED",
            )))
            for number in range(EVENTS_OF_WORKER)
        ]  # fmt: skip
        """Encoded tasks that each worker has run, oldest first."""
        self._add_gcs(homes, tasks)
        for n in range(nodes):
            self._add_node(n, homes[n::nodes])
        for job in range(self.jobs):
            self._add_driver(job, tasks // self.jobs)

    def rows(self, channel: str, record: type[R]) -> list[R]:
        return [decode(record, row) for row in self._tables[channel]]

    def answer(self, process: bytes, request: Request[R]) -> R:
        if isinstance(request, GetTasksInfo) and process in self._tasks:
            payload = encode(self._tasks[process].cut(request))
        elif isinstance(request, GetProfileEvents):
            told = self._events[process]
            payload = encode(told._replace(events=told.events[-request.limit :]))
        else:
            payload = self._answers.get((process, type(request))) or self._answers[b"", type(request)]
        reply: R = decode(reply_class(type(request)), payload)  # type: ignore[assignment]
        return reply

    def size(self) -> int:
        tasks = sum(len(memoryview(task)) for told in self._tasks.values() for task in told.tasks)
        return tasks + sum(map(len, self._answers.values()))

    def _driver(self, job: int) -> Address:
        return Address(id_of(job, job=7), id_of(job % self.nodes + 1), f"unix:/tmp/driver{job}")

    def _keep(self, process: bytes, request: type, answer: Record) -> None:
        self._answers[process, request] = encode(answer)

    def _keep_table(self, channel: str, rows: Iterable[Record]) -> None:
        self._tables[channel] = [encode(row) for row in rows]

    @staticmethod
    def _raw(**fields: Any) -> msgspec.Raw:
        return msgspec.Raw(encode(TaskInfo(**fields)))

    def _add_gcs(self, homes: list[Address], tasks: int) -> None:
        infos = [
            ActorInfo(
                actor_id=id_of(n, job=n % self.jobs), state=ALIVE, class_name=NAMES[n % 6].title(), name=f"actor-{n}",
                namespace="scale", owner=self._driver(n % self.jobs), address=home, pid=50_000 + n, start_time=1e9 + n,
            )
            for n, home in enumerate(homes)
        ]  # fmt: skip
        self._keep(GCS.worker_id, ListActors, ActorsReply(infos))
        self._keep(GCS.worker_id, GetGcsMetrics, GcsMetrics([]))
        self._keep(GCS.worker_id, GetTaskEvents, TaskEvents([], [], 0, True, 0))
        line = "task waits: no node has 1 CPU free; 12 CPUs are held by train_step"
        self._keep(b"", Explain, Explanation([line]))
        self._keep(b"", ExplainRun, Explanation([]))
        self._keep(b"", GetMetrics, ProcessMetrics("10.0.0.1", b"", bytes(4), []))
        config = JobConfig([], "", "", "job.py")
        jobs = [JobInfo(job.to_bytes(4, "big"), self._driver(job), 40_000 + job, config, 1e9) for job in range(self.jobs)]
        self._keep_table(JOBS, jobs)
        bundles = [Bundle({"CPU": CPU}, id_of(1))] * 4
        self._keep_table(PLACEMENT_GROUPS, (
            PlacementGroupInfo(
                group_id=id_of(n, PLACEMENT_GROUP_ID_BYTES), name=f"group-{n}", namespace="", strategy="PACK",
                bundles=bundles, state="CREATED", job_id=bytes(4), detached=False,
            )
            for n in range(GROUPS)
        ))  # fmt: skip
        self._keep_table(NODES, (
            NodeInfo(
                node_id=id_of(n + 1), name=f"node-{n}", ip=f"10.0.{n // 250}.{n % 250}", hostname=f"host-{n}",
                address=Address(id_of(n + 1), id_of(n + 1), f"unix:/tmp/raylet{n}"), resources_total=TOTAL, labels={},
                is_head=n == 0, session_dir="/tmp/minray-0/session_scale",
            )
            for n in range(self.nodes)
        ))  # fmt: skip
        free = TOTAL | {"CPU": 4 * CPU}
        self._keep_table(RESOURCES, (
            NodeResources(node_id=id_of(n + 1), version=7, total=TOTAL, available=free, pending=[({"CPU": CPU}, 3)])
            for n in range(self.nodes)
        ))

    def _add_node(self, n: int, homes: list[Address]) -> None:
        node_id = id_of(n + 1)
        workers = [
            WorkerStatus(home.worker_id, 50_000 + n, "LEASED", bytes(4), b"", blocked=False, address=home) for home in homes
        ]
        self._keep(node_id, GetNodeStats, NodeStats(node_id, 900, TOTAL, TOTAL, workers, []))
        store = ObjectsInfo(node_id=node_id, capacity=16 << 30, used=4 << 30, largest_hole=1 << 30, total=0, copies=[])
        self._keep(node_id, GetObjectsInfo, store)
        figures = ("node_cpu_utilization", "node_mem_used", "node_mem_total", "node_disk_usage", "node_disk_free")
        self._keep(node_id, GetNodeMetrics, NodeMetrics(node_id, [SystemValue(name, 40.0) for name in figures]))
        self._keep(node_id, GetEndedMetrics, EndedMetrics([]))
        files = [LogFile(f"worker-{home.worker_id.hex()}-00000001-1.out", 1000, 1e9) for home in homes]
        files += [LogFile(f"raylet.log.{number}", 1000, 1e9) for number in range(max(0, LOGS_OF_NODE - len(files)))]
        self._keep(node_id, ListLogs, LogFiles(files, len(files)))
        for home in homes:
            self._events[home.worker_id] = EncodedEvents(
                node_id, "10.0.0.1", home.worker_id, 50_000, EVENTS_OF_WORKER, self._run
            )
            self._keep(home.worker_id, GetTasksInfo, TasksInfo(node_id, home.worker_id, 50_000, False, 0, [], []))
            stats = CoreWorkerStats(home.worker_id, node_id, 50_000, is_driver=False, total=0, references=[])
            self._keep(home.worker_id, GetCoreWorkerStats, stats)

    def _add_driver(self, job: int, tasks: int) -> None:
        driver = self._driver(job)
        infos = [
            self._raw(
                task_id=id_of(number, TASK_ID_BYTES, job), attempt=0, name=NAMES[number % 6], kind="NORMAL_TASK",
                state=STATES[number // 6 % 6], parent_id=b"", resources={"CPU": CPU},
                error="ValueError: no such shard" if STATES[number // 6 % 6] == "FAILED" else "",
            )
            for number in range(min(tasks, MOST_TASKS))
        ]  # fmt: skip
        told = EncodedTasks(driver.node_id, driver.worker_id, 40_000 + job, True, tasks, infos)
        self._tasks[driver.worker_id] = told
        references = [
            ObjectRefInfo(
                object_id=id_of(number * 1000 + job, OBJECT_ID_BYTES, job), owner_id=driver.worker_id, local=1, submitted=0,
                contained=0, borrowers=0, is_pickled=False, size=number, task_status="FINISHED", attempt=0,
                call_site="job.py:17:main",
            )
            for number in range(OBJECTS_OF_DRIVER)
        ]  # fmt: skip
        stats = CoreWorkerStats(driver.worker_id, driver.node_id, 40_000 + job, True, OBJECTS_OF_DRIVER, references)
        self._keep(driver.worker_id, GetCoreWorkerStats, stats)


class SimulatedPeer:
    """One process, which answers at once."""

    death = None

    def __init__(self, cluster: Cluster, worker_id: bytes) -> None:
        self._cluster, self._id = cluster, worker_id

    async def call(self, request: Request[R]) -> R:
        return self._cluster.answer(self._id, request)


class SimulatedReader(StateReader):
    """The real reader, with the tables of a simulated gcs."""

    def __init__(self, cluster: Cluster, peers: Any, gcs: Any) -> None:
        super().__init__(peers, gcs)
        self._cluster = cluster

    async def rows(self, channel: str, record: type[R]) -> list[R]:
        return self._cluster.rows(channel, record)


class SimulatedConnection:
    """Takes the place of ``ClusterConnection``."""

    def __init__(self, cluster: Cluster) -> None:
        self.target = Target("tcp:10.0.0.1:6379", TOKEN, SystemConfig(), "10.0.0.1:6379", "session_scale")
        self.platform = SimpleNamespace(host=RealHost())
        self.peers = SimpleNamespace(to=lambda address: SimulatedPeer(cluster, address.worker_id))
        self._cluster = cluster
        self._gcs = SimulatedPeer(cluster, GCS.worker_id)

    def connected(self) -> SimulatedPeer:
        return self._gcs

    def reader(self) -> StateReader:
        return SimulatedReader(self._cluster, self.peers, self._gcs)

    async def ask(self, peer: SimulatedPeer, request: Request[R], timeout_s: float) -> R:
        return await peer.call(request)

    def close(self) -> None:
        pass


async def serve(cluster: Cluster) -> DashboardServer:
    connection: Any = SimulatedConnection(cluster)
    server = DashboardServer(
        DashboardState(connection), host="127.0.0.1", port=0, allow_control=False, hostname="localhost"
    )
    await server.start()
    return server


def ask(port: int, path: str) -> tuple[float, bytes, bytes]:
    """Return the seconds, the bytes as they travel and the bytes of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    cookie = f"{cookie_name(port)}={dashboard_token(TOKEN)}"
    began = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": cookie, "Accept-Encoding": "gzip"})
    response = connection.getresponse()
    packed = response.read()
    took = time.perf_counter() - began
    body = gzip.decompress(packed) if response.headers.get("Content-Encoding") == "gzip" else packed
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {body[:500]!r}")
    connection.close()
    return took, packed, body


def rows_of(path: str, body: bytes) -> str:
    """Say how many rows match, and how many there are; check that the difference is told."""
    answer = {} if path == "/metrics" else json.loads(body)
    if not isinstance(answer, dict) or "total" not in answer:
        return ""
    known = answer["total"] - answer["left_out"]
    if answer["left_out"] and not answer.get("notes") and "traceEvents" not in answer:
        raise RuntimeError(f"{path} leaves out {answer['left_out']} rows in silence")
    note = f", {answer['left_out']:,} left out and said so" if answer["left_out"] else ""
    return f"{answer.get('matching', known):,} of {answer['total']:,}{note}"


def main() -> None:
    nodes, actors, tasks = (*map(int, sys.argv[1:4]), *SIZES[len(sys.argv[1:4]) :])
    cluster = Cluster(nodes, actors, tasks)
    process = psutil.Process()
    before = process.memory_info().rss
    print(f"{nodes:,} nodes, {actors:,} actors, {tasks:,} tasks; their answers are {cluster.size() / 1e6:.0f} MB")
    thread = IoThread()
    server = thread.run(serve(cluster))
    for view, paths in QUESTIONS.items():
        for path in paths:
            used = time.process_time()
            first, packed, body = ask(server.port, path)
            used, again = time.process_time() - used, time.process_time()
            second = ask(server.port, path)[0]
            again = time.process_time() - again
            memory = (process.memory_info().rss - before) / 1e6
            times = f"{used:6.2f} s {first:6.2f} s {again:7.3f} s {second:7.3f} s"
            shown = f"{view:17}{path:52}{times} {len(packed):9,} B {memory:6.0f} MB  "
            print(f"{shown}{rows_of(path, body)}", flush=True)
    thread.run(server.close())
    thread.stop()


if __name__ == "__main__":
    main()
