"""What pickles functions and classes of programs: the package ``cloudpickle``, and functions keep the name of their file.

Ray: python/ray/cloudpickle, a copy of that package

Programs say ``import ray.cloudpickle as pickle``; everything of minray that pickles by value comes here as well.

Since 3.1.3 the package writes ``<dynamic-code>`` in the place of a function's file, so that the same function gives the same
bytes wherever its source is. A remote traceback needs the file: without it no line of source is found.
"""

from __future__ import annotations

import io
import os
import pickle
import types
from collections.abc import Callable
from typing import IO, Any

import cloudpickle
from cloudpickle import list_registry_pickle_by_value, load, loads, register_pickle_by_value, unregister_pickle_by_value

__all__ = [
    "CloudPickler",
    "Pickler",
    "dump",
    "dumps",
    "list_registry_pickle_by_value",
    "load",
    "loads",
    "register_pickle_by_value",
    "unregister_pickle_by_value",
]

PACKAGE = os.path.dirname(cloudpickle.__file__)
"""Its directory."""


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """The file is the first of the strings that a code object is made from, in every version of Python."""
    make, arguments = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    file = next(index for index, argument in enumerate(arguments) if isinstance(argument, str))
    return make, (*arguments[:file], code.co_filename, *arguments[file + 1 :])


class CloudPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """``CloudPickler(file, protocol=None, buffer_callback=None)``, as in the package."""

    dispatch_table = cloudpickle.CloudPickler.dispatch_table.new_child({types.CodeType: _reduce_code})


Pickler = CloudPickler


def dump(
    obj: Any,
    file: IO[bytes],
    protocol: int | None = None,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
) -> None:
    """Pickle ``obj`` into an open file. The newest protocol unless another is given; raises PicklingError."""
    CloudPickler(file, protocol=protocol, buffer_callback=buffer_callback).dump(obj)


def dumps(
    obj: Any, protocol: int | None = None, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
) -> bytes:
    """``obj`` pickled. The newest protocol unless another is given; raises PicklingError."""
    with io.BytesIO() as file:
        dump(obj, file, protocol, buffer_callback)
        return file.getvalue()
