"""Modules of Ray that minray does not have, and that a program may import all the same: ``run_as_ray --pretend ray.data``.

Ray: has no counterpart

Some programs import a library of Ray at the head of a file and use it in one function, which may never be called. In such a
program every name of a pretended module is a class. The class can be imported, subclassed, subscripted, and used in
annotations and in ``isinstance``. A call of it, or of anything in it, raises a ModuleNotFoundError that says what is
missing.

Names of pretended modules are entries of ``sys.path``: so all processes of the program get them, as they get the folder
that puts minray in Ray's place. An entry names no folder that exists, so Python passes over it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

PREFIX = str(Path(__file__).parent / "pretended=")
"""Beginning of the entries of ``sys.path`` that name a pretended module."""


def path_entries(modules: Sequence[str]) -> list[str]:
    """Return the entries of ``sys.path`` that pretend these modules. Raises ValueError for a module outside of ray."""
    for name in modules:
        if not name.startswith("ray.") or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"only a module of ray can be pretended, such as ray.data, not {name!r}")
    return [PREFIX + name for name in modules]


def is_pretended(name: str) -> bool:
    """Tell whether the program pretends to have this module, or one that contains it."""
    pretended = [entry.removeprefix(PREFIX) for entry in sys.path if entry.startswith(PREFIX)]
    return any(name == module or name.startswith(f"{module}.") for module in pretended)


class PretendedModule(ModuleType):
    """A module whose names are all pretended classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = _PretendedType(name, (), {"__module__": self.__name__, "__qualname__": name})
        setattr(self, name, value)
        return value


class _PretendedType(type):
    """A class that exists in name only: calling it, or what is in it, raises ModuleNotFoundError."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"type object {cls.__qualname__!r} has no attribute {name!r}")
        return _PretendedType(name, (), {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.{name}"})

    def __getitem__(cls, item: Any) -> _PretendedType:
        """Return this class, so that a subscripted one is an annotation and a base class too."""
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        missing = next(base for base in reversed(cls.__mro__[:-1]) if isinstance(base, _PretendedType))
        raise ModuleNotFoundError(
            f"{missing.__module__}.{missing.__qualname__} was called, but {missing.__module__} is not part of minray, which "
            "stands in Ray's place; it can be imported because the program was started with --pretend",
            name=missing.__module__,
        )
