"""Puts the parts of a driver or worker together and connects their events; the entrance of this package.

Ray: src/ray/core_worker/core_worker.h

The parts that own and fetch objects are made here. ``TaskSubmission`` makes those that submit tasks, and ``TaskExecution``
those that run tasks. All methods run on the loop of the process. User threads call ``user_api``, which posts to the parts.
Messages of other processes arrive at ``service``. A driver and a worker have the same parts. Only a worker receives tasks,
and it ends when its raylet does; a driver fails its unfinished tasks then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minray.common.config import WorkerConfig, fallback_endpoint, store_endpoint, worker_endpoint
from minray.core_worker.execution.task_execution import TaskExecution
from minray.core_worker.fetching.blocked_tasks import BlockedTasks
from minray.core_worker.fetching.future_resolver import FutureResolver
from minray.core_worker.fetching.store_provider import LargeValues, StoreProvider
from minray.core_worker.fetching.value_fetcher import ValueFetcher
from minray.core_worker.fetching.waiting_threads import WaitingThreads
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.explainer import Explainer
from minray.core_worker.introspection.metric_reporter import MetricReporter
from minray.core_worker.introspection.stats import Statistician
from minray.core_worker.introspection.task_event_buffer import TaskEventBuffer
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.call_sites import CallSites
from minray.core_worker.ownership.death_watch import DeathWatch
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_deletion import ObjectDeletion
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.core_worker.ownership.object_locator import ObjectLocator
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.service import CoreWorkerService
from minray.core_worker.submission.named_actors import NamedActors
from minray.core_worker.submission.placement_groups import PlacementGroups
from minray.core_worker.submission.task_manager import TaskManager
from minray.core_worker.submission.task_submission import TaskSubmission
from minray.core_worker.user_threads.port import UserPort
from minray.object_store.client import StoreClient
from minray.platform.base import Listener, Platform, PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import PrintLines
from minray.protocol.gcs import FinishJob, JobConfig, JobInfo, RegisterJob
from minray.protocol.raylet import RegisterDriver, RegisterWorker
from minray.rpc.connection import Peers
from minray.rpc.patient_caller import PatientCaller
from minray.rpc.service import Dispatcher

logger = logging.getLogger(__name__)

FAREWELL_TIMEOUT_S = 1.0
"""Maximum seconds that a leaving driver spends on telling the gcs; its exit must not wait for a gcs that is gone."""


class CoreWorker:
    """Makes and connects the parts of one driver or worker."""

    def __init__(self, platform: Platform, config: WorkerConfig) -> None:
        self.platform = platform
        self.config = config
        system = config.system_config
        self.peers = Peers(platform, config.node_id, system.rpc_reconnect_timeout_s)
        self.gcs = self.peers.at(
            config.gcs_endpoint, reconnect_timeout_s=system.gcs_rpc_server_reconnect_timeout_s, may_restart=True
        )
        self.raylet = self.peers.at(
            config.raylet_endpoint, config.node_id, reconnect_timeout_s=system.rpc_reconnect_timeout_s, may_restart=False
        )
        self.patient = PatientCaller(self.peers, self.gcs)
        self.process = Process(
            platform=platform,
            config=config,
            address=Address(config.worker_id, config.node_id, worker_endpoint(config.socket_dir, config.worker_id)),
            peers=self.peers,
            gcs=self.gcs,
            raylet=self.raylet,
            patient=self.patient,
            now=asyncio.get_running_loop().time,
        )
        """The record of this process for its parts. ``start`` completes the address before it makes the parts."""
        self.context = JobContext(config.worker_id)
        self.on_lines: Callable[[PrintLines], None] | None = None
        """Function by which a driver shows the output of its workers; None in a worker."""
        self.drop_ref = platform.user_code.drop
        """Function that ``ObjectRef.__del__`` calls, in any thread."""
        self.store = MemoryStore(platform.record)
        self.references = ReferenceCounter(system.max_borrower_tickets)
        self.call_sites: CallSites | None = None
        if system.record_ref_creation_sites:
            self.call_sites = CallSites(is_driver=config.is_driver, running_task_name=self._running_task_name)
        self.end_of_raylet = ""
        """The reason that the raylet has given for its end; empty if it has given none."""
        self._listeners: list[Listener] = []
        self._dispatcher = Dispatcher(CoreWorkerService(self))
        self._closes: list[Callable[[], None]] = [self._dispatcher.close]
        """Functions that ``close`` calls, in order."""

    @property
    def address(self) -> Address:
        """The address at which other processes reach this one."""
        return self.process.address

    # --- life

    async def start(self, job_config: JobConfig | None = None) -> None:
        """Listen, make the parts, and register at the raylet; a driver (with a ``job_config``) also registers at the gcs.

        Raises PlatformError.
        """
        await self._listen()
        self._build_ownership()
        self._build_fetching()
        self._build_tasks()
        self._build_explanations()
        self._closes.append(self.patient.close)
        if job_config is not None:
            address, pid = self.process.address, self.platform.processes.pid
            registered = await self.gcs.call(RegisterJob(address, pid, job_config))
            job_id, started_at = registered.job_id, self.platform.host.time()
            self.context.enter(JobInfo(job_id, driver=address, driver_pid=pid, config=job_config, start_time=started_at))
            self.process.raylet_address = (await self.raylet.call(RegisterDriver(address, pid, job_id))).address
        else:
            reply = await self.raylet.call(RegisterWorker(self.process.address, self.platform.processes.pid))
            self.process.raylet_address = reply.address
            if reply.refused:
                self._lose_cluster(reply.refused)
        self.raylet.on_death = lambda death: self._lose_cluster(f"the local raylet died: {self.end_of_raylet or death}")
        self.gcs.on_death = lambda death: self._lose_cluster(f"the gcs died: {death}")
        self.raylet.keep_open()
        self.gcs.keep_open()

    async def _listen(self) -> None:
        network, config = self.platform.network, self.config
        self._listeners.append(await network.listen(self.process.address.endpoint, config.worker_id, self._dispatcher))
        if config.tcp_host:
            tcp = await network.listen(f"tcp:{config.tcp_host}:0", config.worker_id, self._dispatcher)
            self._listeners.append(tcp)
            self.process.address = Address(config.worker_id, config.node_id, self.process.address.endpoint, tcp.endpoint)

    def _build_ownership(self) -> None:
        """Make the parts that know which processes hold an object, and where its value is."""
        process, references, store = self.process, self.references, self.store
        self.tasks = TaskManager(process.platform.record)
        self.death_watch = watch = DeathWatch(process, self._on_worker_death, self._on_node_death)
        self.borrowing = Borrowing(process, references, self._on_freed, on_first_lent=watch.begin_watch)
        self.directory = ObjectDirectory(process.patient, self._on_lost, self.config.system_config.max_items_per_batch)
        self.objects = Objects(
            process, references, store, self.borrowing, self.directory, self.call_sites, on_first_copy=watch.begin_watch
        )
        process.platform.user_code.on_dropped = self.objects.on_refs_dropped
        self.locator = ObjectLocator(process, references, store, self.directory, self.tasks.tasks.get)
        self.deletion = ObjectDeletion(process, references, store, self.directory, self.objects)
        self._closes += [watch.close, self.borrowing.close]

    def _build_fetching(self) -> None:
        """Make the parts that fetch values, and those in which threads wait for them."""
        process, references, store, objects = self.process, self.references, self.store, self.objects
        self.futures = FutureResolver(process, references, store, objects.on_value, objects.put_error, self.borrowing.apply)
        self.provider = self._make_provider()
        self.blocked = BlockedTasks(process, self._on_blocked)
        self.fetcher = ValueFetcher(
            process, references, store, self.borrowing, objects, self.futures, self.provider, self.blocked.lend_soon
        )
        self.waiting = WaitingThreads(process, references, store, objects, self.futures, self.fetcher, self.blocked)

    def _make_provider(self) -> LargeValues:
        """Make the part that writes and reads large values; a remote client has another one."""
        process, config = self.process, self.config
        client = StoreClient(
            process.platform,
            process.raylet,
            config.worker_id,
            store_endpoint(config.socket_dir, config.node_id),
            fallback_endpoint(config.socket_dir, config.node_id),
            self._on_unreachable_store,
        )
        return StoreProvider(process.platform, client)

    def _build_tasks(self) -> None:
        """Make the parts that submit tasks, those that run tasks here, and what tasks and actors refer to."""
        process, references, store, objects = self.process, self.references, self.store, self.objects
        self.task_events = TaskEventBuffer(process, self.context, self.tasks)
        self.submission = submission = TaskSubmission(
            process,
            self.tasks,
            references,
            store,
            self.borrowing,
            self.directory,
            objects,
            self.futures,
            forget_place=self.fetcher.forget_place,
            on_failed=self.task_events.on_failed,
        )
        self.execution = TaskExecution(
            process,
            self.context,
            references,
            store,
            self.borrowing,
            objects,
            self.provider,
            self.fetcher,
            self.blocked,
            cancel_children=submission.cancel_children,
            is_through=self.is_through,
            report_last=self.report_last,
        )
        self.named_actors = NamedActors(process, references, self.borrowing, self.drop_ref)
        self.placement_groups = PlacementGroups(process, self.context, references, objects, self._own_actor_id)
        self._closes += [self.placement_groups.close, submission.close, self.task_events.close]

    def _build_explanations(self) -> None:
        """Make the parts that read the others, for explanations and the state API."""
        submission, execution = self.submission, self.execution
        self.explainer = Explainer(
            process=self.process,
            references=self.references,
            store=self.store,
            tasks=self.tasks,
            resolver=submission.resolver,
            submitter=submission.submitter,
            actors=submission.actors,
            placement_groups=self.placement_groups,
            actor_receiver=execution.actor_receiver,
        )
        self.statistician = Statistician(
            process=self.process,
            context=self.context,
            references=self.references,
            store=self.store,
            tasks=self.tasks,
            call_sites=self.call_sites,
            profile=execution.profile,
            receiver=execution.receiver,
            actor_receiver=execution.actor_receiver,
        )
        self.metrics = MetricReporter(self.process, self.statistician.figures)
        self._closes.append(self.metrics.close)

    def report_last(self) -> None:
        """Tell the gcs and the raylet what they keep when this process has ended in order."""
        self.task_events.report()
        self.metrics.report()

    def user_port(self) -> UserPort:
        """Return the port for user threads; only after ``start``."""
        return UserPort(
            process=self.process,
            context=self.context,
            drop_ref=self.drop_ref,
            store=self.store,
            references=self.references,
            objects=self.objects,
            call_sites=self.call_sites,
            provider=self.provider,
            fetcher=self.fetcher,
            waiting=self.waiting,
            locator=self.locator,
            deletion=self.deletion,
            submission=self.submission,
            execution=self.execution,
            named_actors=self.named_actors,
            placement_groups=self.placement_groups,
            explainer=self.explainer,
            answers=self.statistician,
            begin_reports=self.metrics.begin,
        )

    async def close(self, tells_threads: bool = True) -> None:
        """Leave the cluster, as a driver, also after a ``start`` that has failed; no task of this driver stays on its loop.

        With ``tells_threads``, threads that wait fail with an error. They need none if they end with the interpreter.
        """
        self.process.is_exiting = True
        if self.context.job is not None:
            if tells_threads:
                self.submission.fail_all("this driver has left its cluster")
            await self._finish_job()
        for close in self._closes:
            close()
        self.process.background.cancel()
        for listener in self._listeners:
            await listener.close()
        self.peers.close()

    async def _finish_job(self) -> None:
        """Tell the gcs that the job has finished; only log it if the gcs cannot be told."""
        if self.raylet.death is not None:
            return
        try:
            async with asyncio.timeout(FAREWELL_TIMEOUT_S):
                await self.task_events.hand_over()
                await self.placement_groups.settle_all()
                await self.gcs.call(FinishJob(self.context.job_id))
        except (PlatformError, TimeoutError) as error:
            logger.debug("could not finish the job: %s", error)

    def _lose_cluster(self, reason: str) -> None:
        """React to the loss of the raylet or the gcs: a worker ends; a driver fails its unfinished tasks."""
        self.process.is_exiting = True
        if self.config.is_driver:
            self.gcs.may_restart = False  # no request of this driver waits for a restarted gcs
            self.submission.fail_all(reason)
        else:
            self.platform.processes.exit(1)

    def _on_unreachable_store(self, reason: str) -> None:
        """End this worker because it cannot reach the object store, mostly because the raylet has just died.

        A task that may run elsewhere must not fail for that.
        """
        if not self.config.is_driver:
            logger.warning("this worker ends: %s", reason)  # goes to its stderr, whose tail the owner of its task receives
            self._lose_cluster(reason)

    # --- what an event in one part means for the others

    def _own_actor_id(self) -> bytes:
        return self.execution.actor_receiver.actor_id

    def _on_freed(self, effects: Effects) -> None:
        """Make every part drop the freed objects; consequences join the effects."""
        self.submission.recovery.on_freed(effects)
        freed = effects.freed
        for error in self.store.delete(freed):
            self.objects.on_unseen(error)
        self.directory.free(freed)
        self.submission.resolver.forget(freed)
        self.submission.actors.creator.on_freed(freed)
        self.placement_groups.forget(freed)
        if self.call_sites is not None:
            self.call_sites.forget(freed)

    def _on_lost(self, object_ids: list[bytes]) -> None:
        """Recover objects of which no node has a copy any more."""
        self.submission.recovery.on_lost(object_ids)

    def _on_worker_death(self, worker_id: bytes) -> None:
        """React to the death of a worker that the gcs reports."""
        self.borrowing.on_death(worker_id)
        self.execution.actor_receiver.on_death(worker_id)

    def _on_node_death(self, node_id: bytes) -> None:
        """React to the death of a node that the gcs reports.

        Its workers are given up before its copies are missed, so that tasks that remake lost objects are not pushed to that
        node.
        """
        self.submission.lease_client.on_node_death(node_id)
        self.submission.actors.on_node_death(node_id)
        self.borrowing.on_death(node_id)
        self.execution.actor_receiver.on_death(node_id)
        self.directory.on_node_death(node_id)

    def _on_blocked(self, is_blocked: bool) -> None:
        """Tell the task receiver that the running task lends its CPUs, or goes on."""
        self.execution.receiver.on_blocked(is_blocked)

    def _running_task_name(self) -> str:
        """Name the task that the calling thread runs; empty if it runs none."""
        task = self.execution.executor.current
        return "" if task is None else task.header.template.name

    # --- whether this process is needed

    def is_free(self) -> bool:
        """Whether no other process depends on this one, and none of its own tasks or actors does."""
        creator = self.submission.actors.creator
        own_tasks = self.tasks.tasks.keys() - creator.handed_over()
        return not own_tasks and not creator.owns_living() and self.is_through()

    def is_through(self) -> bool:
        """Whether nothing depends on this process except actors that it has created."""
        own_tasks = self.tasks.tasks.keys() - self.submission.actors.creator.constructors()
        if own_tasks or self.references.owns_borrowed():
            return False
        return self.execution.is_idle()
