"""How values of a class travel whose instances cannot be pickled, or should not be as they are.

Ray: ``register_serializer`` in python/ray/util/serialization.py, docs "Serialization"

The process that sends a value must know; what arrives tells how it is read. A worker learns it from a task that registers,
or from a class that registers when its module is imported.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
State = TypeVar("State")


def register_serializer(cls: type[T], *, serializer: Callable[[T], State], deserializer: Callable[[State], T]) -> None:
    """From now on this process sends an instance of ``cls`` as ``serializer(instance)``, which can be pickled.

    ``deserializer`` makes an instance of that where it arrives. Both hold for ``cls`` itself and not for classes derived
    from it, and for everything in this process that pickles. Raises TypeError for what is no class or cannot be called.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_serializer takes a class, not {cls!r}")
    for name, function in (("serializer", serializer), ("deserializer", deserializer)):
        if not callable(function):
            raise TypeError(f"{name} must be a function of one argument, not {function!r}")

    def reduce(value: T) -> tuple[Callable[[State], T], tuple[State]]:
        return deserializer, (serializer(value),)

    copyreg.pickle(cls, reduce)


def deregister_serializer(cls: type[Any]) -> None:
    """Take ``register_serializer`` back in this process; harmless if there is nothing to take back."""
    copyreg.dispatch_table.pop(cls, None)
