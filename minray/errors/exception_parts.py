"""Exceptions taken apart and put together again, without running code of their authors.

Ray: pickles exceptions as they are, and gives up on those that cannot be pickled

An exception is its class, its ``args``, its attributes, and what is in neither: slots, and the fields of built-in
exceptions. What its class has decided itself about pickling is left to it (``reduces_itself``).
"""

from __future__ import annotations

import types
from contextlib import suppress
from typing import Any


def reduces_itself(error_class: type[BaseException]) -> bool:
    """Has the author of the class decided how it is pickled?"""
    definers = [next(base for base in error_class.__mro__ if name in vars(base)) for name in ("__reduce_ex__", "__reduce__")]
    return any(definer.__module__ != "builtins" for definer in definers)


def group_of(error: BaseException) -> tuple[Any, ...]:
    """What only the constructor of an exception group can set."""
    return (error.message, error.exceptions) if isinstance(error, BaseExceptionGroup) else ()


def new_exception(error_class: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """An instance, made without running code of the class's author: by the nearest `__new__` that is built in."""
    for base in error_class.__mro__:
        if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
            try:
                return base.__new__(error_class, *arguments)
            except TypeError:  # "is not safe": another base has the larger layout
                continue
    raise TypeError(f"no way to make a {error_class.__qualname__}")


ARGS: Any = vars(BaseException)["args"]
"""The descriptors: a class may have replaced `args` by something of its own."""
_NOT_MEMBERS = (ARGS, vars(AttributeError)["obj"])
"""`obj` is whatever lacked the attribute, a module or a socket maybe; pickle leaves it out too."""


def _member_descriptors(error_class: type[BaseException]) -> dict[str, Any]:
    """Where values live that are not in `__dict__`: slots, and the fields of built-in exceptions such as `errno`."""
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
        # Setting what is there already would matter: an OSError with errno None is printed differently from one without.
        if name in values and not (name in present and present[name] is values[name]):
            with suppress(AttributeError, TypeError):  # read-only
                descriptor.__set__(error, values[name])
