"""Pickling of functions and classes by value: the package ``cloudpickle``, except that functions keep their file's name.

Ray: python/ray/cloudpickle, a copy of that package

Programs say ``import ray.cloudpickle as pickle``. minray itself also uses this module wherever it pickles by value.

Since 3.1.3 the package replaces a function's file name by ``<dynamic-code>``, so that a function gives equal bytes wherever
its source is. A remote traceback needs the file name to find the lines of source.
"""

from __future__ import annotations

import io
import os
import pickle
import reprlib
import types
from collections.abc import Callable
from typing import IO, Any, ClassVar

import cloudpickle
from cloudpickle import list_registry_pickle_by_value, load, loads, register_pickle_by_value, unregister_pickle_by_value

__all__ = [
    "CloudPickler",
    "Pickler",
    "dump",
    "dump_debug",
    "dumps",
    "dumps_debug",
    "list_registry_pickle_by_value",
    "load",
    "loads",
    "register_pickle_by_value",
    "unregister_pickle_by_value",
]

PACKAGE = os.path.dirname(cloudpickle.__file__)
"""Directory of the package ``cloudpickle``."""


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Reduce a code object as the package does, but keep its file name.

    In every version of Python the file name is the first string among the arguments of a code object.
    """
    make, arguments = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    file = next(index for index, argument in enumerate(arguments) if isinstance(argument, str))
    return make, (*arguments[:file], code.co_filename, *arguments[file + 1 :])


class CloudPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """``CloudPickler(file, protocol=None, buffer_callback=None)``, as in the package."""

    dispatch_table = cloudpickle.CloudPickler.dispatch_table.new_child({types.CodeType: _reduce_code})
    in_one_process: ClassVar[Callable[[Any, Any], Any] | None] = None
    """Reduces functions and classes while the cluster is inside this process, or returns NotImplemented; None otherwise."""

    def reducer_override(self, obj: Any) -> Any:
        reduce = CloudPickler.in_one_process
        reduced = NotImplemented if reduce is None else reduce(self, obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


Pickler = CloudPickler


def dump(
    obj: Any,
    file: IO[bytes],
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> None:
    """Pickle ``obj`` into an open file, by default with the newest protocol. Raises PicklingError."""
    CloudPickler(file, protocol=protocol, buffer_callback=buffer_callback).dump(obj)


def dumps(
    obj: Any, protocol: int | None = None, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    """Return ``obj`` pickled, by default with the newest protocol. Raises PicklingError."""
    with io.BytesIO() as file:
        dump(obj, file, protocol, buffer_callback)
        return file.getvalue()


def dump_debug(
    obj: Any,
    file: IO[bytes],
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> None:
    """Pickle ``obj`` into a file. The error names the object, and the function that finds the part that is in the way."""
    try:
        dump(obj, file, protocol, buffer_callback)
    except (TypeError, pickle.PicklingError) as error:
        raise type(error)(_explanation("dump", obj)) from error


def dumps_debug(
    obj: Any, protocol: int | None = None, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    """Return ``obj`` pickled. The error names the object, and the function that finds the part that is in the way."""
    try:
        return dumps(obj, protocol, buffer_callback)
    except (TypeError, pickle.PicklingError) as error:
        raise type(error)(_explanation("dumps", obj)) from error


def _explanation(function: str, obj: Any) -> str:
    return f"cloudpickle.{function} of {reprlib.repr(obj)} failed; minray.util.inspect_serializability finds the part"
