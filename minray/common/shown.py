"""Values of users in messages: short, printable, and never the cause of another error. Values of minray in notebooks.

Ray: none; its messages repeat what they are given

A message repeats a name, number or option that the user has chosen, so that it can be found in the program. It may be of any
size, contain what cannot be encoded, or have a ``__repr__`` that raises.

Two rooms above this one say how things are shown, and enter their functions here: ``api/html.py`` the tables of a notebook
(``html_of``), and ``common/progress_bars.py`` the printing of lines around bars (``around_lines``). So neither is loaded
before a program needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")

MOST_SHOWN = 120
"""Most characters of a value in a message: more than any sensible name has, and still one line."""


def shown(value: object) -> str:
    """Return the ``repr`` of a value, cut if it is long; the type's name if it has none."""
    try:
        text = repr(value[: MOST_SHOWN + 1] if isinstance(value, str | bytes) else value)
    except Exception:
        return a(value)
    if len(text) <= MOST_SHOWN:
        return text
    size = f" ({len(value)} in all)" if isinstance(value, str | bytes) else ""
    return f"{text[:MOST_SHOWN]}...{size}"


def cut(text: str) -> str:
    """Return a name as it is, or its beginning if it is long; what cannot be encoded is escaped."""
    shortened = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text)} characters)"
    return shortened if is_encodable(shortened) else shortened.encode(errors="backslashreplace").decode()


def a(value: object) -> str:
    """Return the name of a value's type with its article: ``an int``."""
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def check_encodable(name: str, text: str) -> None:
    """Raise ValueError for the argument ``name`` if its text cannot be sent."""
    if not is_encodable(text):
        raise ValueError(f"{name} cannot be encoded as UTF-8: {shown(text)}")


def is_encodable(text: str) -> bool:
    """Return whether a text can be sent: it contains no surrogates, which stand for bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


html_of: Callable[[Any], str] = repr
"""Function that describes a reference, an actor, a cluster or rows in HTML; ``minray/__init__.py`` sets it."""
around_lines: Callable[[], AbstractContextManager[object]] = nullcontext
"""Function that makes the context in which a driver prints lines of its workers, so that they do not break a bar."""


class ShownInNotebooks:
    """A value that notebooks show as a small table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Describe this for a notebook. Waits a second at most, asks only the own cluster, and raises nothing."""
        return html_of(self)


class RowsInNotebooks(ShownInNotebooks, list[T]):
    """A list of rows that notebooks show as one table."""

    __slots__ = ()


def running_shell() -> Any:
    """Return the IPython shell that runs this program, or None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None
