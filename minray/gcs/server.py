"""The gcs process: it handles the messages of ``protocol/gcs.py``, and connects the managers.

Ray: src/ray/gcs/gcs_server.h

A handler decides (a pure manager says which record must be stored), commits, and only then changes the table, publishes and
replies (``durable``). So every change that another process has seen is durable, except resource reports and news of ended
tasks, which are not stored. A request that was refused as ``storage-failed`` may take effect after the next restart
nevertheless, as any request without a reply. Actors, placement groups and drains have services of their own
(``GCS_SERVICES``).

Cluster id: the store has a random id that was made with it. A node learns it when it first registers, and names it if it
ever registers again. The gcs refuses a node that names another cluster. It also refuses a node that claims to be a member
(by naming this cluster, or by reporting) but is not in its table. Such a gcs was started with an empty or a foreign store
under a running cluster. The node must exit, because its gcs is gone for good (G110). A gcs that was restarted with its own
store just goes on. Nodes need not register again; their next reports and the health checks show which are still alive.

A cluster has one head. When a head registers, its predecessor is dead: its raylet has ended, or its machine is gone and
another one has taken over its tables, perhaps under another address. Health checks would need a minute to see the latter.

Rows of forgotten things (old jobs, the functions of finished jobs) are deleted with the next commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from minray.common.config import GcsConfig
from minray.common.ids import short
from minray.gcs.actor_queries import ActorQueries
from minray.gcs.actor_service import ActorService
from minray.gcs.durable import Changes, durable, until_stored
from minray.gcs.effects import Publication
from minray.gcs.gcs_metrics import GcsMetricsService
from minray.gcs.gcs_node_manager import GcsNodeManager
from minray.gcs.gcs_task_manager import GcsTaskManager
from minray.gcs.health_check_manager import HealthCheckManager
from minray.gcs.job_manager import JobManager
from minray.gcs.join_check import JoinCheck
from minray.gcs.kv_manager import KvManager
from minray.gcs.node_drainer import NodeDrainer
from minray.gcs.placement_group_manager import PlacementGroupManager
from minray.gcs.placement_group_scheduler import PlacementGroupScheduler
from minray.gcs.storage import GcsStorage
from minray.gcs.worker_manager import WorkerManager
from minray.platform.base import Listener, Platform, StorageFailed
from minray.protocol import gcs as protocol
from minray.protocol.actor import ACTORS
from minray.protocol.base import DONE, Address, Done, encode
from minray.protocol.core_worker import RayletEnds
from minray.protocol.placement_group import PLACEMENT_GROUPS, PlacementGroupInfo
from minray.protocol.state import AddTaskEventData, GetTaskEvents, TaskEvents
from minray.rpc.pubsub import Publisher
from minray.rpc.request_meter import RequestMeter
from minray.rpc.service import Call, Dispatcher

logger = logging.getLogger(__name__)

CHANNELS = (protocol.NODES, protocol.RESOURCES, protocol.WORKER_DEATHS, protocol.JOBS, PLACEMENT_GROUPS)


class GcsServer:
    """Runs one gcs; ``start`` is called once."""

    _storage: GcsStorage
    """Tables on disk; opened by ``start``, which also sets all that depends on them."""
    _nodes: GcsNodeManager

    def __init__(self, platform: Platform, config: GcsConfig) -> None:
        self._platform = platform
        self._config = config
        self._jobs = JobManager(platform.record, config.system_config.maximum_gcs_finished_job_cached_count)
        self._values = KvManager()
        self._workers = WorkerManager()
        system = config.system_config
        self.tasks = GcsTaskManager(system.task_events_max_num_task_in_gcs, system.task_events_max_bytes_in_gcs)
        self._health = HealthCheckManager(platform, config.system_config)
        self._publisher = Publisher(platform.identity, config.system_config)
        self._listeners: list[Listener] = []
        self._changes = Changes()
        self._closed = asyncio.Event()
        self._actors = ActorService(platform, config.system_config, self._address, self, self)
        self._groups = PlacementGroupManager(
            platform.record, config.system_config.maximum_gcs_removed_placement_group_cached_count
        )
        self._group_scheduler = PlacementGroupScheduler(
            platform,
            config.system_config,
            self._groups,
            lambda: self._nodes,
            self._changes,
            self._store_group,
            self._jobs.is_over,
            self._actors.is_detached,
        )
        self._drainer = NodeDrainer(
            platform,
            config.system_config,
            lambda: self._nodes,
            self._changes,
            self._store_node,
            self._group_scheduler.on_node_leaving,
        )
        self._requests = RequestMeter()
        metrics, join_check = GcsMetricsService(platform, self.tasks, self._requests), JoinCheck(platform)
        self._dispatcher = Dispatcher(
            self, self._actors, self._actors.queries, self._group_scheduler, self._drainer, metrics, join_check
        )

    def _address(self) -> Address:
        """Return the gcs's own address, as the owner of leases."""
        tcp = next((endpoint for endpoint in self.endpoints if endpoint.startswith("tcp:")), "")
        return Address(self._platform.identity, b"", self.endpoints[0], tcp)

    @property
    def endpoints(self) -> list[str]:
        """Return the endpoints where the gcs listens, as peers reach them; in the order of the configuration."""
        return [listener.endpoint for listener in self._listeners]

    async def start(self) -> None:
        """Load the tables, listen, and watch the known processes. If it raises PlatformError, the server is closed."""
        try:
            self._storage = await GcsStorage.open(self._platform, self._config.storage_path)
            await self._load()
            for endpoint in self._config.endpoints:
                on_incoming = self._requests.counting(self._dispatcher)
                listener = await self._platform.network.listen(endpoint, self._platform.identity, on_incoming)
                self._listeners.append(listener)
        except BaseException:
            await self.close()
            raise
        for node in self._nodes.living():
            self._watch_node(node)
        unmourned = [job for job in self._jobs.finished() if self.worker_death(job.driver) is None]
        for job in (*self._jobs.running(), *unmourned):
            self._watch_driver(job)
        starts = self._storage.start_count() + 1
        self._group_scheduler.start(starts, partial(self._store_start_count, starts))
        self._drainer.resume()
        await self._actors.resume()
        for job in self._jobs.finished():
            if job.kept and not self._actors.has_detached(job.job_id):
                await self.on_last_detached_actor(job.job_id)

    async def _store_start_count(self, count: int) -> None:
        self._storage.put_start_count(count)
        await self._storage.commit()

    async def _store_group(self, group: PlacementGroupInfo) -> None:
        self._storage.put_placement_group(group)
        await self._storage.commit()
        self.publish(self._groups.on_committed(group))

    async def _load(self) -> None:
        self._nodes = GcsNodeManager(self._storage.cluster_id, self._platform.record)
        self.publish(self._nodes.load(self._storage.nodes()))
        self.publish(self._workers.load(self._storage.worker_deaths()))
        self.publish(self._jobs.load(self._storage.jobs(), self._storage.job_count()))
        self._values.load(self._storage.values())
        self.publish(self._groups.load(self._storage.placement_groups()))
        self._actors.load(self._storage)
        for job in self._jobs.finished():
            if not job.kept:
                self._drop_values(protocol.job_namespace(job.job_id))
        for job in self._jobs.running():
            await self._maybe_finish_with_node(job)

    async def close(self) -> None:
        """Stop at once; all acknowledged changes are in the store."""
        if self._closed.is_set():
            return
        self._health.close()
        self._group_scheduler.close()
        self._drainer.close()
        self._actors.close()
        self._dispatcher.close()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.close()
        if hasattr(self, "_storage"):
            self._storage.close()
        self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def publish(self, publications: Iterable[Publication]) -> None:
        for channel, key, record in publications:
            self._publisher.publish(channel, key, None if record is None else encode(record))
            if channel == protocol.JOBS and record is None:
                self._storage.delete_job(key)
            if channel == PLACEMENT_GROUPS and record is None:
                self._storage.delete_placement_group(key)
            if channel == protocol.WORKER_DEATHS and record is None:
                self._storage.delete_worker_death(key)

    # --- Nodes -----------------------------------------------------------------------------------------------------------

    @durable
    async def handle_RegisterNode(self, request: protocol.RegisterNode, call: Call) -> protocol.RegisterNodeReply:
        node_id, cluster_id = request.node.node_id, self._storage.cluster_id
        async with self._changes.of(node_id):
            refused = self._nodes.refusal_to_join(node_id, request.cluster_id)
            if refused:
                logger.error("refused to register a node: %s", refused)
                return protocol.RegisterNodeReply(cluster_id, refused)
            node = self._nodes.register(request.node)
            if node is not None:
                await self._store_node(node)
                self._watch_node(node)
                self._group_scheduler.on_node_joined()
                self._actors.on_nodes_changed()
        if node is not None and node.is_head:
            await self._bury_former_heads(node)
        return protocol.RegisterNodeReply(cluster_id, may_restart=self._storage.durable)

    async def _bury_former_heads(self, head: protocol.NodeInfo) -> None:
        reason = f"its raylet is gone: the head was started again as node {short(head.node_id)}"
        for former in [node.node_id for node in self._nodes.living() if node.is_head and node.node_id != head.node_id]:
            await until_stored(self._bury, former, partial(self._decide_lost, former, reason))

    def _decide_lost(self, node_id: bytes, reason: str) -> protocol.NodeInfo | None:
        return self._nodes.bury_lost(node_id, reason, self._platform.host.time())

    @durable
    async def handle_UnregisterNode(self, request: protocol.UnregisterNode, call: Call) -> Done:
        await self._bury(request.node_id, lambda: self._nodes.bury(request.node_id, request.cause, request.drain))
        return DONE

    def handle_ReportResources(self, request: protocol.ReportResources, call: Call) -> protocol.RegisterNodeReply:
        node_id = request.resources.node_id
        refused = self._nodes.refusal(node_id)
        if refused:
            logger.error("refused a report of resources: %s", refused)
        else:
            self._health.on_heard(node_id)
            publications = self._nodes.on_report(request.resources)
            if publications is not None:
                self.publish(publications)
                self._group_scheduler.on_report(node_id)
            self._actors.on_nodes_changed()
        return protocol.RegisterNodeReply(self._storage.cluster_id, refused)

    def _watch_node(self, node: protocol.NodeInfo) -> None:
        async def on_dead(cause: str) -> None:
            logger.warning("node %s is dead: %s", short(node.node_id), cause)
            reason = f"its raylet is gone: {cause}"
            await until_stored(self._bury, node.node_id, partial(self._decide_lost, node.node_id, reason))

        self._health.watch(node.address, silence_counts=True, on_dead=on_dead)

    async def _bury(self, node_id: bytes, decide: Callable[[], protocol.NodeInfo | None]) -> None:
        """Declare a node dead: store and publish that, then end or move the bundles, jobs and actors that were there."""
        async with self._changes.of(node_id):
            node = decide()
            if node is not None:
                await self._store_node(node)
                self._health.unwatch(node.address.worker_id)
                self._drainer.on_node_dead(node_id)
                self._group_scheduler.on_node_dead(node_id)
        for job in self._jobs.running():
            if job.driver.node_id == node_id:
                await self._maybe_finish_with_node(job)
        if node is not None:
            await self._actors.on_node_death(node)

    async def _store_node(self, node: protocol.NodeInfo) -> None:
        self._storage.put_node(node)
        await self._storage.commit()
        self.publish(self._nodes.on_committed(node))

    # --- Jobs ------------------------------------------------------------------------------------------------------------

    @durable
    async def handle_RegisterJob(self, request: protocol.RegisterJob, call: Call) -> protocol.RegisterJobReply:
        driver = request.driver
        async with self._changes.of(driver.worker_id):
            job = self._jobs.of_driver(driver.worker_id)
            if job is None:
                job = self._jobs.register(request, self._platform.host.time())
                self._storage.put_job(job)
                self._storage.put_job_count(self._jobs.last_number)
                await self._storage.commit()
                self.publish(self._jobs.on_committed(job))
                self._watch_driver(job)
                await self._maybe_finish_with_node(job)
        return protocol.RegisterJobReply(job.job_id)

    @durable
    async def handle_FinishJob(self, request: protocol.FinishJob, call: Call) -> Done:
        await self._finish(request.job_id)
        return DONE

    def handle_GetJob(self, request: protocol.GetJob, call: Call) -> protocol.GetJobReply:
        return protocol.GetJobReply(self._jobs.get(request.job_id))

    def _watch_driver(self, job: protocol.JobInfo) -> None:
        """Watch a driver, also after its job has finished, because other processes may hold references that it owns."""

        async def on_dead(cause: str) -> None:
            driver = job.driver
            said = protocol.DRIVER_LEFT if self._jobs.is_over(job.job_id) else f"the driver is gone: {cause}"
            logger.info("job %s: %s", job.job_id.hex(), said)
            death = protocol.WorkerDeath(driver.worker_id, driver.node_id, job.driver_pid, said)
            await until_stored(self._store_death, death)
            await until_stored(self._finish, job.job_id)
            await self._actors.on_worker_death(death)

        self._health.watch(job.driver, silence_counts=False, on_dead=on_dead)

    async def _finish(self, job_id: bytes) -> None:
        async with self._changes.of(job_id):
            job = self._jobs.finish(job_id, self._platform.host.time(), self._actors.has_detached(job_id))
            if job is not None:
                await self._commit_end(job)
        if job is not None:
            self._group_scheduler.on_job_finished(job_id)
            if not job.kept:
                await self._actors.on_job_finished(job_id)

    async def _commit_end(self, job: protocol.JobInfo) -> None:
        self._storage.put_job(job)
        await self._storage.commit()
        self.publish(self._jobs.on_committed(job))
        if not job.kept:
            self._drop_values(protocol.job_namespace(job.job_id))

    def on_detached_actor_dead(self, actor_id: bytes) -> None:
        self._group_scheduler.on_actor_dead(actor_id)

    async def on_last_detached_actor(self, job_id: bytes) -> None:
        """Release a finished job that was kept for its detached actors; the last one is dead."""
        await until_stored(self._release, job_id)
        if self.job_is_over(job_id):
            self._group_scheduler.on_job_finished(job_id)
            await self._actors.on_job_finished(job_id)

    async def _release(self, job_id: bytes) -> None:
        async with self._changes.of(job_id):
            job = self._jobs.release(job_id)
            if job is not None:
                await self._commit_end(job)

    def job_is_over(self, job_id: bytes) -> bool:
        """Tell whether nothing of this job may begin any more."""
        job = self._jobs.get(job_id)
        return job is not None and job.is_over()

    async def _maybe_finish_with_node(self, job: protocol.JobInfo) -> None:
        """Finish a job if its driver's node is dead; called wherever news of a job or a node arrive."""
        cause = self._nodes.death_cause(job.driver.node_id)
        if cause is not None:
            reason = f"the node of this driver was declared dead by the gcs: {cause}"
            await self._health.dismiss(job.driver.worker_id, RayletEnds(reason, is_decided=True))
            await until_stored(self._finish, job.job_id)

    def _drop_values(self, namespace: str) -> None:
        """Drop the values of a namespace; their rows are deleted with the next commit."""
        for key in self._values.drop_namespace(namespace):
            self._storage.delete_value(namespace, key)

    # --- Key-value -------------------------------------------------------------------------------------------------------

    @durable
    async def handle_KvPut(self, request: protocol.KvPut, call: Call) -> protocol.KvPutReply:
        namespace, key, value = request.namespace, request.key, request.value
        async with self._changes.of(namespace.encode() + b":" + key):
            if self._values.is_kept(namespace, key, value, request.overwrite):
                return protocol.KvPutReply(False)
            old = self._values.get(namespace, key)
            if old != value:
                self._storage.put_value(namespace, key, value)
                await self._storage.commit()
                self._values.on_put(namespace, key, value)
                if self._values.is_dropped(namespace):  # The job has ended, perhaps while the value was being stored.
                    self._drop_values(namespace)
        return protocol.KvPutReply(True)

    @durable
    async def handle_KvDel(self, request: protocol.KvDel, call: Call) -> Done:
        namespace, key = request.namespace, request.key
        async with self._changes.of(namespace.encode() + b":" + key):
            old = self._values.get(namespace, key)
            if old is not None:
                self._storage.delete_value(namespace, key)
                try:
                    await self._storage.commit()
                except StorageFailed:
                    self._storage.put_value(namespace, key, old)  # This replaces the removal, which is still staged.
                    raise
                self._values.on_deleted(namespace, key)
        return DONE

    def handle_KvGet(self, request: protocol.KvGet, call: Call) -> protocol.KvGetReply:
        return protocol.KvGetReply(self._values.get(request.namespace, request.key))

    def handle_KvKeys(self, request: protocol.KvKeys, call: Call) -> protocol.KvKeysReply:
        return protocol.KvKeysReply(self._values.keys(request.namespace, request.prefix))

    # --- Deaths, publish and subscribe, health ---------------------------------------------------------------------------

    @durable
    async def handle_ReportWorkerDeath(self, request: protocol.ReportWorkerDeath, call: Call) -> Done:
        await until_stored(self._store_death, request.death)
        job = self._jobs.of_driver(request.death.worker_id)
        if job is not None:
            await self._finish(job.job_id)
        await self._actors.on_worker_death(request.death)
        return DONE

    async def _store_death(self, death: protocol.WorkerDeath) -> None:
        async with self._changes.of(death.worker_id):
            if self._workers.get(death.worker_id) is None:
                self._storage.put_worker_death(death)
                await self._storage.commit()
                self.publish(self._workers.on_death(death))

    def handle_GetWorkerDeath(self, request: protocol.GetWorkerDeath, call: Call) -> protocol.GetWorkerDeathReply:
        return protocol.GetWorkerDeathReply(self._death_of(request.worker_id, request.node_id))

    def _death_of(self, worker_id: bytes, node_id: bytes) -> protocol.WorkerDeath | None:
        death = self._workers.get(worker_id)
        cause = self._nodes.death_cause(node_id)
        if death is None and cause is not None:
            return protocol.WorkerDeath(worker_id, node_id, pid=0, cause=f"its node died: {cause}")
        return death

    def worker_death(self, worker: Address) -> protocol.WorkerDeath | None:
        """Return the death certificate of a process, if it is known to be dead."""
        return self._death_of(worker.worker_id, worker.node_id)

    def open_nodes(self) -> list[protocol.NodeInfo]:
        return self._nodes.open_nodes()

    def node(self, node_id: bytes) -> protocol.NodeInfo | None:
        return self._nodes.get(node_id)

    def available(self, node_id: bytes) -> Mapping[str, int]:
        return self._nodes.available(node_id)

    def death_cause(self, node_id: bytes) -> str | None:
        return self._nodes.death_cause(node_id)

    async def handle_Poll(self, request: protocol.Poll, call: Call) -> protocol.PollReply | None:
        if request.channel not in CHANNELS and not request.channel.startswith(ACTORS):
            call.fail("bad-request", f"there is no channel {request.channel!r}")
            return None
        return await self._publisher.poll(request)

    def handle_AddTaskEventData(self, request: AddTaskEventData, call: Call) -> Done:
        self.tasks.add(request)
        return DONE

    def handle_GetTaskEvents(self, request: GetTaskEvents, call: Call) -> TaskEvents:
        return self.tasks.part(request.after)

    def handle_GetInternalConfig(self, request: protocol.GetInternalConfig, call: Call) -> protocol.InternalConfig:
        return protocol.InternalConfig(msgspec.structs.asdict(self._config.system_config))

    def handle_CheckAlive(self, request: protocol.CheckAlive, call: Call) -> Done:
        return DONE


GCS_SERVICES = (GcsServer, ActorService, ActorQueries, PlacementGroupScheduler, NodeDrainer, GcsMetricsService, JoinCheck)
"""Classes whose handlers answer requests in this process."""
