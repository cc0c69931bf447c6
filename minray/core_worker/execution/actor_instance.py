"""Makes the instance of the user's class that an actor is, and finds its methods.

Ray: execute_task in python/ray/_raylet.pyx, _make_actor_method_executor in python/ray/_private/function_manager.py

Rules
  * A class whose ``__init__`` is a coroutine function is an async actor, whatever its other methods are. The instance exists
    when that coroutine has ended.
  * Methods are looked up in the class. An instance attribute does not hide the method of the same name:
    ``self.done = False`` leaves ``done()``. A ``__getattr__`` of the user's is not asked for methods of minray's own.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

MOST_WORDS = 100
"""Characters at which the ``repr`` of an actor is cut: it is shown before the actor's output."""


def construct(actor_class: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Callable[[Any], None]) -> Any:
    """Make the instance and hand it to ``then``; return a coroutine that does so if ``__init__`` is a coroutine function."""
    if not inspect.iscoroutinefunction(actor_class.__init__):
        return then(actor_class(*args, **kwargs))

    async def construct_slowly() -> None:
        actor = actor_class.__new__(actor_class, *args, **kwargs)
        await actor.__init__(*args, **kwargs)
        then(actor)

    return construct_slowly()


def method_of(actor: Any, name: str) -> Callable[..., Any]:
    """Return the method of that name of the actor's class, bound to the actor."""
    if name in getattr(actor, "__dict__", ()):
        for each in type(actor).__mro__:
            if name in vars(each):
                found = vars(each)[name]
                bind = getattr(type(found), "__get__", None)
                method: Callable[..., Any] = found if bind is None else bind(found, actor, type(actor))
                return method
    method = getattr(actor, name)
    return method


def words_of(actor: Any) -> str:
    """Return the ``repr`` of an actor in one line; empty if its class does not define one."""
    kind: Any = type(actor)
    if kind.__repr__ is object.__repr__:
        return ""
    try:
        return " ".join(repr(actor).split())[:MOST_WORDS]
    except Exception:
        logger.exception("the actor's __repr__ raised an exception")
        return ""
