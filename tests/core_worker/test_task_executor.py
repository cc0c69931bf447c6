"""How a task runs in a thread for user code, and how what that does is told: as values, or a packed exception.

``Machine`` stands for the process around the executor: its functions, its marks, how it ends, and who keeps results.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any, cast

import cloudpickle
import pytest

from minray.common.task_spec import ActorOptions, TaskTemplate
from minray.core_worker.execution.actor_instance import method_of
from minray.core_worker.execution.return_values import BrokenOff
from minray.core_worker.execution.task_errors import TaskErrors
from minray.core_worker.execution.task_executor import MARKS, TaskExecutor
from minray.core_worker.records.received_task import Execution, ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.errors.packed_exception import unpack_exception
from minray.exceptions import ActorDiedError, AsyncioActorExit, RayError, RaySystemError, TaskCancelledError
from minray.protocol.core_worker import CANCELLED, FAILED, OK
from minray.values import serialization
from tests.core_worker.parts import RECEIVED_ID, id_of, received, template
from tests.platform_record import FakeProcesses, platform_record
from tests.rpc.fake_network import run, turns


class Exited(BaseException):
    """The process has ended; nothing after that happens."""


class ExitingProcesses(FakeProcesses):
    """Plays the processes of one that is gone when it has ended."""

    def exit(self, code: int) -> None:
        super().exit(code)
        raise Exited


class Machine:
    """See the head of this file."""

    def __init__(self) -> None:
        self.processes = ExitingProcesses()
        self.functions: dict[bytes, Callable[..., Any]] = {}
        self.discarded: list[Any] = []
        """Results that were taken back."""
        self.streams: list[tuple[ReceivedTask, list[Any]]] = []
        """Generators that have run."""
        self.cleaned = 0
        """How often the interpreter has cleaned up,"""
        self.collections = 0
        """and garbage was to be collected."""
        self.notes: list[Any] = []
        """Tasks that have run, as the profile notes them."""
        myself: Any = self
        platform = platform_record(processes=self.processes, user_code=self)
        errors = TaskErrors(platform, myself, "node", "10.0.0.7")
        self.executor = TaskExecutor(platform, myself, self.make_refs, myself, errors, myself, myself)

    def note(self, *noted: Any) -> None:
        """As the profile."""
        self.notes.append(noted)

    # --- as user code

    def run_exit_handlers(self) -> None:
        self.cleaned += 1

    def collect_later(self, at_once: bool = False) -> None:
        self.collections += 1

    # --- as functions, results and generators

    def load(self, function_id: bytes) -> Callable[..., Any]:
        return self.functions[function_id]

    def make_refs(self, stored: StoredObject) -> list[Any]:
        raise AssertionError("nothing here has references inside")

    def keep(self, task: Any, result: Any) -> list[Any]:
        if isinstance(result, BaseException):
            raise result
        return [result]

    def discard(self, task: Any, results: list[Any]) -> None:
        self.discarded += results

    def run(self, task: ReceivedTask, iterator: Any) -> None:
        self.streams.append((task, list(iterator)))

    async def run_async(self, task: ReceivedTask, iterator: Any) -> None:
        self.streams.append((task, [item async for item in iterator]))

    # --- what a test says

    def task(self, function: Any = None, *args: Any, slots: Any = (), method: str = "", **fields: Any) -> ReceivedTask:
        """Make a task that calls a function, or a method of the actor that lives here."""
        name = method or getattr(function, "__name__", "f")
        self.functions[id_of(name)] = function
        options = {key: fields.pop(key) for key in list(fields) if key in TaskTemplate.__struct_fields__}
        task = received(template(**{"name": name, "function_id": id_of(name), "method": method, **options}), **fields)
        task.takes_arguments = bool(args or slots)
        task.stored_args = serialized((args, {})) if args else None
        task.slots = [serialized(slot) for slot in slots]
        return task

    def call(self, method: Callable[..., Any], *args: Any, **fields: Any) -> ReceivedTask:
        """Make a call of the actor that lives here from now on."""
        self.executor.actor = Actor(method)
        return self.task(None, *args, method="method", **{"actor_id": b"actor", **fields})

    def execute(self, task: ReceivedTask, kind: str = "execute") -> Execution:
        """Run a task by this method of the executor."""
        ran = getattr(self.executor, kind)(task)
        if ran is not None:
            run(lambda: ran)
        return cast(Execution, task.execution)

    def of(self, function: Any, *args: Any, **fields: Any) -> Execution:
        """Execute a task, and return how it ended."""
        return self.execute(self.task(function, *args, **fields))


class Actor:
    """An actor with one method, which the test gives it, and another."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def other(self) -> str:
        return "a value"


def serialized(value: Any) -> StoredObject:
    made = serialization.serialize(value).copied()
    return StoredObject(made.data, made.buffers, False, ())


def error_of(execution: Execution) -> Any:
    return unpack_exception(execution.error)


def raising(error: BaseException | None) -> Callable[[], Any]:
    """Make a function that raises this, or returns something if it is None."""

    def function() -> Any:
        if error is not None:
            raise error
        return "a value"

    return function


def test_a_task_runs_with_its_arguments() -> None:
    machine = Machine()
    execution = machine.of(lambda *args: sum(args), 1, 2)
    assert (execution.status, execution.values, execution.error, execution.retryable) == (OK, [3], b"", False)
    assert machine.of(lambda: "none").values == ["none"]


def test_where_an_argument_is_a_reference_its_value_is() -> None:
    machine = Machine()
    task = machine.task(
        lambda *args: args, serialization.ArgumentSlot(1), "plain", serialization.ArgumentSlot(0), slots=["a", "b"]
    )
    assert machine.execute(task).values == [("b", "plain", "a")]


@pytest.mark.parametrize("kind", ["execute", "execute_beside"])
def test_what_somebody_else_has_claimed_does_not_run(kind: str) -> None:
    machine = Machine()
    task = machine.task(lambda: 1, lease_tag=5)
    assert task.claim()
    assert machine.execute(task, kind) is None and not any(machine.processes.marks) and machine.notes == []


def test_the_beginning_of_a_leased_task_is_marked() -> None:
    machine = Machine()
    seen: list[tuple[int, ...]] = []
    machine.of(lambda: seen.append(MARKS.unpack_from(machine.processes.marks)), lease_tag=5, sequence=3)
    machine.of(lambda: None, lease_tag=0, sequence=9)
    assert seen == [(3, 5)] and MARKS.unpack_from(machine.processes.marks) == (3, 5)


def test_the_running_task_is_known_in_its_thread_until_it_ends() -> None:
    machine = Machine()
    for error in (None, ValueError(), KeyboardInterrupt()):
        seen: list[Any] = []

        def function(seen: list[Any] = seen, error: Any = error) -> None:
            seen.append(machine.executor.current)
            if error is not None:
                raise error

        task = machine.task(function)
        machine.execute(task)
        assert seen == [task] and machine.executor.current is None


def test_a_call_beside_the_main_thread_is_known_there_alone() -> None:
    machine = Machine()
    inner = machine.task(lambda: machine.executor.current)
    outer_saw: list[Any] = []

    def outer() -> None:
        machine.executor.execute_beside(inner)
        outer_saw.append(machine.executor.current)

    task = machine.task(outer)
    machine.execute(task)
    assert inner.execution is not None and inner.execution.values == [inner] and outer_saw == [task]


@pytest.mark.parametrize("kind", ["execute", "execute_beside"])
def test_an_exception_of_the_user_is_packed(kind: str) -> None:
    machine = Machine()
    execution = machine.execute(machine.task(raising(ValueError("no"))), kind)
    error = error_of(execution)
    assert (execution.status, execution.values, execution.retryable) == (FAILED, [], False)
    assert isinstance(error, ValueError) and "no" in str(error)


def test_g23_a_process_is_used_up_when_a_function_was_called_max_calls_times() -> None:
    machine = Machine()
    assert machine.of(lambda: 1, max_calls=2).values == [1]
    machine.of(raising(ValueError()), max_calls=2)
    assert not machine.executor.used_up, "that is another function"
    assert machine.of(lambda: 1, max_calls=2).values == [1] and machine.executor.used_up
    assert machine.execute(machine.task(lambda: 1)) is None, "nothing else runs either"


@pytest.mark.parametrize("kind", ["execute", "execute_beside", "execute_async"])
def test_the_task_whose_output_is_shown_is_forgotten_when_another_one_begins(kind: str) -> None:
    machine = Machine()
    forgotten: list[str] = []
    machine.executor.output.forget_names = [lambda: forgotten.append("once"), raising(OSError())]
    machine.executor.actor = Actor(lambda: 1)
    for has_printed in (True, False, False):
        machine.executor.output.is_named |= has_printed
        machine.execute(machine.task(method="method", actor_id=b"actor"), kind)
    assert forgotten == ["once"] and not machine.executor.output.is_named


# --- what is remembered of it


@pytest.mark.parametrize("kind", ["execute", "execute_beside", "execute_async"])
@pytest.mark.parametrize(("error", "status"), [(None, OK), (ValueError(), FAILED), (KeyboardInterrupt(), CANCELLED)])
def test_what_has_run_is_noted_once_with_its_times(kind: str, error: BaseException | None, status: int) -> None:
    machine = Machine()

    def method() -> None:
        if error is not None:
            task.cancelled = True
            raise error

    task = machine.call(method)
    before = time.perf_counter_ns()
    machine.execute(task, kind)
    ((noted, started, execution),) = machine.notes
    if kind == "execute_async" and error is not None:
        status = CANCELLED  # of a coroutine that was cancelled nobody asks how it has ended
    assert noted is task and execution is task.execution and execution.status == status
    assert before <= started <= time.perf_counter_ns() - execution.duration_us * 1000


@pytest.mark.parametrize("kind", ["execute", "execute_beside", "execute_async"])
@pytest.mark.parametrize(("error", "collections"), [(None, 0), (ValueError(), 1)])
def test_what_a_failed_task_may_have_left_is_collected(kind: str, error: BaseException | None, collections: int) -> None:
    machine = Machine()
    machine.execute(machine.call(raising(error)), kind)
    assert machine.collections == collections


@pytest.mark.parametrize("kind", ["execute", "execute_beside", "execute_async"])
def test_what_was_not_to_be_recorded_is_not(kind: str) -> None:
    machine = Machine()
    execution = machine.execute(machine.call(lambda: 1, is_recorded=False), kind)
    assert execution.values == [1] and machine.notes == []


# --- cancellation


def test_a_task_that_was_cancelled_before_it_was_on_the_stack_does_not_run() -> None:
    machine = Machine()
    ran: list[int] = []
    execution = machine.of(lambda: ran.append(1), cancelled=True)
    assert execution.status == CANCELLED and isinstance(error_of(execution), TaskCancelledError) and ran == []


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_an_interrupt_is_a_cancellation_if_one_was_asked_for(is_cancelled: bool) -> None:
    machine = Machine()

    def function() -> None:
        task.cancelled = is_cancelled
        raise KeyboardInterrupt

    task = machine.task(function)
    execution = machine.execute(task)
    assert execution.status == (CANCELLED if is_cancelled else FAILED) and not execution.retryable


def test_a_cancelled_call_has_no_value_and_a_cancelled_task_that_ends_has() -> None:
    machine = Machine()

    def function() -> int:
        task.cancelled = True
        return 1

    task = machine.call(function)
    assert machine.execute(task).status == CANCELLED
    task = machine.task(function)
    assert machine.execute(task).values == [1]


def test_a_task_that_fails_by_itself_when_it_was_cancelled_has_failed() -> None:
    machine = Machine()

    def function() -> None:
        task.cancelled = True
        raise ValueError

    task = machine.task(function)
    assert machine.execute(task).status == FAILED


# --- errors that can be retried


class Refined(ValueError):
    pass


@pytest.mark.parametrize(
    ("fields", "error", "expected"),
    [
        ({"retry_exceptions": True}, ValueError(), True),
        ({"retry_exceptions": False}, ValueError(), False),
        ({"retry_exceptions": True}, KeyboardInterrupt(), False),
        ({"retry_exceptions": True, "retry_exception_types": cloudpickle.dumps((ValueError,))}, Refined(), True),
        ({"retry_exceptions": True, "retry_exception_types": cloudpickle.dumps((ValueError,))}, KeyError(), False),
        ({"retry_exceptions": True, "retry_exception_types": b"no pickle"}, ValueError(), False),
    ],
)
def test_g18_the_executor_says_which_exceptions_are_retried(fields: Any, error: BaseException, expected: bool) -> None:
    assert Machine().of(raising(error), **fields).retryable is expected


@pytest.mark.parametrize("is_retried", [False, True])
def test_what_a_generator_has_yielded_before_its_error_stays_unless_it_runs_again(is_retried: bool) -> None:
    machine = Machine()
    error: Any = BrokenOff(["first"], ValueError("later"))  # type: ignore[list-item]
    execution = machine.of(lambda: error, retry_exceptions=is_retried)
    assert isinstance(error_of(execution), ValueError) and execution.retryable == is_retried
    assert (execution.values, machine.discarded) == (([], ["first"]) if is_retried else (["first"], []))


@pytest.mark.parametrize("kind", ["execute", "execute_beside", "execute_async"])
def test_a_call_is_answered_although_its_process_cannot_note_it_or_tell_its_error(kind: str) -> None:
    for error, status in ((None, OK), (Strange(), FAILED)):
        machine = Machine()
        machine.executor._note = raising(ValueError("no room"))  # type: ignore[assignment]
        execution = machine.execute(machine.call(raising(error)), kind)
        assert execution.status == status
        assert status == OK or isinstance(error_of(execution), RaySystemError)


class Strange(Exception):
    """Cannot even be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise ValueError("nobody shall know")


@pytest.mark.parametrize("now", [0, 1577836800 * 10**9])
def test_the_time_of_user_code_is_not_ours(now: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests stop clocks, and let them go on: freezegun does this."""
    machine = Machine()

    def stop() -> None:
        monkeypatch.setattr(time, "perf_counter_ns", lambda: now)
        monkeypatch.setattr(time, "monotonic", lambda: now / 1e9)

    for task in (stop, monkeypatch.undo, raising(ValueError())):
        assert 0 <= machine.of(task).duration_us < 60e6


# --- the end of the process


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (3, 3), ("words", 1)])
def test_a_task_that_exits_ends_its_process(code: Any, expected: int, capsys: Any) -> None:
    machine = Machine()
    with pytest.raises(Exited):
        machine.of(raising(SystemExit(code)))
    assert machine.processes.codes == [expected] and capsys.readouterr().err == ("words\n" if code == "words" else "")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AsyncioActorExit("it is done"), "it is done"),
        (AsyncioActorExit(5), "it has exited"),
        (SystemExit(), "it has exited"),
        (SystemExit(0), "it has exited"),
    ],
)
def test_an_actor_that_exits_without_an_error_ends_in_an_orderly_way(error: BaseException, reason: str) -> None:
    machine = Machine()
    execution = machine.execute(machine.call(raising(error), retry_exceptions=True))
    assert execution.status == FAILED and isinstance(error_of(execution), ActorDiedError)
    assert not execution.retryable, "it would wait for an actor that is never there again"
    assert machine.executor.wants_exit == reason and reason in str(error_of(execution)) and machine.processes.codes == []
    for kind in ("execute", "execute_beside"):
        assert machine.execute(machine.task(lambda: 1), kind) is None, "nothing begins after that"


@pytest.mark.parametrize("kind", ["execute", "execute_beside", "execute_async"])
@pytest.mark.parametrize("end", ["swallows", "raises", "yields"])
def test_a_call_that_has_asked_for_the_end_of_its_actor_has_no_value_however_it_ends(kind: str, end: str) -> None:
    machine = Machine()

    def method() -> Any:
        machine.executor.ask_to_exit("it is done")
        if end == "raises":
            raise ValueError("of a finally clause")
        return iter([1])

    machine.of(lambda: Actor(method), actor=ActorOptions())
    task = machine.task(method="method", actor_id=b"actor", is_streaming=end == "yields", retry_exceptions=True)
    execution = machine.execute(task, kind)
    error = error_of(execution)
    assert execution.status == FAILED and isinstance(error, ActorDiedError) and "it is done" in str(error)
    assert not execution.retryable and machine.executor.wants_exit == "it is done"
    running = machine.execute(machine.task(method="other", actor_id=b"actor", sequence=2), "execute_async")
    assert running.values == ["a value"], "running calls finish"


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_a_constructor_that_asks_for_the_end_does_not_succeed(is_swallowed: bool) -> None:
    machine = Machine()

    def construct() -> None:
        machine.executor.ask_to_exit("it is done")
        if not is_swallowed:
            raise SystemExit(0)

    execution = machine.of(construct, actor=ActorOptions(), actor_id=b"actor")
    assert execution.status == FAILED and isinstance(error_of(execution), AsyncioActorExit) and machine.processes.codes == []


@pytest.mark.parametrize("kind", ["execute", "execute_async"])
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(None, 0, ""), (SystemExit(0), 0, ""), (SystemExit("words"), 1, "words\n"), (ValueError("no"), 1, "ValueError: no\n")],
)
def test_a_copy_that_user_code_has_forked_ends_as_a_program_does(
    error: BaseException | None, code: int, words: str, kind: str, capsys: Any
) -> None:
    machine = Machine()
    machine.processes.is_copy = True
    task = machine.call(raising(error))
    with pytest.raises(Exited):
        machine.execute(task, kind)
    assert machine.processes.codes == [code] and capsys.readouterr().err.endswith(words)
    assert task.execution is None and not machine.executor.wants_exit


def test_an_actor_that_exits_with_an_error_is_gone() -> None:
    machine = Machine()
    with pytest.raises(Exited):
        machine.execute(machine.call(raising(SystemExit(4))))
    assert machine.processes.codes == [4] and machine.cleaned == 1, "its exit handlers have run"


@pytest.mark.parametrize("has_failed", [False, True])
def test_an_actor_cleans_up_before_its_interpreter_does(has_failed: bool, caplog: Any) -> None:
    machine, cleaned = Machine(), []

    class Tidy:
        def __ray_shutdown__(self) -> None:
            cleaned.append(machine.cleaned)
            if has_failed:
                raise ValueError

    machine.executor.actor = Tidy()
    machine.executor.shut_down_actor()
    assert cleaned == [0] and machine.cleaned == 1 and ("__ray_shutdown__ failed" in caplog.text) == has_failed
    machine.executor.actor = None
    machine.executor.shut_down_actor()
    assert machine.cleaned == 2


class Hides:
    """Instances have attributes with the names of methods of the class, except for one of its base."""

    def __init__(self) -> None:
        for name in ("plain", "of_class", "static", "wrapped", "builtin"):
            setattr(self, name, f"the attribute {name}")
        self.added = lambda: "the attribute added"

    def plain(self) -> object:
        return self

    @classmethod
    def of_class(cls) -> object:
        return cls

    @staticmethod
    def static() -> object:
        return "static"

    wrapped = partialmethod(plain)
    builtin = dict


class Inherits(Hides):
    """Looks for its methods in its bases."""


@pytest.mark.parametrize("kind", [Hides, Inherits])
def test_an_attribute_of_an_instance_hides_no_method(kind: type[Hides]) -> None:
    actor = kind()
    assert actor.plain == "the attribute plain"
    called = [method_of(actor, name)() for name in ("plain", "of_class", "static", "wrapped", "builtin", "added")]
    assert called == [actor, kind, "static", actor, {}, "the attribute added"]


class AnswersAll:
    """Has any attribute that is asked for, as stand-ins and proxies do, and one of its own that hides a method."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.__dict__["held"] = "the attribute"

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        return lambda: f"any {name}"

    @property
    def word(self) -> str:
        return "a property"

    def held(self) -> object:
        return self.word


def test_what_an_instance_answers_is_not_taken_for_a_method_of_its_class() -> None:
    machine = Machine()
    actor = machine.executor.actor = AnswersAll()
    assert machine.of(None, method="held").values == ["a property"]
    machine.executor.shut_down_actor()
    assert actor.asked == [] and machine.cleaned == 1


def test_g27_an_actor_is_destroyed_when_the_exit_handlers_have_run() -> None:
    machine, cleaned = Machine(), []

    class Actor:
        def __del__(self) -> None:
            cleaned.append(machine.cleaned)

    machine.executor.actor = Actor()
    machine.executor.shut_down_actor()
    assert cleaned == [1] and machine.executor.actor is None


# --- actors


def test_a_constructor_makes_the_actor_and_has_no_value() -> None:
    machine = Machine()
    assert machine.of(lambda value: ("actor", value), 5, actor=ActorOptions()).values == [None]
    assert machine.executor.actor == ("actor", 5)


class Described:
    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        assert self.words, "nothing to say"
        return self.words


@pytest.mark.parametrize(
    ("actor", "shown"),
    [
        (object(), "A.f"),
        (Described("A(7)"), "A(7).f"),
        (Described("two\nlines"), "two lines.f"),
        (Described("x" * 200), "x" * 100 + ".f"),
        (Described(""), "A.f"),
    ],
)
def test_a_call_is_shown_with_the_words_of_its_actor(actor: Any, shown: str) -> None:
    machine = Machine()
    machine.of(lambda: actor, name="A.__init__", actor=ActorOptions())
    assert machine.executor.output.shown_name(machine.task(method="f", name="A.f")) == shown
    assert machine.executor.output.shown_name(machine.task(method="f", name="named by the user")) == "named by the user"


def test_the_methods_that_every_actor_has() -> None:
    machine = Machine()
    machine.executor.actor = "the actor"
    assert machine.of(None, lambda actor, value: (actor, value), 5, method="__ray_call__").values == [("the actor", 5)]
    assert machine.of(None, method="__ray_ready__").values == [True]
    machine.of(None, method="__ray_terminate__")
    assert machine.executor.wants_exit == "__ray_terminate__ was called"


# --- generators


def test_a_generator_runs_until_it_is_through_and_its_task_has_no_value() -> None:
    machine = Machine()
    execution = machine.of(lambda: iter([1, 2]), is_streaming=True)
    assert execution.values == [None]
    ((task, items),) = machine.streams
    assert task.task_id == RECEIVED_ID and items == [1, 2]


class Argument:
    """An argument of which a weak reference shows whether it is still held."""

    alive: weakref.WeakSet[Argument] = weakref.WeakSet()

    def __reduce__(self) -> Any:
        return made, ()


def made() -> Argument:
    argument = Argument()
    Argument.alive.add(argument)
    return argument


@pytest.mark.parametrize("kind", ["execute", "execute_async"])
def test_the_executor_holds_no_arguments_while_a_generator_runs(kind: str) -> None:
    machine = Machine()
    had: list[int] = []

    def items() -> Iterator[int]:
        had.append(len(Argument.alive))
        yield 1

    def method(argument: Argument) -> Any:
        had.append(len(Argument.alive))
        return items()

    execution = machine.execute(machine.call(method, Argument(), is_streaming=True), kind)
    assert execution.status == OK and had == [1, 0]


# --- coroutines


def test_a_coroutine_of_an_actor_is_awaited_and_a_plain_method_is_not() -> None:
    machine = Machine()

    async def method() -> Any:
        await turns()
        return machine.executor.current.header.template.name  # type: ignore[union-attr]

    for called, value in ((method, "method"), (lambda: "plain", "plain")):
        assert machine.execute(machine.call(called), "execute_async").values == [value]


def test_an_asynchronous_generator_streams() -> None:
    machine = Machine()

    async def method() -> Any:
        yield 1
        yield 2

    assert machine.execute(machine.call(method, is_streaming=True), "execute_async").values == [None]
    assert [items for _, items in machine.streams] == [[1, 2]]


@pytest.mark.parametrize("error", [None, ValueError(), asyncio.CancelledError()])
def test_a_cancelled_coroutine_is_cancelled_however_it_ends(error: BaseException | None) -> None:
    machine = Machine()
    execution = machine.execute(machine.call(raising(error), cancelled=True), "execute_async")
    assert execution.status == CANCELLED and isinstance(error_of(execution), TaskCancelledError)


def test_g45_what_was_cancelled_before_its_first_step_is_cancelled_as_what_has_begun() -> None:
    machine = Machine()
    for cancelled, status in ((True, CANCELLED), (False, FAILED)):
        task = machine.task(method="method", cancelled=cancelled)
        machine.executor.end_unstarted(task)
        assert task.execution is not None and task.execution.status == status
        error = error_of(task.execution)
        assert isinstance(error, TaskCancelledError) == cancelled and isinstance(error, RayError)


def test_a_coroutine_that_raises_has_failed() -> None:
    machine = Machine()
    execution = machine.execute(machine.call(raising(ValueError("no"))), "execute_async")
    assert execution.status == FAILED and isinstance(error_of(execution), ValueError)
