"""Handles of actors and their methods, as programs hold them.

Ray: ActorHandle and ActorMethod in python/ray/actor.py

A handle travels to tasks and other actors like any value, and keeps its actor alive as long as it has a reference.
``minray/actor.py`` gives users these classes, and the calls that make, find, kill and end actors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar, Unpack

import msgspec

from minray.api import calls as worker
from minray.api.actor_options import METHOD_CHECKS, check_method_options, make_method_template, with_method_options
from minray.api.option_types import OptionsOfMethod
from minray.api.signature import ANYTHING, Signature, completes, signature_of
from minray.api.unserializable import PICKLING_ERRORS, explain_arguments
from minray.common.shown import ShownInNotebooks, shown
from minray.core_worker.records.pending_task import PreparedTemplate
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.errors.tracebacks import hides_from_pytest
from minray.exceptions import ActorHandleNotFoundError, PendingCallsLimitExceeded
from minray.protocol.actor import CALL_METHOD, READY_METHOD, TERMINATE_METHOD, ActorInfo, HandleSpec, MethodSpec
from minray.protocol.base import Address, decode, encode
from minray.values.object_ref import ObjectRef

if TYPE_CHECKING:
    from minray.core_worker.user_threads.user_api import UserApi

__tracebackhide__ = hides_from_pytest

T = TypeVar("T")
PUBLIC_MODULE = "minray.actor"
"""Module from which users import the classes."""
EVERY_ACTORS = (CALL_METHOD, READY_METHOD, TERMINATE_METHOD)
"""Methods that every actor has, whatever its class."""


class _Prepared(NamedTuple):
    """A method of an actor, prepared once for many calls."""

    template: PreparedTemplate
    signature: Signature


class ActorHandle(ShownInNotebooks, Generic[T]):
    """A handle of an actor in another process. The actor's methods are attributes: ``handle.method.remote(...)``."""

    __module__ = PUBLIC_MODULE

    __slots__ = (
        "_actor_id",
        "_minray_spec",
        "_minray_owner",
        "_minray_ref",
        "_minray_client",
        "_minray_api",
        "_minray_methods",
        "_minray_prepared",
        "_minray_class",
        "__dict__",
        "__weakref__",
    )
    """Names that no method may have. ``__dict__`` holds attributes that a user sets on a handle; they are never sent."""

    def __init__(self, actor_id: bytes, spec: HandleSpec, owner: Address, ref: ObjectRef[Any] | None) -> None:
        self._actor_id = actor_id
        self._minray_spec = spec
        self._minray_owner = owner
        self._minray_ref = ref
        """Reference that keeps the actor alive; None for a handle that does not."""
        self._minray_api = api = worker.current_api()
        self._minray_client = ActorApi(api).client(actor_id, owner, spec.in_order)
        self._minray_methods = {method.name: method for method in spec.methods}
        self._minray_prepared: dict[str, _Prepared] = {}
        self._minray_class: Any = None
        """The user's class, for documentation and signatures; None if the handle was not made here. It is never sent."""

    def __getattr__(self, name: str) -> Any:
        method = self._minray_methods.get(name)
        if method is not None:
            return ActorMethod(self, method, "")
        if name in EVERY_ACTORS:
            return ActorMethod(self, MethodSpec(name, parameters=ANYTHING), "")
        raise AttributeError(f"actor class {self._minray_spec.class_name} has no method {shown(name)}")

    def __dir__(self) -> list[str]:
        return list(self._minray_methods)

    def _minray_call(self, method: _Prepared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        template, signature = method
        if not signature.takes(args, kwargs):
            raise signature.refusal(template.template.name, args, kwargs)
        client, most = self._minray_client, self._minray_spec.max_pending_calls
        if 0 < most <= client.submitted - client.ended:
            raise PendingCallsLimitExceeded(reason=f"{most} calls of actor {self._actor_id.hex()} are pending")
        handle_id = b"" if self._minray_ref is None else self._minray_ref._id
        try:
            refs = self._minray_api.submit(template, args, kwargs, handle_id)
        except PICKLING_ERRORS:
            explain_arguments(signature, args, kwargs, template.template.name)
        client.submitted += 1
        return refs

    def _minray_checked_api(self) -> UserApi:
        if worker.current_api() is not self._minray_api:
            raise ActorHandleNotFoundError("this handle belongs to a cluster that this process has left")
        return self._minray_api

    def _minray_prepare(self, method: MethodSpec, name: str) -> _Prepared:
        self._minray_checked_api()
        template = make_method_template(self._minray_spec, method, name, self._minray_api.job_id)
        return _Prepared(self._minray_api.prepare_call(template, self._minray_client), Signature(method.parameters))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return rebuild_handle, (self._actor_id, encode(self._minray_spec), encode(self._minray_owner), self._minray_ref)

    def __eq__(self, other: object) -> bool:
        return type(other) is ActorHandle and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"Actor({self._minray_spec.class_name}, {self._actor_id.hex()})"


class _Documentation:
    """The ``__doc__`` of ``ActorMethod``: of a method of a handle that was made here, that of the user's method."""

    def __get__(self, method: ActorMethod | None, owner: type) -> str | None:
        own = "One method of one actor: ``handle.method.remote(...)`` calls it."
        return own if method is None else getattr(method._users, "__doc__", None) or own


class ActorMethod(msgspec.Struct, eq=False):
    # It is a Struct because one is made for every call, and a Struct is made fast.
    __doc__ = _Documentation()

    _handle: ActorHandle[Any]
    _method: MethodSpec
    _name: str
    """Name shown to people; empty means the class's and the method's name."""

    @property
    def _users(self) -> Any:
        """The user's method; None if only its description has come here."""
        return getattr(self._handle._minray_class, self._method.name, None)

    @property
    def __name__(self) -> str:
        return self._method.name

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters of the method, for ``inspect`` and for editors."""
        return signature_of(self._users, self._method.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        name = self._method.name
        raise TypeError(f"actor method {name} cannot be called directly: use handle.{name}.remote(...)")

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method; return an ObjectRef, a list of ``num_returns`` of them, or None for ``num_returns=0``.

        A generator method returns an ObjectRefGenerator. Raises TypeError for arguments that the method does not take,
        PendingCallsLimitExceeded if the handle has ``max_pending_calls`` unfinished calls.
        """
        handle, method = self._handle, self._method
        if self._name:
            return handle._minray_call(handle._minray_prepare(method, self._name), args, kwargs)
        prepared = handle._minray_prepared.get(method.name)
        if prepared is None:
            prepared = handle._minray_prepared[method.name] = handle._minray_prepare(method, "")
        return handle._minray_call(prepared, args, kwargs)

    def _remote(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Call the method with these arguments and options; Ray's name of ``options(...).remote(...)`` in one call."""
        return (self.options(**options) if options else self).remote(*(args or ()), **(kwargs or {}))

    @completes(METHOD_CHECKS)
    def options(self, *, num_returns: int | str | None = None, **options: Unpack[OptionsOfMethod]) -> ActorMethod:
        """Return this method with these options changed. Raises ValueError for a concurrency group that the class lacks."""
        given = {"num_returns": num_returns, **options}
        check_method_options(given, at_call=True)
        group, groups = options.get("concurrency_group"), self._handle._minray_spec.groups
        if group and group not in groups:
            name, there = self._handle._minray_spec.class_name, ", ".join(groups) or "none"
            raise ValueError(f"actor class {name} has no concurrency group {shown(group)}; it has {there}")
        name = options.get("name") or f"{self._handle._minray_spec.class_name}.{self._method.name}"
        return ActorMethod(self._handle, with_method_options(self._method, given), name)

    def __repr__(self) -> str:
        return f"ActorMethod({self._handle._minray_spec.class_name}.{self._method.name})"


def rebuild_handle(actor_id: bytes, spec: bytes, owner: bytes, ref: ObjectRef[Any] | None) -> ActorHandle[Any]:
    return ActorHandle(actor_id, decode(HandleSpec, spec), decode(Address, owner), ref)


def handle_of(info: ActorInfo, ref: ObjectRef[Any] | None) -> ActorHandle[Any]:
    """Make a handle from the gcs's record of an actor. Without a reference the handle does not keep the actor alive."""
    return ActorHandle(info.actor_id, decode(HandleSpec, info.handle), info.owner, ref)
