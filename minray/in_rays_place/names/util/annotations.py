"""Decorators with which libraries say how stable their functions and classes are.

Ray: python/ray/util/annotations.py

They add a sentence to the docstring and a mark for tools. ``Deprecated(warning=True)`` also warns at each call.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Any

STABILITIES = ("stable", "beta", "alpha")


class AnnotationType(Enum):
    """Kinds of marks."""

    PUBLIC_API = "PublicAPI"
    DEVELOPER_API = "DeveloperAPI"
    DEPRECATED = "Deprecated"
    UNKNOWN = "Unknown"


class RayDeprecationWarning(DeprecationWarning):
    """Warning of a call of something that its library has deprecated."""


def PublicAPI(*args: Any, stability: str = "stable", api_group: str = "Others") -> Any:
    """Mark a function or class as public. Raises ValueError for an unknown ``stability``."""
    if stability not in STABILITIES:
        raise ValueError(f"stability must be one of {', '.join(STABILITIES)}, not {stability!r}")
    sentence = "" if stability == "stable" else f"**PublicAPI ({stability}):** This may change before it becomes stable."
    return _decorate(args, lambda target: _mark(target, AnnotationType.PUBLIC_API, sentence, api_group))


def DeveloperAPI(*args: Any) -> Any:
    """Mark a function or class as made for authors of libraries."""
    sentence = "**DeveloperAPI:** This may change between minor releases."
    return _decorate(args, lambda target: _mark(target, AnnotationType.DEVELOPER_API, sentence))


def Deprecated(*args: Any, message: str = "", warning: bool = False) -> Any:
    """Mark a function or class as deprecated; ``message`` says what to use instead."""
    sentence = f"This is deprecated and may be removed in a future release. {message}".strip()

    def decorate(target: Any) -> Any:
        marked = _mark(target, AnnotationType.DEPRECATED, f"**DEPRECATED:** {sentence}")
        return _warn_at_calls(marked, sentence) if warning else marked

    return _decorate(args, decorate)


def _decorate(args: tuple[Any, ...], decorate: Callable[[Any], Any]) -> Any:
    """Decorate the target of a decorator without arguments; otherwise return the decorator."""
    return decorate(args[0]) if args else decorate


def _mark(target: Any, kind: AnnotationType, sentence: str, api_group: str = "Others") -> Any:
    if sentence:
        target.__doc__ = f"{inspect.cleandoc(target.__doc__ or '')}\n\n{sentence}".strip()
    if hasattr(target, "__name__"):
        target._annotated = target.__name__
        target._annotated_type = kind
        target._annotated_api_group = api_group
    return target


def _warn_at_calls(target: Any, sentence: str) -> Any:
    is_class = isinstance(target, type)
    function = target.__init__ if is_class else target

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(sentence, RayDeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    if is_class:
        target.__init__ = call
        return target
    return call


def _is_annotated(target: Any) -> bool:
    """Tell whether a function or class itself is marked, not only its base class."""
    return bool(getattr(target, "_annotated", None) == target.__name__)


def _get_annotation_type(target: Any) -> str | None:
    return target._annotated_type.value if _is_annotated(target) else None
