"""Sends a Dask task as a call of one remote function, and packs functions and arrays that many tasks share only once.

Ray: python/ray/util/dask/scheduler.py (``dask_task_wrapper``)

The arguments of the Dask task are the arguments of the call, with references in place of dependencies. So the cluster waits
for the dependencies, moves them and keeps them as for any task. Only a Dask task with nested nodes is sent as it is, with
the names of its dependencies.

A function of ``__main__`` or a lambda must be pickled by value, which costs more than the rest of the call. It is pickled
once for each graph. A call carries the bytes, and a worker unpickles the same bytes once.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from dask.task_spec import GraphNode, Task

import minray as ray

from .graph import is_large_array, referred

NAME_BYTES = 128
"""Size in bytes up to which a pickled function is little more than its name, and is sent without packing."""
SHORT_BYTES = 32 * 1024
"""Size in bytes above which a pickled function travels as an object of its own."""
READ_ONLY = re.compile(
    r"(array|destination|byte-swapped|flag set|base) is read-only$|set WRITEABLE flag|resize this array: it does not own"
    r"|output array (is not acceptable|must be contiguous, writable)"  # numpy
    r"|(source array|buffer) is (read-only|not writable)$|modify read-only memory|read-write bytes-like"  # Cython, Python
)
"""Matches the errors by which numpy, Cython and Python refuse to write into a read-only array."""
IN_BAND = 4
"""The last pickle protocol without read-only buffers: it copies arrays, so that copies are writable."""
FUNCTIONS_KEPT = 256
"""Number of unpickled functions that a worker keeps."""


class TaskHooks(NamedTuple):
    """The callbacks' hooks that run in the worker, before and after a task."""

    key: Any
    dependencies: list[int | str]
    """The arguments that are dependencies of the task, by position or name."""
    before: list[Any]
    after: list[Any]
    """The hooks after the task, as many as ``before``; None where a callback has none."""


@ray.remote
def dask_task(
    hooks: TaskHooks | None, items: Sequence[tuple[Any, Any]] | None, function: Any, /, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """Run a Dask task. Return its result, or the items that other nodes take from it; and last the worker's pid, which is
    the report: a value that costs nothing to fetch."""
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
    """Call the function. If it tries to write into a read-only array, call it again with copies of its arguments.

    Arrays in shared memory are read-only, and some functions write into their arguments. The copies are made after the first
    call has failed, from the arguments as they are then.
    """
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
    """Stands for a packed function in a call; a worker unpickles it as the function itself."""

    def __init__(self, data: bytes) -> None:
        # Compressed for size, and to hide the name of the driver's module. A pickle that contains this name would be
        # taken for one that must be pickled by value, as a whole and with every call.
        self._data = zlib.compress(data)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        return _function, (self._data,)


@functools.lru_cache(FUNCTIONS_KEPT)
def _function(data: bytes) -> Any:
    return pickle.loads(zlib.decompress(data))


class Luggage:
    """Functions and large arguments that the tasks of one graph share, packed once."""

    def __init__(self) -> None:
        self._functions: dict[int, Any] = {}
        """Function id -> the function itself, or what is sent in its place. The graph keeps the functions alive."""
        self._put: dict[int, Any] = {}
        """Id of a large argument -> its reference."""

    def call(self, node: Task, results: dict[Any, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return the function and arguments that compute this node's result from the results of its dependencies."""
        if _is_evaluated(node):
            names = list(node.dependencies)
            return evaluate, (node, names, *(results[name] for name in names)), {}
        args = [self._argument(argument, results) for argument in self._packed_within(node)]
        kwargs = {name: self._argument(argument, results) for name, argument in node.kwargs.items()}
        return self.function(node.func), tuple(args), kwargs

    def function(self, function: Any) -> Any:
        """Return what is sent in place of a function: itself, a reference, or its packed form."""
        packed = self._functions.get(id(function))
        if packed is None:
            packed = self._functions[id(function)] = _packed(function)
        return packed

    def _packed_within(self, node: Task) -> tuple[Any, ...]:
        """Return a task's arguments, those of a fused one with the functions of its inner tasks packed."""
        given: tuple[Any, ...] = node.args
        if not node.has_subgraph():
            return given
        inner, *others = given
        return ({key: self._in_short(task) for key, task in inner.items()}, *others)

    def _in_short(self, inner: Any) -> Any:
        """Return a task within a fused one with its functions packed."""
        if type(inner) is not Task:
            return inner
        packed, args = self.function(inner.func), self._packed_within(inner)
        if type(packed) is not _InShort and args is inner.args:
            return inner
        return Task(inner.key, packed if type(packed) is _InShort else inner.func, *args, **inner.kwargs)

    def _argument(self, argument: Any, results: dict[Any, Any]) -> Any:
        key = referred(argument)
        if key is not None:
            return results[key]
        if is_large_array(argument):
            if id(argument) not in self._put:
                self._put[id(argument)] = ray.put(argument)
            return self._put[id(argument)]
        return argument


def places_of_dependencies(node: Any) -> list[int | str]:
    """Return the places of a node's dependencies among the arguments that ``Luggage.call`` makes."""
    if _is_evaluated(node):
        return list(range(2, 2 + len(node.dependencies)))
    places: list[int | str] = [place for place, argument in enumerate(node.args) if referred(argument) is not None]
    return places + [name for name, argument in node.kwargs.items() if referred(argument) is not None]


def _is_evaluated(node: Any) -> bool:
    """Whether a node is sent and evaluated as it is, because it is more than a function with plain arguments."""
    return type(node) is not Task or any(map(_is_nested, (*node.args, *node.kwargs.values())))


def _is_nested(argument: Any) -> bool:
    return isinstance(argument, GraphNode) and referred(argument) is None


class _HoldsReference(Exception):
    """A function contains a reference, so it cannot be pickled separately from its call."""


class _Pickler(ray.cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ray.ObjectRef):
            raise _HoldsReference
        return super().reducer_override(value)


def _packed(function: Any) -> Any:
    """Return a function's packed form, a reference to it, or the function itself if it is short.

    A function that cannot be pickled here is returned as it is: sending it succeeds, or raises the right error.
    """
    stream = io.BytesIO()
    try:
        _Pickler(stream, 5).dump(function)
    except Exception:
        return function
    data = stream.getvalue()
    if len(data) > SHORT_BYTES:
        return ray.put(function)
    return function if len(data) <= NAME_BYTES else _InShort(data)
