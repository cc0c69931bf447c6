"""The door of the room: puts the parts of a driver or worker together.

Ray: src/ray/core_worker/core_worker.h

Everything here runs on the loop of its process. User threads come in through ``user_api``, which posts to the methods
named ``submit``, ``begin_wait``, ``on_ref_...``; other processes come in through ``service``. What a driver and a worker
have in common is nearly everything; a worker also has a ``TaskReceiver`` and ends when its raylet does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from minray.common.config import WorkerConfig, fallback_endpoint, store_endpoint, worker_endpoint
from minray.common.ids import LeaseIdFactory, TaskIdFactory, return_id, task_of
from minray.common.task_spec import RuntimeEnv, TaskTemplate
from minray.core_worker.actor_host import ActorHost
from minray.core_worker.actor_manager import ActorManager
from minray.core_worker.actor_task_receiver import ActorTaskReceiver
from minray.core_worker.borrowing import Borrowing
from minray.core_worker.call_sites import CallSites
from minray.core_worker.dependency_resolver import DependencyResolver
from minray.core_worker.explainer import Explainer
from minray.core_worker.function_manager import FunctionManager
from minray.core_worker.future_resolver import FutureResolver
from minray.core_worker.generator_executor import GeneratorExecutor
from minray.core_worker.generators import Generators
from minray.core_worker.job_environment import take_on
from minray.core_worker.lease_client import LeaseClient
from minray.core_worker.lease_policy import LocalityAwareLeasePolicy
from minray.core_worker.memory_store import MemoryStore, StoredObject, Waiter
from minray.core_worker.normal_task_submitter import NormalTaskSubmitter
from minray.core_worker.object_deletion import ObjectDeletion
from minray.core_worker.object_directory import ObjectDirectory
from minray.core_worker.object_locator import ObjectLocator
from minray.core_worker.object_recovery_manager import ObjectRecoveryManager
from minray.core_worker.outcomes import TaskOutcomes
from minray.core_worker.placement_groups import PlacementGroups
from minray.core_worker.reference_counter import Effects, ReferenceCounter
from minray.core_worker.results import ResultKeeper
from minray.core_worker.return_values import ReturnValues
from minray.core_worker.service import CoreWorkerService
from minray.core_worker.state_reader import StateReader
from minray.core_worker.stats import Statistician
from minray.core_worker.store_provider import LargeObject, StoreProvider
from minray.core_worker.task_executor import TaskExecutor
from minray.core_worker.task_intake import ReceivedTask, TaskIntake
from minray.core_worker.task_manager import WAITING, FunctionExport, PendingTask, TaskManager
from minray.core_worker.task_receiver import TaskReceiver
from minray.core_worker.value_fetcher import ValueFetcher
from minray.exceptions import OwnerDiedError, RayError, pack_exception
from minray.object_ref import ObjectRef
from minray.object_store.client import StoreClient
from minray.platform.base import Platform, PlatformError
from minray.protocol.base import Address, decode
from minray.protocol.core_worker import CancelObject, PrintLines, RefInfo
from minray.protocol.gcs import NODES, WORKER_DEATHS, FinishJob, JobConfig, JobInfo, NodeInfo, RegisterJob
from minray.protocol.object_store import Place
from minray.protocol.raylet import NotifyWorkerBlocked, RegisterDriver, RegisterWorker
from minray.rpc.connection import Peers, ignore
from minray.rpc.patient_caller import PatientCaller
from minray.rpc.pubsub import Subscription
from minray.rpc.service import Dispatcher

logger = logging.getLogger(__name__)


class CoreWorker:
    """One process's part in the cluster."""

    def __init__(self, platform: Platform, config: WorkerConfig) -> None:
        self.platform = platform
        self.config = config
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
        self.on_end: Callable[[str], None] | None = None
        """Told once if this process has lost its cluster."""
        platform.user_code.on_dropped = self.on_refs_dropped
        self.drop_ref = platform.user_code.drop
        """What ``ObjectRef.__del__`` calls, in whatever thread."""
        self.store = MemoryStore(platform.record)
        self.references = ReferenceCounter()
        self.tasks = TaskManager(platform.record)
        self.functions = FunctionManager(self.gcs)
        self.call_sites = CallSites() if system.record_ref_creation_sites else None
        self.actors = ActorManager(self)
        self.deletion = ObjectDeletion(self)
        self.generators = Generators(self)
        self.recovery = ObjectRecoveryManager(self)
        self.fetcher = ValueFetcher(self)
        self.locator = ObjectLocator(self)
        self.placement_groups = PlacementGroups(self)
        self.statistician = Statistician(self)
        self.state_reader = StateReader(self.peers, self.gcs, config.worker_id, self.statistician)
        self.is_exiting = False
        self._blocked_count = 0
        self._blocked_sequence = 0
        self._subscriptions: list[Subscription] = []
        self._listeners: list[Any] = []
        self._dispatcher = Dispatcher(CoreWorkerService(self))
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
        self.raylet.on_death = lambda death: self._lose_cluster(f"the local raylet died: {death}")
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
        self.now = asyncio.get_running_loop().time
        """The loop's clock."""
        platform, peers, system = self.platform, self.peers, self.config.system_config
        self.patient = PatientCaller(peers, self.gcs)
        self.borrowing = Borrowing(peers, self.patient, self.address, self.references, self._on_freed, self._watch_deaths)
        self.futures = FutureResolver(
            self.patient,
            self.address,
            self.references,
            self.store,
            self.on_object,
            self._on_lost_object,
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
        policy = LocalityAwareLeasePolicy(self.config.node_id, self._copies_of, system.locality_aware_leasing_enabled)
        self.submitter = NormalTaskSubmitter(system, lease_ids, self.tasks, self.lease_client, policy.best_raylet)
        self.lease_client.submitter = self.submitter
        self.explainer = Explainer(self)
        node_id_hex, node_ip = self.config.node_id.hex(), self.config.node_ip
        results = ResultKeeper(self.provider, system.max_direct_call_object_size)
        self.generator_executor = GeneratorExecutor(platform, self.patient, self.borrowing, results)
        self.executor = TaskExecutor(
            platform,
            self.functions,
            self.make_refs,
            ReturnValues(results),
            self.generator_executor,
            node_id_hex,
            node_ip,
        )
        intake = TaskIntake(
            platform, self.address, self.references, self.store, self.borrowing, self.fetcher, self.config.node_ip
        )
        self.intake = intake
        self.receiver = TaskReceiver(platform, self.executor, self.functions, intake, self)
        self.host = ActorHost(self)
        max_wait_s = system.actor_scheduling_queue_max_reorder_wait_seconds
        self.actor_receiver = ActorTaskReceiver(platform, self.executor, intake, self.host, max_wait_s)

    async def close(self) -> None:
        """Leave the cluster: a driver ends its job. Errors of a cluster that is gone do not matter any more.

        Also after a ``start`` that has failed.
        """
        self.is_exiting = True
        if self.config.is_driver:
            self.outcomes.fail_all("this driver has left its cluster")
        if self.config.is_driver and self.job is not None and self.gcs.death is None and self.raylet.death is None:
            try:
                async with asyncio.timeout(1.0):
                    await self.placement_groups.settle_all()
                    await self.gcs.call(FinishJob(self.job_id))
            except (PlatformError, TimeoutError) as error:
                logger.debug("could not finish the job: %s", error)
        for subscription in self._subscriptions:
            subscription.close()
        self.placement_groups.close()
        for task in list(self.background):
            task.cancel()
        self.actors.close()
        if hasattr(self, "receiver"):
            self.receiver.close()
            self.generator_executor.close()
            self.actor_receiver.close()
            self.intake.close()
            self.borrowing.close()
            self.lease_client.close()
            self.patient.close()
        self._dispatcher.close()
        for listener in self._listeners:
            await listener.close()
        self.peers.close()

    def _lose_cluster(self, reason: str) -> None:
        """The raylet or the gcs is gone: a worker ends; a driver fails what is unfinished."""
        if self.is_exiting:
            return
        self.is_exiting = True
        if not self.config.is_driver:
            self.platform.processes.exit(1)
            return
        self.outcomes.fail_all(reason)
        if self.on_end is not None:
            self.on_end(reason)

    def _on_unreachable_store(self, reason: str) -> None:
        """Mostly because the raylet has just died. No task shall fail for that which may run elsewhere."""
        if not self.config.is_driver:
            self._lose_cluster(reason)

    # --- submitting

    def submit(self, task: PendingTask) -> None:
        """A user thread has called a remote function."""
        if self.is_exiting:
            self.outcomes.on_lost_cluster(task)
            return
        template = task.prepared.template
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

    # --- objects

    def on_put(self, object_id: bytes, stored: StoredObject) -> None:
        """A user thread has put a value (it is in the store already)."""
        self.references.add_owned(object_id)
        self.store.note_here(object_id, stored)
        if stored.place is not None:
            self._add_copy(object_id, stored.place)
        if stored.nested:
            effects = Effects()
            self.references.on_value(object_id, stored.nested, self.config.worker_id, effects)
            self.borrowing.apply(effects)

    def on_result(self, object_id: bytes, stored: StoredObject) -> None:
        """A task of this process has made a value."""
        self.on_object(object_id, stored)
        if stored.place is not None:
            if self.store.objects.get(object_id) is stored:
                self._add_copy(object_id, stored.place)
            else:
                self.directory.discard([object_id], stored.place.attempt, stored.place.raylet)

    def _add_copy(self, object_id: bytes, place: Place) -> None:
        self._watch_deaths()
        self.directory.add(object_id, place)

    def on_object(self, object_id: bytes, stored: StoredObject) -> None:
        """A value has arrived: a task's result, or a borrowed object from its owner."""
        if stored.nested:
            effects = Effects()
            wanted = self.references.on_value(object_id, stored.nested, self.config.worker_id, effects)
            stored.nested = [RefInfo(info.object_id, info.owner, b"") for info in stored.nested]
            self.borrowing.apply(effects)
        else:
            wanted = self.references.is_in_scope(object_id)
        if wanted:
            self.store.put(object_id, stored)

    def put_error(self, object_id: bytes, error: RayError, name: str = "") -> None:
        """This object will never be anything but an error."""
        self.on_object(object_id, self.error_object(error, name))

    def error_object(self, error: RayError, name: str = "") -> StoredObject:
        """In the place of a value, safe in any thread; ``name`` is that of the task which has failed so."""
        pid, node_id = self.platform.processes.pid, self.config.node_id.hex()
        packed = pack_exception(error, task_name=name, pid=pid, node_id=node_id, ip=self.config.node_ip)
        return StoredObject(packed, (), True, ())

    def _on_lost_object(self, object_id: bytes, owner: Address, reason: str) -> None:
        self.put_error(object_id, OwnerDiedError(object_id_hex=object_id.hex(), owner=owner.endpoint, reason=reason))

    def _copies_of(self, object_id: bytes) -> tuple[int, Sequence[Address]]:
        """How large an object is, and which nodes have it; of a borrowed one, where it was seen."""
        size, raylets = self.directory.copies_of(object_id)
        place = self.resolver.place_of(object_id)
        return (size, raylets) if raylets or place is None else (place.size, [place.raylet])

    def _put_foreign(self, object_id: bytes, owner: Address) -> None:
        """A reference that nobody here has counted: its ObjectRef is of a cluster that this process has left."""
        reason = "this process has left the cluster that it belongs to"
        error = OwnerDiedError(object_id_hex=object_id.hex(), owner=owner.endpoint, reason=reason)
        self.store.put(object_id, self.error_object(error))

    def _on_freed(self, effects: Effects) -> None:
        self.recovery.on_freed(effects)
        freed = effects.freed
        self.store.delete(freed)
        self.directory.free(freed)
        self.resolver.forget(freed)
        self.actors.on_freed(freed)
        self.placement_groups.forget(freed)
        if self.call_sites is not None:
            self.call_sites.forget(freed)

    def on_ref_unpickled(self, object_id: bytes, owner: Address) -> None:
        """A user thread has made an ObjectRef from bytes of the user's own."""
        self.references.add_local(object_id, self._other(owner))
        if self.references.needs_ticket(object_id):
            self.borrowing.keep_soon(object_id, owner)

    def on_refs_made(self, infos: Sequence[RefInfo]) -> None:
        """A user thread has made ObjectRefs for the references inside a value."""
        add_local, other = self.references.add_local, self._other
        for info in infos:
            add_local(info.object_id, other(info.owner))

    def _other(self, owner: Address) -> Address | None:
        """What the reference counter wants to know: the owner, None if that is this process."""
        return None if owner.worker_id == self.config.worker_id else owner

    def on_refs_dropped(self, object_ids: Sequence[bytes]) -> None:
        effects = Effects()
        self.references.remove_local(object_ids, effects)
        self.borrowing.apply(effects)

    def make_refs(self, stored: StoredObject) -> list[ObjectRef[Any]]:
        """In a user thread: the references inside a value, about to be unpickled."""
        infos, drop_ref = stored.nested, self.drop_ref
        if self.call_sites is not None:
            task = self.executor.current
            what = "deserialize" if task is None else f"deserialize in task {task.header.template.name}"
            self.call_sites.note([info.object_id for info in infos], what)
        self.platform.user_code.post(self.on_refs_made, infos)
        return [ObjectRef(info.object_id, info.owner, drop_ref) for info in infos]

    # --- waiting

    def begin_wait(
        self,
        wanted: Sequence[tuple[bytes, Address]],
        waiter: Waiter,
        blocks_task: bool,
        to_fetch: Sequence[LargeObject] = (),
    ) -> None:
        """A user thread waits for these objects (and parks, if ``blocks_task``, the task that it runs).

        Or for those ``to_fetch`` to be on this node, which are known already.
        """
        for large in to_fetch:
            self.fetcher.fetch_for(waiter, large)
        missing = set(self.store.wait([object_id for object_id, _ in wanted], waiter))
        for object_id, owner in wanted:
            if object_id in missing and owner.worker_id != self.config.worker_id:
                if self.references.get(object_id) is not None:
                    self.futures.fetch(object_id, owner)
                else:
                    self._put_foreign(object_id, owner)
        waiter.blocks_task = blocks_task
        if blocks_task:
            self._blocked_count += 1
            if self._blocked_count == 1:
                self._notify_blocked(True)

    def must_fetch(self, stored: StoredObject) -> bool:
        """Whether this value is on another node, as far as this process knows; safe in any thread."""
        place = stored.place
        return place is not None and not stored.is_fetched and place.raylet.node_id != self.config.node_id

    def end_wait(self, object_ids: Sequence[bytes], waiter: Waiter) -> None:
        """The thread goes on; also if it was interrupted so early that it never began to wait."""
        if waiter.needed > 0:
            self.store.stop_waiting(object_ids, waiter)
        if waiter.blocks_task:
            waiter.blocks_task = False
            self._blocked_count -= 1
            if self._blocked_count == 0:
                self._notify_blocked(False)

    def _notify_blocked(self, blocked: bool) -> None:
        self.receiver.on_blocked(blocked)
        self._blocked_sequence += 1
        self.raylet.send(NotifyWorkerBlocked(self.config.worker_id, self._blocked_sequence, blocked), ignore)

    # --- cancelling

    def cancel(self, object_id: bytes, owner: Address, force: bool, recursive: bool) -> None:
        """Cancel the task that makes an object; a borrower passes the wish on to the owner (G47)."""
        if owner.worker_id != self.config.worker_id:
            self.peers.to(owner).send(CancelObject(object_id, force, recursive), ignore)
            return
        task = self.tasks.tasks.get(task_of(object_id))
        if task is not None:
            self.outcomes.cancel(task, force, recursive)

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        """Tasks and calls (G46); an actor that the task has made ends with its handles, as always."""
        for child in self.tasks.children_of(task_id):
            if child.prepared.template.actor is None:
                self.outcomes.cancel(child, force, True)

    # --- surroundings of the task receiver

    async def prepare_environment(self, template: TaskTemplate) -> None:
        """This worker's first task: take on its job and runtime environment, for good."""
        await take_on(self, template)

    def run_constructor(self, task: ReceivedTask, then: Callable[[], None]) -> None:
        self.host.run_constructor(task, then)

    def on_exiting(self) -> None:
        """``max_calls`` is reached: end as soon as nobody depends on this process."""
        waiting = asyncio.get_running_loop().create_task(self._exit_when_free(), name="exit_when_free")
        self.background.add(waiting)

    async def _exit_when_free(self) -> None:
        await asyncio.sleep(0.01)
        while not self.is_free():
            await asyncio.sleep(0.1)
        self.platform.processes.exit(0)

    def is_free(self) -> bool:
        """Nobody depends on this process."""
        return not self.tasks.tasks and not self.actors.owns_living() and self.is_through()

    def is_through(self) -> bool:
        """Nobody does, but for actors that it has made."""
        if self.tasks.tasks.keys() - self.actors.constructors() or self.references.owns_borrowed():
            return False
        return self.receiver.is_idle() and self.actor_receiver.is_idle() and self.intake.is_idle()

    # --- watching others

    def _watch_deaths(self) -> None:
        """Others depend on our objects, or keep copies: learn of their deaths. Their tickets and copies go with them."""
        if self._subscriptions:
            return
        for channel, on_change in ((WORKER_DEATHS, self._on_worker_death), (NODES, self._on_node_change)):
            subscription = Subscription(self.gcs, channel, on_change)
            subscription.start()
            self._subscriptions.append(subscription)

    def _on_worker_death(self, worker_id: bytes, value: bytes | None) -> None:
        if value is not None:
            self.peers.on_death_of(worker_id, "it is reported dead")
            effects = Effects()
            self.references.on_death(worker_id, effects)
            self.borrowing.apply(effects)
            self.actor_receiver.on_death(worker_id)

    def _on_node_change(self, node_id: bytes, value: bytes | None) -> None:
        if value is not None and not decode(NodeInfo, value).alive:
            effects = Effects()
            self.references.on_death(node_id, effects)
            self.borrowing.apply(effects)
            self.actor_receiver.on_death(node_id)
            self.directory.on_node_death(node_id)
