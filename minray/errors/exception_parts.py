"""Take exceptions apart and rebuild them without running their authors' code.

Ray: pickles exceptions as they are, and gives up on those that cannot be pickled

An exception consists of its class, its ``args``, its attributes, and values in neither: slots, and the fields of built-in
exceptions. A class that defines its own pickling is pickled by it (``reduces_itself``).
"""

from __future__ import annotations

import types
from contextlib import suppress
from typing import Any


def reduces_itself(error_class: type[BaseException]) -> bool:
    """Return whether the class's author has defined ``__reduce__`` or ``__reduce_ex__``."""
    definers = [next(base for base in error_class.__mro__ if name in vars(base)) for name in ("__reduce_ex__", "__reduce__")]
    return any(definer.__module__ != "builtins" for definer in definers)


def group_of(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments that only the constructor of an exception group can set; () for other exceptions."""
    return (error.message, error.exceptions) if isinstance(error, BaseExceptionGroup) else ()


def new_exception(error_class: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """Make an instance with the nearest built-in `__new__`, so that no code of the class's author runs."""
    for base in error_class.__mro__:
        if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
            try:
                return base.__new__(error_class, *arguments)
            except TypeError:  # "is not safe": another base has the larger layout
                continue
    raise TypeError(f"no built-in __new__ can make an instance of {error_class.__qualname__}")


ARGS: Any = vars(BaseException)["args"]
"""Descriptor of `args` in BaseException; a subclass may define an `args` of its own, which hides it."""
_NOT_MEMBERS = (ARGS, vars(AttributeError)["obj"])
"""Descriptors that are not members. `obj` is the object that lacked an attribute, perhaps a module or a socket; pickle
leaves it out too."""


def _member_descriptors(error_class: type[BaseException]) -> dict[str, Any]:
    """Return the descriptors of values outside `__dict__`: slots, and fields of built-in exceptions such as `errno`."""
    kinds = types.MemberDescriptorType | types.GetSetDescriptorType
    everything = {name: value for base in reversed(error_class.__mro__) for name, value in vars(base).items()}
    public = {name: value for name, value in everything.items() if isinstance(value, kinds) and not name.startswith("__")}
    return {name: value for name, value in public.items() if value not in _NOT_MEMBERS}


def members_of(error: BaseException) -> dict[str, Any]:
    values = {}
    for name, descriptor in _member_descriptors(type(error)).items():
        with suppress(AttributeError):  # an empty slot
            values[name] = descriptor.__get__(error)
    return values


def set_members(error: BaseException, values: dict[str, Any]) -> None:
    present = members_of(error)
    for name, descriptor in _member_descriptors(type(error)).items():
        # An equal value is not set again: an OSError whose errno was set to None is printed differently from one without.
        if name in values and not (name in present and present[name] is values[name]):
            with suppress(AttributeError, TypeError):  # read-only
                descriptor.__set__(error, values[name])
