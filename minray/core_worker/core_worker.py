"""Puts the parts of a driver or worker together and connects their events; the entrance of this package.

Ray: src/ray/core_worker/core_worker.h

All methods run on the loop of the process. User threads call ``user_api``, which posts to the parts: submitting and
cancelling come here, other calls go to ``objects``, ``waiting_threads`` and further parts. Messages of other processes
arrive at ``service``. A driver and a worker have the same parts. Only a worker receives tasks, and it ends when its raylet
does; a driver fails its unfinished tasks then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minray.common.config import WorkerConfig, fallback_endpoint, store_endpoint, worker_endpoint
from minray.common.ids import LeaseIdFactory, return_id, task_of
from minray.common.task_spec import TaskTemplate
from minray.core_worker.execution.actor_host import ActorHost
from minray.core_worker.execution.function_manager import FunctionManager
from minray.core_worker.execution.generator_executor import GeneratorExecutor
from minray.core_worker.execution.job_environment import take_on
from minray.core_worker.execution.return_values import ReturnValues
from minray.core_worker.execution.task_intake import TaskIntake
from minray.core_worker.execution.task_profile import TaskProfile
from minray.core_worker.execution.task_receiver import TaskReceiver
from minray.core_worker.execution.timed_executor import executor_class
from minray.core_worker.fetching.blocked_tasks import BlockedTasks
from minray.core_worker.fetching.future_resolver import FutureResolver
from minray.core_worker.fetching.results import ResultKeeper
from minray.core_worker.fetching.store_provider import StoreProvider
from minray.core_worker.fetching.value_fetcher import ValueFetcher
from minray.core_worker.fetching.waiting_threads import WaitingThreads
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.explainer import Explainer
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
from minray.core_worker.records.pending_task import WAITING, FunctionExport, PendingTask
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.user_calls import failure
from minray.core_worker.service import CoreWorkerService
from minray.core_worker.submission.actor_clients import ActorClients
from minray.core_worker.submission.actor_manager import ActorManager
from minray.core_worker.submission.dependency_resolver import DependencyResolver
from minray.core_worker.submission.dynamic_generators import AllGenerators
from minray.core_worker.submission.generators import Generators
from minray.core_worker.submission.lease_client import LeaseClient
from minray.core_worker.submission.lease_policy import LocalityAwareLeasePolicy
from minray.core_worker.submission.named_actors import NamedActors
from minray.core_worker.submission.object_recovery_manager import ObjectRecoveryManager
from minray.core_worker.submission.outcomes import TaskOutcomes
from minray.core_worker.submission.placement_groups import PlacementGroups
from minray.core_worker.submission.task_manager import TaskManager
from minray.core_worker.user_threads.port import UserPort
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
        self.references = ReferenceCounter()
        self.tasks = TaskManager(platform.record)
        self.functions = FunctionManager(self.gcs)
        self.call_sites: CallSites | None = None
        if system.record_ref_creation_sites:
            self.call_sites = CallSites(is_driver=config.is_driver, running_task_name=self._running_task_name)
        self.profile = TaskProfile(platform)
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
        self._build_recovery()
        self._build_submission()
        self._build_execution()
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
        self.death_watch = watch = DeathWatch(process, self._on_worker_death, self._on_node_death)
        self.borrowing = Borrowing(
            process.peers, process.patient, process.address, references, self._on_freed, on_first_lent=watch.begin
        )
        self.directory = ObjectDirectory(process.patient, self._on_lost)
        self.objects = Objects(
            process, references, store, self.borrowing, self.directory, self.call_sites, on_first_copy=watch.begin
        )
        process.platform.user_code.on_dropped = self.objects.on_refs_dropped
        self.locator = ObjectLocator(process, references, store, self.directory)
        self.deletion = ObjectDeletion(process, references, store, self.directory, self.objects)
        self._closes += [watch.close, self.borrowing.close]

    def _build_fetching(self) -> None:
        """Make the parts that fetch values, and those in which threads wait for them."""
        process, config, references, store, objects = self.process, self.config, self.references, self.store, self.objects
        self.futures = FutureResolver(
            process.patient,
            process.address,
            references,
            store,
            objects.on_value,
            objects.put_error,
            self.borrowing.apply,
        )
        client = StoreClient(
            process.platform,
            process.raylet,
            config.worker_id,
            store_endpoint(config.socket_dir, config.node_id),
            fallback_endpoint(config.socket_dir, config.node_id),
            self._on_unreachable_store,
        )
        self.provider = StoreProvider(process.platform, client)
        self.blocked = BlockedTasks(process, self._on_blocked)
        self.fetcher = ValueFetcher(
            process, references, store, self.borrowing, objects, self.futures, self.provider, self.blocked.lend_soon
        )
        self.waiting = WaitingThreads(process, references, store, objects, self.futures, self.fetcher, self.blocked)

    def _build_recovery(self) -> None:
        """Make the parts that receive the items of generators, and make lost objects again."""
        process, references, store, objects = self.process, self.references, self.store, self.objects
        self.clients = ActorClients(references, self.borrowing)
        self.generators: Generators = AllGenerators(
            process.address, process.platform.record, self.tasks, references, store, self.borrowing, self.directory, objects
        )
        self.recovery = ObjectRecoveryManager(
            process,
            self.tasks,
            references,
            store,
            self.borrowing,
            objects,
            resolve=self._resolve,
            lost_items=self.generators.lost_items,
            hurry=self.generators.hurry,
            keep_actor=self.clients.keep,
        )

    def _build_submission(self) -> None:
        """Make the parts that push tasks to workers and calls to actors, and decide the outcomes of both."""
        process, config, objects = self.process, self.config, self.objects
        self.resolver = DependencyResolver(
            config.worker_id, self.store, self.futures, self.on_task_ready, self._on_failed_argument
        )
        self.task_events = TaskEventBuffer(process, self.context, self.tasks)
        self.outcomes = TaskOutcomes(
            process=process,
            tasks=self.tasks,
            resolver=self.resolver,
            references=self.references,
            store=self.store,
            objects=objects,
            borrowing=self.borrowing,
            directory=self.directory,
            handles=self.clients,
            streams=self.generators,
            recovery=self.recovery,
            routes=self,
            forget_place=self.fetcher.forget_place,
            on_failed=self.task_events.on_failed,
        )
        self.lease_policy = LocalityAwareLeasePolicy(
            config.node_id,
            self.directory.copies_of,
            self.resolver.place_of,
            config.system_config.locality_aware_leasing_enabled,
        )
        lease_ids, best_raylet = LeaseIdFactory(config.worker_id), self.lease_policy.best_raylet
        self.lease_client = LeaseClient(process, self.tasks, self.outcomes, lease_ids, best_raylet)
        self.submitter = self.lease_client.submitter
        self.actors = ActorManager(process, self.tasks, self.references, self.clients, self.outcomes, self)
        self.named_actors = NamedActors(process, self.references, self.borrowing, self.drop_ref)
        self.placement_groups = PlacementGroups(process, self.context, self.references, objects, self._own_actor_id)
        self._closes += [self.placement_groups.close, self.actors.close, self.lease_client.close, self.task_events.close]

    def _build_execution(self) -> None:
        """Make the parts that receive tasks and run them."""
        process, platform, config = self.process, self.platform, self.config
        results = ResultKeeper(self.provider, config.system_config.max_direct_call_object_size)
        self.generator_executor = GeneratorExecutor(
            platform, process.patient, self.borrowing, results, self.blocked.lend_soon
        )
        self.executor = executor_class(config.system_config)(
            platform,
            self.functions,
            self.objects.make_refs,
            ReturnValues(results),
            self.generator_executor,
            self.profile,
            config.node_id.hex(),
            config.node_ip,
        )
        self.intake = intake = TaskIntake(
            platform, process.address, self.references, self.store, self.borrowing, self.fetcher, config.node_ip
        )
        self.receiver = TaskReceiver(platform, self.executor, self.functions, intake, self)
        self.host = ActorHost(process, self.executor, intake, self, self.task_events.report)
        self.actor_receiver = self.host.receiver

    def _build_explanations(self) -> None:
        """Make the parts that read the others, for explanations and the state API."""
        self.explainer = Explainer(
            process=self.process,
            references=self.references,
            store=self.store,
            tasks=self.tasks,
            resolver=self.resolver,
            submitter=self.submitter,
            actors=self.actors,
            placement_groups=self.placement_groups,
            actor_receiver=self.actor_receiver,
        )
        self.statistician = Statistician(
            process=self.process,
            context=self.context,
            references=self.references,
            store=self.store,
            tasks=self.tasks,
            call_sites=self.call_sites,
            profile=self.profile,
            receiver=self.receiver,
            actor_receiver=self.actor_receiver,
        )

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
            submission=self,
            tasks=self.tasks,
            generators=self.generators,
            actors=self.actors,
            named_actors=self.named_actors,
            placement_groups=self.placement_groups,
            functions=self.functions,
            executor=self.executor,
            host=self.host,
            explainer=self.explainer,
            answers=self.statistician,
        )

    async def close(self, tells_threads: bool = True) -> None:
        """Leave the cluster, as a driver, also after a ``start`` that has failed; no task of this driver stays on its loop.

        With ``tells_threads``, threads that wait fail with an error. They need none if they end with the interpreter.
        """
        self.process.is_exiting = True
        if self.context.job is not None:
            if tells_threads:
                self._fail_all("this driver has left its cluster")
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
            self._fail_all(reason)
        else:
            self.platform.processes.exit(1)

    def _fail_all(self, reason: str) -> None:
        """Fail all unfinished tasks because the cluster is gone."""
        self.submitter.forget_all()
        self.actors.creator.forget_constructors()
        self.outcomes.fail_all(reason)

    def _on_unreachable_store(self, reason: str) -> None:
        """End this worker because it cannot reach the object store, mostly because the raylet has just died.

        A task that may run elsewhere must not fail for that.
        """
        if not self.config.is_driver:
            logger.warning("this worker ends: %s", reason)  # goes to its stderr, whose tail the owner of its task receives
            self._lose_cluster(reason)

    # --- submitting

    def submit(self, task: PendingTask) -> None:
        """Submit a task for a user thread, which has called a remote function or an actor's method."""
        if self.process.is_exiting:
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
                self.submitter.on_task_ready(task, self.process.now())
        except Exception as error:
            self.outcomes.on_not_begun(task, RaySystemError(reason=failure(error)))
            raise  # to the log

    def hold_arguments(self, task: PendingTask) -> None:
        """Hold the objects that a new task refers to, and enter the task in the table of tasks."""
        if task.slots or task.nested:
            held = task.held_ids()
            self.references.add_submitted(held, [None] * len(held))
        if task.handle_id:
            self.clients.keep(task)
        self.tasks.add(task)

    def wait_for_arguments(self, task: PendingTask) -> None:
        self.tasks.move(task, WAITING)
        self.resolver.resolve(task)

    def export(self, export: FunctionExport, pickled: bytes) -> None:
        """Store a definition in the gcs before its first task runs.

        References in its closure were pinned when it was pickled.
        """

        def on_exported() -> None:
            export.done = True
            self.resolver.on_function_exported(export.function_id)

        self.functions.export(self.context.job_id, export.function_id, pickled, on_exported)

    # --- routes of the outcomes

    def on_task_ready(self, task: PendingTask) -> None:
        """Queue a task whose arguments exist, for its first attempt or for another."""
        prepared = task.prepared
        if prepared.client is not None:
            self.actors.submitter.on_task_ready(prepared.client, task)
        elif prepared.template.actor is not None:
            self.actors.creator.on_constructor_ready(task)
        else:
            self.submitter.on_task_ready(task, self.process.now())

    def on_ended_early(self, task: PendingTask) -> None:
        """React to the end of a task that was not pushed: the actor's calls behind it go on."""
        if task.prepared.client is not None:
            self.actors.submitter.on_task_ended(task.prepared.client)

    def remove_queued(self, task: PendingTask) -> None:
        """Take a cancelled task out of its queue; an actor's queue skips an ended call when its turn comes."""
        if task.prepared.client is None:
            self.submitter.remove_queued(task, self.process.now())

    def on_constructor_failed(self, task: PendingTask, error: bytes) -> None:
        """End an actor that will never exist because an argument of its constructor is an error."""
        self.actors.creator.on_constructor_failed(task, error)

    def _on_failed_argument(self, task: PendingTask, error: StoredObject) -> None:
        self.outcomes.on_failed_argument(task, error)

    # --- cancelling

    def cancel(self, object_id: bytes, owner: Address, force: bool, recursive: bool) -> None:
        """Cancel the task that makes an object; a borrower asks the owner to do it (G47)."""
        task = self.tasks.tasks.get(task_of(object_id))
        if task is not None:
            self.outcomes.cancel(task, force, recursive)
        elif owner.worker_id != self.config.worker_id:
            self.peers.to(owner).send(CancelObject(object_id, force, recursive), ignore)

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        """Cancel the tasks and actor calls that a task has submitted (G46).

        An actor that the task has created is left alone: it ends with its handles, as always.
        """
        for child in self.tasks.children_of(task_id):
            if child.prepared.template.actor is None:
                self.outcomes.cancel(child, force, True)

    # --- what an event in one part means for the others

    def _own_actor_id(self) -> bytes:
        return self.actor_receiver.actor_id

    def _on_freed(self, effects: Effects) -> None:
        """Make every part drop the freed objects; consequences join the effects."""
        self.recovery.on_freed(effects)
        freed = effects.freed
        for error in self.store.delete(freed):
            self.objects.on_unseen(error)
        self.directory.free(freed)
        self.resolver.forget(freed)
        self.actors.creator.on_freed(freed)
        self.placement_groups.forget(freed)
        if self.call_sites is not None:
            self.call_sites.forget(freed)

    def _on_lost(self, object_ids: list[bytes]) -> None:
        """Recover objects of which no node has a copy any more."""
        self.recovery.on_lost(object_ids)

    def _on_worker_death(self, worker_id: bytes) -> None:
        """React to the death of a worker that the gcs reports."""
        self.borrowing.on_death(worker_id)
        self.actor_receiver.on_death(worker_id)

    def _on_node_death(self, node_id: bytes) -> None:
        """React to the death of a node that the gcs reports.

        Its workers are given up before its copies are missed, so that tasks that remake lost objects are not pushed to that
        node.
        """
        self.lease_client.on_node_death(node_id)
        self.actors.on_node_death(node_id)
        self.borrowing.on_death(node_id)
        self.actor_receiver.on_death(node_id)
        self.directory.on_node_death(node_id)

    def _on_blocked(self, is_blocked: bool) -> None:
        """Tell the task receiver that the running task lends its CPUs, or goes on."""
        self.receiver.on_blocked(is_blocked)

    def _resolve(self, task: PendingTask) -> None:
        """Resolve the arguments of a task that runs again because its results were lost."""
        self.resolver.resolve(task)

    def _running_task_name(self) -> str:
        """Name the task that the calling thread runs; empty if it runs none."""
        task = self.executor.current
        return "" if task is None else task.header.template.name

    # --- surroundings of the task receiver

    async def prepare_environment(self, template: TaskTemplate) -> None:
        """Take on the job and the runtime environment of this worker's first task, for good."""
        await take_on(self.process, self.context, template)

    def run_constructor(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        self.host.run_constructor(task, then)

    def on_over(self, task: ReceivedTask) -> None:
        self.blocked.on_task_over(task)

    def lend_cpus(self) -> None:
        """Let other tasks use the CPUs of this process's actor, which ends."""
        self.blocked.begin_to_end()

    def is_free(self) -> bool:
        """Whether no other process depends on this one, and none of its own tasks or actors does."""
        own_tasks = self.tasks.tasks.keys() - self.actors.creator.handed_over()
        return not own_tasks and not self.actors.creator.owns_living() and self.is_through()

    def is_through(self) -> bool:
        """Whether nothing depends on this process except actors that it has created."""
        if self.tasks.tasks.keys() - self.actors.creator.constructors() or self.references.owns_borrowed():
            return False
        return self.receiver.is_idle() and self.actor_receiver.is_idle() and self.intake.is_idle()
