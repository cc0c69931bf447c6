"""The parts of a value that keep it from being serialized, and the errors that name them.

Ray: python/ray/util/check_serialize.py, and its callers in python/ray/_private/worker.py and _raylet.pyx (prepare_args)

In a function the search looks at what that captures (variables of enclosing functions and globals that it names), in any
other value at its attributes or items, down to a depth. It finds each value that cannot be serialized although everything
inside it can. It serializes many parts one by one, so an error's search ends after a while.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from minray.api.signature import Signature
from minray.common.clock import Clock
from minray.common.shown import shown
from minray.values import serialization

PICKLING_ERRORS = (TypeError, AttributeError, pickle.PicklingError)
"""Errors that pickling raises for values that it does not know. Others come from the code of the value's class."""
INDENT = "    "
ERROR_DEPTH = 3
"""Depth of the search for an error's message, as that of ``inspect_serializability`` by default."""
ERROR_SEARCH_S = 1.0
"""Seconds after which the search for an error's message looks no deeper: a call that fails should fail soon."""
ADVICE = "Make it where it is needed (inside the task or the actor's constructor), or leave it out with __getstate__."
MOST_NAMED = 5
"""Most parts that an error names."""


class FailureTuple(NamedTuple):
    """A value that cannot be serialized although all examined values inside it can."""

    obj: Any
    name: str
    """The name of the variable, attribute or item that has the value."""
    parent: Any
    """The value that contains it; for the outermost value that value itself."""


class Search:
    """One search for the parts that keep a value from being serialized."""

    def __init__(self, say: Callable[[str], None], until: float | None = None) -> None:
        """Tell each step to ``say``; look no deeper after the time ``until`` of the monotonic clock."""
        self.say = say
        self._until = until
        self.found: list[FailureTuple] = []
        self._seen: dict[int, Any] = {}
        """Values examined so far, by id; kept so that the ids stay theirs."""

    def look_at(self, obj: Any, name: str, parent: Any, depth: int, level: int) -> bool:
        """Return whether a value can be serialized; if not, add the culprits inside it, or itself, to ``found``."""
        error = _error_of(obj)
        if error is None:
            return True
        if id(obj) in self._seen:
            return False
        self._seen[id(obj)] = obj
        self.say(f"{INDENT * level}{name!r} ({type(obj).__name__}) cannot be serialized: {error}")
        is_late = self._until is not None and Clock.monotonic() > self._until
        inside = _inside(obj) if depth > 0 and not is_late else ()
        answers = [self.look_at(inner, inner_name, obj, depth - 1, level + 1) for inner_name, inner in inside]
        if all(answers):
            self.found.append(FailureTuple(obj, name, parent))
        return False


def _error_of(obj: Any) -> Exception | None:
    try:
        serialization.serialize(obj)
    except Exception as error:  # Any exception of the value's own code means that it cannot be serialized.
        return error
    return None


def _inside(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the values that are serialized together with this one."""
    if inspect.isfunction(obj):
        closure = inspect.getclosurevars(obj)
        yield from closure.nonlocals.items()
        yield from closure.globals.items()
    elif isinstance(obj, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"[{index}]", item) for index, item in enumerate(obj))
    elif inspect.isclass(obj):
        yield from ((key, value) for key, value in vars(obj).items() if not key.startswith("__"))
    else:
        yield from getattr(obj, "__dict__", {}).items()
        if inspect.ismethod(obj):
            yield "__self__", obj.__self__


def explain_arguments(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], callee: str) -> NoReturn:
    """Raise the error that says which argument of a call cannot be serialized, in place of the one that is being handled.

    If all arguments can be serialized, raise that one again.
    """
    for name, value in signature.named(args, kwargs):
        if _error_of(value) is not None:
            what = f"the argument {shown(value)} for a task or actor ({callee}.remote, parameter {name})"
            explain_value(what, name, value)
    raise


def explain_value(what: str, name: str, value: Any) -> NoReturn:
    """Raise the error that says what cannot be serialized and why, in place of the one that is being handled."""
    error = sys.exception()
    kind = next((kind for kind in PICKLING_ERRORS if isinstance(error, kind)), TypeError)
    message = f"Could not serialize {what}: {error}\n{_because(name, value)}"
    del error  # its traceback refers to this frame
    raise kind(message) from sys.exception()


def _because(name: str, value: Any) -> str:
    """Name the parts of a value that are in the way, and say what to do."""
    search = Search(lambda _: None, Clock.monotonic() + ERROR_SEARCH_S)
    with suppress(Exception):  # code of the value's class may fail, for instance while its attributes are listed
        search.look_at(value, name, value, ERROR_DEPTH, 0)
    parts = [f"{INDENT}{one.name} = {shown(one.obj)} (in {shown(one.parent)})" for one in search.found[:MOST_NAMED]]
    return "\n".join(["The cause is:", *parts, ADVICE] if parts else [ADVICE])
