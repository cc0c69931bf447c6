"""How exceptions travel: what the getter of a failed task sees of what its executor caught."""

# What is tested here is that a class made at run time has the attributes of two others; mypy cannot know them.
# mypy: disable-error-code="attr-defined, union-attr, type-var, override, arg-type"

from __future__ import annotations

import abc
import asyncio
import contextlib
import copy
import dataclasses
import enum
import gc
import inspect
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray import exceptions
from minray.errors import packed_exception, ray_error, tracebacks
from minray.errors.packed_exception import (
    describe_packed,
    is_raised_by_body,
    pack_exception,
    text_alone,
    unpack_exception,
    wrap_packed_dependency,
)
from minray.errors.ray_error import TaskFailure
from minray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectFreedError,
    ObjectLostError,
    ObjectReconstructionFailedError,
    ObjectStoreFullError,
    OutOfMemoryError,
    OwnerDiedError,
    RayError,
    RaySystemError,
    RayTaskError,
    ReconstructionFailure,
    ReferenceCountingAssertionError,
    TaskCancelledError,
    UnserializableException,
    WorkerCrashedError,
)
from tests.helpers import without_garbage_collection

EXECUTOR: dict[str, Any] = {"pid": 123, "node_id": "abcdef0123456789", "ip": "10.0.0.7"}
RUNTIME = str(Path(packed_exception.__file__).parent)


def caught(body: Callable[[], object]) -> BaseException:
    """Run the body, and return the exception that it raises, with its traceback."""
    try:
        body()
    except BaseException as error:
        return error
    raise AssertionError("the body did not raise")


def raises(error: BaseException) -> Callable[[], NoReturn]:
    def body() -> NoReturn:
        raise error

    return body


def packed(error: BaseException, task_name: str = "f") -> bytes:
    return pack_exception(error, task_name=task_name, **EXECUTOR)


def run(body: Callable[[], object], task_name: str = "f") -> Any:
    """Error that the getter raises when a task with this body has run."""
    return unpack_exception(packed(caught(body), task_name))


def fail_with(error: BaseException) -> Any:
    return run(raises(error))


def runtime_calls(body: Callable[[], object], filename: str = f"{RUNTIME}/core_worker/task_receiver.py") -> object:
    """Call the body from a frame that looks like one of minray's."""
    space: dict[str, Any] = {"__name__": "minray.core_worker.execution.task_receiver"}
    exec(compile("def run_user_code(body):\n    return body()", filename, "exec"), space)
    return space["run_user_code"](body)


def by_class(value: object) -> str:
    return type(value).__name__


def functions_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


# --- classes that get other libraries into trouble --------------------------------------------------------------------


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class KeywordOnly(ValueError):
    def __init__(self, *, where: str) -> None:
        super().__init__(f"bad {where}")
        self.where = where


class Slots(Exception):
    __slots__ = ("first", "never_set", "second")

    def __init__(self, first: int, second: Any) -> None:
        super().__init__("slots")
        self.first, self.second = first, second


class CustomOSError(OSError):
    def __init__(self, path: str, extra: int) -> None:
        super().__init__(2, "gone", path)
        self.extra = extra


class CustomGroup(ExceptionGroup[Exception]):
    code: int

    def __new__(cls, errors: list[Exception], code: int) -> CustomGroup:
        self = super().__new__(cls, f"code {code}", errors)
        self.code = code
        return self

    def derive(self, errors: Any) -> CustomGroup:
        return CustomGroup(errors, self.code)


class NewNeedsArguments(Exception):
    def __new__(cls, one: int, two: int) -> NewNeedsArguments:
        return super().__new__(cls, one + two)

    def __init__(self, one: int, two: int) -> None:
        self.total = one + two


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    number: int


@dataclasses.dataclass
class Unhashable(Exception):
    number: int


class Color(enum.Enum):
    RED = 1


class WithColor(Exception):
    def __init__(self, color: Color) -> None:
        super().__init__("color", color)
        self.color = color


class AbstractError(Exception, abc.ABC):
    pass


class Unpicklable(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class RefusesPickle(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not me")


class Mixed(LookupError, OSError):
    pass


class ReducesItself(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one}/{two}")
        self.one, self.two = one, two

    def __reduce__(self) -> Any:
        return ReducesItself, (self.one, self.two)


class ReducesWithState(Exception):
    def __reduce_ex__(self, protocol: Any) -> Any:
        return ReducesWithState, (), {"state": self.args}


def set_state(error: ReducesWithSetter, state: object) -> None:
    error.state = state


class ReducesWithSetter(Exception):
    state: object = None

    def __reduce__(self) -> Any:
        return ReducesWithSetter, (), self.args, None, None, set_state


class Singleton(Exception):
    def __reduce__(self) -> str:
        return "SINGLETON"


SINGLETON = Singleton("only one")


def explode(*_: object) -> NoReturn:
    raise RuntimeError("no room here")


class CannotBeUnpickled(Exception):
    def __reduce__(self) -> Any:
        return explode, ()


class UnpicklesAsText(Exception):
    def __reduce__(self) -> Any:
        return str, ("not an exception",)


class BreaksItsObservers(Exception):
    def __str__(self) -> str:
        raise RuntimeError("str() raises")


class Final(Exception):
    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("final")


class NoSubclasses(type):
    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> NoSubclasses:
        if any(isinstance(base, NoSubclasses) for base in bases):
            raise TypeError("no subclasses")
        return super().__new__(cls, name, bases, space)


class FinalByMetaclass(Exception, metaclass=NoSubclasses):
    pass


# --- what arrives -----------------------------------------------------------------------------------------------------


def decode_error() -> UnicodeDecodeError:
    error = caught(lambda: b"ab\xff".decode("utf-8"))
    assert isinstance(error, UnicodeDecodeError)
    return error


def import_error() -> ImportError:
    return ImportError("no module", name="nothing", path="/nowhere")


USERS_ERRORS: list[Callable[[], Exception]] = [
    lambda: ValueError("x"),
    lambda: ValueError(),
    lambda: KeyError(("a", 1)),
    lambda: TwoArguments(7, "seven"),
    lambda: KeywordOnly(where="here"),
    lambda: CustomOSError("/a", 3),
    lambda: FileNotFoundError(2, "gone", "/a"),
    lambda: OSError("only text"),
    lambda: BlockingIOError(11, "later"),
    lambda: Mixed(5, "io"),
    decode_error,
    import_error,
    lambda: SyntaxError("bad", ("file.py", 3, 4, "x = = 1")),
    lambda: StopIteration(5),
    lambda: NewNeedsArguments(1, 2),
    lambda: Frozen(5),
    lambda: Unhashable(6),
    lambda: WithColor(Color.RED),
    lambda: AbstractError("abstract"),
    lambda: ReducesItself(1, 2),
    lambda: subprocess.CalledProcessError(3, ["ls"], b"out", b"err"),
    lambda: np.exceptions.AxisError(3, 2),
    lambda: NameError("no name", name="some_name"),
]


@pytest.mark.parametrize("make", USERS_ERRORS, ids=lambda make: type(make()).__name__)
def test_g2_the_original_arrives_as_its_own_type(make: Callable[[], Exception]) -> None:
    original = make()
    error = fail_with(original)
    for copied in (error, error.cause):
        assert isinstance(copied, type(original))
        assert {name: vars(copied)[name] for name in vars(original)} == vars(original)
    assert isinstance(error, RayTaskError)
    assert type(error.cause) is type(original)
    assert (error.args, error.cause.args) == ((error.cause,), original.args)
    assert str(error.cause) == str(original)
    assert vars(error.cause) == vars(original)
    assert error.__cause__ is error.cause
    assert str(error).endswith(traceback.format_exception_only(original)[-1].strip())


def test_fields_outside_the_dict_arrive() -> None:
    gone = fail_with(FileNotFoundError(2, "gone", "/a", None, "/b"))
    assert (gone.errno, gone.strerror, gone.filename, gone.filename2) == (2, "gone", "/a", "/b")
    decode = fail_with(decode_error())
    assert (decode.encoding, decode.object, decode.start, decode.end) == ("utf-8", b"ab\xff", 2, 3)
    assert fail_with(StopIteration(5)).value == 5
    assert (fail_with(import_error()).name, fail_with(import_error()).path) == ("nothing", "/nowhere")
    slots = fail_with(Slots(1, None))
    assert (slots.first, slots.second, slots.cause.first, slots.cause.second) == (1, None, 1, None)
    assert not hasattr(slots, "never_set")
    assert not hasattr(slots.cause, "never_set")


def test_what_lacked_an_attribute_does_not_travel() -> None:
    error = run(lambda: threading.Lock().no_such_attribute)
    assert isinstance(error, AttributeError)
    assert error.name == "no_such_attribute"
    assert error.obj is None


def test_init_does_not_run_again() -> None:
    class Counted(Exception):
        made = 0

        def __init__(self) -> None:
            Counted.made += 1

    assert isinstance(fail_with(Counted()), Counted)
    assert Counted.made == 1


def test_a_class_local_to_a_function_is_the_same_class_at_home() -> None:
    class Local(Exception):
        pass

    error = fail_with(Local("here"))
    assert type(error.cause) is Local
    assert isinstance(error, Local)


def test_a_class_of_the_drivers_main_comes_home_from_another_process(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        textwrap.dedent("""
        import subprocess, sys
        from minray import cloudpickle
        from minray.exceptions import RayTaskError
        from minray.errors.packed_exception import unpack_exception

        class Mine(Exception):
            def __init__(self, code, text):
                super().__init__(text)
                self.code = code

        def task():
            raise Mine(7, "seven")

        WORKER = '''
        import sys, pickle
        from minray.errors.packed_exception import pack_exception
        task = pickle.load(sys.stdin.buffer)
        try:
            task()
        except Exception as error:
            data = pack_exception(error, task_name="task", pid=1, node_id="n", ip="i")
        sys.stdout.buffer.write(data)
        '''
        import textwrap
        command = [sys.executable, "-c", textwrap.dedent(WORKER)]
        done = subprocess.run(command, input=cloudpickle.dumps(task), stdout=subprocess.PIPE, check=True)
        error = unpack_exception(done.stdout)
        assert isinstance(error, RayTaskError) and isinstance(error, Mine), type(error)
        assert type(error.cause) is Mine and (error.code, error.cause.args) == (7, ("seven",))
        print("home")
        raise error
        """)
    )
    done = subprocess.run([sys.executable, driver], capture_output=True, text=True)
    assert done.stdout == "home\n", done.stderr
    assert 'in task\n    raise Mine(7, "seven")\n' in done.stderr
    assert done.stderr.rstrip().endswith("Mine: seven")


def test_causes_contexts_and_notes_arrive() -> None:
    def body() -> None:
        try:
            try:
                raise KeyError("inner")
            except KeyError as inner:
                inner.add_note("a note of the inner one")
                raise TwoArguments(1, "middle") from inner
        except TwoArguments:
            raise ValueError("outer") from None

    error = run(body)
    outer = error.cause
    assert outer.__cause__ is None
    assert outer.__suppress_context__
    middle = outer.__context__
    assert (type(middle), middle.args, middle.code) == (TwoArguments, ("middle",), 1)
    assert middle.__cause__ is middle.__context__
    assert (type(middle.__cause__), middle.__cause__.__notes__) == (KeyError, ["a note of the inner one"])
    assert functions_of(middle)[-1] == "body"


@pytest.mark.parametrize("error_class", [ReducesWithState, ReducesWithSetter])
def test_an_authors_own_way_of_pickling_is_respected(error_class: type[Any]) -> None:
    original = error_class(1, 2)
    original.add_note("noted")
    original.__cause__ = KeyError("k")
    error = fail_with(original)
    assert (error.cause.args, error.state, error.cause.state) == ((), (1, 2), (1, 2))
    assert (error.__notes__, type(error.cause.__cause__)) == (["noted"], KeyError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.state == (1, 2)


def test_an_exception_pickled_by_name_is_found_by_name() -> None:
    error = fail_with(SINGLETON)
    assert error.cause is SINGLETON
    assert error.cause.args == ("only one",)


def test_notes_of_the_error_and_of_its_original_are_separate_lists() -> None:
    original = ValueError("x")
    original.add_note("remote")
    error = fail_with(original)
    error.add_note("at the getter")
    assert error.__notes__ == ["remote", "at the getter"]
    assert error.cause.__notes__ == ["remote"]


def test_an_exception_that_is_its_own_context_arrives() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    error = fail_with(one)
    assert error.cause.__context__.__context__ is error.cause


def test_exceptions_inside_arguments_and_attributes_arrive() -> None:
    outer = ValueError(TwoArguments(1, "in args"))
    outer.reason = TwoArguments(2, "in dict")
    error = fail_with(outer)
    assert (error.cause.args[0].code, error.reason.code, str(error.reason)) == (1, 2, "in dict")


def test_a_long_chain_of_contexts_loses_only_its_far_end() -> None:
    error: BaseException = ValueError(0)
    for number in range(1, 2000):
        following = ValueError(number)
        following.__context__ = error
        error = following
    result = fail_with(error)
    length, link = 0, result.cause
    while link is not None:
        assert link.args == (1999 - length,)
        length, link = length + 1, link.__context__
    assert length == packed_exception.LINKS + 1


picklable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.sampled_from(Color),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@st.composite
def users_exceptions(draw: st.DrawFn, depth: int = 2) -> Exception:
    if depth and draw(st.booleans()):
        members = draw(st.lists(users_exceptions(depth - 1), min_size=1, max_size=3))
        error: Exception = ExceptionGroup(draw(st.text()), members)
    else:
        error_class = draw(st.sampled_from([ValueError, KeyError, TwoArguments, Slots]))
        if error_class in (TwoArguments, Slots):
            error = error_class(draw(st.integers()), draw(st.text()))
        else:
            error = error_class(*draw(st.lists(picklable, max_size=3)))
    for name, value in draw(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), picklable, max_size=3)).items():
        with contextlib.suppress(AttributeError):
            setattr(error, f"the_{name}", value)
    for note in draw(st.lists(st.text(), max_size=2)):
        error.add_note(note)
    if depth:
        error.__cause__ = draw(st.none() | users_exceptions(depth - 1))
        error.__context__ = draw(st.none() | users_exceptions(depth - 1))
        error.__suppress_context__ = draw(st.booleans())
    return error


def shape(error: BaseException | None) -> Any:
    """Describe an exception as a value, without its traceback and identity."""
    if error is None:
        return None
    members = [shape(member) for member in error.exceptions] if isinstance(error, BaseExceptionGroup) else None
    args = (error.message, members) if isinstance(error, BaseExceptionGroup) else error.args
    slots = (error.first, error.second) if isinstance(error, Slots) else None
    links = (shape(error.__cause__), shape(error.__context__), error.__suppress_context__)
    return type(error), args, vars(error), slots, members, links


@pytest.mark.slow
@given(users_exceptions())
def test_g1_any_exception_arrives_whole(original: Exception) -> None:
    expected = shape(original)
    error = fail_with(original)
    assert shape(error.cause) == expected
    again: Any = unpack_exception(packed(error))  # not raised in between: nothing is added
    assert (shape(again.cause), str(again)) == (expected, str(error))


# --- the dual class ---------------------------------------------------------------------------------------------------


def test_g2_the_dual_class_is_made_once_and_named_after_both() -> None:
    one, two = fail_with(ValueError(1)), fail_with(ValueError(2))
    assert type(one) is type(two)
    assert type(one).__name__ == "RayTaskError(ValueError)"
    assert type(one).__module__ == "minray.exceptions"


def test_dual_classes_go_with_the_classes_they_are_made_for() -> None:
    def once() -> weakref.ref[type]:
        class Passing(Exception):
            pass

        assert isinstance(fail_with(Passing()), Passing)
        return weakref.ref(Passing)

    reference = once()
    gc.collect()  # the dual class, and with it its entry
    gc.collect()  # the user's class
    assert reference() is None


@pytest.mark.parametrize("error", [Final("x"), FinalByMetaclass("x")], ids=by_class)
def test_g2_a_class_without_subclasses_is_found_at_cause(error: Exception) -> None:
    result = fail_with(error)
    assert type(result) is RayTaskError
    assert (type(result.cause), result.cause.args) == (type(error), ("x",))


class Stop(BaseException):
    """A user's own, to pass handlers of Exception."""

    def __init__(self, code: int) -> None:
        super().__init__(f"stopped with {code}")
        self.code = code


def test_g2_a_base_exception_of_the_users_own_is_raised_as_itself() -> None:
    result = fail_with(Stop(3))
    assert isinstance(result, RayTaskError) and isinstance(result, Stop)
    assert (result.code, result.cause.args, type(result.cause)) == (3, ("stopped with 3",), Stop)
    for again in (pickle.loads(pickle.dumps(result)), copy.copy(result)):
        assert isinstance(again, Stop) and again.code == 3


class Interruption(KeyboardInterrupt):
    """A user's own kind of an exception that ends its process."""


ENDINGS = [
    KeyboardInterrupt("c"),
    SystemExit(3),
    GeneratorExit(),
    BaseExceptionGroup("b", [SystemExit(1)]),
    asyncio.CancelledError("c"),
    Interruption("i"),
    BaseException("b"),
]


@pytest.mark.parametrize("error", ENDINGS, ids=by_class)
def test_what_would_end_the_getter_is_only_a_cause(error: BaseException) -> None:
    result = fail_with(error)
    assert type(result) is RayTaskError
    assert (type(result.cause), result.cause.args[:1]) == (type(error), error.args[:1])


def test_attributes_of_the_user_hide_ours() -> None:
    original = ValueError("x")
    original.pid = "mine"
    original.cause = "my cause"
    error = fail_with(original)
    assert error.pid == "mine"
    assert isinstance(error.cause, ValueError)
    assert error.cause.cause == "my cause"
    assert error.task_failure == TaskFailure("f", 123, "abcdef0123456789", "10.0.0.7", error.task_failure.traceback_str)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps], ids=["pickle", "cloudpickle"])
def test_a_dual_can_be_pickled_like_any_value(dumps: Callable[[object], bytes]) -> None:
    class Local(TwoArguments):
        pass

    error = unpack_exception(wrap_packed_dependency(packed(caught(raises(Local(1, "local")))), "g"))
    error.add_note("noted since")
    for again in (pickle.loads(dumps({"error": error}))["error"], copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert (again.code, again.args, again.__notes__) == (1, (again.cause,), ["noted since"])
        assert again.cause.args == ("local",)
        assert str(again) == str(error)
        assert type(again.cause) is Local


def test_a_new_exception_of_a_dual_type_is_one_of_the_users_type() -> None:
    def body() -> None:
        try:
            raise fail_with(TwoArguments(1, "bad"))
        except TwoArguments as error:
            raise type(error)(2, "better message") from error

    better = caught(body)
    assert str(better) == "better message"
    assert isinstance(better, TwoArguments)
    assert shape(pickle.loads(pickle.dumps(better)))[:2] == (TwoArguments, ("better message",))
    result = run(raises(better), "g")
    assert (type(result.cause), result.code, result.cause.args) == (TwoArguments, 2, ("better message",))
    assert type(result) is type(result.cause.__cause__)
    assert str(result).endswith("TwoArguments): better message")


# --- exception groups -------------------------------------------------------------------------------------------------


def nested_group() -> ExceptionGroup[Exception]:
    return ExceptionGroup("outer", [ValueError("v"), ExceptionGroup("inner", [KeyError("k"), TwoArguments(4, "t")])])


def test_g2_except_star_sees_the_members_of_a_group() -> None:
    error = fail_with(nested_group())
    seen: list[BaseException] = []
    try:
        try:
            raise error
        except* ValueError as group:
            seen += group.exceptions
        except* TwoArguments as group:
            seen += group.exceptions[0].exceptions
    except* KeyError as rest:
        seen.append(rest)
    assert [type(one) for one in seen] == [ValueError, TwoArguments, ExceptionGroup]
    assert seen[1].code == 4
    assert error.message == "outer"
    assert error.exceptions == error.cause.exceptions
    assert error.exceptions[1].exceptions[1].code == 4


def test_except_star_sees_a_single_dual() -> None:
    error = fail_with(ValueError("x"))
    with contextlib.ExitStack() as stack:
        try:
            raise error
        except* ValueError as group:
            stack.callback(lambda: None)
            assert group.exceptions == (error,)


def test_a_group_class_with_its_own_constructor_arrives() -> None:
    error = fail_with(CustomGroup([ValueError("v"), KeyError("k")], 5))
    assert isinstance(error, CustomGroup)
    assert (error.code, error.message, error.cause.code) == (5, "code 5", 5)
    matching, rest = error.split(ValueError)
    assert type(matching) is CustomGroup
    assert type(rest) is CustomGroup


def test_members_of_a_group_keep_their_own_tracebacks() -> None:
    def raising() -> None:
        raise ValueError("v")

    error = fail_with(ExceptionGroup("g", [caught(raising)]))
    assert functions_of(error.exceptions[0])[-1] == "raising"
    assert "in raising" in str(error)


# --- exceptions that do not pickle ------------------------------------------------------------------------------------


@pytest.mark.parametrize("original", [Unpicklable("precious"), RefusesPickle("precious")], ids=by_class)
def test_g3_an_exception_that_cannot_be_pickled_has_a_stand_in(original: Exception) -> None:
    def deep_inside() -> None:
        raise original

    error = run(deep_inside)
    assert type(error) is RayTaskError
    assert type(error.cause) is RayError
    assert error.cause.original_type == type(original).__name__
    assert error.cause.original_str == "precious"
    assert "in deep_inside" in error.cause.original_traceback_str
    assert "could not be pickled: TypeError: " in str(error.cause)
    assert str(error).endswith(f"{type(original).__name__}: precious")


def test_g3_only_the_member_that_cannot_be_pickled_is_replaced() -> None:
    group = ExceptionGroup("g", [ValueError("fine"), Unpicklable("not")])
    group.__cause__ = RefusesPickle("neither")
    group.__context__ = TwoArguments(1, "fine too")
    error = fail_with(group)
    assert isinstance(error, ExceptionGroup)
    assert [type(member) for member in error.exceptions] == [ValueError, RayError]
    assert (error.cause.__cause__.original_type, error.cause.__context__.code) == ("RefusesPickle", 1)


def test_g3_an_argument_that_cannot_be_pickled_does_no_harm() -> None:
    for argument in (threading.Lock(), Unpicklable("inside"), sys._getframe()):
        error = fail_with(ValueError("text", argument))
        assert error.cause.original_type == "ValueError"


def test_attributes_that_cannot_be_pickled_and_came_later_stay_behind() -> None:
    error = fail_with(TwoArguments(1, "x"))
    error.lock = threading.Lock()
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, TwoArguments)
    assert (again.code, hasattr(again, "lock")) == (1, False)


@pytest.mark.parametrize("original", [CannotBeUnpickled("precious"), UnpicklesAsText("precious")], ids=by_class)
def test_g4_an_exception_that_cannot_be_unpickled_leaves_its_traceback(original: Exception) -> None:
    def deep_inside() -> None:
        raise original

    error = run(deep_inside)
    assert type(error) is UnserializableException
    assert error.task_failure.task_name == "f"
    assert "in deep_inside" in str(error)
    assert "task f failed (pid=123, node=abcdef012345, ip=10.0.0.7)" in str(error)
    assert str(error).endswith(f"{type(original).__name__}: precious")
    assert error.reason in ("RuntimeError: no room here", "TypeError: its pickle holds a str")
    assert pickle.loads(pickle.dumps(error)).task_failure == error.task_failure


def test_g4_a_class_that_is_not_there_any_more_leaves_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed(caught(raises(TwoArguments(1, "x"))))
    monkeypatch.delattr(sys.modules[__name__], "TwoArguments")
    error = unpack_exception(data)
    assert type(error) is UnserializableException
    assert str(error).endswith("TwoArguments: x")


def test_an_exception_that_breaks_its_observers_arrives() -> None:
    error = fail_with(BreaksItsObservers("x"))
    assert (type(error.cause), error.cause.args) == (BreaksItsObservers, ("x",))
    assert "BreaksItsObservers: <exception str() failed>" in str(error)
    bad = BreaksItsObservers("x")
    bad.lock = threading.Lock()
    assert fail_with(bad).cause.original_str == "<its str() raised RuntimeError>"


# --- tracebacks -------------------------------------------------------------------------------------------------------


def user_function(number: int) -> float:
    return number + (1 / (number - 1)) + 5


def test_the_remote_traceback_is_real_and_without_runtime_frames() -> None:
    def body() -> None:
        runtime_calls(lambda: user_function(1))

    error = run(lambda: runtime_calls(body))
    assert functions_of(error.cause)[-5:] == ["runtime_calls", "body", "runtime_calls", "<lambda>", "user_function"]
    for text in (str(error), "".join(traceback.format_exception(error))):
        assert "in run_user_code" not in text
        assert RUNTIME not in text
        assert "in user_function\n    return number + (1 / (number - 1)) + 5\n" in text
    frame = traceback.extract_tb(error.cause.__traceback__)[-1]
    assert frame.filename == __file__
    assert (frame.lineno or 0) - 1 == inspect.getsourcelines(user_function)[1]


def test_the_right_part_of_each_line_is_underlined() -> None:
    error = caught(lambda: user_function(1))
    local = "".join(traceback.format_tb(error.__traceback__))
    assert "~~^~~" in local
    assert "".join(traceback.format_tb(unpack_exception(packed(error)).__cause__.__traceback__)) == local


def test_runtime_frames_stay_when_there_are_no_others() -> None:
    space: dict[str, Any] = {}
    exec(compile("def of_ours():\n    return 1 / 0", f"{RUNTIME}/raylet/raylet.py", "exec"), space)
    try:
        space["of_ours"]()
    except ZeroDivisionError as caught_error:
        caught_error.__traceback__ = caught_error.__traceback__.tb_next
        error: Any = unpack_exception(packed(caught_error))
    assert functions_of(error.cause) == ["of_ours"]
    assert "in of_ours" in str(error)


def test_an_error_keeps_no_frame_that_has_unpacked_it() -> None:
    """Without a garbage collection: its frames used to keep those that had unpacked it, and what was in them."""

    class Kept:
        error: Any = None

    def unpack() -> tuple[Any, weakref.ref[Kept]]:
        kept = Kept()
        kept.error = unpack_exception(packed(caught(lambda: user_function(1))))
        return kept.error, weakref.ref(kept)

    with without_garbage_collection():
        error, kept = unpack()
        assert kept() is None
        frames = [frame for frame, _ in traceback.walk_tb(error.cause.__traceback__)]
        assert all(frame.f_back is not None and frame.f_back.f_back is None for frame in frames)
        gone = weakref.ref(error)
        del error, frames
        assert gone() is None


def test_a_runaway_recursion_arrives() -> None:
    def forever(number: int) -> int:
        return forever(number + 1) + 1

    error = run(lambda: forever(0))
    assert isinstance(error, RecursionError)
    assert len(functions_of(error.cause)) == tracebacks.FRAMES
    assert "more times]" in str(error)


def test_long_texts_lose_their_middle_and_long_arguments_do_not() -> None:
    error = fail_with(ValueError("a" * 1_000_000 + "end"))
    assert error.cause.args == ("a" * 1_000_000 + "end",)
    assert len(str(error)) < packed_exception.TRACEBACK_TEXT_CHARACTERS + 200
    assert "characters left out" in str(error)
    assert str(error).endswith("aend")


def test_the_text_names_task_process_and_node() -> None:
    error = fail_with(ValueError("x"))
    lines = str(error).splitlines()
    assert lines[0] == "task f failed (pid=123, node=abcdef012345, ip=10.0.0.7)"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: x"


def test_an_uncaught_error_shows_the_remote_traceback() -> None:
    error = caught(raises(run(lambda: user_function(1))))
    text = "".join(traceback.format_exception(error))
    assert "The above exception was the direct cause" in text
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")


# --- from task to task ------------------------------------------------------------------------------------------------


def test_g1_a_failed_argument_fails_the_task_with_the_same_error() -> None:
    first = fail_with(TwoArguments(1, "x"))
    result: Any = first
    for name in ("g", "h"):
        result = unpack_exception(wrap_packed_dependency(packed(result, "not used"), name))
    assert isinstance(result, TwoArguments)
    assert isinstance(result, RayTaskError)
    assert (result.code, type(result.cause)) == (1, TwoArguments)
    assert str(result) == "\n".join(
        ["at least one argument of task h failed", "at least one argument of task g failed", str(first)]
    )
    assert functions_of(result.cause) == functions_of(first.cause)


@pytest.mark.parametrize("error", [WorkerCrashedError(pid=3), TaskCancelledError(task_name="f")], ids=by_class)
def test_g1_a_system_error_of_an_argument_fails_the_task_with_a_task_error_of_it(error: RayError) -> None:
    before = str(error)
    result = unpack_exception(wrap_packed_dependency(wrap_packed_dependency(packed(error), "g"), "h"))
    assert isinstance(result, RayTaskError) and isinstance(result, type(error)) and type(result.cause) is type(error)
    *hops, said = str(result).splitlines()
    assert hops == [f"at least one argument of task {name} failed" for name in "hg"]
    assert said == f"minray.exceptions.{type(error).__name__}: {before}"
    assert str(error) == before, "the given error is not changed"


def test_a_packed_error_is_passed_on_without_unpickling_it() -> None:
    data = wrap_packed_dependency(packed(caught(raises(CannotBeUnpickled("x")))), "g")
    error = unpack_exception(data)
    assert type(error) is UnserializableException
    assert str(error).startswith("at least one argument of task g failed\n")


def test_the_text_of_an_error_can_be_all_that_is_left_of_it() -> None:
    error = caught(raises(ValueError("x")))
    error.payload = bytes(1_000_000)
    text = text_alone(packed(error))
    assert len(text) < 1000 and describe_packed(text) == describe_packed(packed(error))
    long = text_alone(packed(caught(raises(ValueError(100_000 * "x")))))
    assert len(long) < packed_exception.KEPT_TEXT_CHARACTERS + 1000 and "Traceback (most" in describe_packed(long)
    assert type(unpack_exception(text)) is UnserializableException


@given(st.integers(0, 60))
def test_an_error_does_not_grow_with_the_number_of_tasks_it_fails(count: int) -> None:
    data = packed(caught(raises(ValueError("x"))))
    plain = len(str(unpack_exception(data)).splitlines())
    for number in range(count):
        data = wrap_packed_dependency(data, f"g{number}")
    lines = str(unpack_exception(data)).splitlines()
    hops = lines[: len(lines) - plain]
    assert len(hops) == min(count, ray_error.HOPS + 1)
    if count:
        assert hops[0] == f"at least one argument of task g{count - 1} failed"
        assert hops[-1] == "at least one argument of task g0 failed"
    if count > ray_error.HOPS:
        assert f"(and so did those of {count - ray_error.HOPS} tasks in between)" in hops


def test_an_error_that_a_task_lets_through_is_wrapped_once() -> None:
    def g() -> None:
        runtime_calls(raises(run(lambda: user_function(1), "f")))

    error = run(g, "g")
    assert type(error) is type(fail_with(ZeroDivisionError()))
    assert type(error.cause) is ZeroDivisionError
    assert functions_of(error.cause)[-1] == "user_function"
    text = str(error)
    assert text.startswith("task g failed (pid=123,")
    assert text.count("task f failed (pid=123,") == 1
    assert "in g\n" in text.partition("task f failed")[0]
    assert "in run_user_code" not in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert text.count("division by zero") == 1


def test_what_a_task_adds_to_an_error_it_lets_through_arrives() -> None:
    def g() -> None:
        try:
            raise fail_with(TwoArguments(1, "x"))
        except TwoArguments as error:
            error.add_note("while in g")
            error.code = 2
            raise

    error = run(g, "g")
    assert (error.__notes__, error.code) == (["while in g"], 2)
    assert error.cause.code == 1


def test_an_error_as_the_cause_of_the_users_own_tells_its_story_once() -> None:
    def g() -> None:
        try:
            raise run(lambda: user_function(1), "f")
        except ZeroDivisionError as error:
            raise KeyError("mine") from error

    error = run(g, "g")
    assert isinstance(error, KeyError)
    inner = error.cause.__cause__
    assert isinstance(inner, RayTaskError)
    assert isinstance(inner, ZeroDivisionError)
    assert functions_of(inner)[-1] == "g"
    assert inner.__cause__ is inner.cause
    assert str(error).count("task f failed") == 1
    assert str(error).count("in user_function") == 1


def test_an_error_inside_another_is_packed_once() -> None:
    def g() -> None:
        try:
            raise fail_with(ValueError(b"x" * 1_000_000))
        except ValueError as error:
            raise KeyError("mine") from error

    assert len(packed(caught(g), "g")) < 1_500_000


def test_a_system_error_that_a_task_lets_through_is_its_failure() -> None:
    error = fail_with(WorkerCrashedError(task_name="inner", pid=5, exit_code=-9))
    assert isinstance(error, RayTaskError)
    assert isinstance(error, WorkerCrashedError)
    assert (error.pid, error.signal_name, error.task_failure.task_name) == (5, "SIGKILL", "f")


# --- errors of the system ---------------------------------------------------------------------------------------------

NAMES_AND_BASES = """
    RayError:Exception RayTaskError:RayError TaskCancelledError:RayError WorkerCrashedError:RayError NodeDiedError:RayError
    LocalRayletDiedError:RayError ObjectLostError:RayError ObjectFetchTimedOutError:ObjectLostError
    ReferenceCountingAssertionError:ObjectLostError ReferenceCountingAssertionError:AssertionError
    ObjectReconstructionFailedError:ObjectLostError
    ObjectFreedError:ObjectLostError OwnerDiedError:ObjectLostError GetTimeoutError:RayError GetTimeoutError:TimeoutError
    ObjectStoreFullError:RayError OutOfDiskError:RayError OutOfMemoryError:RayError RuntimeEnvSetupError:RayError
    TaskUnschedulableError:RayError RaySystemError:RayError UnserializableException:RayError
    TaskPlacementGroupRemoved:RayError ActorPlacementGroupRemoved:RayError
    RayActorError:RayError ActorDiedError:RayActorError ActorUnavailableError:RayActorError ActorUnschedulableError:RayError
    PendingCallsLimitExceeded:RayError AsyncioActorExit:RayError ActorAlreadyExistsError:ValueError
    ActorAlreadyExistsError:RayError ActorHandleNotFoundError:ValueError ActorHandleNotFoundError:RayError
    StreamingGeneratorReplayInconsistentError:RaySystemError ObjectRefStreamEndOfStreamError:RayError
""".split()


def test_the_names_and_bases_are_rays() -> None:
    public = {name for name, value in vars(exceptions).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert {name for name in public if not name.startswith("_")} == {pair.partition(":")[0] for pair in NAMES_AND_BASES}
    for pair in NAMES_AND_BASES:
        name, _, base = pair.partition(":")
        assert issubclass(getattr(exceptions, name), vars(exceptions).get(base) or vars(__import__("builtins"))[base])


VALUES = {"str": "word", "int | None": 1024, "float | None": 0.5, "tuple[str, ...]": ("a line",)}


def system_errors() -> list[RayError]:
    errors: list[RayError] = []
    for name in sorted({pair.partition(":")[0] for pair in NAMES_AND_BASES} - {"RayError", "RayTaskError"}):
        error_class = getattr(exceptions, name)
        fields = {field.name: VALUES.get(field.type) for field in dataclasses.fields(error_class) if field.name != "message"}
        if "task_failure" in fields:
            fields["task_failure"] = TaskFailure("f", 1, "n", "i", "Type: text")
        errors += [error_class(), error_class("a message"), error_class(**fields)]
    return [RayError("base"), RayTaskError("by hand"), *errors]


@pytest.mark.parametrize("error", system_errors(), ids=lambda error: f"{type(error).__name__}-{len(str(error))}")
def test_system_errors_pickle_and_come_back_as_themselves(error: RayError) -> None:
    copies = [pickle.loads(pickle.dumps(error)), cloudpickle.loads(cloudpickle.dumps(error)), copy.deepcopy(error)]
    if type(error) is not RayTaskError:
        copies.append(unpack_exception(packed(error)))
    for again in copies:
        assert type(again) is type(error)
        assert (again.args, str(again)) == (error.args, str(error))
        public = {name: value for name, value in vars(again).items() if name != "_minray_hops"}
        assert public == vars(error)
    assert str(error)


def test_a_system_error_raised_by_the_runtime_comes_back_as_itself() -> None:
    crashed = WorkerCrashedError(task_name="f", pid=5)
    space: dict[str, Any] = {"crashed": crashed}
    with contextlib.suppress(WorkerCrashedError):
        exec(compile("raise crashed", f"{RUNTIME}/core_worker/x.py", "exec"), space)
    crashed.__traceback__ = crashed.__traceback__.tb_next
    assert crashed.__traceback__ is not None
    error = unpack_exception(packed(crashed))
    assert type(error) is WorkerCrashedError
    assert error.__traceback__ is None


def test_a_system_error_that_cannot_be_pickled_has_a_stand_in() -> None:
    error = RaySystemError(reason="broken")
    error.lock = threading.Lock()
    again = unpack_exception(packed(error))
    assert type(again) is RayError
    assert "minray itself failed: broken" in str(again)


def test_g17_a_dead_worker_has_a_death_certificate() -> None:
    error = WorkerCrashedError(
        task_name="f", pid=12, node_id="abcdef0123456789", exit_code=-11, stderr_tail=("Fatal Python error", "  File x")
    )
    assert error.signal_name == "SIGSEGV"
    assert str(error) == (
        "the worker (pid=12, node=abcdef012345) was killed by SIGSEGV (a bad memory access in compiled code) while it ran "
        "task f\nthe last lines of its stderr:\n  | Fatal Python error\n  |   File x"
    )
    assert str(WorkerCrashedError(exit_code=3, reason="force-cancelled")) == (
        "the worker exited with code 3 while it ran a task: force-cancelled"
    )
    assert WorkerCrashedError(exit_code=-9999).signal_name == "signal 9999"
    assert str(WorkerCrashedError()) == "the worker died while it ran a task"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (GetTimeoutError(timeout_s=0.5, reason="f is pending"), "was not ready in time (timeout 0.5 s): f is pending"),
        (TaskCancelledError(task_name="f", task_id_hex="ab"), "The task was cancelled (task f, task id ab)"),
        (NodeDiedError("said by hand", node_id="n"), "said by hand"),
        (ObjectLostError(object_id_hex="ab", owner="pid 3"), "of the object are lost (object id ab, owner pid 3)"),
        (OwnerDiedError(call_site="x.py:3"), "died, and the object with it (call site x.py:3)"),
        (ObjectFreedError(), "The object was freed explicitly"),
        (
            ObjectReconstructionFailedError(object_id_hex="ab", reason=ReconstructionFailure.LINEAGE_DISABLED),
            "cannot be made again (object id ab): LINEAGE_DISABLED (this cluster keeps no lineage"
            " (lineage_pinning_enabled=False in _system_config))",
        ),
        (OutOfMemoryError(used_bytes=2048), "no retries are left (used 2,048 bytes)"),
        (ObjectStoreFullError(top_holders=("a", "b")), "The object store is full\ntop holders:\n  | a\n  | b"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RayError) else "",
)
def test_system_errors_read_well(error: RayError, text: str) -> None:
    assert str(error).endswith(text)


def test_system_errors_are_caught_as_what_they_are() -> None:
    assert isinstance(GetTimeoutError(), TimeoutError)
    assert isinstance(ReferenceCountingAssertionError(), AssertionError)
    assert isinstance(fail_with(GetTimeoutError(timeout_s=1.0)), TimeoutError)


def test_what_a_body_has_raised_is_told_from_what_the_system_says() -> None:
    assert is_raised_by_body(packed(ValueError())) and not is_raised_by_body(packed(GetTimeoutError()))
    assert is_raised_by_body(pack_exception(GetTimeoutError(), task_name="f", is_bodys=True, **EXECUTOR))
