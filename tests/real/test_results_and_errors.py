"""Values and errors of tasks, as their callers see them (G1-G6, G10)."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import Any, NoReturn

import pytest

import minray as ray
from minray.exceptions import RayError, RayTaskError, UnserializableException, WorkerCrashedError
from tests.helpers import without_checkout
from tests.real.support import Files, Journal, Signal, echo, hold

pytestmark = pytest.mark.usefixtures("cluster")


class OutOfStock(Exception):
    """An exception whose ``__init__`` cannot be called with its ``args``."""

    def __init__(self, article: str, missing: int) -> None:
        super().__init__(f"{missing} {article} are missing")
        self.article, self.missing = article, missing


class Sealed(Exception):
    """Does not allow subclasses."""

    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses, please")


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def refuse(*_: object) -> NoReturn:
    raise RuntimeError("this cannot be rebuilt here")


class OneWay(Exception):
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return refuse, ()


class OneWayValue:
    def __reduce__(self) -> Any:
        return refuse, ()


def nested() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@ray.remote
def fail(error: type[Exception] = ValueError, *args: object) -> None:
    raise error(*args)


@ray.remote
def after(journal: Journal, *args: object, **kwargs: object) -> None:
    journal.note("ran")


def error_of(reference: Any) -> RayError:
    """Error that ``get`` raises, without the frames, which would keep the test's references alive."""
    with pytest.raises(RayError) as caught:
        ray.get(reference)
    return caught.value.with_traceback(None)


# --- G1


@pytest.mark.parametrize("count", [1, 3])
def test_g1_every_return_of_a_task_that_raises_raises(count: int) -> None:
    refs = fail.options(num_returns=count).remote(ValueError, "no")
    for reference in refs if count > 1 else [refs]:
        error = error_of(reference)
        assert isinstance(error, RayTaskError) and isinstance(error, ValueError)
        assert error.args == (error.cause,) and error.cause.args == ("no",)


@pytest.mark.parametrize("by_name", [False, True])
def test_g1_a_failed_argument_fails_the_task_and_its_body_does_not_run(files: Files, by_name: bool) -> None:
    journal, failed = files.journal(), fail.remote(OutOfStock, "pears", 3)
    task = after.remote(journal, pear=failed) if by_name else after.remote(journal, failed)
    error = error_of(task)
    assert isinstance(error, RayTaskError) and isinstance(error, OutOfStock) and error.missing == 3
    assert "argument of task after failed" in str(error)
    assert journal.lines() == []


def test_g1_an_error_travels_down_a_chain_of_tasks(files: Files) -> None:
    journal, link = files.journal(), fail.remote(KeyError, "k")
    for _ in range(5):
        link = after.remote(journal, link)
    error = error_of(link)
    assert isinstance(error, KeyError) and error.cause.args == ("k",)
    assert str(error).count("argument of task after failed") == 5
    assert journal.lines() == []


def test_g1_an_error_travels_down_a_chain_that_waits_however_long_it_is(files: Files) -> None:
    journal, release = files.journal(), files.signal("release")

    @ray.remote
    def fail_late() -> None:
        release.wait()
        raise KeyError("k")

    link = fail_late.remote()
    for _ in range(300):
        link = after.remote(journal, link)
    release.set()
    assert isinstance(error_of(link), KeyError) and journal.lines() == []


def test_g1_an_error_that_comes_late_reaches_tasks_that_wait(files: Files) -> None:
    journal, started, release = files.journal(), files.signal("started"), files.signal("release")

    @ray.remote
    def fail_late() -> None:
        started.set()
        release.wait()
        raise ValueError("late")

    late = fail_late.remote()
    waiting = [after.remote(journal, late, number) for number in range(10)]
    started.wait()
    release.set()
    assert all(isinstance(error_of(task), ValueError) for task in waiting)
    assert journal.lines() == []


def test_g1_an_error_inside_a_container_does_not_fail_the_task() -> None:
    @ray.remote
    def look(refs: list[Any]) -> str:
        try:
            ray.get(refs[0])
        except ValueError as error:
            return f"caught {error.cause}"
        return "nothing"

    assert ray.get(look.remote([fail.remote(ValueError, "inside")])) == "caught inside"


def test_g1_an_error_let_through_by_a_caller_is_still_the_original() -> None:
    @ray.remote
    def outer() -> None:
        ray.get(fail.remote(OutOfStock, "pears", 3))

    error = error_of(outer.remote())
    assert isinstance(error, OutOfStock) and error.missing == 3
    assert "outer" in str(error) and "fail" in str(error)


# --- G2, G3, G4


def test_g2_the_error_is_of_the_users_type_with_its_args_and_attributes() -> None:
    error = error_of(fail.remote(OutOfStock, "pears", 3))
    assert isinstance(error, RayTaskError) and isinstance(error, OutOfStock)
    assert (error.article, error.missing) == ("pears", 3)
    assert (error.args, error.cause.args) == ((error.cause,), ("3 pears are missing",))
    assert type(error.cause) is OutOfStock and error.__cause__ is error.cause


def test_g2_a_class_that_forbids_subclasses_is_found_at_cause() -> None:
    error = error_of(fail.remote(Sealed, "tight"))
    assert isinstance(error, RayTaskError) and not isinstance(error, Sealed)
    assert type(error.cause) is Sealed and error.cause.args == ("tight",)


@pytest.mark.parametrize("kind", [ValueError, Sealed])
def test_g2_the_error_as_an_instance_of_its_cause(kind: type[Exception]) -> None:
    with pytest.raises(RayTaskError) as caught:
        ray.get(fail.remote(kind, "no"))
    error = caught.value.as_instanceof_cause()
    assert isinstance(error, RayTaskError) and isinstance(error, kind) == (kind is ValueError)


def test_g2_an_exception_group_arrives_as_one() -> None:
    @ray.remote
    def fail_twice() -> None:
        raise ExceptionGroup("twice", [ValueError("a"), KeyError("b")])

    caught = []
    try:
        ray.get(fail_twice.remote())
    except* ValueError as group:
        caught += [error.args for error in group.exceptions]
    except* KeyError as group:
        caught += [error.args for error in group.exceptions]
    assert caught == [("a",), ("b",)]


def test_g2_causes_and_notes_travel() -> None:
    @ray.remote
    def fail_with_cause() -> None:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            error = ValueError("outer")
            error.add_note("look closer")
            raise error from inner

    error = error_of(fail_with_cause.remote())
    assert error.__notes__ == ["look closer"]
    assert isinstance(error.cause, ValueError) and isinstance(error.cause.__cause__, KeyError)


def test_each_get_raises_an_exception_of_its_own() -> None:
    failed = fail.remote()
    first, second = error_of(failed), error_of(failed)
    assert first is not second and first.cause is not second.cause and first.cause.args == second.cause.args


def test_g3_an_exception_that_cannot_be_pickled_still_ends_the_get() -> None:
    error = error_of(fail.remote(Unpicklable))
    assert "Unpicklable: holds a lock" in str(error) and "raise error(*args)" in str(error)


def test_g4_an_exception_that_cannot_be_unpickled_becomes_unserializable() -> None:
    error = error_of(fail.remote(OneWay, "gone"))
    assert isinstance(error, UnserializableException)
    assert "OneWay: gone" in str(error) and "raise error(*args)" in str(error)


def test_the_remote_traceback_has_the_users_frames_only() -> None:
    @ray.remote
    def outer() -> None:
        def inner() -> None:
            raise ValueError("deep")

        inner()

    error = error_of(outer.remote())
    assert "in outer" in str(error) and "in inner" in str(error)
    assert f"{os.sep}minray{os.sep}" not in without_checkout(str(error))
    assert [frame.name for frame in traceback.extract_tb(error.cause.__traceback__)] == ["outer", "inner"]


class Stop(BaseException):
    """A user's own, to pass handlers of Exception."""


def test_g2_a_base_exception_of_the_users_own_is_raised_as_itself() -> None:
    def stop() -> None:
        raise Stop("here")

    class Stopping:
        def stop(self) -> None:
            stop()

    class AsyncStopping:
        async def stop(self) -> None:
            stop()

    actors: list[Any] = [ray.remote(num_cpus=0)(kind).remote() for kind in (Stopping, AsyncStopping)]
    refs = [ray.remote(stop).remote(), *(actor.stop.remote() for actor in actors)]
    for ref in (*refs, echo.remote(refs[0])):
        with pytest.raises(Stop) as caught:
            ray.get(ref)
        assert isinstance(caught.value, RayTaskError) and isinstance(caught.value, Exception)


def test_an_error_that_the_user_calls_an_interrupt_or_an_exit_ends_nobody_else() -> None:
    @ray.remote
    def interrupt() -> None:
        raise KeyboardInterrupt

    @ray.remote(max_retries=0)
    def leave() -> None:
        sys.exit(3)

    assert isinstance(error_of(interrupt.remote()), RayTaskError)
    error = error_of(leave.remote())
    assert isinstance(error, WorkerCrashedError) and "exited with code 3" in str(error) and "leave" in str(error)
    assert ray.get(echo.remote(1)) == 1


def test_a_runaway_recursion_is_an_error_like_others() -> None:
    @ray.remote
    def run_away(number: int) -> int:
        def again(number: int) -> int:
            return again(number + 1) + 1

        return again(number)

    assert isinstance(error_of(run_away.remote(0)), RecursionError)


# --- values that cannot travel


def test_a_result_that_cannot_be_pickled_is_the_tasks_error() -> None:
    @ray.remote
    def make_lock() -> Any:
        return threading.Lock()

    error = error_of(make_lock.remote())
    assert isinstance(error, RayTaskError) and isinstance(error, TypeError) and "lock" in str(error)


def test_a_result_that_cannot_be_unpickled_ends_the_get() -> None:
    @ray.remote
    def make() -> OneWayValue:
        return OneWayValue()

    reference = make.remote()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be rebuilt here"):
            ray.get(reference)


def test_an_argument_that_cannot_be_pickled_is_the_callers_error() -> None:
    with pytest.raises(TypeError, match="lock"):
        echo.remote(threading.Lock())
    with pytest.raises(TypeError, match="lock"):
        ray.put(threading.Lock())


def test_an_argument_that_cannot_be_unpickled_is_the_tasks_error() -> None:
    error = error_of(echo.remote(OneWayValue()))
    assert isinstance(error, RayTaskError) and isinstance(error, RuntimeError)


def test_a_function_that_cannot_be_pickled_is_the_callers_error_each_time() -> None:
    lock = threading.Lock()

    @ray.remote
    def use() -> bool:
        return lock.locked()

    for _ in range(2):
        with pytest.raises(TypeError, match="lock"):
            use.remote()


def test_a_function_that_cannot_be_unpickled_is_its_tasks_error() -> None:
    broken = OneWayValue()

    @ray.remote
    def use() -> object:
        return broken

    for _ in range(2):
        assert isinstance(error_of(use.remote()), RuntimeError)
    assert ray.get(echo.remote(1)) == 1


@pytest.mark.parametrize(
    ("function", "arguments", "text"),
    [
        (lambda value: 1, [OneWayValue()], "Raised while its arguments were unpickled:\nTraceback"),
        (lambda: threading.Lock(), [], "Raised while what it returns was pickled:\nTypeError: cannot pickle"),
        (nested, [], "Raised while what it returns was pickled:\nRecursionError: "),
    ],
)
def test_a_value_that_does_not_travel_is_told_without_our_frames(function: Any, arguments: list[Any], text: str) -> None:
    error = error_of(ray.remote(function).remote(*arguments))
    assert isinstance(error, RayTaskError)
    assert f"\n{text}" in str(error)
    assert "/minray/" not in without_checkout(str(error)) and "cloudpickle" not in without_checkout(str(error))


def test_what_is_said_of_num_returns_is_said_without_our_frames() -> None:
    def yields() -> Any:
        yield 1

    for function, said in ((yields, "yielded 1 objects"), (lambda: (1, 2, 3), "returned 3 objects")):
        error = error_of(ray.remote(num_returns=2)(function).remote()[1])
        assert str(error).endswith(said) and "Traceback" not in str(error)
        assert "/minray/" not in without_checkout(str(error))


# --- returns


def test_num_returns_gives_no_reference_one_or_several() -> None:
    @ray.remote
    def give(*values: object) -> Any:
        return values

    assert ray.get(give.remote(1, 2)) == (1, 2)
    assert ray.get(give.options(num_returns=3).remote(1, "b", None)) == [1, "b", None]
    assert give.options(num_returns=0).remote() is None


def test_a_task_without_returns_runs(files: Files) -> None:
    done = files.signal()

    @ray.remote(num_returns=0)
    def work() -> None:
        done.set()

    assert work.remote() is None
    done.wait()


@pytest.mark.parametrize("result", [(1, 2), (1, 2, 3, 4), 7, None])
def test_a_wrong_number_of_returns_is_an_error_that_says_so(result: object) -> None:
    refs = echo.options(num_returns=3).remote(result)
    for reference in refs:
        error = error_of(reference)
        assert isinstance(error, ValueError) and "num_returns=3" in str(error)


def test_any_iterable_serves_as_several_returns() -> None:
    @ray.remote(num_returns=3)
    def letters() -> Any:
        return iter("abc")

    assert ray.get(letters.remote()) == ["a", "b", "c"]


# --- G5, G6, G10


def test_g5_get_raises_with_the_first_failure_and_does_not_wait_for_the_rest(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    slow = hold.remote(started, release)
    started.wait()
    with pytest.raises(ValueError, match="no"):
        ray.get([slow, echo.remote(1), fail.remote(ValueError, "no")])
    assert not release.is_set()


def test_g5_a_failure_that_is_known_already_is_raised_at_once(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    slow, failed = hold.remote(started, release), fail.remote()
    ray.wait([failed])
    with pytest.raises(ValueError):
        ray.get([slow, failed])


def test_g6_values_come_in_the_order_of_the_list(files: Files) -> None:
    release = files.signal()

    @ray.remote
    def release_last(number: int) -> int:
        release.wait() if number == 0 else release.set()
        return number

    refs = [release_last.remote(number) for number in range(10)]
    assert ray.get(refs) == list(range(10))
    assert ray.get([refs[3], refs[1], refs[3]]) == [3, 1, 3]
    assert ray.get([]) == []


def test_g10_a_task_starts_when_all_its_arguments_are_computed(files: Files) -> None:
    started, release, journal = files.signal("started"), files.signal("release"), files.journal()
    slow = hold.remote(started, release, "slow")

    @ray.remote
    def combine(*values: object) -> tuple[object, ...]:
        journal.note("ran")
        return values

    late = combine.remote(1, slow, echo.remote("quick"))
    started.wait()
    assert ray.get(echo.remote("others go on")) == "others go on"
    assert journal.lines() == []
    release.set()
    assert ray.get(late) == (1, "slow", "quick")


def test_g10_a_chain_and_a_tree_of_tasks() -> None:
    @ray.remote
    def add(a: int, b: int) -> int:
        return a + b

    link: Any = 0
    for _ in range(100):
        link = add.remote(link, 1)
    layer: list[Any] = [echo.remote(1) for _ in range(64)]
    while len(layer) > 1:
        layer = [add.remote(a, b) for a, b in zip(layer[::2], layer[1::2], strict=True)]
    assert ray.get([link, layer[0]]) == [100, 64]


def test_signals_are_shared(files: Files) -> None:
    """The tests' own tool: a signal set in a task is seen here."""
    done: Signal = files.signal()

    @ray.remote
    def tell() -> None:
        done.set()

    ray.get(tell.remote())
    assert done.is_set()
