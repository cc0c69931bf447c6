"""Finds out why a value cannot be serialized: which values inside it are to blame.

Ray: python/ray/util/check_serialize.py

The search is in ``minray/api/unserializable.py``, which also says in the errors of calls what cannot be serialized. Here it
tells each step.
"""

from __future__ import annotations

from typing import Any, TextIO

from minray.api.unserializable import ADVICE, INDENT, FailureTuple, Search

__all__ = ["FailureTuple", "inspect_serializability"]

LINE = "=" * 80


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: TextIO | None = None
) -> tuple[bool, set[FailureTuple]]:
    """Check whether a value can be serialized; return that, and the set of values inside it that cannot.

    ``name`` is the value's name in the output (default: its ``__name__`` or the beginning of its repr). ``depth`` limits how
    deep the search goes. The search is printed to ``print_file`` (default: stdout). Elements of the set compare by identity
    of ``obj`` and by name, since the values may have no hash.
    """
    search = Search(lambda text: print(text, file=print_file))
    name = name or str(getattr(base_obj, "__name__", None) or repr(base_obj)[:60])
    search.say(f"{LINE}\nChecking whether {name!r} can be serialized\n{LINE}")
    can = search.look_at(base_obj, name, base_obj, depth, 0)
    search.say(f"{LINE}\n{_verdict(name, search.found)}\n{LINE}")
    return can, {_ByIdentity(*failure) for failure in search.found}


class _ByIdentity(FailureTuple):
    """A failure that may be an element of a set."""

    def __hash__(self) -> int:
        return hash((id(self.obj), self.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FailureTuple) and self.obj is other.obj and self.name == other.name


def _verdict(name: str, found: list[FailureTuple]) -> str:
    if not found:
        return f"{name!r} can be serialized."
    culprits = "\n".join(f"{INDENT}{one.name} = {one.obj!r} (in {one.parent!r})" for one in found)
    return (
        f"{name!r} cannot be serialized because of:\n{culprits}\n"
        f"{ADVICE}"
    )
