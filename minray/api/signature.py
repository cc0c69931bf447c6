"""Signatures of remote functions and methods: a call with wrong arguments fails in the caller, not in a worker.

Ray: python/ray/_private/signature.py

``parameters_of`` reads the parameters of a function. An actor's handle carries those of each method. ``Signature`` checks
calls against them. A call with only positional arguments, the most frequent kind, costs two comparisons. The others are
checked by ``inspect``, whose messages Python's users know.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from minray.errors.tracebacks import hides_from_pytest
from minray.protocol.actor import ParameterSpec

__tracebackhide__ = hides_from_pytest

F = TypeVar("F", bound=Callable[..., Any])
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
ANYTHING = (
    ParameterSpec("args", int(inspect.Parameter.VAR_POSITIONAL)),
    ParameterSpec("kwargs", int(inspect.Parameter.VAR_KEYWORD)),
)
"""Parameters of a function whose signature is unknown, such as some functions written in C."""


def parameters_of(function: Callable[..., Any], is_method: bool = False) -> tuple[ParameterSpec, ...]:
    """Return the parameters of a function in their order; those of a method without ``self``."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ANYTHING
    if is_method and parameters and parameters[0].kind in POSITIONAL:
        del parameters[0]
    return tuple(ParameterSpec(one.name, int(one.kind), one.default is not one.empty) for one in parameters)


class Signature:
    """The parameters of a function or method, and the check of a call against them."""

    def __init__(self, parameters: tuple[ParameterSpec, ...]) -> None:
        self._parameters = parameters
        kinds = [one.kind for one in parameters]
        needs_keywords = any(one.kind == inspect.Parameter.KEYWORD_ONLY and not one.has_default for one in parameters)
        positional = [one for one in parameters if one.kind in POSITIONAL]
        self._least = sum(not one.has_default for one in positional)
        """Fewest arguments of a call without keyword arguments."""
        self._most = sys.maxsize if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional)
        """Most arguments of a call without keyword arguments; -1 if a keyword argument is required."""
        if needs_keywords:
            self._most = -1

    @cached_property
    def _full(self) -> inspect.Signature:
        return inspect.Signature([_parameter(one) for one in self._parameters])

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether the function can be called with these arguments."""
        if not kwargs and self._least <= len(args) <= self._most:
            return True
        return self._refused(args, kwargs) is None

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the arguments of a call that the function takes, with the names of their parameters."""
        found: list[tuple[str, Any]] = []
        for name, value in self._full.bind(*args, **kwargs).arguments.items():
            kind = self._full.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                found += [(f"{name}[{index}]", one) for index, one in enumerate(value)]
            else:
                found += value.items() if kind is inspect.Parameter.VAR_KEYWORD else [(name, value)]
        return found

    def refusal(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError:
        """Make the TypeError for a call of ``name`` with arguments that it does not take."""
        taken = str(self._full).replace("=Ellipsis", "=...")
        return TypeError(f"{name}.remote: {self._refused(args, kwargs)}; it takes {taken}")

    def _refused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError | None:
        try:
            self._full.bind(*args, **kwargs)
        except TypeError as error:
            return error
        return None


def completes(*options: Iterable[str], but: Sequence[str] = ()) -> Callable[[F], F]:
    """Make the signature of a function that takes ``**options`` name them, for ``help`` and for editors."""
    names = [name for name in dict.fromkeys(itertools.chain(*options)) if name not in but]

    def set_signature(function: F) -> F:
        own = inspect.signature(function)
        kept = [one for one in own.parameters.values() if one.kind not in (one.KEYWORD_ONLY, one.VAR_KEYWORD)]
        named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
        vars(function)["__signature__"] = own.replace(parameters=[*kept, *named])
        return function

    return set_signature


def signature_of(method: Callable[..., Any] | None, parameters: tuple[ParameterSpec, ...]) -> inspect.Signature:
    """Return the signature of a method without ``self``: of the method itself if it is here, else of its description."""
    described = Signature(parameters)._full
    try:
        full = inspect.signature(method) if method is not None else described
    except (TypeError, ValueError):
        return described
    kept = [one for one in full.parameters.values() if one.name in described.parameters]
    return full.replace(parameters=kept)


def _parameter(spec: ParameterSpec) -> inspect.Parameter:
    default = ... if spec.has_default else inspect.Parameter.empty
    return inspect.Parameter(spec.name, inspect._ParameterKind(spec.kind), default=default)
