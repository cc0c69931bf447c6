"""Actors: ``@minray.remote`` on a class, handles, methods.

Ray: python/ray/actor.py

Handles and their methods are in ``minray/api/actor_handle.py``.

``Counter.remote(1)`` makes an actor: a process of its own that holds an instance of the class. It returns an ``ActorHandle``
at once. ``handle.increment.remote()`` calls a method in that process and returns a reference to its result. Handles are
passed to tasks and other actors like any value. An actor ends when its last handle is gone and the calls made before have
finished, unless the actor is detached.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import cached_property
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    Never,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from minray.api import calls as worker
from minray.api.actor_handle import ActorHandle as ActorHandle
from minray.api.actor_handle import ActorMethod as ActorMethod
from minray.api.actor_handle import handle_of
from minray.api.actor_options import (
    ACTOR_CHECKS,
    METHOD_CHECKS,
    METHOD_OPTIONS,
    check_actor_options,
    check_method_options,
    make_constructor_template,
    make_handle_spec,
)
from minray.api.definition import Definition
from minray.api.method_types import DeclaredMethod, DeclaredOfAny
from minray.api.option_types import OptionsOfActorClass, OptionsOfMethod
from minray.api.signature import Signature, completes, parameters_of
from minray.api.task_options import check_bool, check_one_placement, given_options
from minray.api.unserializable import PICKLING_ERRORS, explain_arguments
from minray.common.shown import check_encodable, shown
from minray.common.task_spec import SchedulingStrategy
from minray.core_worker.records.pending_task import PreparedTemplate
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.errors.tracebacks import hides_from_pytest
from minray.exceptions import ActorAlreadyExistsError, AsyncioActorExit
from minray.protocol.actor import HandleSpec

__all__ = [
    "ActorClass",
    "ActorClassInheritanceException",
    "ActorHandle",
    "ActorMethod",
    "ActorProxy",
    "exit_actor",
    "get_actor",
    "kill",
    "method",
]
__tracebackhide__ = hides_from_pytest

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    from minray.core_worker.user_threads.user_api import UserApi

    class TypedHandle(ActorHandle[T]):
        """A handle whose methods the other half of ``ActorProxy`` names."""

        def __getattr__(self, name: str) -> Never: ...

    ActorProxy: TypeAlias = TypedHandle[T] | type[T]
else:
    ActorProxy = ActorHandle
"""Type of a handle for type checkers, which find in it the methods that ``@method`` declares, and no others, as in Ray."""


class ActorClassMetadata(NamedTuple):
    """The facts about an actor class that programs read: ``A.__ray_metadata__.modified_class``."""

    modified_class: Any
    """The user's class. Ray's is a class derived from it."""
    class_name: str


class ActorClassInheritanceException(TypeError):
    """Raised when a program derives a class from an actor class."""


class ActorClass(Generic[T]):
    """A class whose instances are actors."""

    def __init__(self, definition: Definition, options: dict[str, Any], *derived: Any) -> None:
        if derived or isinstance(definition, str):
            raise ActorClassInheritanceException(
                "a class cannot be derived from an actor class; derive plain classes, and make the last one remote"
            )
        self._definition = definition
        self._class: Any = definition.function
        self._options = options
        self._spec: HandleSpec | None = None
        self._prepared: tuple[PreparedTemplate, list[tuple[str, int]]] | None = None
        self._prepared_by: object = None
        self._captured: SchedulingStrategy | None = None
        """Placement group of the running task when ``_prepared`` was made; None if its child tasks do not run in it."""
        self.__name__ = definition.name
        self.__doc__ = definition.function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self._definition.name
        raise TypeError(f"actor class {name} cannot be instantiated directly: use {name}.remote(...) to make an actor")

    @property
    def __ray_actor_class__(self) -> Any:
        """The user's class, under Ray's name for it."""
        return self._class

    @property
    def __ray_metadata__(self) -> ActorClassMetadata:
        """The class and its name, where programs for Ray look for them."""
        return ActorClassMetadata(self._class, self._definition.name)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the class. A method can be looked at, but not called: it needs an actor.

        A method is never the function itself. Otherwise cloudpickle would find that here, and send the name of its module
        instead of its code. In a worker it would then belong to that module's class, not to the class that was sent.
        """
        if name.startswith("__") or "_class" not in vars(self):
            raise AttributeError(f"actor class has no attribute {shown(name)}")
        found = getattr(self._class, name)
        if inspect.isfunction(found) and not isinstance(inspect.getattr_static(self._class, name), staticmethod):
            return MethodType(_method_to_look_at(found, self._definition.name), self)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._class)})

    def remote(self, /, *args: Any, **kwargs: Any) -> ActorProxy[T]:
        """Make an actor. Raises ActorAlreadyExistsError if its name is taken (and not ``get_if_exists``).

        Raises TypeError for arguments that the constructor does not take, and if the class is abstract.
        """
        handle = self._make(args, kwargs)
        handle._minray_class = self._class
        return cast(Any, handle)  # type: ignore[no-any-return]

    def _make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ActorHandle[Any]:
        if not self._signature.takes(args, kwargs):
            raise self._signature.refusal(self._definition.name, args, kwargs)
        if inspect.isabstract(self._class):
            missing = ", ".join(sorted(self._class.__abstractmethods__))
            raise TypeError(f"actor class {self._definition.name} is abstract: it does not define {missing}")
        api = worker.current_api()
        spec = self._spec or make_handle_spec(self._class, self._options)
        self._spec = spec
        given = given_options(self._options)
        actors = ActorApi(api)
        namespace, name = given.get("namespace") or actors.namespace(), given.get("name", "")
        if given.get("get_if_exists"):
            existing = actors.named(name, namespace)
            if existing is not None:
                return handle_of(existing.info, existing.ref)
        prepared, placement = self._prepare(api)
        try:
            info, ref, is_new = actors.create_actor(
                prepared,
                args,
                kwargs,
                placement,
                spec,
                name=name,
                namespace=namespace,
                detached=given.get("lifetime") == "detached",
                max_restarts=given.get("max_restarts", 0),
            )
        except PICKLING_ERRORS:
            explain_arguments(self._signature, args, kwargs, self._definition.name)
        if is_new:
            return ActorHandle(info.actor_id, spec, info.owner, None if info.detached else ref)
        if not given.get("get_if_exists"):
            raise ActorAlreadyExistsError(f"an actor with name {shown(name)} exists in namespace {shown(namespace)}")
        return handle_of(info, ref)

    def _remote(self, args: Any = None, kwargs: Any = None, **options: Any) -> ActorProxy[T]:
        """Make an actor with these arguments and options; Ray's name of ``options(...).remote(...)`` in one call."""
        return (self.options(**options) if options else self).remote(*(args or ()), **(kwargs or {}))

    @cached_property
    def _signature(self) -> Signature:
        """The parameters of the constructor. Read at first use: a class that is being unpickled has no constructor yet."""
        return Signature(parameters_of(self._class))

    @completes(ACTOR_CHECKS, but=("concurrency_groups",))
    def options(self, **options: Unpack[OptionsOfActorClass]) -> ActorClass[T]:
        """Return an actor class with these options changed; this object stays as it is."""
        merged = {**self._options, **options}
        check_actor_options({**options, "name": options.get("name", merged.get("name"))}, at_call=True)
        check_one_placement(merged)
        return ActorClass(self._definition, merged)

    def _prepare(self, api: UserApi) -> tuple[PreparedTemplate, list[tuple[str, int]]]:
        captured = api.captured()
        if self._prepared is None or self._prepared_by is not api.mark or self._captured != captured:
            export = self._definition.export_through(api)
            template, placement = make_constructor_template(
                export.function_id, self._class, self._options, api.job_id, api.base_environment(), captured
            )
            self._prepared, self._prepared_by = (api.prepare(template, export), placement), api.mark
            self._captured = captured
        return self._prepared

    def __getstate__(self) -> dict[str, Any]:
        return {"definition": self._definition, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["definition"], state["options"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"ActorClass({self._definition.name})"


def _method_to_look_at(function: Callable[..., Any], class_name: str) -> Callable[..., NoReturn]:
    """Return a function with the attributes and the signature of a method, which says how that is called."""

    @functools.wraps(function)
    def method(*_args: Any, **_kwargs: Any) -> NoReturn:
        name = function.__name__
        raise TypeError(f"{name!r} is a method of actor class {class_name}; call it on a handle: handle.{name}.remote(...)")

    return method


def make_actor_class(actor_class: type, options: dict[str, Any]) -> ActorClass[Any]:
    """Make the actor class that ``@remote`` returns for a class. Raises ValueError for contradictory options."""
    check_actor_options(options, at_call=False)
    make_handle_spec(actor_class, options)
    return ActorClass(Definition(actor_class), options)


@overload
def method(function: Callable[Concatenate[Any, P], R], /) -> DeclaredMethod[P, R]: ...
@overload
def method(
    *, num_returns: int | str | None, **options: Unpack[OptionsOfMethod]
) -> Callable[[Callable[..., Any]], DeclaredOfAny]: ...
@overload
def method(
    **options: Unpack[OptionsOfMethod],
) -> Callable[[Callable[Concatenate[Any, P], R]], DeclaredMethod[P, R]]: ...
@completes(METHOD_CHECKS, but=("name",))
def method(*args: Any, **options: Any) -> Any:
    """Set options of an actor's method: ``num_returns``, ``max_task_retries``, ``retry_exceptions``, ``concurrency_group``.

    ``@minray.method`` without options changes nothing. Raises ValueError for an unknown option, TypeError for a wrong type.
    """
    if len(args) == 1 and callable(args[0]) and not options:
        return args[0]
    if args:
        raise ValueError("method takes options only: @minray.method(num_returns=2)")
    check_method_options(options, at_call=False)

    def annotate(function: Any) -> Any:
        setattr(function, METHOD_OPTIONS, options)
        return function

    return annotate


def get_actor(name: str, namespace: str | None = None) -> ActorHandle[Any]:
    """Return a handle of the living actor with this name. Raises ValueError if there is none.

    ``namespace``: None means this job's namespace. The handle keeps the actor alive, like any other. An actor loses its
    name when its last handle is gone.
    """
    if not name:
        raise ValueError("get_actor takes the name that the actor was given, which is neither empty nor None")
    if not isinstance(name, str):
        raise TypeError(f"get_actor takes the name that the actor was given, not {type(name).__name__}")
    check_encodable("name", name)
    if not isinstance(namespace, str | None):
        raise TypeError(f"namespace must be a str, not {type(namespace).__name__}")
    check_encodable("namespace", namespace or "")
    actors = ActorApi(worker.current_api())
    where = namespace or actors.namespace()
    held = actors.named(name, where)
    if held is None:
        raise ValueError(f"there is no actor named {shown(name)} in namespace {shown(where)}")
    return handle_of(held.info, held.ref)


def own_handle() -> ActorHandle[Any]:
    """Return a handle of this process's actor that does not keep it alive. Raises RuntimeError in other processes."""
    api = worker.current_api()
    actor = api.actor
    info = None if actor is None else ActorApi(api).get_info(actor.actor_id, actor.constructor.header.owner)
    if info is None:
        raise RuntimeError("current_actor exists only in an actor's process; this process is a driver or runs tasks")
    return handle_of(info, None)


def kill(actor: ActorHandle[Any] | type[Any], *, no_restart: bool = True) -> None:
    """Kill an actor's process at once, even while a call runs.

    With ``no_restart=False`` the actor is restarted if its ``max_restarts`` allows it. Raises ActorHandleNotFoundError for
    a handle of a cluster that this process has left, ValueError for anything but an actor handle.
    """
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"kill takes an actor handle, not {type(actor).__name__}; use cancel for tasks")
    check_bool("no_restart", no_restart)
    ActorApi(actor._minray_checked_api()).kill(actor._actor_id, no_restart)


def exit_actor() -> NoReturn:
    """End this process's actor for good: calls that run finish, calls that wait fail.

    Running calls have ``actor_graceful_shutdown_timeout_ms`` (30 s). Coroutines are cancelled then, and threads end with the
    process.

    Raises AsyncioActorExit in an async actor, and SystemExit in any other. The actor ends even if that exception is
    swallowed, or ends only a thread or an asyncio task. Raises TypeError outside of actors.
    """
    api = worker.current_api()
    actor = api.actor
    if actor is None:
        raise TypeError("exit_actor can be called in an actor's method only")
    reason = "exit_actor was called"
    ActorApi(api).end_own(reason)
    if actor.options.is_async:
        raise AsyncioActorExit(reason)
    raise SystemExit(0)


def named_actors(all_namespaces: bool) -> list[tuple[str, str]]:
    """Return sorted pairs (namespace, name) of the living actors that have names, of this namespace or of all."""
    actors = ActorApi(worker.current_api())
    own = actors.namespace()
    living = [info for info in actors.all() if info.state != "DEAD" and not info.is_ending]
    named = [(info.namespace, info.name) for info in living if info.name]
    return sorted(pair for pair in named if all_namespaces or pair[0] == own)
