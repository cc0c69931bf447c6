"""How an exception travels from the process that raised it to the process that calls `get`.

Ray: the `RayException` message of src/ray/protobuf/common.proto, and RayTaskError.as_instanceof_cause

* The original is rebuilt, not constructed: `__init__` never runs again, so its signature does not matter. Only an
  author's own `__reduce__`, or a registered serializer, is respected.
* The packed form has two levels. The outer one is made of builtins and always loads: which task failed, and the traceback
  as text. The inner one is a pickle of the exception. If that cannot be written or read, the outer one remains.
* Frames of minray itself are left out. If an error has no other frames, it is minray's own error, and they stay.
* A failed argument fails the task: the same error travels on, with a line for each task that it kept from running.
* A RayError that the runtime made (WorkerCrashedError, ...) comes back as itself. If a task's body lets it through, it
  becomes that task's failure, `RayTaskError(WorkerCrashedError)`, which is still a WorkerCrashedError. The cancellation of
  a running body also becomes that task's failure.

What we do not like: if an exception's cause, or a member of its group, cannot be unpickled, the exception is lost too.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import traceback
import types
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard, cast

from minray import cloudpickle
from minray.errors.exception_parts import ARGS, group_of, members_of, new_exception, reduces_itself, set_members
from minray.errors.ray_error import PUBLIC_MODULE, Hops, RayError, TaskFailure, UnserializableException
from minray.errors.tracebacks import Frame, frames_of, is_runtime, rebuild_traceback

TRACEBACK_TEXT_CHARACTERS = 64 * 1024
"""Most characters of a traceback's text; a longer text loses its middle, so that an error stays small in messages."""
KEPT_TEXT_CHARACTERS = 16 * 1024
"""Most characters of a traceback's text that ``text_alone`` keeps; its results are stored and sent in large numbers."""
LINKS = 64
"""Most links (causes and contexts) that are followed from an exception, since pickle's recursion is limited."""

_Own = dict[str, Any] | None
"""The attributes of a RayTaskError if they may differ from its cause's; None if they cannot."""


class RayTaskError(RayError):
    """A task raised. `get` raises a subclass of this and of the exception's own type, if that can be subclassed.

    `args` is a tuple of the original, as in Ray, whose programs find it there. Its own arguments are `cause.args`; its
    attributes, and fields such as `errno`, are those of this error as well.
    """

    __module__ = PUBLIC_MODULE

    _minray_failure: TaskFailure | None = None
    """The task that failed. None only if user code made the instance: `raise type(error)("better message")`."""
    _minray_cause: BaseException | None = None
    _minray_cause_class: type[Exception] | None = None
    """In a dual class: the exception class of the user."""

    @property
    def cause(self) -> BaseException | None:
        """The original exception, with its remote traceback."""
        return self._minray_cause

    @property
    def task_failure(self) -> TaskFailure | None:
        return self._minray_failure

    def as_instanceof_cause(self) -> RayTaskError:
        """Return this error, which is already an instance of its cause's type if that type allows it."""
        return self

    def __str__(self) -> str:
        if self._minray_failure is None:
            return super().__str__()
        return "\n".join([*self._minray_hops.lines(), str(self._minray_failure)])

    def __reduce__(self) -> tuple[Any, ...]:
        if _is_wrapper(self):
            return unpack_exception, (_pack_unchanged(self),)
        return _loads, (_dumps(self, None),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


def pack_exception(
    error: BaseException,
    *,
    task_name: str,
    pid: int,
    node_id: str,
    ip: str,
    is_bodys: bool = False,
    introduction: str = "",
) -> bytes:
    """Pack `error`, which a task raised or which the runtime reports about the task.

    `is_bodys`: the task's body ended with `error`, although the runtime made it. `introduction`: a line of text that is put
    before the traceback.
    """
    text = _traceback_text(error)
    failure = TaskFailure(
        task_name=task_name,
        pid=pid,
        node_id=node_id,
        ip=ip,
        traceback_str=f"{introduction}\n{text}" if introduction else text,
    )
    stack = traceback.walk_tb(error.__traceback__)
    is_bodys = is_bodys or any(not is_runtime(frame.f_code.co_filename) for frame, _ in stack)
    if not is_bodys and (_is_wrapper(error) or isinstance(error, RayError) and not isinstance(error, RayTaskError)):
        return _pack_unchanged(error, failure)
    if _is_wrapper(error):
        # A `get` inside the task raised it, and the task let it through: still one wrapper around the original.
        return _encode(True, failure, Hops(), cast(BaseException, error.cause), _attributes_of(error))
    return _encode(True, failure, Hops(), error)


def unpack_exception(data: bytes) -> RayError:
    """Make the error that `get` raises. Unpack once per `raise`: an instance collects the frames it is raised through."""
    is_task_error, failure_fields, hops_fields, inner = pickle.loads(data)
    failure = TaskFailure(*failure_fields)
    try:
        error, attributes = pickle.loads(inner)
        if not isinstance(error, BaseException):
            raise TypeError(f"its pickle holds a {type(error).__name__}")
    except Exception as problem:
        result: RayError = UnserializableException(task_failure=failure, reason=_one_line(problem))
    else:
        by_itself = isinstance(error, RayError) and not is_task_error
        result = cast(RayError, error) if by_itself else _make_task_error(failure, error, attributes)
    vars(result)["_minray_hops"] = Hops(*hops_fields)
    return result


def for_coroutines(error: RayError) -> RayError:
    """Return an error that can be raised in a coroutine: a plain RayTaskError in place of one that is a StopIteration.

    A coroutine takes the argument of a StopIteration for a result.
    """
    if not isinstance(error, StopIteration):
        return error
    plain = RayTaskError()
    ARGS.__set__(plain, ARGS.__get__(error))
    vars(plain).update(vars(error))
    plain.__cause__ = error.__cause__
    return plain


def is_raised_by_body(data: bytes) -> bool:
    """Return whether a task's body raised the packed exception; if not, the system made it."""
    return bool(pickle.loads(data)[0])


def describe_packed(data: bytes) -> str:
    """Return the text of a packed exception, without unpickling anything of the user's."""
    _, failure_fields, _, _ = pickle.loads(data)
    return str(TaskFailure(*failure_fields))


def with_last_line(message: str, data: bytes) -> str:
    """Return the message, followed by the last line of the packed exception's text, if `data` is not empty.

    That line has the exception's type and the last line of its message.
    """
    if not data:
        return message
    try:
        return f"{message}: {describe_packed(data).splitlines()[-1]}"
    except Exception:
        return f"{message}: an error that cannot be read"


def text_alone(data: bytes) -> bytes:
    """Return a packed exception that keeps only the text, for processes that store many errors and publish them."""
    is_task_error, failure_fields, hops_fields, _ = pickle.loads(data)
    failure = TaskFailure(*failure_fields)
    failure = failure._replace(traceback_str=_without_middle(failure.traceback_str, KEPT_TEXT_CHARACTERS))
    return pickle.dumps((is_task_error, tuple(failure), hops_fields, b""))


def wrap_packed_dependency(data: bytes, task_name: str) -> bytes:
    """Make the packed error of task `task_name`, which will not run because its argument failed with the error in `data`.

    Nothing of the user's is unpickled, so this never fails and may run on the loop. A system error of the argument's task
    becomes a task error of this one.
    """
    is_task_error, failure_fields, hops_fields, inner = pickle.loads(data)
    if not is_task_error:
        failure_fields = tuple(_said_by_the_system(TaskFailure(*failure_fields).traceback_str))
    return pickle.dumps((True, failure_fields, tuple(Hops(*hops_fields).and_then(task_name)), inner))


def _said_by_the_system(text: str) -> TaskFailure:
    """Make the failure of a task whose body did not end with this error: only a text, without task and process."""
    return TaskFailure(task_name="", pid=0, node_id="", ip="", traceback_str=text)


def _pack_unchanged(error: RayError, failure: TaskFailure | None = None) -> bytes:
    """Pack an error as it is. `failure` remains of a system error that cannot be unpickled; a RayTaskError has its own."""
    if isinstance(error, RayTaskError) and error.task_failure is not None and error.cause is not None:
        return _encode(True, error.task_failure, error._minray_hops, error.cause, _attributes_of(error))
    failure = failure or _said_by_the_system(_traceback_text(error))
    return _encode(False, failure, error._minray_hops, error)


def _encode(is_task_error: bool, failure: TaskFailure, hops: Hops, error: BaseException, attributes: _Own = None) -> bytes:
    return pickle.dumps((is_task_error, tuple(failure), tuple(hops), _dumps(error, attributes)))


def _is_wrapper(error: BaseException) -> TypeGuard[RayTaskError]:
    """Return whether this is a RayTaskError around an original. One that user code made with `type(error)(...)` is not: it
    is packed as an exception of the user's type."""
    return isinstance(error, RayTaskError) and error._minray_failure is not None


def _attributes_of(error: RayTaskError) -> dict[str, Any]:
    """Return the user's attributes: those of the original, and those set since, such as notes."""
    return {name: value for name, value in vars(error).items() if not name.startswith("_minray_")}


# --- dual classes -----------------------------------------------------------------------------------------------------


_dual_classes: weakref.WeakValueDictionary[type, type[RayTaskError]] = weakref.WeakValueDictionary()
"""Dual classes by the user's class. Weak: a class that each task defines anew must not stay in memory for ever."""


def _dual_class(cause_class: type[BaseException]) -> type[RayTaskError] | None:
    from asyncio import CancelledError  # here, because a program imports these errors long before it needs an event loop

    if issubclass(cause_class, (SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError)):
        return None  # It ends what raised it: a process, a generator, a coroutine. Raised by `get`, it would end the caller.
    if issubclass(RayTaskError, cause_class):
        return None
    names = {"__module__": RayTaskError.__module__, "__doc__": cause_class.__doc__, "_minray_cause_class": cause_class}
    try:
        dual = _dual_classes.get(cause_class)
        if dual is None:
            bases = (RayTaskError, cause_class)
            made = types.new_class(f"RayTaskError({cause_class.__name__})", bases, {}, lambda space: space.update(names))
            dual = cast(type[RayTaskError], made)
            _dual_classes[cause_class] = dual
        return dual
    except Exception:  # the class forbids subclasses, for which there are many ways
        return None


def _make_task_error(failure: TaskFailure, cause: BaseException, attributes: _Own) -> RayTaskError:
    error = RayTaskError()
    dual = _dual_class(type(cause))
    if dual is not None:
        try:
            error = cast(RayTaskError, new_exception(dual, group_of(cause)))
            set_members(error, members_of(cause))
        except Exception:  # as above; a RayTaskError with .cause is guaranteed, the dual class is not
            error = RayTaskError()
    user_attributes = dict(vars(cause) if attributes is None else attributes)
    if isinstance(user_attributes.get("__notes__"), list):
        user_attributes["__notes__"] = user_attributes["__notes__"].copy()
    ARGS.__set__(error, (cause,))
    vars(error).update(user_attributes, _minray_failure=failure, _minray_cause=cause)
    object.__setattr__(error, "__cause__", cause)
    return error


# --- pickling ---------------------------------------------------------------------------------------------------------


def _dumps(root: BaseException, attributes: _Own) -> bytes:
    """Pickle (root, attributes). Replace each linked exception that cannot be pickled by a stand-in, at last root itself."""
    try:
        return _pickle(root, attributes, {})
    except Exception as problem:
        reason = problem
    family = _family(root)[0]
    stand_ins = {id(member): RayError() for member in family}
    bad: dict[int, RayError] = {}
    for member in family:
        others = {key: stand_in for key, stand_in in stand_ins.items() if key != id(member)}
        try:
            _pickle(member, None, others)
        except Exception as problem:
            bad[id(member)] = _stand_in(member, problem)
    for kept in (attributes, None):
        try:
            return _pickle(root, kept, bad)
        except Exception as problem:
            reason = problem
    return _pickle(root, None, {id(root): _stand_in(root, reason)})


def _loads(data: bytes) -> Any:
    return pickle.loads(data)[0]


def _pickle(root: BaseException, attributes: _Own, stand_ins: Mapping[int, RayError]) -> bytes:
    buffer = io.BytesIO()
    _ExceptionPickler(buffer, root, stand_ins).dump((root, attributes))
    return buffer.getvalue()


def _stand_in(error: BaseException, reason: Exception) -> RayError:
    name, text = type(error).__qualname__, _text_of(error)
    stand_in = RayError(f"{name}: {text}\n(a {name} that could not be pickled: {_one_line(reason)})")
    stand_in.original_type, stand_in.original_str = name, text
    stand_in.original_traceback_str = _traceback_text(error)
    return stand_in


def _family(root: BaseException) -> tuple[list[BaseException], set[int]]:
    """Return root and the exceptions linked to it, and the ids of those at whose links LINKS is reached."""
    family, frontier, seen = [root], [root], {id(root)}
    for _ in range(LINKS):
        if not frontier:
            break
        linked = {id(relative): relative for error in frontier for relative in _relatives(error)}
        frontier = [relative for key, relative in linked.items() if key not in seen]
        seen.update(linked)
        family += frontier
    return family, {id(error) for error in frontier}


def _relatives(error: BaseException) -> list[BaseException]:
    if _is_wrapper(error):
        return []
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [relative for relative in (error.__cause__, error.__context__, *members) if relative is not None]


class _Links(NamedTuple):
    """The parts of an exception that pickle leaves out: traceback, cause, context and notes."""

    frames: tuple[Frame, ...]
    cause: BaseException | None
    context: BaseException | None
    suppress_context: bool
    notes: list[str] | None

    def restore(self, error: BaseException) -> None:
        # object.__setattr__ because exceptions may be frozen dataclasses; suppress_context after cause, which sets it.
        object.__setattr__(error, "__traceback__", rebuild_traceback(self.frames))
        object.__setattr__(error, "__cause__", error.cause if _is_wrapper(error) else self.cause)
        object.__setattr__(error, "__context__", self.context)
        object.__setattr__(error, "__suppress_context__", self.suppress_context)
        if self.notes is not None:
            object.__setattr__(error, "__notes__", self.notes)


def _links_of(error: BaseException, *, is_root: bool = True, is_end: bool = False) -> _Links:
    cut = is_end or _is_wrapper(error)  # a wrapper's cause travels inside it
    return _Links(
        frames=frames_of(error, keep_ours=is_root and not isinstance(error, RayError)),
        cause=None if cut else error.__cause__,
        context=None if cut else error.__context__,
        suppress_context=error.__suppress_context__,
        notes=getattr(error, "__notes__", None),
    )


class _ExceptionPickler(cloudpickle.Pickler):
    """A cloudpickle pickler that takes exceptions apart, wherever they occur in a value."""

    def __init__(self, buffer: io.BytesIO, root: BaseException, stand_ins: Mapping[int, RayError]) -> None:
        super().__init__(buffer)
        self._root = root
        self._ends = _family(root)[1]
        self._stand_ins = stand_ins

    def reducer_override(self, value: Any) -> Any:
        if not issubclass(type(value), BaseException):
            return super().reducer_override(value)
        error: BaseException = self._stand_ins.get(id(value), value)
        links = _links_of(error, is_root=error is self._root, is_end=id(value) in self._ends)
        registered = copyreg.dispatch_table.get(type(error))
        by_parts = isinstance(error, RayTaskError) or not reduces_itself(type(error))
        if registered is None and by_parts and not _is_wrapper(error):
            return _reduce_by_parts(error, links)
        reduced = error.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if registered is None else registered(error)
        if isinstance(reduced, str):  # the name of a global
            return reduced
        function, arguments, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
        return function, arguments, (links, state, setter), items, pairs, _restore_reduced


def _restore_reduced(error: Any, state: tuple[_Links, Any, Any]) -> None:
    links, own_state, setter = state
    if own_state is not None:
        setter(error, own_state) if setter else error.__setstate__(own_state)
    if isinstance(error, BaseException):
        links.restore(error)


def _reduce_by_parts(error: BaseException, links: _Links) -> tuple[Any, ...]:
    error_class = getattr(error, "_minray_cause_class", None) or type(error)
    state = (ARGS.__get__(error), dict(vars(error)), members_of(error), links)
    return new_exception, (error_class, group_of(error)), state, None, None, _restore_parts


def _restore_parts(error: BaseException, state: tuple[tuple[Any, ...], dict[str, Any], dict[str, Any], _Links]) -> None:
    args, attributes, members, links = state
    ARGS.__set__(error, args)
    vars(error).update(attributes)
    set_members(error, members)
    links.restore(error)


# --- tracebacks -------------------------------------------------------------------------------------------------------


def _traceback_text(error: BaseException) -> str:
    try:
        if _is_wrapper(error):
            # A task let it through: first the frames of that task, then the text of the error itself.
            stack = [line for line in traceback.extract_tb(error.__traceback__) if not is_runtime(line.filename)]
            frames = "".join(traceback.StackSummary.from_list(stack).format())
            text = f"Traceback (most recent call last):\n{frames}{error}" if stack else str(error)
        else:
            described = traceback.TracebackException.from_exception(error)
            _leave_out_runtime(error, described)
            text = "".join(described.format()).rstrip("\n")
    except Exception as problem:  # code of the exception's class may fail while it is formatted
        text = f"(no traceback: {_one_line(problem)})\n{type(error).__qualname__}: {_text_of(error)}"
    return _without_middle(text)


def _leave_out_runtime(root: BaseException, root_described: traceback.TracebackException) -> None:
    pairs: list[tuple[BaseException | None, traceback.TracebackException | None]] = [(root, root_described)]
    while pairs:
        error, described = pairs.pop()
        if error is None or described is None:
            continue
        users = [line for line in described.stack if not is_runtime(line.filename)]
        if users or error is not root or isinstance(error, RayError):
            described.stack[:] = users
        if _is_wrapper(error):  # its str contains the causes
            described.__cause__ = described.__context__ = described.exceptions = None
            continue
        pairs += [(error.__cause__, described.__cause__), (error.__context__, described.__context__)]
        if isinstance(error, BaseExceptionGroup):
            pairs += zip(error.exceptions, described.exceptions or (), strict=False)


def _without_middle(text: str, limit: int = TRACEBACK_TEXT_CHARACTERS) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2 - 50
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _text_of(error: BaseException) -> str:
    try:
        return _without_middle(str(error))
    except Exception as problem:
        return f"<its str() raised {type(problem).__name__}>"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text_of(error)}".partition("\n")[0]
