"""The door of the room: puts the parts of a driver or worker together.

Ray: src/ray/core_worker/core_worker.h

Everything here runs on the loop of its process. User threads come in through ``user_api``, which posts to the parts: what
they submit and cancel comes here, the rest to ``objects`` and ``waiting_threads``. Other processes come in through
``service``. What a driver and a worker have in common is nearly everything; a worker also has a ``TaskReceiver`` and ends
when its raylet does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minray.common.config import WorkerConfig, fallback_endpoint, store_endpoint, worker_endpoint
from minray.common.ids import LeaseIdFactory, TaskIdFactory, return_id, task_of
from minray.common.task_spec import RuntimeEnv, TaskTemplate
from minray.core_worker.actor_host import ActorHost
from minray.core_worker.actor_manager import ActorManager
from minray.core_worker.actor_task_receiver import ActorTaskReceiver
from minray.core_worker.borrowing import Borrowing
from minray.core_worker.call_sites import CallSites
from minray.core_worker.death_watch import DeathWatch
from minray.core_worker.dependency_resolver import DependencyResolver
from minray.core_worker.explainer import Explainer
from minray.core_worker.function_manager import FunctionManager
from minray.core_worker.future_resolver import FutureResolver
from minray.core_worker.generator_executor import GeneratorExecutor
from minray.core_worker.generators import Generators
from minray.core_worker.job_environment import take_on
from minray.core_worker.lease_client import LeaseClient
from minray.core_worker.lease_policy import LocalityAwareLeasePolicy
from minray.core_worker.memory_store import MemoryStore
from minray.core_worker.named_actors import NamedActors
from minray.core_worker.normal_task_submitter import NormalTaskSubmitter
from minray.core_worker.object_deletion import ObjectDeletion
from minray.core_worker.object_directory import ObjectDirectory
from minray.core_worker.object_locator import ObjectLocator
from minray.core_worker.object_recovery_manager import ObjectRecoveryManager
from minray.core_worker.objects import Objects
from minray.core_worker.outcomes import TaskOutcomes
from minray.core_worker.placement_groups import PlacementGroups
from minray.core_worker.reference_counter import ReferenceCounter
from minray.core_worker.results import ResultKeeper
from minray.core_worker.return_values import ReturnValues
from minray.core_worker.service import CoreWorkerService
from minray.core_worker.state_reader import StateReader
from minray.core_worker.stats import Statistician
from minray.core_worker.store_provider import StoreProvider
from minray.core_worker.task_executor import TaskExecutor
from minray.core_worker.task_intake import ReceivedTask, TaskIntake
from minray.core_worker.task_manager import WAITING, FunctionExport, PendingTask, TaskManager
from minray.core_worker.task_profile import TaskProfile
from minray.core_worker.task_receiver import TaskReceiver
from minray.core_worker.value_fetcher import ValueFetcher
from minray.core_worker.waiting_threads import WaitingThreads, failure
from minray.exceptions import RaySystemError
from minray.object_store.client import StoreClient
from minray.platform.base import Listener, Platform, PlatformError
from minray.protocol.base import Address
from minray.protocol.core_worker import CancelObject, PrintLines
from minray.protocol.gcs import FinishJob, JobConfig, JobInfo, RegisterJob
from minray.protocol.raylet import RegisterDriver, RegisterWorker
from minray.rpc.connection import Peers, ignore
from minray.rpc.patient_caller import PatientCaller
from minray.rpc.service import Dispatcher

logger = logging.getLogger(__name__)

FAREWELL_TIMEOUT_S = 1.0
"""How long a driver tries to tell the gcs that it leaves."""


class CoreWorker:
    """One process's part in the cluster."""

    def __init__(self, platform: Platform, config: WorkerConfig) -> None:
        self.platform = platform
        self.config = config
        self.now = asyncio.get_running_loop().time
        """The loop's clock."""
        system = config.system_config
        self.peers = Peers(platform, config.node_id, system.rpc_reconnect_timeout_s)
        self.gcs = self.peers.at(
            config.gcs_endpoint, reconnect_timeout_s=system.gcs_rpc_server_reconnect_timeout_s, may_restart=True
        )
        self.raylet = self.peers.at(
            config.raylet_endpoint, reconnect_timeout_s=system.rpc_reconnect_timeout_s, may_restart=False
        )
        self.address = Address(config.worker_id, config.node_id, worker_endpoint(config.socket_dir, config.worker_id))
        """Replaced by ``start`` when there is a TCP endpoint too."""
        self.job: JobInfo | None = None
        """A driver's from the start; a worker's with its first task."""
        self.job_id = b"\0\0\0\0"
        self.environment = RuntimeEnv()
        """What tasks submitted here inherit."""
        self.on_lines: Callable[[PrintLines], None] | None = None
        """A driver's way to show what its workers print."""
        self.drop_ref = platform.user_code.drop
        """What ``ObjectRef.__del__`` calls, in whatever thread."""
        self.store = MemoryStore(platform.record)
        self.references = ReferenceCounter()
        self.tasks = TaskManager(platform.record)
        self.functions = FunctionManager(self.gcs)
        self.call_sites = CallSites(is_driver=config.is_driver) if system.record_ref_creation_sites else None
        self.actors = ActorManager(self)
        self.named_actors = NamedActors(self)
        self.deletion = ObjectDeletion(self)
        self.generators = Generators(self)
        self.recovery = ObjectRecoveryManager(self)
        self.fetcher = ValueFetcher(self)
        self.locator = ObjectLocator(self)
        self.placement_groups = PlacementGroups(self)
        self.profile = TaskProfile()
        self.statistician = Statistician(self)
        self.state_reader = StateReader(self.peers, self.gcs, config.worker_id, self.statistician)
        self.objects = Objects(self)
        platform.user_code.on_dropped = self.objects.on_refs_dropped
        self.waiting = WaitingThreads(self)
        self.death_watch = DeathWatch(self)
        self.is_exiting = False
        self.end_of_raylet = ""
        """What it has said of its end."""
        self._listeners: list[Listener] = []
        self._dispatcher = Dispatcher(CoreWorkerService(self))
        self._closes = [self.death_watch.close, self.placement_groups.close, self.actors.close, self._dispatcher.close]
        """What is done when a driver leaves."""
        self.background: set[asyncio.Task[None]] = set()
        """Tasks of the loop that nobody awaits."""

    # --- life

    async def start(self, job_config: JobConfig | None = None) -> None:
        """Listen and register: a driver (which has a ``job_config``) at the gcs too. Raises PlatformError."""
        await self._listen()
        self._build()
        if job_config is not None:
            registered = await self.gcs.call(RegisterJob(self.address, self.platform.processes.pid, job_config))
            self.job_id = registered.job_id
            pid = self.platform.processes.pid
            self.job = JobInfo(self.job_id, self.address, pid, job_config, self.platform.host.time())
            self.raylet_address = (await self.raylet.call(RegisterDriver(self.address, pid, self.job_id))).address
        else:
            reply = await self.raylet.call(RegisterWorker(self.address, self.platform.processes.pid))
            self.raylet_address = reply.address
            if reply.refused:
                self._lose_cluster(reply.refused)
        self.task_ids = TaskIdFactory(self.config.worker_id, self.job_id)
        self.raylet.on_death = lambda death: self._lose_cluster(f"the local raylet died: {self.end_of_raylet or death}")
        self.gcs.on_death = lambda death: self._lose_cluster(f"the gcs died: {death}")
        self.raylet.keep_open()
        self.gcs.keep_open()

    async def _listen(self) -> None:
        network, config = self.platform.network, self.config
        listener = await network.listen(self.address.endpoint, config.worker_id, self._dispatcher)
        self._listeners.append(listener)
        if config.tcp_host:
            tcp = await network.listen(f"tcp:{config.tcp_host}:0", config.worker_id, self._dispatcher)
            self._listeners.append(tcp)
            self.address = Address(config.worker_id, config.node_id, self.address.endpoint, tcp.endpoint)

    def _build(self) -> None:
        """The parts that need to know our address."""
        platform, peers, system = self.platform, self.peers, self.config.system_config
        self.patient = PatientCaller(peers, self.gcs)
        on_freed, on_first_lent = self.objects.on_freed, self.death_watch.begin
        self.borrowing = Borrowing(peers, self.patient, self.address, self.references, on_freed, on_first_lent)
        self.futures = FutureResolver(
            self.patient,
            self.address,
            self.references,
            self.store,
            self.objects.on_value,
            self.objects.put_error,
            self.borrowing.apply,
        )
        self.directory = ObjectDirectory(self.patient, self.recovery.on_lost)
        client = StoreClient(
            platform,
            self.raylet,
            self.config.worker_id,
            store_endpoint(self.config.socket_dir, self.config.node_id),
            fallback_endpoint(self.config.socket_dir, self.config.node_id),
            self._on_unreachable_store,
        )
        self.provider = StoreProvider(platform, client)
        self.outcomes = TaskOutcomes(self)
        self.resolver = DependencyResolver(
            self.config.worker_id, self.store, self.futures, self.outcomes.on_ready, self.outcomes.on_failed_argument
        )
        self.lease_client = LeaseClient(peers, self.patient, self.raylet, self.address, self.outcomes)
        lease_ids = LeaseIdFactory(self.config.worker_id)
        policy = LocalityAwareLeasePolicy(self.config.node_id, self.objects.copies_of, system.locality_aware_leasing_enabled)
        self.submitter = NormalTaskSubmitter(system, lease_ids, self.tasks, self.lease_client, policy.best_raylet)
        self.lease_client.submitter = self.submitter
        self.explainer = Explainer(self)
        node_id_hex, node_ip = self.config.node_id.hex(), self.config.node_ip
        results = ResultKeeper(self.provider, system.max_direct_call_object_size)
        self.generator_executor = GeneratorExecutor(
            platform, self.patient, self.borrowing, results, self.waiting.lend_soon
        )
        self.executor = TaskExecutor(
            platform,
            self.functions,
            self.objects.make_refs,
            ReturnValues(results),
            self.generator_executor,
            self.profile,
            node_id_hex,
            node_ip,
        )
        self.intake = intake = TaskIntake(
            platform, self.address, self.references, self.store, self.borrowing, self.fetcher, self.config.node_ip
        )
        self.receiver = TaskReceiver(platform, self.executor, self.functions, intake, self)
        self.host = ActorHost(self)
        max_wait_s = system.actor_scheduling_queue_max_reorder_wait_seconds
        self.actor_receiver = ActorTaskReceiver(platform, self.executor, intake, self.host, max_wait_s)
        self._closes += [self.borrowing.close, self.lease_client.close, self.patient.close]

    async def close(self, tells_threads: bool = True) -> None:
        """A driver leaves its cluster; also after a ``start`` that has failed. Nothing of it is left on its loop.

        Threads that wait are told so, unless they end with the interpreter anyway.
        """
        self.is_exiting = True
        if self.job is not None:
            if tells_threads:
                self.outcomes.fail_all("this driver has left its cluster")
            await self._finish_job()
        for close in self._closes:
            close()
        for task in list(self.background):
            task.cancel()
        for listener in self._listeners:
            await listener.close()
        self.peers.close()

    async def _finish_job(self) -> None:
        """Errors of a cluster that is gone do not matter any more."""
        if self.raylet.death is not None:
            return
        try:
            async with asyncio.timeout(FAREWELL_TIMEOUT_S):
                await self.placement_groups.settle_all()
                await self.gcs.call(FinishJob(self.job_id))
        except (PlatformError, TimeoutError) as error:
            logger.debug("could not finish the job: %s", error)

    def _lose_cluster(self, reason: str) -> None:
        """The raylet or the gcs is gone: a worker ends; a driver fails what is unfinished."""
        self.is_exiting = True
        if self.config.is_driver:
            self.gcs.may_restart = False  # If it comes back, then for others: nothing of ours waits for that.
            self.outcomes.fail_all(reason)
        else:
            self.platform.processes.exit(1)

    def _on_unreachable_store(self, reason: str) -> None:
        """Mostly because the raylet has just died. No task shall fail for that which may run elsewhere."""
        if not self.config.is_driver:
            logger.warning("this worker ends: %s", reason)  # in its standard error, which the owner of its task hears of
            self._lose_cluster(reason)

    # --- submitting

    def submit(self, task: PendingTask) -> None:
        """A user thread has called a remote function."""
        if self.is_exiting:
            self.outcomes.on_lost_cluster(task)
            return
        template = task.prepared.template
        try:
            for index in range(1, template.num_returns + 1):
                self.references.add_owned(return_id(task.task_id, index))
            if template.is_streaming:
                self.generators.begin(task)
            self.hold_arguments(task)
            client = task.prepared.client
            if client is not None:
                self.actors.submitter.on_submitted(client, task)
            if task.slots or not task.prepared.export.done:
                self.wait_for_arguments(task)
            elif client is not None:
                self.actors.submitter.on_task_ready(client, task)
            else:
                self.submitter.on_task_ready(task, self.now())
        except Exception as error:
            self.outcomes.on_not_begun(task, RaySystemError(reason=failure(error)))
            raise  # to the log

    def hold_arguments(self, task: PendingTask) -> None:
        """A new task keeps what it refers to."""
        if task.slots or task.nested:
            held = task.held_ids()
            self.references.add_submitted(held, [None] * len(held))
        if task.handle_id:
            self.actors.keep(task)
        self.tasks.add(task)

    def wait_for_arguments(self, task: PendingTask) -> None:
        self.tasks.move(task, WAITING)
        self.resolver.resolve(task)

    def export(self, export: FunctionExport, pickled: bytes) -> None:
        """Before the first task of a definition: make it known (references in its closure have pinned themselves)."""

        def on_exported() -> None:
            export.done = True
            self.resolver.on_function_exported(export.function_id)

        self.functions.export(self.job_id, export.function_id, pickled, on_exported)

    @property
    def namespace(self) -> str:
        """Where names are looked up that are said without one; a job that has named none has one of its own (G32)."""
        return (self.job.config.namespace if self.job is not None else "") or f"anonymous-{self.job_id.hex()}"

    # --- cancelling

    def cancel(self, object_id: bytes, owner: Address, force: bool, recursive: bool) -> None:
        """Cancel the task that makes an object; a borrower passes the wish on to the owner (G47)."""
        task = self.tasks.tasks.get(task_of(object_id))
        if task is not None:
            self.outcomes.cancel(task, force, recursive)
        elif owner.worker_id != self.config.worker_id:
            self.peers.to(owner).send(CancelObject(object_id, force, recursive), ignore)

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        """Tasks and calls (G46); an actor that the task has made ends with its handles, as always."""
        for child in self.tasks.children_of(task_id):
            if child.prepared.template.actor is None:
                self.outcomes.cancel(child, force, True)

    # --- surroundings of the task receiver

    async def prepare_environment(self, template: TaskTemplate) -> None:
        """This worker's first task: take on its job and runtime environment, for good."""
        await take_on(self, template)

    def run_constructor(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        self.host.run_constructor(task, then)

    def on_over(self, task: ReceivedTask) -> None:
        self.waiting.on_task_over(task)

    def is_free(self) -> bool:
        """Nobody depends on this process."""
        if self.tasks.tasks.keys() - self.actors.handed_over():
            return False
        return not self.actors.owns_living() and self.is_through()

    def is_through(self) -> bool:
        """Nobody does, but for actors that it has made."""
        if self.tasks.tasks.keys() - self.actors.constructors() or self.references.owns_borrowed():
            return False
        return self.receiver.is_idle() and self.actor_receiver.is_idle() and self.intake.is_idle()
