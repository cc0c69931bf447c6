"""Values of users in messages: short, printable, and never the cause of another error.

Ray: none; its messages repeat what they are given

A message repeats a name, number or option that the user has chosen, so that it can be found in the program. It may be of any
size, contain what cannot be encoded, or have a ``__repr__`` that raises.
"""

from __future__ import annotations

MOST_SHOWN = 120
"""Most characters of a value in a message: more than any sensible name has, and still one line."""


def shown(value: object) -> str:
    """Return the ``repr`` of a value, cut if it is long; the type's name if it has none."""
    try:
        text = repr(value[: MOST_SHOWN + 1] if isinstance(value, str | bytes) else value)
    except Exception:
        return f"a {type(value).__name__}"
    if len(text) <= MOST_SHOWN:
        return text
    size = f" ({len(value)} in all)" if isinstance(value, str | bytes) else ""
    return f"{text[:MOST_SHOWN]}...{size}"


def a(value: object) -> str:
    """Return the name of a value's type with its article: ``an int``."""
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def is_encodable(text: str) -> bool:
    """Return whether a text can be sent: it contains no surrogates, which stand for bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
