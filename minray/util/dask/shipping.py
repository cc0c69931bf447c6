"""What a Dask task becomes: a call of one remote function, and a function that many calls share sent in short.

Ray: python/ray/util/dask/scheduler.py (``dask_task_wrapper``)

The arguments of the task are the arguments of the call, with references in the place of dependencies, so that the cluster
waits for them, brings them along and holds them as for any task of its own. Only a task with nested nodes is sent as it is,
with the names of its dependencies.

A function of ``__main__`` or a lambda has to be pickled by value, which costs more than the rest of the call. It is
pickled once for each graph; a call takes the bytes along, and a worker unpickles the same bytes once.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import re
import sys
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from dask.task_spec import GraphNode, Task

import minray as ray

from .graph import referred

NAME_BYTES = 128
"""A pickled function of so few bytes is little more than its name."""
SHORT_BYTES = 32 * 1024
"""A pickled function that is longer travels as an object of its own."""
LARGE_BYTES = 64 * 1024
"""An array that is larger and stands in several tasks is put once for all of them."""
READ_ONLY = re.compile(
    r"(array|destination|byte-swapped|flag set|base) is read-only$|set WRITEABLE flag|resize this array: it does not own"
    r"|output array (is not acceptable|must be contiguous, writable)"  # numpy
    r"|(source array|buffer) is (read-only|not writable)$|modify read-only memory|read-write bytes-like"  # Cython, Python
)
"""How numpy and others say that they cannot write."""
IN_BAND = 4
"""The last protocol of pickle that knows nothing of read-only buffers."""
FUNCTIONS_KEPT = 256
"""By a worker, unpickled."""


class TaskHooks(NamedTuple):
    """What callbacks have to say in the worker, before a task and after it."""

    key: Any
    dependencies: list[int | str]
    """Which arguments, by position or by name, are what the task depends on."""
    before: list[Any]
    after: list[Any]
    """Of the same length; None where a callback has nothing to say."""


@ray.remote
def dask_task(
    hooks: TaskHooks | None, items: Sequence[tuple[Any, Any]] | None, function: Any, /, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """The result, or the items that others take from it; and last, since it costs nothing to fetch, which process it was."""
    states = []
    if hooks:
        values = [kwargs[place] if isinstance(place, str) else args[place] for place in hooks.dependencies]
        states = [before and before(hooks.key, values) for before in hooks.before]
    result = _run(function, args, kwargs)
    if hooks:
        for after, state in zip(hooks.after, states, strict=True):
            if after:
                after(hooks.key, result, state)
    if items is None:
        return result, os.getpid()
    return (*(take(result, index) for take, index in items), os.getpid())


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arrays that processes share are read-only, and some functions write into what they are given: these get a copy of
    that, as it is by then."""
    try:
        return function(*args, **kwargs)
    except (ValueError, TypeError) as error:
        if not READ_ONLY.search(str(error)):
            raise
    args, kwargs = pickle.loads(ray.cloudpickle.dumps((args, kwargs), IN_BAND))
    return function(*args, **kwargs)


def evaluate(node: GraphNode, names: Sequence[Any], *values: Any) -> Any:
    """Run a node of any kind, given the values of its dependencies."""
    return node(dict(zip(names, values, strict=True)))


class _InShort:
    """Stands for a function on its way; what arrives is the function."""

    def __init__(self, data: bytes) -> None:
        # Compressed for size, and so that the name of the driver's module is not seen in it: a stream that has it is
        # taken for one that has to be pickled by value, as a whole and with every call.
        self._data = zlib.compress(data)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return _function, (self._data,)


@functools.lru_cache(FUNCTIONS_KEPT)
def _function(data: bytes) -> Any:
    return pickle.loads(zlib.decompress(data))


class Luggage:
    """What the tasks of one graph have in common, packed once."""

    def __init__(self) -> None:
        self._functions: dict[int, Any] = {}
        """By identity, since the graph keeps them alive: the function itself, or what is sent for it."""
        self._put: dict[int, Any] = {}
        """Large arguments, by identity: references."""

    def call(self, node: Task, results: dict[Any, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The function and arguments that make this node's result, given those of its dependencies."""
        if _is_evaluated(node):
            names = list(node.dependencies)
            return evaluate, (node, names, *(results[name] for name in names)), {}
        args = [self._argument(argument, results) for argument in node.args]
        if node.has_subgraph():
            args[0] = {key: self._in_short(inner) for key, inner in args[0].items()}
        kwargs = {name: self._argument(argument, results) for name, argument in node.kwargs.items()}
        return self.function(node.func), tuple(args), kwargs

    def function(self, function: Any) -> Any:
        """What to send for it as an argument of its own."""
        packed = self._functions.get(id(function))
        if packed is None:
            packed = self._functions[id(function)] = _packed(function)
        return packed

    def _in_short(self, inner: Any) -> Any:
        """A task within a fused one, with its function in short."""
        if type(inner) is not Task:
            return inner
        packed = self.function(inner.func)
        if type(packed) is not _InShort:
            return inner
        return Task(inner.key, packed, *inner.args, **inner.kwargs)

    def _argument(self, argument: Any, results: dict[Any, Any]) -> Any:
        key = referred(argument)
        if key is not None:
            return results[key]
        if _is_array(argument) and argument.nbytes > LARGE_BYTES:
            if id(argument) not in self._put:
                self._put[id(argument)] = ray.put(argument)
            return self._put[id(argument)]
        return argument


def _is_array(value: Any) -> bool:
    """Whether numpy made this value; if nobody has imported numpy, it made none."""
    return type(value) is getattr(sys.modules.get("numpy"), "ndarray", None)


def places_of_dependencies(node: Any) -> list[int | str]:
    """Among the arguments that ``Luggage.call`` makes for it."""
    if _is_evaluated(node):
        return list(range(2, 2 + len(node.dependencies)))
    places: list[int | str] = [place for place, argument in enumerate(node.args) if referred(argument) is not None]
    return places + [name for name, argument in node.kwargs.items() if referred(argument) is not None]


def _is_evaluated(node: Any) -> bool:
    """Whether it is run as it is, because it is more than a function with arguments."""
    return type(node) is not Task or any(map(_is_nested, (*node.args, *node.kwargs.values())))


def _is_nested(argument: Any) -> bool:
    return isinstance(argument, GraphNode) and referred(argument) is None


class _HoldsReference(Exception):
    """The function cannot be pickled apart from the call that takes it along."""


class _Pickler(ray.cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ray.ObjectRef):
            raise _HoldsReference
        return super().reducer_override(value)


def _packed(function: Any) -> Any:
    """What cannot be pickled here is left as it is: sending it will succeed, or say what is wrong."""
    stream = io.BytesIO()
    try:
        _Pickler(stream, 5).dump(function)
    except Exception:
        return function
    data = stream.getvalue()
    if len(data) > SHORT_BYTES:
        return ray.put(function)
    return function if len(data) <= NAME_BYTES else _InShort(data)
