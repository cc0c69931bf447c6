"""A real cluster that bears faults: its nodes, driver processes and proxies, and a view of its state from outside.

Rules
  * Time-outs are shorter than a user's, so that a death by silence takes seconds: ``SILENT_DEATH_S``. A fault that lasts no
    longer than ``HARMLESS_S`` is far below all of them.
  * All logs are kept. Lines that a task has printed are read from there, because lines to a driver may be lost with it.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import psutil

from minray.cluster_utils import Cluster, ClusterNode
from minray.common.config import worker_endpoint
from minray.common.ids import short
from minray.gcs.placement_group_manager import REMOVED
from minray.node.cluster_client import TIMEOUT_S, ClusterClient
from minray.node.discovery import runtime_root
from minray.platform.process.session import SPILL
from minray.protocol.actor import ALIVE, DEAD, ActorInfo
from minray.protocol.gcs import PREEMPTION, JobInfo, NodeInfo, NodeResources
from minray.protocol.placement_group import PlacementGroupInfo
from minray.protocol.raylet import NodeStats
from tests import leaks
from tests.helpers import wait_for_condition
from tests.spec.programs import Body
from tests.spec.real_proxy import BEHIND, Proxies
from tests.spec.scenario import Node, World
from tests.spec.stage import Record

UNIX, PROXY, TCP = "unix", "proxy", "tcp"
"""Transport of a cluster: unix sockets; unix sockets with a proxy before each listener; TCP between nodes."""
HARMLESS_S = 0.5
"""Seconds of silence that no process takes for a death."""
SILENT_DEATH_S = 5.0
"""Seconds of silence after which a node counts as dead: the health checks below need some 4.5."""
SYSTEM_CONFIG = {
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "rpc_reconnect_timeout_s": 3.0,
    "gcs_rpc_server_reconnect_timeout_s": 20.0,
    "cancellation_retry_ms": 200,
    "worker_cap_initial_backoff_delay_ms": 50,
    "worker_cap_max_backoff_delay_ms": 500,
    "oom_grace_period_s": 0.1,
    "actor_graceful_shutdown_timeout_ms": 1500,
    "report_unseen_errors": False,
}
"""Short time-outs, as the rules say; programs here are over soon. Hence also the raylet grants further workers beyond one
per CPU sooner, full stores wait less, and ending actors wait less for borrowers of their objects. Errors that no program has
looked at are not reported."""
ANSWER_S = 60.0
"""Seconds within which a driver process answers an order, on a busy machine too."""
CHECKOUT = Path(__file__).resolve().parents[2]
DRIVER_COMMAND = (sys.executable, "-m", "tests.spec.real_driver")
ORDERS = (
    "connect", "is_homeless", "drop", "leftovers", "look_into_workers", "why", "say_farewells", "disconnect",
)  # fmt: skip
TROUBLE = re.compile(r"^Traceback \(most recent|^Exception ignored|was never retrieved|was never awaited", re.MULTILINE)
"""Text in logs that neither a user's error nor a dead peer causes."""
TROUBLE_LINES = 30
"""Number of lines that are shown from there on: a traceback with its context."""


class Shape(Record, frozen=True):
    """Description of a cluster; the first node is the head."""

    nodes: tuple[Node, ...] = (Node(),)
    wire: str = UNIX
    durable: bool = False
    """Whether the gcs has storage, and may die."""
    inline_limit: int = 0
    """See ``World`` for this field and the next ones."""
    store_bytes: int = 0
    lineage: bool = True
    io_workers: int = 0
    retry_pause_ms: int = 0

    def system_config(self) -> dict[str, Any]:
        world = World(
            self.nodes,
            inline_limit=self.inline_limit,
            io_workers=self.io_workers,
            lineage=self.lineage,
            retry_pause_ms=self.retry_pause_ms,
        )
        return {**SYSTEM_CONFIG, **world.system_config()}


class DriverGone(Exception):
    """The driver process has ended, or does not answer."""


class RealDriver:
    """A driver process, which plays one program after the other; see ``real_driver``."""

    def __init__(self, log: Path, command: Sequence[str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.pid = self._process.pid
        self.is_gone = False
        """Whether it was killed, has ended, or has lost its raylet. It has no history then, and is replaced."""
        self.is_connected = False
        self.node_id = ""
        """Node on which it runs, or ran last."""
        self._orders: IO[str] = self._process.stdin
        self._answers: dict[str, queue.SimpleQueue[Any]] = {
            word: queue.SimpleQueue() for word in (*ORDERS, "over")
        }
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), name="driver", daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            about, answer = json.loads(line)
            self._answers[about].put(answer)

    def perform(self, body: Body) -> None:
        """Begin to play a body; ``over`` says when it has ended."""
        self._order("perform", body=msgspec.to_builtins(body))

    def _order(self, order: str, **arguments: Any) -> None:
        self._orders.write(json.dumps({"do": order, "with": arguments}) + "\n")
        self._orders.flush()

    def ask(self, order: str, **arguments: Any) -> Any:
        """Send an order, and wait for the answer."""
        try:
            self._order(order, **arguments)
            return self._answers[order].get(timeout=ANSWER_S)
        except (OSError, queue.Empty):
            state = "does not answer" if self._process.poll() is None else f"has ended with {self._process.returncode}"
            raise DriverGone(f"the driver {state} when asked to {order}") from None

    def over(self) -> dict[str, Any] | None:
        """History or failure of the program; None while it runs."""
        with suppress(queue.Empty):
            outcome: dict[str, Any] = self._answers["over"].get_nowait()
            return outcome
        code = self._process.poll()
        return None if code is None else {"failure": f"the process ended with {code}", "code": code}

    def connect(self, node: ClusterNode) -> None:
        """Become a driver on a node."""
        self.node_id = node.node_id
        self.ask("connect", address=node.session_dir)
        self.is_connected = True

    def disconnect(self) -> None:
        self.ask("disconnect")
        self.is_connected = False

    def close(self) -> None:
        """Let the process end by itself; kill it if that takes too long."""
        with suppress(OSError):
            self._orders.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(frozen=True)
class Look:
    """Answers of the gcs and the raylets at one time."""

    nodes: list[NodeInfo]
    resources: dict[bytes, NodeResources]
    stats: dict[bytes, NodeStats]
    """Node id -> answer of its raylet, if that has answered."""
    jobs: list[JobInfo]
    actors: list[ActorInfo]
    groups: list[PlacementGroupInfo]

    def detached(self) -> list[ActorInfo]:
        """Detached actors that live: they need no driver."""
        return [actor for actor in self.actors if actor.detached and actor.state == ALIVE]


class RealCluster:
    """One cluster, for as many programs as it survives."""

    def __init__(self, shape: Shape, driver_command: Sequence[str] = DRIVER_COMMAND) -> None:
        self.shape = shape
        self._shared_memory_before = leaks.shared_memory()
        self._root = runtime_root()
        self._driver_command = driver_command
        self._logs = self._root / "tier" / leaks.LOGS
        self._read: dict[Path, int] = {}
        """Log -> number of bytes that were read from it."""
        self.drivers: list[RealDriver] = []
        self._drivers_made = 0
        self.proxies = Proxies() if shape.wire == PROXY else None
        self._clients: list[ClusterClient] = []
        self._cluster = Cluster()
        self._likeness: dict[str, Node] = {}
        """Node id -> the ``Node`` of the shape that it stands for."""
        self._past: list[ClusterNode] = []
        """Nodes that have been replaced."""
        try:
            self.prepare(0)
        except BaseException:
            self.close()
            raise

    def prepare(self, drivers: int) -> None:
        """Start missing nodes and proxies, and driver processes up to this number, which are not connected yet."""
        self.replace_dead()
        self.dismiss()
        self.have_drivers(drivers)
        self._cluster.wait_for_nodes()
        if self.proxies is not None:
            for node in self.nodes():
                self.proxies.put_before_all_of(self.sockets_of(node))

    def replace_dead(self) -> bool:
        """Start new nodes in the place of dead ones. Return whether there were any."""
        for node in [node for node in self._cluster.worker_nodes if not node.remaining_processes_alive()]:
            self._past.append(node)
            self._cluster.worker_nodes.remove(node)
            node.close()
        missing = len(self.shape.nodes) - len(self.nodes())
        for _ in range(missing):
            self._add_node(self._missing())
        return missing > 0

    def dismiss(self) -> None:
        """End the processes of drivers that are gone."""
        for driver in [driver for driver in self.drivers if driver.is_gone]:
            self.drivers.remove(driver)
            driver.close()

    def have_drivers(self, count: int) -> None:
        """Start driver processes until there are at least this many."""
        while len(self.drivers) < count:
            self._drivers_made += 1
            self.drivers.append(RealDriver(self._logs / f"driver-{self._drivers_made}.log", self._driver_command))

    def _missing(self) -> Node:
        """The first ``Node`` of the shape that no living node stands for."""
        rest = list(self.shape.nodes)
        for node in self._cluster.list_all_nodes():
            rest.remove(self._likeness[node.node_id])
        return rest[0]

    def _add_node(self, like: Node) -> None:
        head = self._cluster.head_node is None
        options: dict[str, Any] = {}
        if head:
            options["_system_config"] = self.shape.system_config()
            options["tcp_host"] = "127.0.0.1" if self.shape.wire == TCP else ""
            options["storage"] = str(self._logs.parent / "gcs.sqlite") if self.shape.durable else ""
            self._logs.mkdir(parents=True, exist_ok=True)
        if self.shape.store_bytes:
            options["object_store_memory"] = self.shape.store_bytes
        node = self._cluster.add_node(**like.described(), **options)
        self._likeness[node.node_id] = like

    # --- Targets of faults

    def nodes(self) -> list[ClusterNode]:
        """All nodes, the head first."""
        return self._cluster.list_all_nodes()

    def pid_of(self, role: str, node: ClusterNode) -> int | None:
        """Pid of the ``raylet``, ``gcs`` or ``zygote`` of a node, if it lives."""
        return node.pids().get(role)

    def workers_of(self, node: ClusterNode) -> list[int]:
        """Pids of a node's workers, the oldest first: children of the zygote that have no other role."""
        known = node.pids()
        try:
            children = psutil.Process(known["zygote"]).children()
        except (KeyError, psutil.Error):
            return []
        return [child.pid for child in children if child.pid not in known.values() and _runs(child)]

    def sockets_of(self, node: ClusterNode) -> Path:
        return Path(node.session_dir, "sockets")

    def spilled_on(self, node: ClusterNode) -> list[Path]:
        """Spill files of a node."""
        return sorted(path for path in Path(node.session_dir, SPILL).rglob("*") if path.is_file())

    def kill_all_of(self, node: ClusterNode) -> None:
        """``kill -9`` all processes of a node, drivers too, as if the machine were switched off."""
        pids = [*node.pids().values(), *self.workers_of(node)]
        for driver in self.drivers:
            if driver.is_connected and driver.node_id == node.node_id:
                driver.is_gone = True
                pids.append(driver.pid)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def has_driver(self, node: ClusterNode) -> bool:
        return any(driver.is_connected and driver.node_id == node.node_id for driver in self.drivers)

    def ask_to_leave(self, node: ClusterNode, remaining_s: float) -> threading.Thread:
        """Drain a node, in a thread, because the gcs may be stopped. If the gcs dies meanwhile, the node stays."""

        def ask() -> None:
            with suppress(ConnectionError):
                client.drain_node(bytes.fromhex(node.node_id), PREEMPTION, "it has to go", remaining_s)
            client.close()

        client = self._client()
        thread = threading.Thread(target=ask, name="leave")
        thread.start()
        return thread

    def _client(self) -> ClusterClient:
        assert self._cluster.head_node is not None
        head = self._cluster.head_node._node
        return ClusterClient(head.file.gcs_endpoint, head.token, head.file.system_config)

    # --- The state from outside

    def look(self) -> Look:
        """Ask the gcs and all raylets. Raises ConnectionError if the gcs does not answer."""
        if not self._clients:
            self._clients.append(self._client())
        client = self._clients[0]
        try:
            nodes = client.nodes()
            stats = client.node_stats([node.address for node in nodes if node.alive])
            jobs = client.read(lambda reader: reader.jobs(TIMEOUT_S))
            actors = client.read(lambda reader: reader.actors(TIMEOUT_S))
            groups = client.read(lambda reader: reader.placement_groups(TIMEOUT_S))
            return Look(nodes, client.resources(), stats, jobs, actors, groups)
        except ConnectionError:
            self._clients.pop().close()
            raise

    def unrest(self, but_detached: bool = False) -> list[str]:
        """Problems that a cluster without work does not show; ``but_detached``: detached actors are none.

        Where there are detached actors, their arguments may still be stored.
        """
        try:
            look = self.look()
        except ConnectionError as error:
            return [f"L1: {error}"]
        alive = {node.node_id: node.name for node in look.nodes if node.alive}
        found: list[str] = []
        there = {node.node_id for node in self.nodes() if node.remaining_processes_alive()}
        if {node_id.hex() for node_id in alive} != there:
            found.append(f"L6: the gcs counts {sorted(alive.values())} as living; {len(there)} raylets live")
        kept = {actor.actor_id: actor for actor in look.detached()} if but_detached else {}
        found += _left_in_gcs(look, kept, {driver.pid for driver in self.drivers if driver.is_connected})
        if not kept and not any(driver.is_connected for driver in self.drivers):
            found += [f"L1: {node.name} was to leave, and stays" for node in look.nodes if node.alive and node.drain]
        of_actors = {actor.address.worker_id for actor in kept.values() if actor.address is not None}
        running = {job.job_id for job in look.jobs if not job.end_time or job.kept}
        for node_id, name in alive.items():
            stats, report = look.stats.get(node_id), look.resources.get(node_id)
            if stats is None:
                found.append(f"L1: the raylet of {name} does not answer")
                continue
            if stats.available != stats.total:
                found.append(f"L3: {name} has {stats.available} free of {stats.total}")
            if report is None or report.available != stats.available:
                found.append(f"L6: the gcs believes that {name} has {report and report.available}, not {stats.available}")
            found += [f"L3: {name} has a lease waiting: {line}" for line in stats.pending_leases]
            for worker in stats.workers:
                if worker.worker_id in of_actors:
                    continue
                if worker.lease_id or worker.blocked:
                    found.append(f"L3: {name}: worker {worker.pid} is {worker.state}, lease {short(worker.lease_id)}")
                elif worker.job_id and worker.job_id not in running:
                    found.append(f"L7: {name}: worker {worker.pid} has outlived its job, {worker.state}")
            found += self._strangers(node_id.hex(), stats)
        return found or ([] if kept else self._stored())

    def _stored(self) -> list[str]:
        """Copies of objects and spill files that are left although no driver is connected."""
        if any(driver.is_connected for driver in self.drivers):
            return []
        try:
            stores = self._clients[0].objects().stores.values()
        except ConnectionError as error:
            return [f"L1: {error}"]
        full = [store for store in stores if store.total or store.used or store.fallback_used]
        found = [f"L2: {store.total} copies ({store.used} bytes) in the store of {short(store.node_id)}" for store in full]
        spilled = [(node, path) for node in self.nodes() for path in self.spilled_on(node)]
        return found + [f"L2: {node} still has spilled objects in {path}" for node, path in spilled]

    def _strangers(self, node_id: str, stats: NodeStats) -> list[str]:
        """Processes and sockets that the raylet does not know."""
        node = next((node for node in self.nodes() if node.node_id == node_id), None)
        if node is None:
            return []
        known = {worker.pid for worker in stats.workers}
        found = [f"L7: process {pid} is no worker of {node}" for pid in self.workers_of(node) if pid not in known]
        folder = self.sockets_of(node)
        names = {worker_endpoint("", worker.worker_id).lstrip("/") for worker in stats.workers}
        if any(driver.is_connected for driver in self.drivers):
            return found
        if self.proxies is None:
            there = {path.name for path in folder.glob("w-*") if path.suffix != BEHIND}
            found += [f"L7: the socket {name} of {node} is nobody's" for name in sorted(there - names)]
        return found

    def new_text(self, pattern: str) -> dict[Path, str]:
        """Log file -> text that it has gained since it was read last, for logs whose names match."""
        found: dict[Path, str] = {}
        folders = [Path(node.session_dir, leaks.LOGS) for node in [*self._past, *self.nodes()]]
        for path in sorted(path for folder in [*folders, self._logs] for path in folder.glob(pattern)):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            if text:
                self._read[path] = self._read.get(path, 0) + len(text)
                found[path] = text.decode(errors="replace")
        return found

    def printed(self) -> list[str]:
        """New lines that tasks have printed. A worker that is killed may leave half a line, which is left out."""
        lines = in_order_of_writing(self.new_text("worker-*.out"))
        return [line for line in lines if line.startswith("[") and _is_json(line)]

    def trouble(self) -> list[str]:
        """New uncaught exceptions in logs."""
        texts = {**self.new_text("*.log"), **self.new_text("worker-*.err")}
        found = []
        for path, text in texts.items():
            if match := TROUBLE.search(text):
                lines = text[match.start() :].splitlines()[:TROUBLE_LINES]
                found.append("\n".join([f"escaped: {path}", *lines]))
        return found

    def close(self) -> list[str]:
        """End all processes, and return a problem for each thing that is left behind."""
        for driver in self.drivers:
            driver.close()
        for client in self._clients:
            client.close()
        self._cluster.shutdown()
        if self.proxies is not None:
            self.proxies.close()
        for path in self._logs.parent.glob("gcs.sqlite*"):
            path.unlink()
        with suppress(AssertionError):
            wait_for_condition(lambda: not self._left_behind(), timeout_s=2)
        return [f"L7: left behind: {line}" for line in self._left_behind()]

    def _left_behind(self) -> list[str]:
        return leaks.describe(self._root, self._shared_memory_before)


def in_order_of_writing(texts: dict[Path, str]) -> list[str]:
    """Lines of several logs, by the times of their last writes: an actor's old process writes before its new one does."""
    paths = sorted(texts, key=lambda path: path.stat().st_mtime_ns)
    return [line for path in paths for line in texts[path].splitlines()]


def _left_in_gcs(look: Look, kept: Collection[bytes], drivers: Collection[int]) -> list[str]:
    """Actors, placement groups and jobs without an owner; ``drivers`` are the pids of the connected drivers."""
    actors = [actor for actor in look.actors if actor.state != DEAD and actor.actor_id not in kept]
    found = [f"L2: the gcs has the actor {short(actor.actor_id)} {actor.name}, {actor.state}" for actor in actors]
    groups = [group for group in look.groups if group.state != REMOVED]
    found += [f"L2: the gcs has the placement group {short(group.group_id)}, {group.state}" for group in groups]
    jobs = [job for job in look.jobs if not job.end_time and job.driver_pid not in drivers]
    return found + [f"L2: job {short(job.job_id)} runs, and its driver {job.driver_pid} is gone" for job in jobs]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
