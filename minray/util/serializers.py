"""Custom serializers for classes whose instances cannot be pickled, or should not be pickled as they are.

Ray: ``register_serializer`` in python/ray/util/serialization.py, docs "Serialization"

Only the process that sends a value must have registered a serializer; the sent data names the deserializer. In a worker, a
task can register one, or a class can do so when its module is imported.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any, TypeVar

from minray.common.shown import shown

__all__ = ["deregister_serializer", "register_serializer"]

T = TypeVar("T")
State = TypeVar("State")


def register_serializer(cls: type[T], *, serializer: Callable[[T], State], deserializer: Callable[[State], T]) -> None:
    """Have this process serialize instances of ``cls`` as ``serializer(instance)``, which must be picklable.

    The receiving process makes the instance with ``deserializer``. Both apply to ``cls`` itself, not to derived classes, and
    to everything in this process that pickles. Raises TypeError if ``cls`` is no class or a function cannot be called.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_serializer takes a class, not {shown(cls)}")
    for name, function in (("serializer", serializer), ("deserializer", deserializer)):
        if not callable(function):
            raise TypeError(f"{name} must be a function of one argument, not {shown(function)}")

    def reduce(value: T) -> tuple[Callable[[State], T], tuple[State]]:
        return deserializer, (serializer(value),)

    copyreg.pickle(cls, reduce)


def deregister_serializer(cls: type[Any]) -> None:
    """Undo ``register_serializer`` in this process; do nothing if no serializer is registered."""
    copyreg.dispatch_table.pop(cls, None)
