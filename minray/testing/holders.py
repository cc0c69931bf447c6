"""Finds the variable, attribute or container that keeps an object alive, as one line for people.

Ray: ``ray memory`` shows the line that made a reference; it does not say what keeps it.

``holder_of`` asks the garbage collector for the objects that refer to an object, and goes from one to the next until it
finds a place that has a name. It sees the frames of all threads, though the collector does not see frames that run.

What is left out: objects that only compiled code refers to.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import CellType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from minray.common.thread_frames import frames_of_other_threads

MOST_STEPS = 6
"""Containers on the way to a name: a longer way tells a reader nothing."""
MOST_OBJECTS = 2000
"""Objects that are looked at for one line; each costs a pass over the heap."""
_CONTAINERS = (list, tuple, set, frozenset, deque)


def holder_of(thing: object) -> str:
    """Return what keeps ``thing`` alive, such as ``the global RESULTS of module test_jobs (a list)``; empty if not found."""
    frame = _in_running_frame(thing)
    if frame:
        return frame
    own = sys._getframe()
    seen = {id(thing), id(own)}
    queue: deque[tuple[object, tuple[str, ...]]] = deque([(thing, ())])
    fallback = ""
    while queue and len(seen) < MOST_OBJECTS:
        held, way = queue.popleft()
        referrers = gc.get_referrers(held)
        seen |= {id(referrers), id(queue)}
        for referrer in referrers:
            if id(referrer) in seen or _is_of_this_file(referrer):
                continue
            seen.add(id(referrer))
            name = _named(referrer, held)
            if name:
                return _shown(name, way)
            step = _step(referrer, held)
            fallback = fallback or _shown(step, way)
            if len(way) < MOST_STEPS:
                queue.append((referrer, (*way, step) if step else way))
    return fallback


def _in_running_frame(thing: object) -> str:
    """Return the variable of a running function that is this object, or a container with it; empty if there is none."""
    for frame in _running_frames():
        if frame.f_code.co_filename == __file__:
            continue
        for name, value in _variables(frame):
            if value is thing:
                return _variable(frame, name)
            if isinstance(value, _CONTAINERS) and any(item is thing for item in value):
                return f"{_variable(frame, name)} ({_a(value)})"
            if isinstance(value, dict) and frame.f_globals is not value and any(item is thing for item in value.values()):
                return f"{_variable(frame, name)} ({_a(value)})"
    return ""


def _running_frames() -> Iterator[FrameType]:
    """Return the frames of all threads that belong to the program, and not to pytest or to minray."""
    for innermost in (*frames_of_other_threads().values(), sys._getframe()):
        frame: FrameType | None = innermost
        while frame is not None:
            if _is_of_program(frame):
                yield frame
            frame = frame.f_back


def _is_of_program(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return not module.startswith(("_pytest.", "pluggy.", "minray.", "threading"))


def _variables(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the local variables of a function; a module's are its globals, which the collector sees."""
    return [] if frame.f_code.co_name == "<module>" else list(frame.f_locals.items())


def _variable(frame: FrameType, name: str) -> str:
    code = frame.f_code
    return f"the variable {name} of {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"


def _is_of_this_file(referrer: object) -> bool:
    return isinstance(referrer, FrameType) and referrer.f_code.co_filename == __file__


def _named(referrer: object, held: object) -> str:
    """Return the name under which a referrer holds an object; empty if the referrer is only a container on the way."""
    if isinstance(referrer, dict):
        return _in_dict(referrer, held)
    if isinstance(referrer, FrameType):
        if not _is_of_program(referrer):
            return ""
        name = next((name for name, value in _variables(referrer) if value is held), "")
        return _variable(referrer, name) if name else ""
    if isinstance(referrer, GeneratorType):
        return f"the suspended generator {referrer.__qualname__}"
    if isinstance(referrer, FunctionType):
        return _in_function(referrer, held)
    if isinstance(referrer, type):
        name = next((name for name, value in vars(referrer).items() if value is held), "")
        return f"the attribute {name} of class {referrer.__qualname__}" if name else ""
    if hasattr(referrer, "cache_clear") and hasattr(referrer, "__qualname__"):
        return f"the cache of {referrer.__qualname__}; its cache_clear() empties it"
    return ""


def _in_dict(referrer: dict[Any, Any], held: object) -> str:
    key = next((key for key, value in referrer.items() if value is held), None)
    module = sys.modules.get(str(referrer.get("__name__", "")))
    if isinstance(module, ModuleType) and vars(module) is referrer:
        return f"the global {key} of module {module.__name__}"
    for owner in gc.get_referrers(referrer):
        if isinstance(owner, type) and isinstance(key, str) and vars(owner).get(key) is held:
            return f"the attribute {key} of class {owner.__qualname__}"
    return ""


def _in_function(function: FunctionType, held: object) -> str:
    if isinstance(held, CellType):
        names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        name = next((name for name, cell in names if cell is held), "")
        return f"the variable {name} in the closure of {function.__qualname__}"
    if held is function.__defaults__ or held is function.__kwdefaults__:
        return f"a default argument of {function.__qualname__}"
    return ""


def _step(referrer: object, held: object) -> str:
    """Return what a container on the way is, in words; empty for one that says nothing."""
    if isinstance(referrer, CellType | FrameType):
        return ""
    if isinstance(referrer, dict):
        owner = next((one for one in gc.get_referrers(referrer) if getattr(one, "__dict__", None) is referrer), None)
        key = next((key for key, value in referrer.items() if value is held), None)
        return _a(referrer) if owner is None else f"the attribute {key} of {_a(owner)}"
    attributes: Mapping[str, Any] = getattr(referrer, "__dict__", {})
    key = next((key for key, value in attributes.items() if value is held), None)
    return _a(referrer) if key is None else f"the attribute {key} of {_a(referrer)}"


def _shown(name: str, way: tuple[str, ...]) -> str:
    steps = [step for step in (*way, name) if step]
    return " in ".join(steps)


def _a(thing: object) -> str:
    name = type(thing).__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
