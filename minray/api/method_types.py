"""Methods of actors and remote functions as type checkers and editors know them; nothing here is used at run time.

Ray: _RemoteMethod0 and its neighbours, _MethodDecorator and ActorProxy in python/ray/actor.py

``@minray.method`` gives a method two faces: on an instance it is the method itself, and on the class, which ``ActorProxy``
names as the type of a handle, it has ``remote`` and ``options``. So a checker knows the calls of a handle whose class has
such methods, and finds those that are not there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, overload

from minray.api.option_types import OptionsOfMethod, OptionsOfTask
from minray.values.object_ref import ObjectRef
from minray.values.object_ref_generator import ObjectRefGenerator

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
AnyRef: TypeAlias = "ObjectRef[Any]"


class NotKnown:
    """A type that no value has, so that it matches only a function whose type is unknown."""


class RemoteMethod(Generic[P, R_co]):
    """Type of ``handle.method``. Any argument may be a reference to what the method takes; see ``RemoteFunction``."""

    if TYPE_CHECKING:

        @overload
        def remote(self: RemoteMethod[P, NotKnown], /, *args: Any, **kwargs: Any) -> Any: ...
        @overload
        def remote(
            self: RemoteMethod[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
        ) -> ObjectRef[T]: ...
        @overload
        def remote(  # type: ignore[overload-overlap]
            self: RemoteMethod[P, Iterator[T]], /, *args: Any, **kwargs: Any
        ) -> ObjectRefGenerator[T]: ...
        @overload
        def remote(  # type: ignore[overload-overlap]
            self: RemoteMethod[P, AsyncIterator[T]], /, *args: Any, **kwargs: Any
        ) -> ObjectRefGenerator[T]: ...
        @overload
        def remote(self, /, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R_co]: ...
        @overload
        def remote(self, a: AnyRef, /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...
        @overload
        def remote(self, a: Any, b: AnyRef, /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...
        def remote(self, /, *args: Any, **kwargs: Any) -> Any: ...

        @overload
        def options(self, *, num_returns: int | str | None, **options: Unpack[OptionsOfMethod]) -> MethodOfAny: ...
        @overload
        def options(self, **options: Unpack[OptionsOfMethod]) -> RemoteMethod[P, R_co]: ...
        def options(self, **options: Any) -> Any: ...


class RemoteOfAny(Protocol):
    """Type of a remote function with the option ``num_returns``, on which the type of its results depends."""

    def remote(self, /, *args: Any, **kwargs: Any) -> Any: ...
    def options(self, *, num_returns: int | str | None = ..., **options: Unpack[OptionsOfTask]) -> RemoteOfAny: ...


MakesRemoteOfAny = Callable[[Callable[..., Any]], RemoteOfAny]
"""Type of ``@remote(num_returns=...)``."""


class MethodOfAny:
    """Type of a method with the option ``num_returns``, on which the type of its results depends."""

    if TYPE_CHECKING:

        def remote(self, /, *args: Any, **kwargs: Any) -> Any: ...
        def options(self, *, num_returns: int | str | None = ..., **options: Unpack[OptionsOfMethod]) -> MethodOfAny: ...


class DeclaredMethod(Generic[P, R_co]):
    """Type of what ``@method`` makes of a method."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> RemoteMethod[P, R_co]: ...
        @overload
        def __get__(self, instance: object, owner: type) -> Callable[P, R_co]: ...
        def __get__(self, instance: object, owner: type) -> Any: ...


class DeclaredOfAny:
    """Type of what ``@method(num_returns=...)`` makes of a method."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> MethodOfAny: ...
        @overload
        def __get__(self, instance: object, owner: type) -> Callable[..., Any]: ...
        def __get__(self, instance: object, owner: type) -> Any: ...
