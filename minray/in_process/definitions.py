"""Functions and classes on their way between processes of the in-process world, where all share the modules.

Ray: python/ray/_private/function_manager.py

A function or class that a module has under its name travels as that name, also when the module has a remote function or an
actor class made of it, and also from ``__main__``. A function made inside another one is copied with what it has captured,
but its globals are those of its module. So a task sees what a test has put into a module, such as a mock.

A class made inside a function is copied, and each process has one copy of its own, as in a cluster of processes.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from cloudpickle import cloudpickle as package

from minray import cloudpickle
from minray.in_process.process import LocalProcess


def share() -> None:
    """From now on let cloudpickle reduce functions and classes of this process by the rules above."""
    cloudpickle.CloudPickler.in_one_process = _reduce


def unshare() -> None:
    """Let cloudpickle reduce functions and classes as it does in other programs."""
    cloudpickle.CloudPickler.in_one_process = None


def _reduce(pickler: Any, value: Any) -> Any:
    """Reduce a function or a class. Return NotImplemented where cloudpickle's own rules apply."""
    is_function = type(value) is types.FunctionType
    if not is_function and not isinstance(value, type):
        return NotImplemented
    module, name = value.__module__, value.__qualname__
    if _definition(module, name) is value:
        return (_definition, (module, name)) if module == "__main__" or _is_wrapped(module, name) else NotImplemented
    if is_function and _globals_of(value.__globals__.get("__name__")) is value.__globals__:
        return _reduce_function(pickler, value)
    return NotImplemented


def _lookup(module: Any, name: str) -> Any:
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_wrapped(module: Any, name: str) -> bool:
    return _lookup(module, name) is not _definition(module, name)


def _definition(module: Any, name: str) -> Any:
    """Return the function or class that a module has under a name.

    If the module has a remote function or an actor class there, return what that was made from.
    """
    found = _lookup(module, name)
    definition = vars(found).get("_definition") if hasattr(found, "__dict__") else None
    return found if definition is None else definition.function


class _Globals:
    """Stands for the globals of a module in a pickle."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return _globals_of, (self.module,)


def _globals_of(module: Any) -> dict[str, Any] | None:
    found = sys.modules.get(module)
    return None if found is None else vars(found)


def _reduce_function(pickler: Any, function: types.FunctionType) -> Any:
    """Reduce a function as the package does, but with its module's own globals."""
    code, _, *others = pickler._function_getnewargs(function)
    state, slots = package._function_getstate(function)
    slots["__globals__"] = {}
    arguments = (code, _Globals(function.__globals__["__name__"]), *others)
    return package._make_function, arguments, (state, slots), None, None, package._function_setstate


def class_of(real: Callable[..., Any], process: LocalProcess, tracker_id: str | None, made: Any) -> Any:
    """Replaces cloudpickle's search for a class that was unpickled before: each process has copies of its own."""
    if tracker_id is None:
        return made
    known = process.classes.setdefault(tracker_id, made)
    with package._DYNAMIC_CLASS_TRACKER_LOCK:
        package._DYNAMIC_CLASS_TRACKER_BY_CLASS[known] = tracker_id
    return known
