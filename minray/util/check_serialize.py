"""Finds out why a value cannot be serialized: which values inside it are to blame.

Ray: python/ray/util/check_serialize.py

This file uses the public API and cloudpickle alone. In a function it searches what that captures (variables of enclosing
functions and globals that it names), in any other value its attributes or items, down to a depth. It reports each value that
cannot be serialized although everything inside it can.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TextIO

from minray import cloudpickle

LINE = "=" * 80
INDENT = "    "


class FailureTuple(NamedTuple):
    """A value that cannot be serialized although all examined values inside it can."""

    obj: Any
    name: str
    """The name of the variable, attribute or item that has the value."""
    parent: Any
    """The value that contains it; for the outermost value that value itself."""


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: TextIO | None = None
) -> tuple[bool, set[FailureTuple]]:
    """Check whether a value can be serialized; return that, and the set of values inside it that cannot.

    ``name`` is the value's name in the output (default: its ``__name__`` or the beginning of its repr). ``depth`` limits how
    deep the search goes. The search is printed to ``print_file`` (default: stdout). Elements of the set compare by identity
    of ``obj`` and by name, since the values may have no hash.
    """
    search = _Search(lambda text: print(text, file=print_file))
    name = name or str(getattr(base_obj, "__name__", None) or repr(base_obj)[:60])
    search.say(f"{LINE}\nChecking whether {name!r} can be serialized\n{LINE}")
    can = search.look_at(base_obj, name, base_obj, depth, 0)
    search.say(f"{LINE}\n{_verdict(name, search.found)}\n{LINE}")
    return can, {_ByIdentity(*failure) for failure in search.found}


class _ByIdentity(FailureTuple):
    """A failure that may be an element of a set."""

    def __hash__(self) -> int:
        return hash((id(self.obj), self.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FailureTuple) and self.obj is other.obj and self.name == other.name


class _Search:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
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
        inside = _inside(obj) if depth > 0 else ()
        answers = [self.look_at(inner, inner_name, obj, depth - 1, level + 1) for inner_name, inner in inside]
        if all(answers):
            self.found.append(FailureTuple(obj, name, parent))
        return False


def _error_of(obj: Any) -> Exception | None:
    try:
        cloudpickle.dumps(obj)
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


def _verdict(name: str, found: list[FailureTuple]) -> str:
    if not found:
        return f"{name!r} can be serialized."
    culprits = "\n".join(f"{INDENT}{one.name} = {one.obj!r} (in {one.parent!r})" for one in found)
    return (
        f"{name!r} cannot be serialized because of:\n{culprits}\n"
        "Make it where it is needed (inside the task or the actor's constructor), or leave it out with __getstate__."
    )
