"""Environment variables of a runtime environment, which may refer to existing ones: ``{"PATH": "${PATH}:/opt/bin"}``.

Ray: update_envs in python/ray/_private/utils.py

A reference is looked up in the environment of the worker's process, which includes the variables set before it. A missing
``${NAME}`` becomes empty, as in a shell. A missing ``$NAME`` stays as it is, because it may be part of a password or the
like.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

_REFERENCE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<braced>\w+)\})")


def is_environment(value: Any) -> bool:
    """Tell whether a value is a mapping from names to values, all of them text."""
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)


def update_environment(environ: MutableMapping[str, str], env_vars: Mapping[str, str]) -> None:
    """Set the variables in order, and replace the references in their values."""

    def value_of(reference: re.Match[str]) -> str:
        if reference["braced"]:
            return environ.get(reference["braced"], "")
        return environ.get(reference["plain"], reference[0])

    for name, value in env_vars.items():
        environ[name] = _REFERENCE.sub(value_of, value)
