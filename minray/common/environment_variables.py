"""Variables of a runtime environment, which may refer to those that are there: ``{"PATH": "${PATH}:/opt/bin"}``.

Ray: update_envs in python/ray/_private/utils.py

What a variable refers to is what its worker's process has, and what was said of others before it. ``${NAME}`` of one that is
not there is empty, as in a shell; ``$NAME`` stays as it is then, for it may be a part of something else, like a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

_REFERENCE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<braced>\w+)\})")


def is_environment(value: Any) -> bool:
    """Whether it is a mapping from names to values, all of them text."""
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)


def update_environment(environ: MutableMapping[str, str], env_vars: Mapping[str, str]) -> None:
    """Set the variables, one after the other."""

    def value_of(reference: re.Match[str]) -> str:
        if reference["braced"]:
            return environ.get(reference["braced"], "")
        return environ.get(reference["plain"], reference[0])

    for name, value in env_vars.items():
        environ[name] = _REFERENCE.sub(value_of, value)
