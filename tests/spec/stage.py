"""The stage on which a process plays operations, the words for their outcomes, and the base classes of all records.

A ``Stage`` has what one process holds while it plays a body: references to objects, and handles of actors. Both have the
names of the operations that make them, and both travel inside values. So nothing here tells them apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from minray.exceptions import ActorDiedError, LocalRayletDiedError, ObjectStoreFullError, OutOfDiskError
from tests.spec.filled import filled

if TYPE_CHECKING:
    from tests.spec.programs import Body, Operation

Outcome = dict[str, Any]
"""Outcome of one operation. ``of`` has the names that were bound; the rest depends on the operation."""
History = list[Outcome]
RUN, END, BORN = "run", "end", "born"
"""First words of the lines that tasks, calls and constructors print."""
ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "KeyError": KeyError, "RuntimeError": RuntimeError}
ZONE = "zone"
"""The label that nodes have; there is no other."""
TOLD_DEAD = "its owner is dead"
"""Part of the error of a driver that names an actor before it has noticed that its node is dead."""
raised: set[tuple[str, str]] = set()
"""Process and task of each ``RaiseAtFirst`` that has raised. Simulated processes share it; ``run`` empties it."""
made: dict[str, str] = {}
"""Id of an actor -> the ``Create`` that has made it. Simulated processes share it; ``run`` empties it."""


def has_lost_its_node(error: BaseException | None) -> bool:
    """Whether a driver has ended with this error because its node is dead."""
    was_told = isinstance(error, ActorDiedError) and TOLD_DEAD in str(error)
    return was_told or isinstance(error, ConnectionError | LocalRayletDiedError)


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all records. They compare by value, leave defaults out of JSON, and refuse JSON with unknown fields."""


class Tagged(Record, frozen=True, tag_field="kind", tag=True):
    """Base of records of which one of several kinds stands in a field; JSON names the kind."""


class Stage:
    """Holds the references and handles of one process that plays a body."""

    def __init__(self, refs: Mapping[str, Any]) -> None:
        self.refs = dict(refs)
        self._arrays: tuple[tuple[Any, str, int], ...] = ()
        """The last two arrays that came in values, with their maker and size, which have come another way.

        Their memory in the object store must stay as long as they are here."""

    def bound(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name in self.refs]

    def pick(self, names: list[str]) -> dict[str, Any]:
        return {name: self.refs[name] for name in names}

    def open(self, value: tuple[Any, ...]) -> str:
        """Bind the references inside a value, and return a word for the value."""
        name, inside, *rest = value
        self.refs.update(inside)
        self._arrays = (*self._arrays, *rest)[-2:]
        is_whole = all(array.tobytes() == filling_of(maker) * size for array, maker, size in self._arrays)
        return word_of(name if is_whole else f"{name}, torn", list(inside))

    def play(self, body: Body) -> History:
        return [self._outcome_of(operation) for operation in body.operations]

    def _outcome_of(self, operation: Operation) -> Outcome:
        """Perform an operation. A full store or disk, for its value or its arguments, is an outcome of its own."""
        try:
            return operation.perform(self)
        except (ObjectStoreFullError, OutOfDiskError) as error:
            return {"of": [], "no room": type(error).__name__}

    async def play_awaiting(self, body: Body) -> History:
        """Play a body in a coroutine. Operations with ``perform_awaiting`` let other coroutines go on."""
        history = []
        for operation in body.operations:
            perform = getattr(operation, "perform_awaiting", None)
            history.append(self._outcome_of(operation) if perform is None else await perform(self))
        return history


def value_of(name: str, inside: dict[str, Any], padding: int) -> tuple[Any, ...]:
    """Make the value of an object. An array of ``padding`` bytes travels beside it and is not copied.

    Its bytes tell its maker, so that a torn array is noticed, and one that belongs to another value.
    """
    if not padding:
        return name, inside
    return name, inside, (filled(padding, filling_of(name)[0]), name, padding)


def filling_of(maker: str) -> bytes:
    """Return the byte of which the array in a value consists."""
    return bytes([zlib.crc32(maker.encode()) % 255 + 1])


def word_of(name: str, inside: list[str]) -> str:
    return f"{name}[{' '.join(inside)}]" if inside else name


def parse_word(word: str) -> tuple[str, list[str]]:
    name, _, inside = word.removesuffix("]").partition("[")
    return name, inside.split()
