"""Actors: ``@minray.remote`` on a class, handles, methods.

Ray: python/ray/actor.py

``Counter.remote(1)`` makes an actor, a process of its own with an instance of the class in it, and returns an
``ActorHandle`` at once; ``handle.increment.remote()`` calls a method there and returns a reference to its result. Handles
are passed to tasks and other actors like any value. An actor ends when nobody has a handle of it any more and the calls
made before have finished (G24), unless it is detached.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from types import GenericAlias
from typing import Any, NamedTuple, NoReturn

import msgspec

from minray import worker
from minray.actor_options import (
    METHOD_OPTIONS,
    check_actor_options,
    check_method_options,
    make_constructor_template,
    make_handle_spec,
    make_method_template,
    with_method_options,
)
from minray.common.task_spec import SchedulingStrategy
from minray.core_worker.actor_api import ActorApi
from minray.core_worker.task_executor import CALL, READY, TERMINATE
from minray.core_worker.task_manager import PreparedTemplate
from minray.core_worker.user_api import UserApi
from minray.definition import Definition
from minray.exceptions import ActorAlreadyExistsError, ActorHandleNotFoundError, AsyncioActorExit, PendingCallsLimitExceeded
from minray.object_ref import ObjectRef
from minray.protocol.actor import ActorInfo, HandleSpec, MethodSpec
from minray.protocol.base import Address, decode, encode
from minray.signature import ANYTHING, Signature, parameters_of
from minray.task_options import check_bool, check_one_placement, given_options

EVERY_ACTORS = (CALL, READY, TERMINATE)


class ActorClassInheritanceException(TypeError):
    """A class was derived from what ``@minray.remote`` has made of a class."""


class ActorClass:
    """A class whose instances are actors."""

    __class_getitem__: Any = classmethod(GenericAlias)
    """``ActorClass[T]``, in annotations."""

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
        """The placement group of the task for which this was prepared, if what it begins runs there too."""
        self.__name__ = definition.name
        self.__doc__ = definition.function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self._definition.name
        raise TypeError(f"actor class {name} cannot be instantiated directly: use {name}.remote(...) to make an actor")

    def __getattr__(self, name: str) -> Any:
        """Constants, static and class methods of the class are there without an actor.

        Other methods are not: cloudpickle would find them here, and send the name of their module instead of them. In a
        worker they would belong to the class of that module, while the actor is of the class that was sent.
        """
        if name.startswith("__") or "_class" not in vars(self):
            raise AttributeError(f"actor class has no attribute {name!r}")
        found = getattr(self._class, name)
        if inspect.isfunction(found) and not isinstance(inspect.getattr_static(self._class, name), staticmethod):
            raise AttributeError(f"{name!r} of actor class {self._definition.name} is a method of its actors")
        return found

    def remote(self, /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Make an actor. Raises ActorAlreadyExistsError if its name is taken (and not ``get_if_exists``).

        Raises TypeError for arguments that the constructor does not take, and if the class is abstract.
        """
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
                return _handle_of(existing.info, existing.ref)
        prepared, placement = self._prepare(api)
        info, ref, is_new = actors.create(
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
        if is_new:
            return ActorHandle(info.actor_id, spec, info.owner, None if info.detached else ref)
        if not given.get("get_if_exists"):
            raise ActorAlreadyExistsError(f"an actor with name {name!r} exists in namespace {namespace!r}")
        return _handle_of(info, ref)

    @cached_property
    def _signature(self) -> Signature:
        """Not before it is needed: a class that is being unpickled has no constructor yet."""
        return Signature(parameters_of(self._class))

    def options(self, **options: Any) -> ActorClass:
        """The same class with other options; this object stays as it is."""
        merged = {**self._options, **options}
        check_actor_options({**options, "name": options.get("name", merged.get("name"))}, at_call=True)
        check_one_placement(merged)
        return ActorClass(self._definition, merged)

    def _prepare(self, api: UserApi) -> tuple[PreparedTemplate, list[tuple[str, int]]]:
        captured = api.captured()
        if self._prepared is None or self._prepared_by is not api.mark or self._captured != captured:
            export = self._definition.export_through(api)
            template, placement = make_constructor_template(
                export.function_id, self._class, self._options, api.core.job_id, api.base_environment(), captured
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


class _Prepared(NamedTuple):
    """A method of an actor, made ready to be called many times."""

    template: PreparedTemplate
    signature: Signature


class ActorHandle:
    """An actor, from afar. Its methods are attributes: ``handle.method.remote(...)``."""

    __slots__ = (
        "_actor_id",
        "_minray_spec",
        "_minray_owner",
        "_minray_ref",
        "_minray_client",
        "_minray_api",
        "_minray_methods",
        "_minray_prepared",
        "__dict__",
        "__weakref__",
    )
    """Names that no method has; and ``__dict__`` for what a user notes on his handle, which stays there."""
    __class_getitem__: Any = classmethod(GenericAlias)
    """``ActorHandle[T]`` says to people, and to Ray's type checkers, whose handle it is."""

    def __init__(self, actor_id: bytes, spec: HandleSpec, owner: Address, ref: ObjectRef[Any] | None) -> None:
        self._actor_id = actor_id
        self._minray_spec = spec
        self._minray_owner = owner
        self._minray_ref = ref
        """Keeps the actor alive; None for handles that do not."""
        self._minray_api = api = worker.current_api()
        self._minray_client = ActorApi(api).client(actor_id, owner, spec.in_order)
        self._minray_methods = {method.name: method for method in spec.methods}
        self._minray_prepared: dict[str, _Prepared] = {}

    def __getattr__(self, name: str) -> ActorMethod:
        method = self._minray_methods.get(name)
        if method is not None:
            return ActorMethod(self, method, "")
        if name in EVERY_ACTORS:
            return ActorMethod(self, MethodSpec(name, parameters=ANYTHING), "")
        raise AttributeError(f"actor class {self._minray_spec.class_name} has no method {name!r}")

    def __dir__(self) -> list[str]:
        return list(self._minray_methods)

    def _minray_call(self, method: _Prepared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        template, signature = method
        if not signature.takes(args, kwargs):
            raise signature.refusal(template.template.name, args, kwargs)
        client, most = self._minray_client, self._minray_spec.max_pending_calls
        if 0 < most <= client.submitted - client.ended:
            raise PendingCallsLimitExceeded(reason=f"{most} calls of actor {self._actor_id.hex()} are pending")
        refs = self._minray_api.submit(template, args, kwargs, b"" if self._minray_ref is None else self._minray_ref._id)
        client.submitted += 1
        return refs

    def _minray_checked_api(self) -> UserApi:
        if worker.current_api() is not self._minray_api:
            raise ActorHandleNotFoundError("this handle belongs to a cluster that this process has left")
        return self._minray_api

    def _minray_prepare(self, method: MethodSpec, name: str) -> _Prepared:
        self._minray_checked_api()
        template = make_method_template(self._minray_spec, method, name, self._minray_api.core.job_id)
        return _Prepared(self._minray_api.prepare_call(template, self._minray_client), Signature(method.parameters))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild, (self._actor_id, encode(self._minray_spec), encode(self._minray_owner), self._minray_ref)

    def __eq__(self, other: object) -> bool:
        return type(other) is ActorHandle and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"Actor({self._minray_spec.class_name}, {self._actor_id.hex()})"


ActorProxy = ActorHandle
"""What type checkers call a handle in Ray."""


class ActorMethod(msgspec.Struct, eq=False):
    """One method of one actor. A Struct because it is made for every call."""

    _handle: ActorHandle
    _method: MethodSpec
    _name: str
    """For people; empty: the class's and the method's."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self._method.name
        raise TypeError(f"actor method {name} cannot be called directly: use handle.{name}.remote(...)")

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call it; returns an ObjectRef, a list of ``num_returns`` of them, None for ``num_returns=0``, or an
        ObjectRefGenerator of what a generator yields.

        Raises TypeError for arguments that the method does not take, PendingCallsLimitExceeded (G55).
        """
        handle, method = self._handle, self._method
        if self._name:
            return handle._minray_call(handle._minray_prepare(method, self._name), args, kwargs)
        prepared = handle._minray_prepared.get(method.name)
        if prepared is None:
            prepared = handle._minray_prepared[method.name] = handle._minray_prepare(method, "")
        return handle._minray_call(prepared, args, kwargs)

    def options(self, **options: Any) -> ActorMethod:
        """The same method with other options."""
        check_method_options(options, at_call=True)
        group, groups = options.get("concurrency_group"), self._handle._minray_spec.groups
        if group and group not in groups:
            name, there = self._handle._minray_spec.class_name, ", ".join(groups) or "none"
            raise ValueError(f"actor class {name} has no concurrency group {group!r}; it has {there}")
        name = options.get("name") or f"{self._handle._minray_spec.class_name}.{self._method.name}"
        return ActorMethod(self._handle, with_method_options(self._method, options), name)

    def __repr__(self) -> str:
        return f"ActorMethod({self._handle._minray_spec.class_name}.{self._method.name})"


def _rebuild(actor_id: bytes, spec: bytes, owner: bytes, ref: ObjectRef[Any] | None) -> ActorHandle:
    return ActorHandle(actor_id, decode(HandleSpec, spec), decode(Address, owner), ref)


def _handle_of(info: ActorInfo, ref: ObjectRef[Any] | None) -> ActorHandle:
    """A handle of an actor that the gcs has told of; without a reference it does not keep the actor alive."""
    return ActorHandle(info.actor_id, decode(HandleSpec, info.handle), info.owner, ref)


def make_actor_class(actor_class: type, options: dict[str, Any]) -> ActorClass:
    """What ``@remote`` makes of a class. Raises ValueError for options that do not go together."""
    check_actor_options(options, at_call=False)
    make_handle_spec(actor_class, options)
    return ActorClass(Definition(actor_class), options)


def method(*args: Any, **options: Any) -> Any:
    """Options of an actor's method: ``num_returns``, ``max_task_retries``, ``retry_exceptions``, ``concurrency_group``.

    Without any, ``@minray.method`` changes nothing. Raises ValueError for an unknown option, TypeError for a wrong type.
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


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """A living actor by its name, in this job's namespace or another. Raises ValueError if there is none (G32).

    The handle keeps the actor alive, like any other. An actor of which no handle is left has no name any more.
    """
    if not isinstance(name, str):
        raise TypeError(f"get_actor takes the name that the actor was given, not {type(name).__name__}")
    if not name:
        raise ValueError("get_actor takes the name that the actor was given, which is never empty")
    if not isinstance(namespace, str | None):
        raise TypeError(f"namespace must be a str, not {type(namespace).__name__}")
    actors = ActorApi(worker.current_api())
    where = namespace or actors.namespace()
    held = actors.named(name, where)
    if held is None:
        raise ValueError(f"there is no actor named {name!r} in namespace {where!r}")
    return _handle_of(held.info, held.ref)


def own_handle() -> ActorHandle:
    """A handle of the actor whose process this is, which does not keep it alive. Raises RuntimeError in other processes."""
    api = worker.current_api()
    actor = api.core.actor_receiver.actor
    info = None if actor is None else ActorApi(api).get(actor.actor_id, actor.constructor.header.owner)
    if info is None:
        raise RuntimeError("current_actor is there in an actor's process only")
    return _handle_of(info, None)


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor's process at once, whatever it does (G29, G30); with ``no_restart=False`` it begins anew if it may.

    Raises ActorHandleNotFoundError for a handle of a cluster that this process has left, ValueError for what is no handle.
    """
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"kill takes an actor handle, not {type(actor).__name__}; use cancel for tasks")
    check_bool("no_restart", no_restart)
    ActorApi(actor._minray_checked_api()).kill(actor._actor_id, no_restart)


def exit_actor() -> NoReturn:
    """End the actor in whose process this is called, for good (C2): its running calls finish, its waiting ones fail.

    So it does also if what this raises is swallowed, or ends a thread or an asyncio task only: in an async actor
    AsyncioActorExit, else SystemExit. Raises TypeError outside of actors.
    """
    api = worker.current_api()
    actor = api.core.actor_receiver.actor
    if actor is None:
        raise TypeError("exit_actor can be called in an actor's method only")
    reason = "exit_actor was called"
    ActorApi(api).end_own(reason)
    if actor.options.is_async:
        raise AsyncioActorExit(reason)
    raise SystemExit(0)


def named_actors(all_namespaces: bool) -> list[tuple[str, str]]:
    """(namespace, name) of the living actors that have names."""
    actors = ActorApi(worker.current_api())
    own = actors.namespace()
    living = [info for info in actors.all() if info.state != "DEAD" and not info.is_ending]
    named = [(info.namespace, info.name) for info in living if info.name]
    return sorted(pair for pair in named if all_namespaces or pair[0] == own)
