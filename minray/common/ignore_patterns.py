"""Patterns of a ``.gitignore`` file: which files of a directory are left out.

Ray: the pathspec package, as used by python/ray/_private/runtime_env/packaging.py

Rules, all of them git's
  * The last pattern that matches a path decides. One that begins with ``!`` takes the path in again.
  * A pattern with a slash at its beginning or in its middle is relative to the file's directory. Any other pattern matches
    a name at every depth.
  * A pattern with a slash at its end matches directories alone.
  * ``*``, ``?`` and ``[...]`` never match a slash. ``**/``, ``/**/`` and ``/**`` match any number of directories.
  * A pattern that cannot be read (a bracket that is never closed, a lone backslash at the end) matches nothing.

A caller does not look into a directory that is left out. So nothing below such a directory can be taken in again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_ESCAPED_END = re.compile(r"(?<!\\)((?:\\\\)*)[ \t]+$")
_BRACKET = re.compile(r"\[(?P<negated>[!^]?)(?P<members>\]?(?:\\.|\[:\w+:\]|[^\]\\])*)\]")
_CLASSES = {"alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "digit": "0-9", "lower": "a-z", "space": r"\s", "upper": "A-Z"}
"""Named classes of characters that a bracket may have, as regular expressions write them."""


class IgnorePatterns:
    """Patterns of one directory, in order."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules = [rule for line in lines if (rule := _rule(line)) is not None]
        """(expression, whether it takes in, whether it is for directories alone) of each pattern."""

    def matches(self, path: str, is_directory: bool) -> bool:
        """Tell whether a path, relative to the patterns' directory and with slashes, is left out."""
        for expression, takes_in, directories_alone in reversed(self._rules):
            if (is_directory or not directories_alone) and expression.fullmatch(path):
                return not takes_in
        return False


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool] | None:
    """Read one line; None if it has no pattern."""
    text = _ESCAPED_END.sub(r"\1", line.rstrip("\r\n"))
    if not text or text.startswith("#"):
        return None
    takes_in = text.startswith("!")
    text = text.removeprefix("!")
    directories_alone = text.endswith("/")
    text = text.removesuffix("/")
    is_anchored = "/" in text
    text = text.removeprefix("/")
    if not text:
        return None
    try:
        expression = re.compile(("" if is_anchored else "(?:.*/)?") + _translate(text), re.DOTALL)
    except re.error:
        return None
    return expression, takes_in, directories_alone


def _translate(pattern: str) -> str:
    """Write a pattern as a regular expression. Raises re.error if it cannot be read."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        rest = pattern[at:]
        is_start = at == 0 or pattern[at - 1] == "/"
        bracket = _BRACKET.match(rest)
        if is_start and rest.startswith("**/"):
            parts.append("(?:.*/)?")
            at += 3
        elif is_start and rest == "**":
            parts.append(".+" if at else ".*")
            at += 2
        elif rest[0] == "*":
            parts.append("[^/]*")
            at += len(rest) - len(rest.lstrip("*"))
        elif rest[0] == "?":
            parts.append("[^/]")
            at += 1
        elif bracket is not None:
            parts.append(_translate_bracket(bracket))
            at += bracket.end()
        elif rest[0] == "[" or rest == "\\":
            raise re.error("a bracket or a backslash without an end")
        else:
            is_escaped = rest[0] == "\\"
            parts.append(re.escape(rest[is_escaped]))
            at += 1 + is_escaped
    return "".join(parts)


def _translate_bracket(bracket: re.Match[str]) -> str:
    members = re.sub(r"\[:(\w+):\]", lambda named: _CLASSES.get(named[1], ""), bracket["members"])
    members = re.sub(r"\\(?!s)(.)", lambda escaped: re.escape(escaped[1]), members)
    members = re.sub(r"^\]|\[|&&|\|\||~~", lambda special: re.escape(special[0]), members)
    return f"(?!/)[{'^' if bracket['negated'] else ''}{members}]"
