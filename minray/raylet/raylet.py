"""The raylet process: it connects the parts of one node, registers with the gcs, and ends the node.

Ray: src/ray/raylet/raylet.h, main.cc

A raylet listens, starts its first workers, registers, and then follows four channels of the gcs. It needs nodes and their
free resources for spillback, and deaths of processes and ends of jobs for reclaiming leases. If need be, it follows a fifth
channel, of placement groups. It ends when it is asked to, when it was drained and may leave (``departure``), when the gcs
refuses it (it was declared dead: S3), or after a minute without the gcs (G111). Its workers end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from minray.common import sharing
from minray.common.config import RayletConfig, fallback_endpoint, store_endpoint, worker_endpoint
from minray.common.labels import labels_of
from minray.common.log_files import LogDirectory
from minray.common.resources import OBJECT_STORE_MEMORY, UNIT
from minray.object_manager.object_manager import ObjectManager
from minray.object_store.store import ObjectStore
from minray.platform.base import Buffer, Listener, Platform, PlatformError
from minray.policies.names import eviction_policy, spill_policy, transfer_policy
from minray.protocol.base import Address, decode
from minray.protocol.core_worker import LocalGC, RayletEnds
from minray.protocol.gcs import (
    JOBS,
    NODES,
    RESOURCES,
    WORKER_DEATHS,
    JobInfo,
    NodeInfo,
    NodeResources,
    PollReply,
    RegisterNode,
    ReportWorkerDeath,
    UnregisterNode,
    WorkerDeath,
)
from minray.protocol.state import AddTaskEventData, WorkerTaskEvents
from minray.raylet.bundle_service import BundleService
from minray.raylet.departure import Departure
from minray.raylet.io_workers import IoWorkers
from minray.raylet.killable_workers import KillableWorkers
from minray.raylet.lease_broker import LeaseBroker
from minray.raylet.local_gc import LocalGc
from minray.raylet.log_monitor import LogMonitor
from minray.raylet.log_service import LogService
from minray.raylet.memory_monitor import MemoryMonitor
from minray.raylet.node_manager import NodeManager
from minray.raylet.node_metrics import MetricsService
from minray.raylet.resource_reporter import ResourceReporter, needs_of
from minray.rpc.connection import Peers, PeerUnreachable, ignore
from minray.rpc.patient_caller import PatientCaller
from minray.rpc.pubsub import NOTHING, Subscription, next_poll
from minray.rpc.request_meter import RequestMeter
from minray.rpc.service import Dispatcher

FAREWELL_TIMEOUT_S = 1.0
"""Seconds that an ending raylet tries to tell the gcs and its drivers that it ends."""


class Raylet:
    """Runs one node."""

    address: Address
    """Address of this raylet; set when ``start`` has begun to listen."""

    def __init__(
        self,
        platform: Platform,
        config: RayletConfig,
        logs: LogDirectory | None = None,
        remove_socket: Callable[[str], None] | None = None,
    ) -> None:
        """``logs`` has the log files of this node; None: it has none, and the output of workers is not kept.

        ``remove_socket`` removes the sockets that a killed process of this node has left, given its endpoint.
        """
        system = config.system_config
        endpoint = f"{config.socket_dir}/raylet"
        period_s = system.raylet_report_resources_period_milliseconds / 1000
        self._platform = platform
        self._config = config
        self._remove_socket = remove_socket
        self._peers = Peers(platform, config.node_id, system.rpc_reconnect_timeout_s)
        self._gcs = self._peers.at(
            config.gcs_endpoint, reconnect_timeout_s=system.gcs_rpc_server_reconnect_timeout_s, may_restart=True
        )
        self._raylets: dict[bytes, Address] = {config.node_id: Address(config.node_id, config.node_id, endpoint)}
        """Addresses of all raylets, dead ones too: a request may be spilled to a node that has just died."""
        open_log = logs.open_sink if logs is not None else None
        self._log_monitor = LogMonitor(self._peers, config.node_id, config.node_ip, f"{config.session_dir}/logs", open_log)
        self._broker = self._make_broker(endpoint)
        self.groups = BundleService(platform, self._gcs, self._broker)
        self._patient = PatientCaller(self._peers, self._gcs)
        self.objects = self._make_objects()
        self.store = self._make_store()
        spilling = spill_policy(system, platform, self._log_monitor.warn)
        self.io_workers = IoWorkers(platform, config, self.store, self._on_shortage, spilling)
        self._departure = self._make_departure()
        self._local_gc = LocalGc(system.local_gc_min_interval_s)
        self._requests = RequestMeter()
        objects, io_workers = self.objects, self.io_workers
        self.metrics = MetricsService(platform, config, self._broker, self.store, objects, io_workers, self._requests)
        self._memory_monitor = self._make_memory_monitor()
        log_service = LogService(logs, system.rotation_backup_count)
        self._dispatcher = Dispatcher(
            self._make_node_manager(), self.groups, self.store, self.objects, log_service, self.metrics
        )
        self._reporter = self._make_reporter()
        self._subscriptions = [
            Subscription(self._gcs, NODES, self._on_node, on_changed=self._broker.scheduler.advance),
            Subscription(self._gcs, RESOURCES, self._on_resources, period_s, self._broker.scheduler.advance),
            Subscription(self._gcs, WORKER_DEATHS, self._on_worker_death),
            Subscription(self._gcs, JOBS, self._on_job),
        ]
        self._listeners: list[Listener] = []
        self._confirming = False
        """Whether the gcs was asked for all its nodes and has not answered yet."""
        self._closing: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self.reason = ""
        """Reason why the raylet ended, or is ending; empty as long as it goes on."""
        self._is_stopped = False
        """Whether the raylet was asked to shut down."""

    def _make_broker(self, endpoint: str) -> LeaseBroker:
        return LeaseBroker(
            self._platform,
            self._config,
            endpoint,
            self._peers,
            self._log_monitor,
            lambda: self.store,
            address_of_raylet=self._raylets.__getitem__,
            on_change=self._on_change,
            on_worker_death=self._report_worker_death,
            on_task_events=self._report_task_events,
            on_unknown_nodes=self._confirm_nodes,
        )

    def _make_node_manager(self) -> NodeManager:
        return NodeManager(
            self._platform,
            self._config,
            lambda: self.address,
            self._broker,
            self._log_monitor,
            self.groups,
            lambda drain: self._departure.begin(drain),
            self._on_shutdown,
        )

    def _make_objects(self) -> ObjectManager:
        return ObjectManager(
            self._platform,
            self._config,
            self._peers,
            self._patient,
            lambda: self.store,
            lambda: self.address,
            lambda entry, start, size: self.io_workers.read(entry, start, size),
            transfer_policy(self._config.system_config, self._platform, self._log_monitor.warn),
        )

    def _make_store(self) -> ObjectStore:
        return ObjectStore(
            self._platform,
            self._config.resources.get(OBJECT_STORE_MEMORY, 0) // UNIT,
            self._config.system_config.oom_grace_period_s,
            lambda: self.address,
            self.objects.fetch,
            self.objects.on_evicted,
            lambda: self.io_workers,
            self._broker.scheduler.arguments.give_way,
            eviction_policy(self._config.system_config, self._platform, self._log_monitor.warn),
        )

    def _make_departure(self) -> Departure:
        return Departure(
            self._platform,
            self._config.node_id,
            self._peers,
            self._broker,
            self.store,
            self.groups,
            self._raylets.__getitem__,
            self._end,
            self._config.system_config.drain_objects_at_once,
        )

    def _make_reporter(self) -> ResourceReporter:
        system = self._config.system_config
        return ResourceReporter(
            self._gcs,
            self._read_resources,
            self._end,
            period_s=system.raylet_report_resources_period_milliseconds / 1000,
            heartbeat_s=system.health_check_period_ms / 1000,
            patience_s=system.gcs_rpc_server_reconnect_timeout_s,
        )

    def _make_memory_monitor(self) -> MemoryMonitor:
        host, system, broker = self._platform.host, self._config.system_config, self._broker
        return MemoryMonitor(
            host,
            threshold=system.memory_usage_threshold,
            period_s=system.memory_monitor_refresh_ms / 1000,
            workers=KillableWorkers(
                broker.pool, broker.entries, host.process_memory, broker.kill_worker, self.metrics.on_eviction
            ),
        )

    # --- Start and end -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the node; return when it has joined the cluster, or ends because it may not join.

        Raises PlatformError if it cannot listen, or there is no memory for its objects.
        """
        await self._start_store()
        await self._listen()
        self._broker.scheduler.advance()
        node = NodeInfo(
            node_id=self._config.node_id,
            name=self._config.node_name,
            ip=self._config.node_ip,
            hostname=self._platform.host.hostname,
            address=self.address,
            resources_total=self._config.resources,
            labels=self._config.labels,
            is_head=self._config.is_head,
            pid=self._platform.processes.pid,
            session_dir=self._config.session_dir,
        )
        self._gcs.on_death = self._on_gcs_lost
        refused = await self._register(node)
        if refused:
            self._end(f"refused by the gcs: {refused}")
        if self._closing is not None:
            return
        for subscription in self._subscriptions:
            subscription.start()
        self._reporter.start()
        self._memory_monitor.start()

    async def _start_store(self) -> None:
        config, system = self._config, self._config.system_config
        await self.store.start(store_endpoint(config.socket_dir, config.node_id))
        if system.automatic_object_spilling_enabled:
            endpoint = fallback_endpoint(config.socket_dir, config.node_id)
            await self.store.start_fallback(endpoint, config.fallback_directory, system.local_fs_capacity_threshold)

    async def _register(self, node: NodeInfo) -> str:
        """Register the node; return the reason if it may not join. Return an empty text if it joined, or ended meanwhile."""
        loop = asyncio.get_running_loop()
        registering = loop.create_task(self._gcs.call(RegisterNode(node)), name="register_node")
        closed = loop.create_task(self._closed.wait(), name="wait_closed")
        await asyncio.wait((registering, closed), return_when=asyncio.FIRST_COMPLETED)
        for task in (registering, closed):
            task.cancel()
        try:
            reply = await registering
        except PlatformError as error:
            return str(error)
        except asyncio.CancelledError:
            return ""
        self._gcs.may_restart = reply.may_restart
        return reply.refused

    async def _listen(self) -> None:
        config, network = self._config, self._platform.network
        on_incoming = self._requests.counting(self._dispatcher)
        unix = await network.listen(f"{config.socket_dir}/raylet", config.node_id, on_incoming)
        self._listeners.append(unix)
        tcp_endpoint = ""
        if config.tcp_host:
            tcp = await network.listen(f"tcp:{config.tcp_host}:{config.tcp_port}", config.node_id, on_incoming)
            self._listeners.append(tcp)
            tcp_endpoint = tcp.endpoint
        self.address = Address(config.node_id, config.node_id, unix.endpoint, tcp_endpoint)
        self._raylets[config.node_id] = self.address

    async def wait_closed(self) -> str:
        """Wait until the raylet has ended, and return the reason."""
        await self._closed.wait()
        return self.reason

    async def close(self, reason: str) -> None:
        """Kill the workers, tell the gcs, and end."""
        self._end(reason)
        await self._closed.wait()

    def _end(self, reason: str) -> None:
        if self._closing is None:
            self.reason = reason
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="close_raylet")

    @property
    def was_asked_to_end(self) -> bool:
        """Whether the raylet ended because it was asked to, or drained, and not because of trouble."""
        return self._is_stopped or self._departure.is_over

    def _on_shutdown(self, reason: str) -> None:
        self._is_stopped = True
        self._end(f"asked to shut down: {reason}" if reason else "asked to shut down")

    def _on_gcs_lost(self, death: PeerUnreachable) -> None:
        if death.is_certain or not self._gcs.may_restart:
            self._end(f"the gcs is gone: {death}")
        else:
            patience_s = self._config.system_config.gcs_rpc_server_reconnect_timeout_s
            self._end(f"the gcs was not reached for {patience_s:g} s")

    async def _close(self) -> None:
        self._reporter.close()
        self._memory_monitor.close()
        for subscription in self._subscriptions:
            subscription.close()
        self.groups.close()
        self._departure.close()
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            loop.create_task(self._broker.close(self.reason), name="close_workers"),
            loop.create_task(self._say_farewell(), name="unregister_node"),
            loop.create_task(self._tell_drivers(), name="tell_drivers"),
        )
        self._dispatcher.close()
        await self.objects.close()
        await self.io_workers.close()
        await self.store.close()
        for listener in self._listeners:
            await listener.close()
        self._peers.close()
        self._closed.set()

    async def _say_farewell(self) -> None:
        with suppress(TimeoutError, PlatformError):
            async with asyncio.timeout(FAREWELL_TIMEOUT_S):
                drain = self._departure.drain if self._departure.is_over else None
                await self._gcs.call(UnregisterNode(self._config.node_id, self.reason, drain))

    async def _tell_drivers(self) -> None:
        """Tell this node's drivers why the raylet ends, so that their errors can name the reason."""
        loop = asyncio.get_running_loop()
        calls = [self._peers.to(address).call(RayletEnds(self.reason)) for address in self._local_gc.drivers.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_TIMEOUT_S):
                telling = [loop.create_task(call, name="tell_driver") for call in calls]
                await asyncio.gather(*telling, return_exceptions=True)

    # --- Messages to the gcs -------------------------------------------------------------------------------------------

    def _on_change(self) -> None:
        self.groups.settle()
        self._reporter.changed()

    def _read_resources(self, version: int) -> NodeResources:
        broker = self._broker
        pending = needs_of([*broker.local.queued(), *broker.cluster.infeasible()])
        broker.nodes.local.waiting = sum(count for _, count in pending)
        return NodeResources(
            node_id=self._config.node_id,
            version=version,
            total=dict(broker.local.total),
            available=broker.local.resources.spare(),
            pending=pending,
            shortages=self._local_gc.shortages,
        )

    def _report_worker_death(self, death: WorkerDeath) -> None:
        self.metrics.kept.on_exit(death.worker_id)
        self.store.on_death(death.worker_id)
        self._patient.send_to_gcs(ReportWorkerDeath(death), ignore)

    def _report_task_events(self, events: WorkerTaskEvents) -> None:
        self._patient.send_to_gcs(AddTaskEventData(workers=[events]), ignore)

    def _confirm_nodes(self, node_ids: list[bytes]) -> None:
        """Ask the gcs for all its nodes, because a request names an unknown node that may have just joined."""
        if self._confirming:
            return
        self._confirming = True

        def on_answer(reply: PollReply | None, error: PlatformError | None, buffers: Sequence[Buffer]) -> None:
            for key, value in reply.entries if reply is not None else ():
                self._on_node(key, value)
            if reply is not None and not reply.is_complete():
                self._gcs.send(next_poll(NODES, reply), on_answer)
                return
            self._confirming = False
            if reply is not None:
                self._broker.cluster.on_nodes_confirmed(node_ids)
                self._broker.scheduler.advance()

        self._gcs.send(next_poll(NODES, NOTHING), on_answer)

    # --- News from the gcs ---------------------------------------------------------------------------------------------

    def _on_node(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._broker.nodes.on_node_forgotten(key)
        elif key == self._config.node_id:
            self._on_own_node(decode(NodeInfo, value))
        else:
            self._on_other_node(sharing.made(_other_node, value))

    def _on_own_node(self, node: NodeInfo) -> None:
        if not node.alive:
            self._end(f"refused by the gcs: {node.death_cause or 'it was declared dead'}")
        elif node.drain is not None:
            self._departure.begin(node.drain)

    def _on_other_node(self, node: NodeInfo) -> None:
        node_id, cause = node.node_id, node.death_cause
        self._raylets[node_id] = node.address
        draining = node.drain is not None
        self._broker.nodes.on_node(node_id, node.name, node.resources_total, node.alive, cause, node.labels, draining)
        if not node.alive:
            self._peers.on_death_of(node.address.worker_id, cause)
            self.objects.on_node_death(node.address.worker_id, cause)
            self._broker.on_node_death(node_id, cause)
            self.store.on_death(node_id)

    def _on_resources(self, key: bytes, value: bytes | None) -> None:
        report = sharing.made(_report, value) if value is not None else None
        if report is not None:
            waiting = sum(count for _, count in report.pending)
            self._broker.nodes.on_resources(key, report.version, report.total, report.available, waiting)
        if self._local_gc.on_report(key, report, asyncio.get_running_loop().time()):
            self._collect_garbage()

    def _on_shortage(self) -> None:
        """Have the processes of this and of all other nodes collect garbage, because requests wait for memory."""
        if self._local_gc.on_shortage(asyncio.get_running_loop().time()):
            self._collect_garbage()
            self._reporter.changed()

    def _collect_garbage(self) -> None:
        workers = [worker.address for worker in self._broker.pool.workers.values() if worker.address is not None]
        for address in [*workers, *self._local_gc.drivers.values()]:
            self._peers.to(address).send(LocalGC(), ignore)

    def _on_worker_death(self, key: bytes, value: bytes | None) -> None:
        death = decode(WorkerDeath, value) if value is not None else None
        self._broker.on_owner_death(key, death is not None, death.cause if death is not None else "")
        if death is not None:
            self.store.on_death(key)
        if death is not None and death.node_id == self._config.node_id and self._remove_socket is not None:
            self._remove_socket(worker_endpoint(self._config.socket_dir, key))

    def _on_job(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._log_monitor.forget_job(key)
            # It has finished, and this node may have missed that. But a gcs that has lost its tables knows no job at all.
            self._reporter.when_accepted(lambda: self._on_job_over(key, self._local_gc.drivers.get(key)))
            return
        job = decode(JobInfo, value)
        self._log_monitor.on_job(key, job.driver, not job.end_time)
        if job.end_time:
            self._on_job_over(key, job.driver, job.kept)
        elif job.driver.node_id == self._config.node_id:
            self._local_gc.drivers[key] = job.driver
            self.metrics.drivers[key] = job.driver_pid

    def _on_job_over(self, job_id: bytes, driver: Address | None, kept: bool = False) -> None:
        """End what a finished job has here; ``kept``: detached actors of it live on."""
        self._local_gc.drivers.pop(job_id, None)
        self.metrics.drivers.pop(job_id, None)
        if not kept:
            self._broker.on_job_finished(job_id)
            self.metrics.kept.on_job_finished(job_id)
        if driver is not None:
            self.store.on_death(driver.worker_id)


def _other_node(value: bytes) -> NodeInfo:
    """Decode what the gcs says about another node, and add the node's id to its labels."""
    node = decode(NodeInfo, value)
    return msgspec.structs.replace(node, labels=labels_of(node.node_id, node.labels))


def _report(value: bytes) -> NodeResources:
    return decode(NodeResources, value)


RAYLET_SERVICES = (NodeManager, BundleService, ObjectStore, ObjectManager, LogService, MetricsService)
"""Classes whose handlers answer requests in this process."""
