"""Tasks that arrive at a worker: taken in once, run in order, answered to everyone who asks.

``Worker`` is a receiver with its executor. The test plays the network (``push``) and the user thread (``run_next``): what
is handed to the user thread runs when the test says so. After each action everything on the loop has settled.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from minray.common.config import MAX_DIRECT_CALL_OBJECT_SIZE
from minray.common.task_spec import ActorOptions
from minray.core_worker.execution.return_values import ReturnValues
from minray.core_worker.execution.task_errors import TaskErrors
from minray.core_worker.execution.task_executor import MARKS, TaskExecutor
from minray.core_worker.execution.task_intake import TaskIntake
from minray.core_worker.execution.task_profile import TaskProfile
from minray.core_worker.execution.task_receiver import TaskReceiver
from minray.core_worker.fetching.results import ResultKeeper
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.errors.packed_exception import describe_packed, unpack_exception
from minray.exceptions import OwnerDiedError, RayTaskError, RuntimeEnvSetupError, TaskCancelledError
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import (
    CANCELLED,
    ENVIRONMENT_FAILED,
    FAILED,
    NOT_STARTED,
    OK,
    Argument,
    CancelTask,
    CancelTaskReply,
    PushTask,
    ReclaimTasks,
    RefInfo,
    Rerun,
    TaskHeader,
    Value,
)
from minray.protocol.object_store import Place
from minray.simulation.loop import SimLoop
from minray.values.object_ref import ObjectRef
from minray.values.serialization import ArgumentSlot
from tests.core_worker.parts import OWN, WORKER, address, id_of, object_id, packed, shape, stored, template
from tests.core_worker.user_thread import WorkQueue
from tests.platform_record import FakeProcesses, platform_record
from tests.rpc.recording_call import RecordingCall

OWNER, THIRD = OWN, address("third")
LEASE, NEXT_LEASE = b"lease-1", b"lease-2"
FORCE_DELAY_S = 0.03
NOBODY: Any = None
"""In place of a ``Call`` that is not used."""


class Asked(RecordingCall):
    """One arrival of a request, and what it was answered."""

    @property
    def status(self) -> int | None:
        """None: not answered."""
        assert len(self.replies) <= 1
        return self.replies[0].status if self.replies else None

    @property
    def value(self) -> Any:
        (value,) = self.replies[0].values
        return unpack_exception(value.data) if value.is_error else pickle.loads(value.data)


class Lending:
    """Borrowing as the receiver sees it; owners answer when the test lets them."""

    def __init__(self, loop: SimLoop, references: ReferenceCounter, freed: list[bytes]) -> None:
        self.kept: list[tuple[bytes, Address]] = []
        self.lent: list[tuple[bytes, Address]] = []
        self.given_back: list[tuple[bytes, Address, list[bytes]]] = []
        self.owners_answer = loop.create_future()
        self._references = references
        self._freed = freed

    def apply(self, effects: Effects) -> None:
        self._freed += effects.freed
        self.given_back += effects.give_back

    async def keep_refs(self, refs: list[tuple[bytes, Address]]) -> None:
        self.kept += refs
        await self.owners_answer
        for object_id_, owner in refs:
            self._references.receive_ticket(RefInfo(object_id_, owner, b"ticket"), Effects())

    def lend_now(self, refs: list[tuple[bytes, Address]], receiver: Address) -> list[RefInfo] | None:
        return None

    async def lend(self, refs: list[tuple[bytes, Address]], receiver: Address) -> list[RefInfo]:
        self.lent += refs
        await self.owners_answer
        return [RefInfo(object_id_, owner, b"ticket") for object_id_, owner in refs]


class Worker(WorkQueue):
    """See the head of this file; it is the platform, the functions and the surroundings, too."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop()
        self.interrupts: list[Callable[[], bool]] = []
        self.log: list[Any] = []
        """Steps that user code has done."""
        self.fetches: list[tuple[bytes, Callable[[], None]]] = []
        self.misses: list[Callable[[], None]] = []
        """Callbacks of the same fetches, which say that an argument is being made again."""
        self.wanted: list[LargeObject] = []
        """Large arguments that the intake has asked for."""
        self.function_fetches: list[Callable[[], None]] = []
        self.functions: dict[bytes, Callable[..., Any]] = {}
        self.environment: Any = self.loop.create_future()
        self.prepared: list[ReceivedTask] = []
        self.omp_threads: list[str] = []
        """Values of OMP_NUM_THREADS, each time when it is set."""
        self.cancelled_children: list[tuple[bytes, bool]] = []
        self.told_generators: list[Any] = []
        """Running calls that were cancelled: generators look whether they are meant."""
        self.over: list[int] = []
        self.freed: list[bytes] = []
        self.references, self.store = ReferenceCounter(), MemoryStore()
        self.lending = Lending(self.loop, self.references, self.freed)
        self.processes = FakeProcesses()
        self.platform = platform_record(user_code=self, processes=self.processes)
        myself: Any = self
        lending: Any = self.lending
        returns = ReturnValues(ResultKeeper(myself, MAX_DIRECT_CALL_OBJECT_SIZE), myself)
        own, profile, ip = self.platform, TaskProfile(self.platform), "127.0.0.1"
        errors = TaskErrors(own, returns, "00", ip)
        self.executor = TaskExecutor(own, myself, self.make_refs, returns, errors, myself, profile)
        self.intake = TaskIntake(
            own, WORKER, self.references, self.store, lending, myself, ip, self.on_slow_answer, self.on_last_answer
        )
        self.receiver = TaskReceiver(own, self.executor, myself, self.intake, myself)

    def on_slow_answer(self, _task: Any) -> None:
        """No caller is looked after."""

    def on_last_answer(self) -> None:
        self.receiver.begin_exit()

    def on_cancelled(self, task: Any) -> None:
        """As the executor of generators."""
        self.told_generators.append(task)

    # --- what the test does

    def act(self, action: Callable[[], Any]) -> Any:
        """Do something on the loop, and let everything settle."""
        outcome = self.loop.create_future()
        self.loop.call_soon(lambda: outcome.set_result(action()))
        result = self.loop.run_until_complete(outcome)
        self.let_time_pass(0.0001)
        return result

    def let_time_pass(self, duration_s: float) -> None:
        later = self.loop.create_future()
        self.loop.call_later(duration_s, later.set_result, None)
        self.loop.run_until_complete(later)
        assert self.loop.failures == []

    def push(
        self,
        function: Callable[..., Any] | str,
        sequence: int = 1,
        *args: Any,
        lease_id: bytes = LEASE,
        acknowledged: int = 0,
        arguments: Sequence[Argument] = (),
        nested: Sequence[RefInfo] = (),
        attempt: int = 0,
        unwanted: Sequence[int] = (),
        **options: Any,
    ) -> Asked:
        """A string is the name of a function that writes its name (and arguments) into the log."""
        name = function if isinstance(function, str) else function.__name__
        made = template(name, **options)
        self.functions.setdefault(made.function_id, self.logger(function) if isinstance(function, str) else function)
        slots = [ArgumentSlot(index) for index in range(len(arguments))]
        data = pickle.dumps(((*slots, *args), {}), 5) if slots or args or nested else b""
        header = encode(TaskHeader(made, OWNER))
        task_id = f"{lease_id.decode()}/{sequence}".encode().ljust(24)
        task = PushTask(task_id, attempt, lease_id, sequence, acknowledged, header, 0, data, tuple(arguments), tuple(nested))
        request = msgspec.structs.replace(task, rerun=Rerun(list(unwanted), 0, []))
        asked: Any = Asked()
        self.act(lambda: self.receiver.handle_PushTask(request, asked))
        self.last = request
        return asked

    def again(self, request: PushTask | None = None) -> Asked:
        """The last push (or another) arrives once more."""
        asked: Any = Asked()
        request = request or self.last
        self.act(lambda: self.receiver.handle_PushTask(request, asked))
        return asked

    def cancel(self, request: PushTask, force: bool = False, recursive: bool = False) -> CancelTaskReply:
        cancel = CancelTask(request.task_id, request.attempt, force, recursive)
        reply: CancelTaskReply = self.act(lambda: self.receiver.handle_CancelTask(cancel, NOBODY))
        return reply

    def logger(self, name: str) -> Callable[..., Any]:
        def log(*args: Any) -> str:
            self.log.append((name, *args) if args else name)
            return name

        return log

    def run_next(self) -> None:
        work, then = self.due.popleft()
        self.act(work)
        self.act(then)

    def run_all(self) -> None:
        while self.due:
            self.run_next()

    def get_ready(self) -> None:
        self.act(lambda: self.environment.set_result(None))

    # --- platform.user_code

    def enter_environment(self, leading: Any, sys_path: Any, working_dir: Any, env_vars: dict[str, str]) -> None:
        self.omp_threads.append(env_vars["OMP_NUM_THREADS"])

    def interrupt(self, applies: Callable[[], bool]) -> None:
        self.interrupts.append(applies)

    def collect_later(self, at_once: bool = False) -> None:
        """Collect no garbage: there is none here."""

    def run_exit_handlers(self) -> None:
        """There are none."""

    def make_refs(self, value: StoredObject) -> list[ObjectRef[Any]]:
        for info in value.nested:
            self.references.add_local(info.object_id, info.owner)
        return [ObjectRef(info.object_id, info.owner, self.drop) for info in value.nested]

    def drop(self, key: bytes) -> None:
        effects = Effects()
        self.references.remove_local([key], effects)
        self.freed += effects.freed

    # --- functions

    def is_here(self, function_id: bytes) -> bool:
        return not self.function_fetches

    def fetch_function(self, job_id: bytes, function_id: bytes, on_fetched: Callable[[], None]) -> None:
        self.function_fetches.append(on_fetched)

    def load(self, function_id: bytes) -> Callable[..., Any]:
        return self.functions[function_id]

    # --- surroundings

    async def prepare_environment(self, task: ReceivedTask) -> None:
        self.prepared.append(task)
        await self.environment

    def fetch_argument(
        self,
        key: bytes,
        owner: Address,
        on_here: Callable[[], None],
        on_missing: Callable[[], None],
        waits: bool = False,
    ) -> None:
        assert self.references.reference_of(key) is not None, "nobody asks for what nobody needs"
        self.fetches.append((key, on_here))
        self.misses.append(on_missing)
        if owner == WORKER:
            on_missing()

    def fetch_arguments(
        self,
        objects: list[LargeObject],
        on_fetched: Callable[[list[StoredObject | None]], None],
        waits: bool = False,
    ) -> None:
        self.wanted += objects
        self.on_fetched = on_fetched

    def argument_comes(self, value: StoredObject) -> None:
        key, on_here = self.fetches.pop(0)
        self.store.put(key, value)
        self.act(on_here)

    def cancel_children(self, task_id: bytes, force: bool) -> None:
        self.cancelled_children.append((task_id, force))

    def on_over(self, task: ReceivedTask) -> None:
        self.over.append(task.sequence)
        self.receiver.on_blocked(False)


@pytest.fixture
def unprepared() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.loop.close()


@pytest.fixture
def worker(unprepared: Worker) -> Worker:
    """One that has run something before, under another lease."""
    unprepared.push("first", lease_id=b"lease-0")
    unprepared.get_ready()
    unprepared.run_all()
    unprepared.log.clear()
    return unprepared


def test_openmp_may_start_threads_for_the_cpus_of_the_present_lease(
    unprepared: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    unprepared.push("first", 1, shape=shape(2))
    unprepared.push("second", 2, shape=shape(2))
    unprepared.again()
    assert unprepared.omp_threads == []
    unprepared.get_ready()
    assert unprepared.omp_threads == ["2"] and unprepared.log == []
    unprepared.push("third", 1, lease_id=b"lease-2", shape=shape(2))
    unprepared.push("fourth", 1, lease_id=b"lease-3", shape=shape(3))
    unprepared.push("fifth", 2, lease_id=b"lease-3", shape=shape(3))
    assert unprepared.omp_threads == ["2", "3"]


def large_argument(name: str) -> Argument:
    return Argument(None, object_id(name), THIRD)


# --- running


def test_a_task_runs_and_is_answered(worker: Worker) -> None:
    asked = worker.push(lambda x: x + 1, 1, 41)
    assert asked.status is None
    worker.run_all()
    assert (asked.status, asked.value) == (OK, 42) and asked.replies[0].duration_us >= 0
    assert worker.receiver.is_idle()


def test_tasks_run_in_the_order_in_which_they_came(worker: Worker) -> None:
    for sequence, name in enumerate("abc", 1):
        worker.push(name, sequence)
    worker.run_all()
    assert worker.log == ["a", "b", "c"]


def test_the_beginning_of_a_task_is_marked_where_it_outlives_the_process(worker: Worker) -> None:
    worker.push("a", 1)
    worker.push(lambda: worker.log.append(MARKS.unpack_from(worker.processes.marks)[0]), 2)
    worker.run_all()
    assert worker.log == ["a", 2]


@pytest.mark.parametrize("retryable", [False, True])
def test_g1_an_exception_is_the_answer(worker: Worker, retryable: bool) -> None:
    def fail() -> None:
        raise KeyError("key")

    asked = worker.push(fail, retry_exceptions=retryable)
    worker.run_all()
    assert asked.status == FAILED and isinstance(asked.value, KeyError) and isinstance(asked.value, RayTaskError)
    assert asked.replies[0].retryable is retryable


def test_an_error_of_any_size_is_answered_out_of_band(worker: Worker) -> None:
    def fail() -> None:
        raise ValueError(b"x" * 1_000_000)

    asked = worker.push(fail)
    worker.run_all()
    (value,) = asked.replies[0].values
    assert value.is_error and value.data == b"" and len(asked.buffers[0]) > 1_000_000


def test_of_the_error_of_a_constructor_the_text_is_answered_and_not_too_much_of_it(worker: Worker) -> None:
    """The gcs keeps it, and tells everybody."""

    def fail() -> None:
        error = ValueError("the reason" + 50_000 * "é")
        error.payload = bytes(1_000_000)  # type: ignore[attr-defined]
        raise error

    asked = worker.push(fail, actor=ActorOptions())
    worker.run_all()
    (value,) = asked.replies[0].values
    assert value.is_error and len(value.data) < MAX_DIRECT_CALL_OBJECT_SIZE and not asked.buffers
    text = describe_packed(value.data)
    assert "ValueError: the reason" in text and "characters left out" in text and "test_task_receiver.py" in text


# --- repetitions


def test_g112_a_repeated_push_runs_once_and_is_answered_twice(worker: Worker) -> None:
    """Both while it runs and after; the channel of the first may be gone, or that of the second may be the older one."""
    first = worker.push("a")
    second = worker.again()
    worker.run_all()
    third = worker.again()
    worker.run_all()
    assert worker.log == ["a"]
    assert [first.value, second.value, third.value] == ["a", "a", "a"]


def test_g112_a_push_whose_reply_has_arrived_is_not_run_again(worker: Worker) -> None:
    worker.push("a", 1)
    worker.run_all()
    late = worker.last
    worker.push("b", 2, acknowledged=1)
    asked = worker.again(late)
    worker.run_all()
    assert worker.log == ["a", "b"] and asked.replies == asked.failures == []


def test_replies_are_kept_only_until_they_are_acknowledged(worker: Worker) -> None:
    for sequence in range(1, 10):
        worker.push("a", sequence, acknowledged=sequence - 1)
        worker.run_all()
        assert len(worker.receiver.lease.tasks) == 1


def test_g112_a_push_of_a_lease_that_is_over_is_refused(worker: Worker) -> None:
    worker.push("a", 1)
    worker.run_all()
    late = worker.last
    worker.push("b", 1, lease_id=NEXT_LEASE)
    asked = worker.again(late)
    worker.run_all()
    assert asked.failures == ["stale-lease"] and worker.log == ["a", "b"]


def test_sequences_begin_anew_with_every_lease(worker: Worker) -> None:
    for sequence in (1, 2, 3):
        worker.push("a", sequence, acknowledged=sequence - 1)
        worker.run_all()
    asked = worker.push("b", 1, lease_id=NEXT_LEASE)
    worker.run_all()
    assert asked.status == OK


def test_tasks_of_a_lease_that_is_over_do_not_start(worker: Worker) -> None:
    nested = [RefInfo(object_id("x"), OWNER, b"")]
    old = worker.push("a", 1, "argument", nested=nested)
    worker.push("b", 1, lease_id=NEXT_LEASE)
    worker.run_all()
    assert worker.log == ["b"] and old.replies == [] and len(worker.references) == 0


# --- what must be here first


def test_the_environment_is_prepared_once_before_the_first_task(unprepared: Worker) -> None:
    asked = [unprepared.push(name, sequence) for sequence, name in enumerate("ab", 1)]
    assert not unprepared.due and len(unprepared.prepared) == 1
    unprepared.get_ready()
    unprepared.run_all()
    unprepared.push("c", 3)
    unprepared.run_all()
    assert unprepared.log == ["a", "b", "c"] and len(unprepared.prepared) == 1 and asked[1].value == "b"


@pytest.mark.parametrize("problem", [RuntimeEnvSetupError(reason="no such directory"), LookupError("no such directory")])
def test_an_environment_that_cannot_be_had_is_the_answer(unprepared: Worker, problem: Exception) -> None:
    asked = [unprepared.push("a", sequence) for sequence in (1, 2)]
    unprepared.act(lambda: unprepared.environment.set_exception(problem))
    assert [each.status for each in asked] == [ENVIRONMENT_FAILED] * 2 and not unprepared.due
    assert isinstance(asked[0].value, RuntimeEnvSetupError) and "no such directory" in str(asked[0].value)
    assert not unprepared.receiver._waiting, "an answered task is forgotten"
    unprepared.environment = unprepared.loop.create_future()
    again = unprepared.push("b", 3)
    unprepared.get_ready()
    unprepared.run_all()
    assert again.status == OK


def test_a_function_is_fetched_before_its_task_and_later_tasks_wait(worker: Worker) -> None:
    worker.function_fetches.append(pytest.fail)
    worker.push("a", 1)
    worker.push("b", 2)
    assert not worker.due
    on_fetched = worker.function_fetches[-1]
    worker.function_fetches.clear()
    worker.act(on_fetched)
    worker.run_all()
    assert worker.log == ["a", "b"]


def test_g10_large_arguments_are_fetched_before_their_task_and_later_tasks_wait(worker: Worker) -> None:
    worker.push("a", 1, arguments=[large_argument("x"), large_argument("y")])
    worker.push("b", 2)
    assert [key for key, _ in worker.fetches] == [object_id("x"), object_id("y")]
    for value in (b"X", b"Y"):
        assert not worker.due
        worker.argument_comes(stored(pickle.dumps(value)))
    worker.run_all()
    assert worker.log == [("a", b"X", b"Y"), "b"]


@pytest.mark.parametrize("known_before", [False, True])
def test_an_argument_that_was_lost_meanwhile_fails_the_task(worker: Worker, known_before: bool) -> None:
    """Whether the loss is seen when it is fetched, or was seen for an earlier task."""
    lost = stored(packed(OwnerDiedError(object_id_hex="00", owner="", reason="")), is_error=True)
    if known_before:
        worker.store.put(object_id("x"), lost)
    asked = worker.push("a", arguments=[large_argument("x")])
    if not known_before:
        worker.argument_comes(lost)
    worker.run_all()
    assert isinstance(asked.value, OwnerDiedError) and worker.log == [] and len(worker.references) == 0


def test_g67_a_task_whose_argument_is_being_made_again_goes_back_and_those_behind_it_go_on(worker: Worker) -> None:
    asked = worker.push("a", 1, arguments=[large_argument("x"), large_argument("y")])
    worker.push("b", 2)
    worker.act(worker.misses[1])
    worker.act(worker.misses[0])
    worker.run_all()
    assert (asked.status, asked.replies[0].missing) == (NOT_STARTED, (object_id("y"),))
    assert worker.log == ["b"] and len(worker.references) == 0


def test_g67_what_this_worker_has_to_make_again_itself_is_known_to_be_missing_at_once(worker: Worker) -> None:
    """And nothing else is fetched for the task."""
    lost = Argument(None, object_id("x"), WORKER)
    asked = worker.push("a", 1, arguments=[lost, large_argument("y")])
    worker.run_all()
    assert (asked.status, asked.replies[0].missing) == (NOT_STARTED, (object_id("x"),))
    assert len(worker.fetches) == 1 and worker.log == [] and len(worker.references) == 0


def test_g67_those_behind_it_need_not_wait_for_the_next_push(worker: Worker) -> None:
    worker.push("a", 1, arguments=[large_argument("x")])
    worker.push("b", 2)
    worker.act(worker.misses[0])
    worker.run_all()
    assert worker.log == ["b"]


def test_g67_so_it_does_if_the_value_cannot_be_fetched_from_where_it_was(worker: Worker) -> None:
    place = Place(0, 1000, OWNER)
    for name in ("x", "y"):
        worker.store.put(object_id(name), StoredObject(b"", (), False, (), place))
    asked = worker.push("a", arguments=[large_argument("x"), large_argument("y")])
    worker.act(lambda: worker.on_fetched([stored(pickle.dumps(1)), None]))
    worker.run_all()
    assert (asked.status, asked.replies[0].missing) == (NOT_STARTED, (object_id("y"),)) and worker.log == []


def test_g67_only_results_that_are_wanted_are_made(worker: Worker) -> None:
    asked = worker.push(lambda: (1, lambda: 2, 3), num_returns=3, unwanted=[1, 2])
    worker.run_all()
    assert [value.data for value in asked.replies[0].values[:2]] == [b"", b""]
    assert pickle.loads(asked.replies[0].values[2].data) == 3


# --- references


def test_arguments_are_held_from_the_push_to_the_answer(worker: Worker) -> None:
    worker.push("a", 1, 5, nested=[RefInfo(object_id("x"), OWNER, b"")], arguments=[large_argument("y")])
    assert len(worker.references) == 2
    worker.argument_comes(stored(pickle.dumps(1)))
    worker.run_all()
    assert len(worker.references) == 0 and worker.freed == [object_id("x"), object_id("y")]


def test_g112_the_kept_answer_of_a_task_that_failed_is_its_failure(worker: Worker) -> None:
    def fail(_: int) -> None:
        raise LookupError("no")

    asked = worker.push(fail, 1, 5, nested=[RefInfo(object_id("x"), OWNER, b"")])
    worker.run_all()
    again = worker.again()
    assert [each.status for each in (asked, again)] == [FAILED, FAILED]
    assert isinstance(again.value, LookupError)


def test_g58_what_user_code_keeps_gets_a_ticket_before_the_owner_hears(worker: Worker) -> None:
    x = object_id("x")
    inside = StoredObject(b"", (), False, [RefInfo(x, OWNER, b"")])
    kept: list[Any] = []
    asked = worker.push(lambda _: kept.extend(worker.make_refs(inside)), 1, 5, nested=inside.nested)
    worker.run_all()
    assert worker.lending.kept == [(x, OWNER)] and asked.status is None
    worker.act(lambda: worker.lending.owners_answer.set_result(None))
    reference = worker.references.reference_of(x)
    assert asked.status == OK and reference is not None and reference.held_tickets == [b"ticket"]
    kept.clear()


def test_g58_references_in_a_result_get_tickets_before_it_leaves(worker: Worker) -> None:
    x = object_id("x")
    inside = StoredObject(b"", (), False, [RefInfo(x, THIRD, b"")])
    asked = worker.push(lambda: worker.make_refs(inside))
    worker.run_all()
    assert worker.lending.lent == [(x, THIRD)] and asked.status is None and not worker.receiver.is_idle()
    worker.act(lambda: worker.lending.owners_answer.set_result(None))
    assert asked.replies[0].values[0].nested == (RefInfo(x, THIRD, b"ticket"),) and worker.receiver.is_idle()


@pytest.mark.parametrize(("is_cancelled", "status"), [(True, CANCELLED), (False, NOT_STARTED)])
def test_g58_so_does_what_is_kept_of_a_task_that_never_ran(worker: Worker, is_cancelled: bool, status: int) -> None:
    x = object_id("x")
    inside = StoredObject(b"", (), False, [RefInfo(x, OWNER, b"")])
    kept = worker.make_refs(inside)
    asked, unheld = worker.push("a", 1, 5, nested=inside.nested), worker.push("b", 2, 5)
    first = msgspec.structs.replace(worker.last, task_id=f"{LEASE.decode()}/1".encode().ljust(24))
    if is_cancelled:
        worker.cancel(first)
    else:
        worker.act(lambda: worker.receiver.handle_ReclaimTasks(ReclaimTasks(LEASE), NOBODY))
    assert worker.lending.kept == [(x, OWNER)] and asked.status is None
    assert unheld.status == (None if is_cancelled else NOT_STARTED)
    worker.act(lambda: worker.lending.owners_answer.set_result(None))
    reference = worker.references.reference_of(x)
    assert asked.status == status and reference is not None and reference.held_tickets == [b"ticket"]
    kept.clear()


def test_who_holds_nothing_else_of_it_answers_at_once(worker: Worker) -> None:
    asked = worker.push("a", 1, 5, nested=[RefInfo(object_id("x"), OWNER, b"")])
    worker.cancel(worker.last)
    assert asked.status == CANCELLED and worker.lending.kept == [] and worker.freed == [object_id("x")]


def test_a_task_begins_when_its_large_arguments_have_come(worker: Worker) -> None:
    key = object_id("x")
    worker.store.put(key, StoredObject(b"", (), False, (), Place(0, 1000, OWNER)))
    asked = worker.push("a", arguments=[Argument(None, key, OWNER)])
    assert worker.due == deque()
    worker.act(lambda: worker.on_fetched([stored(pickle.dumps(5))]))
    worker.run_all()
    assert asked.status == OK and worker.log == [("a", 5)]


def test_a_large_argument_that_comes_with_its_place_is_read_without_a_question_to_its_owner(worker: Worker) -> None:
    place = Place(0, 1000, OWNER)
    asked = worker.push("a", arguments=[Argument(None, object_id("x"), OWNER, place)])
    assert worker.fetches == [] and worker.wanted == [LargeObject(object_id("x"), OWNER, (), place.attempt)]
    worker.act(lambda: worker.on_fetched([stored(pickle.dumps(5))]))
    worker.run_all()
    assert asked.status == OK and worker.log == [("a", 5)]


def test_what_this_worker_knows_of_an_argument_counts_more_than_the_place_that_comes_with_it(worker: Worker) -> None:
    worker.store.put(object_id("x"), stored(pickle.dumps(6)))
    worker.push("a", arguments=[Argument(None, object_id("x"), OWNER, Place(0, 1000, OWNER))])
    worker.run_all()
    assert worker.log == [("a", 6)] and worker.wanted == []


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_large_arguments_that_come_for_nothing_are_let_go(worker: Worker, is_cancelled: bool) -> None:
    """Memory of large arguments is pinned as long as any process holds them."""
    keys = [object_id("x"), object_id("y")]
    for key in keys:
        worker.store.put(key, StoredObject(b"", (), False, (), Place(0, 1000, OWNER)))
    asked = worker.push("a", arguments=[Argument(None, key, OWNER) for key in keys])
    if is_cancelled:
        worker.cancel(worker.last)
    worker.act(lambda: worker.on_fetched([stored(b"x"), stored(b"y") if is_cancelled else None]))
    assert asked.status == (CANCELLED if is_cancelled else NOT_STARTED) and worker.due == deque()
    assert [task.slots for task in worker.receiver.lease.tasks.values()] == [()]


def test_small_arguments_come_with_the_push_and_are_not_asked_for(worker: Worker) -> None:
    asked = worker.push("a", arguments=[Argument(Value(pickle.dumps(5)), object_id("x"), OWNER)])
    worker.run_all()
    assert asked.status == OK and worker.log == [("a", 5)]
    assert worker.fetches == [] and not hasattr(worker, "on_fetched")


# --- taking back


def test_tasks_that_have_not_begun_can_be_asked_back(worker: Worker) -> None:
    asked = [worker.push("a", sequence) for sequence in (1, 2, 3)]
    worker.run_next()
    worker.act(lambda: worker.receiver.handle_ReclaimTasks(ReclaimTasks(LEASE), NOBODY))
    worker.run_all()
    assert [each.status for each in asked] == [OK, NOT_STARTED, NOT_STARTED] and worker.log == ["a"]


def test_tasks_that_are_asked_back_before_their_environment_is_there_are_forgotten(unprepared: Worker) -> None:
    asked = [unprepared.push("a", sequence) for sequence in (1, 2)]
    assert len(unprepared.receiver._waiting) == 2
    unprepared.act(lambda: unprepared.receiver.handle_ReclaimTasks(ReclaimTasks(LEASE), NOBODY))
    assert [each.status for each in asked] == [NOT_STARTED] * 2 and not unprepared.receiver._waiting


def test_g112_asking_back_for_a_lease_that_is_over_changes_nothing(worker: Worker) -> None:
    asked = worker.push("a", lease_id=NEXT_LEASE)
    worker.act(lambda: worker.receiver.handle_ReclaimTasks(ReclaimTasks(LEASE), NOBODY))
    worker.run_all()
    assert asked.status == OK


def test_g101_while_a_task_blocks_nothing_waits_behind_it(worker: Worker) -> None:
    """Queued tasks go back, and so do tasks that arrive before the owner knows."""
    before = [worker.push("a", 1), worker.push("b", 2)]
    worker.act(lambda: worker.receiver.on_blocked(True))
    assert [each.status for each in before] == [NOT_STARTED] * 2
    during = worker.push("c", 3, 5, nested=[RefInfo(object_id("x"), OWNER, b"")])
    worker.act(lambda: worker.receiver.on_blocked(False))
    after = worker.push("d", 4)
    worker.run_all()
    assert [each.status for each in (*before, during, after)] == [NOT_STARTED] * 3 + [OK]
    assert worker.log == ["d"] and len(worker.references) == 0


def test_g101_a_task_that_is_over_blocks_nobody(worker: Worker) -> None:
    """Though threads of it go on waiting."""
    left = worker.push(lambda: worker.receiver.on_blocked(True), 1)
    worker.run_all()
    behind = worker.push("b", 2)
    worker.run_all()
    assert [left.status, behind.status] == [OK, OK] and worker.over == [1]


# --- cancelling


def test_g40_a_task_that_has_not_begun_is_cancelled_for_good(worker: Worker) -> None:
    asked = worker.push("a")
    request = worker.last
    assert worker.cancel(request) == CancelTaskReply(found=True, was_running=False)
    worker.run_all()
    assert asked.status == CANCELLED and isinstance(asked.value, TaskCancelledError) and worker.log == []


def test_cancelling_a_task_that_lacks_something_lets_those_behind_it_go(worker: Worker) -> None:
    worker.push("a", 1, arguments=[large_argument("x")])
    request = worker.last
    worker.push("b", 2)
    worker.cancel(request)
    worker.run_all()
    assert worker.log == ["b"] and len(worker.references) == 0
    _, on_here = worker.fetches.pop()
    worker.act(on_here)
    assert worker.fetches == [], "it is not asked for once more"


def test_g41_an_interrupt_means_one_task_only(worker: Worker) -> None:
    def interrupted() -> None:
        cancel = CancelTask(worker.last.task_id, worker.last.attempt, False, False)
        reply = worker.receiver.handle_CancelTask(cancel, call=NOBODY)
        assert reply == CancelTaskReply(found=True, was_running=True)
        (applies,) = worker.interrupts
        worker.log.append(applies())
        raise KeyboardInterrupt

    asked = worker.push(interrupted)
    worker.run_all()
    assert worker.log == [True] and not worker.interrupts[0](), "it does not apply to whatever runs next"
    assert asked.status == CANCELLED and isinstance(asked.value, TaskCancelledError)


def test_g43_g47_cancelling_what_is_over_or_unknown_changes_nothing(worker: Worker) -> None:
    asked = worker.push("a")
    worker.run_all()
    assert worker.cancel(worker.last) == CancelTaskReply(found=False, was_running=False)
    assert asked.status == OK and worker.interrupts == []


def test_g112_a_cancel_of_an_earlier_attempt_changes_nothing(worker: Worker) -> None:
    asked = worker.push("a", attempt=2)
    earlier = PushTask(worker.last.task_id, 1, LEASE, 1, 0, b"", 0, b"")
    assert worker.cancel(earlier) == CancelTaskReply(found=False, was_running=False)
    worker.run_all()
    assert asked.status == OK


@pytest.mark.parametrize("still_running", [True, False])
def test_g42_g46_force_cancels_the_children_and_ends_the_process_if_the_task_still_runs(
    worker: Worker, still_running: bool
) -> None:
    worker.push("a")
    task = worker.receiver.lease.tasks[1]
    assert task.claim()
    worker.executor._in_main = task
    worker.cancel(worker.last, force=True, recursive=True)
    assert worker.cancelled_children == [(worker.last.task_id, True)] and worker.processes.codes == []
    worker.executor._in_main = task if still_running else None
    worker.let_time_pass(FORCE_DELAY_S)
    assert worker.processes.codes == ([1] if still_running else []) and worker.interrupts == []


# --- the end


def test_g23_after_max_calls_nothing_runs_and_the_rest_goes_back(worker: Worker) -> None:
    asked = [worker.push("a", sequence, max_calls=2) for sequence in (1, 2, 3)]
    worker.run_all()
    late = worker.push("a", 4, max_calls=2)
    worker.run_all()
    assert worker.log == ["a", "a"]
    assert [each.status for each in (*asked, late)] == [OK, OK, NOT_STARTED, NOT_STARTED]
    assert [each.replies[0].worker_exiting for each in (*asked, late)] == [False, True, True, True]


def test_headers_are_decoded_once(worker: Worker) -> None:
    for sequence in (1, 2):
        worker.push("a", sequence)
    tasks = worker.receiver.lease.tasks
    assert tasks[1].header is tasks[2].header and tasks[1].header.template.function_id == id_of("a")


def test_only_so_many_headers_are_kept(worker: Worker) -> None:
    worker.receiver._headers.most = 2
    kept = []
    for sequence, name in enumerate("abcd", 1):
        worker.push(name, sequence)
        kept.append(len(worker.receiver._headers))
    assert max(kept) == 2
