"""``@minray.remote``, and the ``RemoteFunction`` that it makes of a function.

Ray: python/ray/remote_function.py

A ``RemoteFunction`` is a definition with options. Calling ``.remote(...)`` submits a task and returns at once with a
reference to its result. On a class ``@remote`` makes an ``ActorClass``, see ``actor``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, get_origin, overload

from minray.actor import ActorClass, make_actor_class
from minray.api import calls as worker
from minray.api.actor_options import ACTOR_CHECKS
from minray.api.definition import Definition
from minray.api.method_types import AnyRef, MakesRemoteOfAny, NotKnown, RemoteOfAny
from minray.api.option_types import OptionsOfRemote, OptionsOfTask
from minray.api.signature import Signature, completes, parameters_of
from minray.api.task_options import CHECKS, STREAMING, check_one_placement, check_options, make_template
from minray.api.unserializable import PICKLING_ERRORS, explain_arguments
from minray.common.shown import shown
from minray.common.task_spec import SchedulingStrategy
from minray.core_worker.records.pending_task import PreparedTemplate
from minray.errors.tracebacks import hides_from_pytest
from minray.values.object_ref import ObjectRef
from minray.values.object_ref_generator import ObjectRefGenerator

if TYPE_CHECKING:
    from minray.core_worker.user_threads.user_api import UserApi

__all__ = ["RemoteFunction", "remote"]
__tracebackhide__ = hides_from_pytest

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class RemoteFunction(Generic[P, R_co]):
    """A function whose calls are tasks: ``f.remote(x)`` returns an ``ObjectRef``."""

    def __init__(self, definition: Definition, options: dict[str, Any]) -> None:
        self._definition = definition
        self._options = options
        self._prepared: PreparedTemplate | None = None
        self._prepared_by: object = None
        self._captured: SchedulingStrategy | None = None
        """Placement group of the running task when ``_prepared`` was made; None if its child tasks do not run in it."""
        functools.update_wrapper(self, definition.function, updated=())  # attributes of its own would hide ours

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        raise TypeError(
            f"remote function {self._name()} cannot be called directly: use {self._name()}.remote(...) to run it as a task"
        )

    # Any argument may be a reference to what the function takes. The overloads tell type checkers so for the first four.
    @overload
    def remote(self: RemoteFunction[P, NotKnown], /, *args: Any, **kwargs: Any) -> ObjectRef[Any]: ...
    @overload
    def remote(  # type: ignore[overload-overlap]
        self: RemoteFunction[P, Iterator[T]], /, *args: Any, **kwargs: Any
    ) -> ObjectRefGenerator[T]: ...
    @overload
    def remote(self, /, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R_co]: ...
    @overload
    def remote(self, a: AnyRef, /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...
    @overload
    def remote(self, a: Any, b: AnyRef, /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...
    @overload
    def remote(self, a: Any, b: Any, c: AnyRef, /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...
    @overload
    def remote(self, a: Any, b: Any, c: Any, d: AnyRef, /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...
    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a task; return an ObjectRef, a list of ``num_returns`` of them, or None for ``num_returns=0``.

        A generator function returns an ObjectRefGenerator, unless its option ``num_returns`` is a number.
        Raises TypeError for arguments that the function does not take.
        """
        if not self._signature.takes(args, kwargs):
            raise self._signature.refusal(self._name(), args, kwargs)
        api = worker.current_api()
        prepared = self._prepared
        if prepared is None or self._prepared_by is not api.mark or self._captured != api.captured():
            prepared = self._prepare(api)
        try:
            return api.submit(prepared, args, kwargs)
        except PICKLING_ERRORS:
            explain_arguments(self._signature, args, kwargs, self._name())

    def _remote(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Submit a task with these arguments and options; Ray's name of ``options(...).remote(...)`` in one call."""
        return (self.options(**options) if options else self).remote(*(args or ()), **(kwargs or {}))

    _function = property(lambda self: self._definition.function)
    """The user's function, under Ray's name for it."""

    @functools.cached_property
    def _signature(self) -> Signature:
        return Signature(parameters_of(self._definition.function))

    @overload
    def options(self, *, num_returns: int | str | None, **options: Unpack[OptionsOfTask]) -> RemoteOfAny: ...
    @overload
    def options(self, **options: Unpack[OptionsOfTask]) -> RemoteFunction[P, R_co]: ...
    @completes(CHECKS, but=("max_calls",))
    def options(self, **options: Any) -> Any:
        """Return a remote function with these options changed; this object stays as it is."""
        check_options(options, at_call=True)
        merged = {**self._options, **options}
        check_one_placement(merged)
        return RemoteFunction(self._definition, merged)

    def _prepare(self, api: UserApi) -> PreparedTemplate:
        export = self._definition.export_through(api)
        captured, options = api.captured(), self._options
        if options.get("num_returns") is None and inspect.isgeneratorfunction(self._definition.function):
            options = {**options, "num_returns": STREAMING}
        template = make_template(
            export.function_id, self._name(), options, api.job_id, api.base_environment(), captured
        )
        self._prepared, self._prepared_by, self._captured = api.prepare(template, export), api.mark, captured
        return self._prepared

    def _name(self) -> str:
        return self._definition.name

    def __getstate__(self) -> dict[str, Any]:
        return {"definition": self._definition, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._definition, self._options = state["definition"], state["options"]
        self._prepared = self._prepared_by = self._captured = None

    def __repr__(self) -> str:
        return f"<remote function {self._name()}>"


class _Remote(Protocol):
    """Type of the decorator that ``remote(**options)`` returns."""

    @overload
    def __call__(self, definition: type[T], /) -> ActorClass[T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, definition: Callable[P, T], /) -> RemoteFunction[P, T]: ...


@overload
def remote(definition: type[T], /) -> ActorClass[T]: ...  # type: ignore[overload-overlap]
@overload
def remote(definition: Callable[P, T], /) -> RemoteFunction[P, T]: ...
@overload
def remote(*, num_returns: int | str | None, **options: Unpack[OptionsOfRemote]) -> MakesRemoteOfAny: ...
@overload
def remote(**options: Unpack[OptionsOfRemote]) -> _Remote: ...
@completes(CHECKS, ACTOR_CHECKS)
def remote(*args: Any, **options: Any) -> Any:
    """Make a function or a class remote: ``@remote``, ``@remote(num_cpus=2)``, or ``remote(f)``.

    Options of functions and their defaults: ``num_cpus`` 1, ``num_gpus`` 0, ``memory`` (bytes), ``resources`` {},
    ``num_returns`` 1 ("streaming" for a generator function), ``max_retries`` 3, ``retry_exceptions`` False, ``max_calls`` 0
    (no limit; 1 with GPUs), ``name``, ``scheduling_strategy`` "DEFAULT" (or the running task's placement group, if it
    captures child tasks), ``label_selector`` {}, ``runtime_env``, ``_generator_backpressure_num_objects`` -1 (most unread
    items of a generator; -1: no limit).

    Options of classes: ``num_cpus`` (1 to be placed, 0 while it lives) and the other resources, ``max_restarts`` 0,
    ``max_task_retries`` 0, ``max_concurrency`` 1 (1000 with coroutine methods), ``concurrency_groups``,
    ``max_pending_calls`` -1 (no limit), ``allow_out_of_order_execution``, ``name``, ``namespace``, ``lifetime``,
    ``get_if_exists``, ``scheduling_strategy``, ``label_selector``, ``runtime_env``. Raises ValueError for an unknown option,
    TypeError for a wrong type.
    """
    if args:
        if len(args) != 1 or options or not callable(args[0]):
            raise TypeError("remote takes a function or class, or keyword options only: @remote or @remote(num_cpus=2, ...)")
        return _make_remote(args[0], {})
    if not options:
        raise TypeError("@remote() without options is written @remote")
    for name, value in options.items():
        if name in CHECKS and value is not None:
            CHECKS[name](name, value)
        elif name not in CHECKS and name not in ACTOR_CHECKS:
            raise ValueError(f"{shown(name)} is not an option of a remote function or class")
    return lambda definition: _make_remote(definition, options)


def _make_remote(function: Any, options: dict[str, Any]) -> RemoteFunction[Any, Any] | ActorClass[Any]:
    if inspect.isclass(function):
        return make_actor_class(function, options)
    check_options(options, at_call=False)
    if isinstance(function, RemoteFunction | ActorClass):
        raise TypeError(f"{shown(function)} is remote already; use .options(...) to change its options")
    if not callable(function) or isinstance(get_origin(function), type):
        raise TypeError(f"remote takes a function or a class, not {shown(function)}")
    definition = Definition(function)
    called = function if inspect.isroutine(function) or isinstance(function, functools.partial) else type(function).__call__
    if inspect.iscoroutinefunction(called):
        raise ValueError(f"{definition.name} is an async function; make it a plain one and use asyncio.run inside")
    if inspect.isasyncgenfunction(called):
        raise ValueError(f"{definition.name} is an async generator; make it a plain one, or a method of an actor")
    return RemoteFunction(definition, options)
