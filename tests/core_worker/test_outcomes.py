"""Ends of tasks: each way to an end, that a task ends once, and who hears of it.

``Owner`` is a core worker with a table of tasks, its references and its values. It records the requests to other parts. A
task that is ``pushed`` is with ``WORKER``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from minray.common.ids import return_id
from minray.common.task_spec import ActorOptions
from minray.core_worker.fetching.future_resolver import OnLarge
from minray.core_worker.ownership.memory_store import MemoryStore, Waiter
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.leased_worker import LeasedWorker, WorkerRequest
from minray.core_worker.records.object_ref_streams import ObjectRefStream
from minray.core_worker.records.pending_task import (
    FAILED,
    FINISHED,
    PUSHED,
    QUEUED,
    WAITING,
    ActorClient,
    CallStream,
    PendingTask,
)
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.dependency_resolver import DependencyResolver
from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from minray.core_worker.submission.outcomes import MAX_MEMORY_DELAY_S, TaskOutcomes
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import unpack_exception
from minray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RaySystemError,
    RayTaskError,
    RuntimeEnvSetupError,
    StreamingGeneratorReplayInconsistentError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from minray.protocol import core_worker as protocol
from minray.protocol.base import DONE, Address
from minray.protocol.core_worker import FIRST_RUN, CancelTask, PushTaskReply, Rerun, Value
from minray.protocol.object_store import Place
from minray.protocol.raylet import (
    ENVIRONMENT_FAILED,
    GRANTED,
    GROUP_REMOVED,
    UNSCHEDULABLE,
    KillWorker,
    LeaseFailure,
    LeaseReply,
)
from tests.core_worker.parts import (
    OWN,
    Asked,
    address,
    config,
    id_of,
    lease_ids,
    object_id,
    packed,
    pending,
    prepare,
    stored,
    submit,
)
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import pass_time, run, turns

WORKER, RAYLET, OTHER = address("worker"), address("raylet-2"), address("other")
DIED = LeaseFailure(True, True, pid=7, exit_code=3, cause="exit code 3")


class Owner:
    """See the head of this file."""

    def __init__(self, **system: Any) -> None:
        self.tasks, self.references, self.store = TaskManager(None), ReferenceCounter(), MemoryStore()
        self.asked = Asked(self.now)
        self.submitter = NormalTaskSubmitter(config(), lease_ids(), self.tasks, self.asked)
        self.peers = RecordingPeers()
        self.process = process_record(self.peers, **system)
        self.process.raylet_address = address("raylet")
        self.log: list[str] = []
        """Events that other parts were told."""
        self.freed: list[bytes] = []
        self.unseen: list[bytes] = []
        """Objects among the freed ones that are errors which no user has looked at."""
        self.probes: dict[bytes, OnLarge] = {}
        """Borrowed object -> the callback that waits for its place."""
        self.cancelled: list[bool] = []
        """For each task that has ended: whether it was known by then to be cancelled."""
        self.discarded: list[tuple[list[bytes], int, Address]] = []
        self.failed: list[tuple[PendingTask, StoredObject | None]] = []
        """Failed tasks with their errors, as the gcs is to hear of them."""
        self.is_read = True
        """Whether a user may still read items."""
        self.contradicts: RayError | None = None
        self.lost: tuple[int, ...] = ()
        """Results that are not to be made again, by the recovery."""
        others: Any = self
        self.resolver = DependencyResolver(
            OWN.worker_id, self.store, others, self.on_task_ready, lambda *failed: self.outcomes.on_failed_argument(*failed)
        )
        self.outcomes = TaskOutcomes(
            process=self.process,
            tasks=self.tasks,
            resolver=self.resolver,
            references=self.references,
            store=self.store,
            objects=others,
            borrowing=others,
            directory=others,
            handles=others,
            streams=self,
            recovery=self,
            routes=self,
            forget_place=self.forget_place,
            on_failed=lambda task, error: self.failed.append((task, error)),
        )

    def now(self) -> float:
        return 0.0

    # --- the other parts, and the ports

    def as_error(self, failure: RayError, name: str = "") -> StoredObject:
        return stored(packed(failure, name), is_error=True)

    def put_error(self, key: bytes, failure: RayError) -> None:
        self.store.put(key, self.as_error(failure))

    def on_value(self, key: bytes, value: StoredObject) -> None:
        if self.references.is_in_scope(key):
            self.store.put(key, value)

    on_result = on_value

    def apply(self, effects: Effects) -> None:
        self.freed += effects.freed
        self.unseen += [key for key in effects.freed if key in self.store.objects and self.store.objects[key].unseen]

    def on_unseen(self, failure: StoredObject) -> None:
        self.log.append(f"nobody will see {kind_of(bytes(failure.data))}")

    def discard_copies(self, object_ids: Sequence[bytes], attempt: int, raylet: Address) -> None:
        self.discarded.append((list(object_ids), attempt, raylet))

    def probe(self, key: bytes, owner: Address, limit: int, on_large: OnLarge) -> None:
        self.probes[key] = on_large

    def forget_place(self, key: bytes) -> None:
        self.log.append("forgets a place")

    def remember(self, task: PendingTask, values: Sequence[StoredObject | None]) -> None:
        self.cancelled.append(task.cancelled)

    def look_after(self, task: PendingTask) -> None:
        self.log.append("looks after what was lost meanwhile")

    def unwanted(self, task: PendingTask) -> tuple[int, ...]:
        return self.lost

    def lost_items(self, task: PendingTask) -> list[int]:
        return [2, 4]

    def unreported(self, task: PendingTask) -> list[bytes]:
        return [object_id("unreported")] if task.stream is not None else []

    def contradiction(self, task: PendingTask) -> RayError | None:
        return self.contradicts

    def begin_stream(self, task: PendingTask) -> None:
        self.log.append("stream begins")
        task.stream = ObjectRefStream()

    def on_ended(self, task: PendingTask, value: StoredObject | None) -> StoredObject | None:
        self.log.append("stream ends")
        return value

    def is_wanted(self, task_id: bytes) -> bool:
        return self.is_read

    def let_go(self, task: PendingTask) -> None:
        self.log.append("one call less")

    def on_task_ready(self, task: PendingTask) -> None:
        if task.prepared.client is not None:
            self.log.append("call")
        elif task.prepared.template.actor is not None:
            self.log.append("constructor")
        else:
            self.submitter.on_task_ready(task, 0.0)

    def on_constructor_failed(self, task: PendingTask, packed: bytes) -> None:
        self.log.append(f"constructor: {kind_of(packed)}")

    def on_ended_early(self, task: PendingTask) -> None:
        client = task.prepared.client
        if client is not None:
            waiting = any(task.prepared.client is client for task in self.tasks.tasks.values())
            self.log.append("a call to wait for" if waiting else "no call to wait for")

    def remove_queued(self, task: PendingTask) -> None:
        if task.prepared.client is None:
            self.submitter.remove_queued(task, 0.0)

    # --- what happens

    def submit(self, *slots: bytes, owner: Address = OWN, prepared: Any = None, **options: Any) -> PendingTask:
        """Submit a task, which waits for these arguments or is queued."""
        task = pending(prepared or prepare(**options), tuple((slot, owner) for slot in slots))
        arguments = [slot for slot in slots if owner is OWN and self.references.reference_of(slot) is None]
        for key in (*task.result_ids(), *arguments):
            self.references.add_owned(key)
        self.references.add_submitted(task.held_ids(), [None] * len(slots))
        self.resolver.resolve(submit(self.tasks, task, WAITING))
        return task

    def pushed(self, *slots: bytes, owner: Address = OWN, node: bytes = WORKER.node_id, **options: Any) -> PendingTask:
        task = self.submit(*slots, owner=owner, **options)
        if task.state is QUEUED:
            self.submitter.on_turn(0.0)
            request = self.asked.requests.pop()
            request.raylet = RAYLET
            where = Address(WORKER.worker_id, node, WORKER.endpoint)
            self.submitter.on_granted(request, LeaseReply(GRANTED, where, pid=5), 0.0)
        assert task.state is PUSHED
        return task

    def call(self, state: str = PUSHED, **options: Any) -> PendingTask:
        """Submit an actor's call."""
        task = self.submit(name="A.f", client=ActorClient(id_of("actor"), OWN, True), **options)
        if state is not WAITING:
            self.tasks.move(task, QUEUED)
        if state is PUSHED:
            self.tasks.move(task, PUSHED)
            task.worker = CallStream(WORKER, None, 0, 1)
        self.log.clear()
        return task

    def request(self) -> WorkerRequest:
        self.submitter.on_turn(0.0)
        return self.asked.requests[-1]

    def answered(self, task: PendingTask) -> None:
        """As the lease client does, before it says how the task has ended."""
        assert isinstance(task.worker, LeasedWorker)
        self.submitter.on_task_answered(task.worker, task, 0.0)

    def reply(self, task: PendingTask, status: int, *values: Value, retryable: bool = False) -> None:
        self.answered(task)
        self.outcomes.on_reply(task, PushTaskReply(status, [*values], 500, retryable), ())

    def died(self, task: PendingTask, failure: LeaseFailure | None = DIED) -> None:
        worker = task.worker
        assert isinstance(worker, LeasedWorker)
        self.submitter.on_worker_lost(worker)
        is_preempted = self.submitter.is_preempted(worker.address.node_id)
        self.outcomes.on_died(task, worker, failure, is_preempted=is_preempted)

    def results(self, task: PendingTask) -> list[Any]:
        """Values, types of errors, and None for what is not there."""
        found = [self.store.objects.get(key) for key in task.result_ids()]
        return [each and (type(error(each.data)) if each.is_error else each.data) for each in found]

    def error(self, task: PendingTask) -> Any:
        return error(self.store.objects[return_id(task.task_id, 1)].data)


def error(packed: bytes) -> RayError:
    return unpack_exception(bytes(packed))


def kind_of(packed: bytes) -> str:
    return type(error(packed)).__name__


def failed(failure: Exception) -> Value:
    return Value(packed(failure), True)


FAILURE = RaySystemError(reason="it was told to")


@pytest.fixture
def owner() -> Owner:
    return Owner()


# --- arguments


def test_a_ready_task_goes_to_the_submitter_of_its_kind(owner: Owner) -> None:
    assert owner.submit().state is QUEUED and owner.log == []
    owner.submit(actor=ActorOptions())
    owner.submit(client=ActorClient(id_of("actor"), OWN, True))
    assert owner.log == ["constructor", "call"]


def test_g1_a_failed_argument_fails_the_task_and_the_calls_behind_it_go_on(owner: Owner) -> None:
    plain, constructor = owner.submit(object_id("a")), owner.submit(object_id("a"), actor=ActorOptions())
    call = owner.submit(object_id("a"), client=ActorClient(id_of("actor"), OWN, True))
    owner.put_error(object_id("a"), FAILURE)
    for task in (plain, call):
        assert isinstance(owner.error(task), RayTaskError) and isinstance(owner.error(task), RaySystemError)
    assert (plain.state, call.state, constructor.state) == (FAILED, FAILED, WAITING)
    assert owner.log == ["constructor: RayTaskError(RaySystemError)", "no call to wait for"]


def test_a_task_with_a_failed_argument_has_looked_at_its_error_and_has_one_of_its_own(owner: Owner) -> None:
    failing = owner.pushed()
    (argument,) = failing.result_ids()
    task = owner.submit(argument)
    effects = Effects()
    owner.references.remove_local([argument], effects)
    owner.reply(failing, protocol.FAILED, failed(FAILURE))
    assert effects.freed == [] and owner.freed == [argument] and owner.unseen == []
    assert owner.store.objects[task.result_ids()[0]].unseen == 1


def test_arguments_are_let_go_when_their_task_has_ended(owner: Owner) -> None:
    owner.store.put(object_id("a"), stored())
    task = owner.pushed(object_id("a"))
    effects = Effects()
    owner.references.remove_local([object_id("a")], effects)
    assert effects.freed == owner.freed == []
    owner.reply(task, protocol.OK, Value(b"v"))
    assert owner.freed == [object_id("a")]


# --- answers


def test_a_task_that_went_well_has_its_values_but_for_those_that_nobody_wanted(owner: Owner) -> None:
    task = owner.pushed(num_returns=3)
    task.unwanted = (2,)
    owner.reply(task, protocol.OK, Value(b"1"), Value(b""), Value(b"3"))
    assert owner.results(task) == [b"1", None, b"3"] and task.state is FINISHED
    assert owner.log == ["looks after what was lost meanwhile"]
    assert owner.tasks.tasks == {} and task.prepared.mean_us == 500


def test_only_a_body_that_has_run_tells_how_long_it_takes(owner: Owner) -> None:
    ran, cancelled = owner.pushed(), owner.pushed(prepared=prepare("g"))
    owner.reply(ran, protocol.FAILED, failed(FAILURE))
    owner.reply(cancelled, protocol.CANCELLED, failed(TaskCancelledError()))
    assert (ran.prepared.mean_us, cancelled.prepared.mean_us) == (500, None)
    assert owner.results(cancelled) == [TaskCancelledError]


def test_what_was_lost_while_a_task_ran_is_looked_after_when_it_has_ended(owner: Owner) -> None:
    quiet, task = owner.pushed(), owner.pushed()
    owner.reply(quiet, protocol.OK, Value(b"v"))
    assert owner.log == []
    task.has_lost_results = True
    owner.reply(task, protocol.OK, Value(b"v"))
    assert owner.log == ["looks after what was lost meanwhile"]


def test_g95_a_stream_that_contradicts_its_task_is_an_error(owner: Owner) -> None:
    good, bad = owner.pushed(), owner.pushed()
    for task in (good, bad):
        task.stream = ObjectRefStream()
    owner.reply(good, protocol.OK, Value(b"v"))
    owner.contradicts = StreamingGeneratorReplayInconsistentError(reason="two items, then three")
    owner.reply(bad, protocol.OK, Value(b"v"))
    assert owner.results(good) == [b"v"] and owner.results(bad) == [StreamingGeneratorReplayInconsistentError]
    assert owner.log == ["stream ends"] * 2


def test_g18_an_exception_is_a_reason_to_try_again_only_if_it_was_said_to_be(owner: Owner) -> None:
    task = owner.pushed(max_retries=1, num_returns=2)
    owner.reply(task, protocol.FAILED, failed(FAILURE), retryable=True)
    assert task.state is not FAILED and (task.attempt, task.retries_left) == (1, 0)
    last = owner.pushed(max_retries=0)
    owner.reply(last, protocol.FAILED, failed(FAILURE), retryable=True)
    other = owner.pushed()
    owner.reply(other, protocol.FAILED, failed(FAILURE))
    assert owner.results(last) == owner.results(other) == [RaySystemError] and other.attempt == 0


def test_what_a_generator_has_yielded_stays_although_it_fails(owner: Owner) -> None:
    task = owner.pushed(num_returns=3)
    owner.reply(task, protocol.FAILED, Value(b"1"), failed(FAILURE))
    assert owner.results(task) == [b"1", RaySystemError, RaySystemError]


# --- tasks that did not start, or begin again


def test_what_did_not_start_is_pushed_again_in_its_order_unless_it_is_over_or_its_arguments_are_lost(owner: Owner) -> None:
    owner.store.put(object_id("a"), stored(b"large" * 100_000))
    tasks = [owner.pushed(), owner.pushed(object_id("a")), owner.pushed(), owner.pushed()]
    for task in tasks:
        owner.answered(task)
    tasks[2].cancelled = True
    owner.store.delete([object_id("a")])
    over = owner.pushed()
    owner.reply(over, protocol.OK, Value(b"v"))
    owner.asked.pushed.clear()
    owner.submitter.on_tasks_unstarted(owner.outcomes.on_unstarted([*tasks, over]), 0.0)
    assert [task.state for task in tasks] == [PUSHED, WAITING, FAILED, PUSHED]
    assert [task for _, task in owner.asked.pushed] == [tasks[0], tasks[3]]
    assert owner.results(tasks[2]) == [TaskCancelledError] and owner.results(over) == [b"v"]
    owner.store.put(object_id("a"), stored())
    assert tasks[1].state is not WAITING


def test_what_has_ended_with_its_cluster_does_not_end_again_when_it_is_known_that_it_did_not_start(owner: Owner) -> None:
    """The worker was lost. While others were asked how it had ended, the cluster went."""
    cancelled, other = owner.pushed(), owner.pushed()
    for task in (cancelled, other):
        owner.submitter.on_worker_lost(task.worker)  # type: ignore[arg-type]
    cancelled.cancelled = True
    owner.outcomes.fail_all("it was told to")
    owner.outcomes.on_unstarted([cancelled, other])
    assert owner.results(cancelled) == owner.results(other) == [LocalRayletDiedError] and owner.asked.requests == []


def test_calls_that_did_not_start_are_ready_again(owner: Owner) -> None:
    calls = [owner.call(), owner.call()]
    assert owner.outcomes.on_unstarted(calls) == calls


def test_of_missing_arguments_only_what_is_known_of_those_of_others_is_forgotten(owner: Owner) -> None:
    owner.references.add_owned(object_id("own"))
    owner.references.add_local(object_id("borrowed"), OTHER)
    task = owner.submit(object_id("borrowed"), owner=OTHER)
    owner.probes[object_id("borrowed")](Place(0, 1 << 20, RAYLET))
    owner.outcomes.on_missing([object_id("own"), object_id("never heard of")])
    assert owner.log == [] and owner.resolver.is_resolved(task)
    owner.outcomes.on_missing([object_id("borrowed")])
    assert owner.log == ["forgets a place"] and not owner.resolver.is_resolved(task)


def test_a_task_that_runs_again_is_told_what_is_lost_and_what_its_owner_has(owner: Owner) -> None:
    task = owner.submit()
    owner.lost = (1,)
    assert owner.outcomes.rerun(task) == FIRST_RUN, "its worker died: it has made nothing yet"
    task.needs = ()
    assert owner.outcomes.rerun(task) == Rerun([1], 0, []) and task.items_lost is None
    task.stream = ObjectRefStream()
    task.stream.arrived = 5
    assert owner.outcomes.rerun(task) == Rerun([1], 5, [2, 4])
    assert task.unwanted == (1,) and list(task.items_lost or ()) == [2, 4]


def test_a_retry_waits_for_its_delay_and_for_its_arguments() -> None:
    async def story() -> None:
        owner = Owner(task_retry_delay_ms=2000)
        owner.store.put(object_id("a"), stored(b"large" * 100_000))
        task = owner.pushed(object_id("a"))
        owner.died(task)
        await pass_time(1)
        assert task.state is WAITING and task.worker is None
        owner.store.delete([object_id("a")])
        await pass_time(2)
        assert task.state is WAITING and owner.resolver.missing_of(task) == [object_id("a")]
        owner.store.put(object_id("a"), stored(b"large" * 100_000))
        assert task.state is QUEUED

    run(story)


def test_g40_a_task_that_pauses_before_its_next_attempt_is_cancelled_at_once() -> None:
    async def story() -> None:
        owner = Owner(task_retry_delay_ms=60_000)
        task, call = owner.pushed(), owner.call()
        owner.died(task)
        call.worker = None
        assert owner.tasks.begin_retry(call)
        owner.outcomes.retry(call)
        for each in (task, call):
            owner.outcomes.cancel_task(each, False, True)
        assert owner.results(task) == owner.results(call) == [TaskCancelledError]
        await pass_time(61)
        assert owner.tasks.tasks == {} and owner.asked.requests == []

    run(story)


def test_a_task_that_was_to_be_made_again_after_a_pause_ends_once_when_the_cluster_goes_meanwhile() -> None:
    async def story() -> None:
        owner = Owner(task_retry_delay_ms=2000)
        tasks = [owner.pushed(), owner.pushed()]
        for task in tasks:
            owner.died(task)
        owner.outcomes.cancel_task(tasks[0], False, True)
        owner.outcomes.fail_all("it was told to")
        await pass_time(3)
        assert [owner.results(task) for task in tasks] == [[TaskCancelledError], [LocalRayletDiedError]]
        assert owner.tasks.tasks == {}

    run(story)


def test_a_retry_without_delay_waits_for_arguments_that_are_lost(owner: Owner) -> None:
    owner.store.put(object_id("a"), stored(b"large" * 100_000))
    again, waits = owner.pushed(), owner.pushed(object_id("a"))
    owner.store.delete([object_id("a")])
    for task in (again, waits):
        owner.reply(task, protocol.FAILED, failed(FAILURE), retryable=True)
    assert (again.state, waits.state) == (PUSHED, WAITING) and owner.asked.pushed[-1][1] is again


# --- workers that die


def test_g16_g17_a_task_whose_worker_died_is_made_again_as_often_as_it_may(owner: Owner) -> None:
    task, last = owner.pushed(max_retries=1), owner.pushed(max_retries=0)
    owner.died(task)
    assert task.attempt == 1 and task.state is QUEUED
    owner.died(last)
    failure = owner.error(last)
    assert isinstance(failure, WorkerCrashedError) and (failure.pid, failure.exit_code) == (7, 3)


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (35, "signal 35")], ids=["named", "of real time"])
def test_g17_a_signal_that_has_killed_a_worker_is_named(owner: Owner, number: int, name: str) -> None:
    task = owner.pushed(max_retries=0)
    assert isinstance(task.worker, LeasedWorker)
    owner.outcomes.on_died(task, task.worker, LeaseFailure(True, True, pid=7, signal=number))
    failure = owner.error(task)
    assert isinstance(failure, WorkerCrashedError) and (failure.exit_code, failure.signal_name) == (-number, name)


def test_a_task_that_is_not_pushed_any_more_is_not_touched_by_its_workers_death(owner: Owner) -> None:
    task = owner.pushed()
    worker = task.worker
    assert isinstance(worker, LeasedWorker)
    owner.reply(task, protocol.OK, Value(b"v"))
    owner.outcomes.on_died(task, worker, DIED)
    assert owner.results(task) == [b"v"] and owner.discarded == []


def test_what_a_dead_attempt_has_left_in_its_store_goes_but_for_what_it_was_not_to_make(owner: Owner) -> None:
    """Also if its node was given up: that may live, and only be out of our reach. Of dead ones the directory knows."""
    task, of_lost_node = owner.pushed(num_returns=2), owner.pushed()
    task.unwanted, task.stream = (1,), ObjectRefStream()
    owner.died(task)
    assert owner.discarded == [([task.result_ids()[1], object_id("unreported")], 0, RAYLET)]
    owner.died(of_lost_node, None)
    assert owner.discarded[1:] == [(of_lost_node.result_ids(), 0, RAYLET)]


def test_g19_a_cancelled_task_whose_worker_died_is_cancelled(owner: Owner) -> None:
    task = owner.pushed()
    task.cancelled = True
    owner.died(task)
    assert owner.results(task) == [TaskCancelledError]


def test_g106_there_is_nowhere_to_try_again_without_the_group(owner: Owner) -> None:
    task = owner.pushed()
    owner.died(task, LeaseFailure(True, True, group_removed=True))
    assert owner.results(task) == [TaskPlacementGroupRemoved]


def test_g21_what_is_lost_to_a_preemption_costs_no_retry(owner: Owner) -> None:
    alone, whole_node = owner.pushed(max_retries=1), owner.pushed(max_retries=1)
    owner.died(alone, LeaseFailure(True, True, preempted=True))
    owner.submitter.on_node_leaving(WORKER.node_id, 0.0)
    owner.died(whole_node, None)
    assert [(task.attempt, task.retries_left) for task in (alone, whole_node)] == [(1, 1), (1, 1)]


def test_a_worker_that_ended_of_itself_costs_a_retry_also_where_its_node_is_to_leave(owner: Owner) -> None:
    task = owner.pushed(max_retries=1)
    owner.submitter.on_node_leaving(WORKER.node_id, 0.0)
    owner.died(task)
    assert (task.attempt, task.retries_left) == (1, 0)


@pytest.mark.parametrize(
    ("node", "failure", "expected"),
    [
        (OWN.node_id, LeaseFailure(True, True, node_ended="it was told to"), LocalRayletDiedError),
        (WORKER.node_id, LeaseFailure(True, True, node_ended="it was told to"), NodeDiedError),
        (WORKER.node_id, None, NodeDiedError),
        (WORKER.node_id, LeaseFailure(False, False), WorkerCrashedError),
        (WORKER.node_id, LeaseFailure(True, False, pid=7), WorkerCrashedError),
    ],
)
def test_the_error_says_what_has_died(owner: Owner, node: bytes, failure: LeaseFailure | None, expected: type) -> None:
    task = owner.pushed(max_retries=0, node=node)
    owner.died(task, failure)
    found = owner.error(task)
    assert type(found) is expected
    if isinstance(found, WorkerCrashedError):
        assert found.pid == 5 and "does not know" in str(found)  # only the lease is known: its worker's pid


def test_g20_killed_for_memory_it_is_made_again_later_each_time_and_without_end() -> None:
    async def story() -> None:
        owner = Owner(task_oom_retry_delay_base_ms=40_000)
        task = owner.pushed(max_retries=1)
        for delay_s in (40.0, MAX_MEMORY_DELAY_S, MAX_MEMORY_DELAY_S):
            owner.died(task, LeaseFailure(True, True, memory_used=9, memory_total=10))
            await pass_time(delay_s - 0.1)
            assert task.state is WAITING and task.worker is None
            await pass_time(0.2)
            assert task.state is QUEUED and task.retries_left == 1
            owner.submitter.on_granted(owner.request(), LeaseReply(GRANTED, WORKER), 0.0)

        last = owner.pushed(max_retries=0)
        owner.died(last, LeaseFailure(True, True, memory_used=9, memory_total=10))
        assert owner.results(last) == [OutOfMemoryError]

    run(story)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ENVIRONMENT_FAILED, RuntimeEnvSetupError),
        (GROUP_REMOVED, TaskPlacementGroupRemoved),
        (UNSCHEDULABLE, TaskUnschedulableError),
    ],
)
def test_what_cannot_be_leased_fails_all_that_wait_for_it(owner: Owner, kind: str, expected: type) -> None:
    tasks = [owner.submit(), owner.submit()]
    owner.outcomes.on_unschedulable(owner.submitter.take_queue(owner.request()), LeaseReply(kind, reason="no"))
    assert [owner.results(task) for task in tasks] == [[expected]] * 2


# --- calls of actors


def test_a_call_that_has_ended_is_counted_and_holds_its_actor_no_more(owner: Owner) -> None:
    held, weak = owner.call(), owner.call()
    held.handle_id = object_id("actor")
    for task in (held, weak):
        owner.outcomes.on_reply(task, PushTaskReply(protocol.OK, (Value(b"v"),), 500), ())
    assert owner.log == ["one call less"] and held.prepared.client.ended == weak.prepared.client.ended == 1


def test_a_call_that_its_actor_does_not_answer_fails_or_is_cancelled(owner: Owner) -> None:
    failing, cancelled = owner.call(), owner.call()
    cancelled.cancelled = True
    for task in (failing, cancelled):
        owner.outcomes.finish_with_error(task, FAILURE)
    assert [owner.results(task) for task in (failing, cancelled)] == [[RaySystemError], [TaskCancelledError]]


def test_what_the_body_of_a_call_has_raised_is_news_and_that_its_actor_exits_is_none(owner: Owner) -> None:
    calls = [owner.call(), owner.call()]
    for call, failure in zip(calls, (ValueError("no"), FAILURE), strict=True):
        owner.outcomes.on_reply(call, PushTaskReply(protocol.FAILED, [failed(failure)], 500), ())
    assert [owner.store.objects[call.result_ids()[0]].unseen for call in calls] == [1, 0]


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize(
    "status", [protocol.FAILED, protocol.CANCELLED, protocol.ENVIRONMENT_FAILED, protocol.ARGUMENT_FAILED]
)
def test_only_the_status_failed_is_news_whether_or_not_the_task_is_cancelled(
    owner: Owner, status: int, is_cancelled: bool
) -> None:
    task = owner.pushed()
    task.cancelled = is_cancelled
    owner.reply(task, status, failed(FAILURE))
    assert owner.store.objects[task.result_ids()[0]].unseen == (status == protocol.FAILED)


def test_the_error_of_a_task_without_results_is_said_when_it_fails(owner: Owner) -> None:
    owner.reply(owner.pushed(num_returns=0), protocol.FAILED, failed(FAILURE))
    assert owner.log == ["nobody will see RaySystemError"]


# --- the end of the cluster


def test_when_the_cluster_is_gone_everything_ends_also_what_somebody_waits_for(owner: Owner) -> None:
    tasks = [owner.pushed(), owner.submit(), owner.submit(object_id("a"))]
    tasks.append(owner.submit(tasks[1].result_ids()[0]))
    released: list[bool] = []
    owner.store.wait([object_id("borrowed")], Waiter(1, False, lambda: released.append(True)))
    owner.outcomes.fail_all("it was told to")
    assert all(isinstance(owner.error(task), LocalRayletDiedError) for task in tasks) and owner.tasks.tasks == {}
    assert released == [True]


def test_what_is_submitted_without_a_cluster_fails_at_once(owner: Owner) -> None:
    task, stream = pending(prepare(num_returns=2)), pending(prepare(is_streaming=True))
    owner.outcomes.on_lost_cluster(task)
    assert owner.results(task) == [LocalRayletDiedError] * 2 and owner.log == []
    owner.outcomes.on_lost_cluster(stream)
    assert owner.log == ["stream begins", "stream ends"]
    assert owner.references.is_in_scope(task.result_ids()[1])


# --- cancelling


def test_g40_what_is_not_pushed_is_cancelled_at_once(owner: Owner) -> None:
    tasks = [owner.submit(object_id("a")), owner.submit(), owner.call(WAITING), owner.call(QUEUED)]
    for task in tasks:
        owner.outcomes.cancel_task(task, False, True)
    assert [owner.results(task) for task in tasks] == [[TaskCancelledError]] * 4
    assert owner.log == ["no call to wait for"] * 2 and owner.cancelled == [True] * 4
    owner.submitter.on_turn(0.0)
    assert owner.asked.requests == []


def test_g41_a_worker_is_told_once_and_again_if_its_answer_does_not_come() -> None:
    async def story() -> None:
        owner = Owner(cancellation_retry_ms=1000)
        task = owner.pushed()
        for _ in range(3):
            owner.outcomes.cancel_task(task, False, True)
        await turns()
        asked = owner.peers.take(CancelTask)
        assert (asked.address, asked.request) == (task.worker.address, CancelTask(task.task_id, 0, False, True))  # type: ignore[union-attr]
        await pass_time(1.1)
        again = owner.peers.take(CancelTask)
        again.fail(unreachable())
        await pass_time(0.9)
        assert owner.peers.asked == []
        await pass_time(0.2)
        owner.peers.take(CancelTask).answer(DONE)
        await pass_time(5)
        assert owner.peers.asked == [] and not owner.process.background

    run(story)


@pytest.mark.parametrize("raylet", [None, RAYLET])
def test_g42_by_force_its_raylet_is_told_when_the_worker_does_not_end_itself(raylet: Address | None) -> None:
    async def story() -> None:
        owner = Owner(cancellation_retry_ms=1000)
        task = owner.pushed()
        assert isinstance(task.worker, LeasedWorker)
        task.worker.raylet = raylet
        owner.outcomes.cancel_task(task, False, False)
        owner.outcomes.cancel_task(task, True, False)  # more than before
        await turns()
        for asked in owner.peers.take_all(CancelTask):
            asked.answer(DONE)
        await pass_time(0.9)
        assert owner.peers.asked == []
        await pass_time(0.2)
        killed = owner.peers.take(KillWorker, CancelTask)
        assert (killed.address, killed.request.lease_id) == (raylet, task.worker.lease_id)
        owner.died(task)
        await pass_time(5)
        assert owner.results(task) == [TaskCancelledError]
        assert owner.peers.take_all(KillWorker) == [] and not owner.process.background

    run(story)


def test_g46_a_call_is_never_cancelled_by_force() -> None:
    async def story() -> None:
        owner = Owner(cancellation_retry_ms=1000)
        task = owner.call()
        owner.outcomes.cancel_task(task, True, False)
        await turns()
        asked = owner.peers.take(CancelTask)
        assert not asked.request.force
        asked.answer(DONE)
        await pass_time(5)
        assert owner.peers.asked == []

    run(story)


def test_a_task_that_is_with_no_worker_has_nobody_to_be_told() -> None:
    async def story() -> None:
        owner = Owner()
        task = owner.pushed()
        assert isinstance(task.worker, LeasedWorker)
        owner.submitter.on_worker_lost(task.worker)  # and its death is not certain yet
        owner.outcomes.cancel_task(task, True, False)
        await pass_time(5)
        assert owner.peers.asked == [] and not owner.process.background

    run(story)
