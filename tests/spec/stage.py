"""Where the operations of a program are played, what they leave behind in words, and the records that they are.

A ``Stage`` is what one process holds while it plays a body: references to objects, and handles of actors. Both are called
like the operations that make them, and both travel inside of values, so nothing here tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy

from minray.exceptions import ActorDiedError, LocalRayletDiedError, ObjectStoreFullError, OutOfDiskError

if TYPE_CHECKING:
    from tests.spec.programs import Body, Operation

Outcome = dict[str, Any]
"""``of``: the names that were bound; the rest depends on the operation."""
History = list[Outcome]
RUN, END, BORN = "run", "end", "born"
"""The first words of the lines that tasks, calls and constructors print."""
ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "KeyError": KeyError, "RuntimeError": RuntimeError}
FILLING = 7
"""Each byte of an array in a value."""
TOLD_DEAD = "its owner is dead"
"""Error of a driver that names an actor before it has noticed that its node is dead."""
raised: set[tuple[str, str]] = set()
"""Process and task: what was raised there and shall not be again. Simulated processes share it; emptied by its users."""


def has_lost_its_node(error: BaseException | None) -> bool:
    """Whether a driver has ended because of that."""
    was_told = isinstance(error, ActorDiedError) and TOLD_DEAD in str(error)
    return was_told or isinstance(error, ConnectionError | LocalRayletDiedError)


class Record(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Compares by value, writes into JSON what is not a default, and is not read from JSON with anything else."""


class Tagged(Record, frozen=True, tag_field="kind", tag=True):
    """One of several kinds."""


class Stage:
    """Where a body is played: the references and handles that it holds."""

    def __init__(self, refs: Mapping[str, Any]) -> None:
        self.refs = dict(refs)
        self._arrays: tuple[Any, ...] = ()
        """The last two that came in values: as long as they are here, what they are in must stay."""

    def bound(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name in self.refs]

    def pick(self, names: list[str]) -> dict[str, Any]:
        return {name: self.refs[name] for name in names}

    def open(self, value: tuple[Any, ...]) -> str:
        """Take the references inside of a value; returns a word for it."""
        name, inside, *rest = value
        self.refs.update(inside)
        self._arrays = (*self._arrays, *rest)[-2:]
        is_whole = all(array.tobytes() == bytes([FILLING]) * array.size for array in self._arrays)
        return word_of(name if is_whole else f"{name}, torn", list(inside))

    def play(self, body: Body) -> History:
        return [self._outcome_of(operation) for operation in body.operations]

    def _outcome_of(self, operation: Operation) -> Outcome:
        """What it says; or that there was no room for what it would have stored, or for what it takes along."""
        try:
            return operation.perform(self)
        except (ObjectStoreFullError, OutOfDiskError) as error:
            return {"of": [], "no room": type(error).__name__}

    async def play_awaiting(self, body: Body) -> History:
        """The same in a coroutine, which lets others go on where an operation knows how."""
        history = []
        for operation in body.operations:
            perform = getattr(operation, "perform_awaiting", None)
            history.append(self._outcome_of(operation) if perform is None else await perform(self))
        return history


def value_of(name: str, inside: dict[str, Any], padding: int) -> tuple[Any, ...]:
    """The value of an object of this name; with so many bytes in an array, which travel beside it and are not copied."""
    return (name, inside, numpy.full(padding, FILLING, numpy.uint8)) if padding else (name, inside)


def word_of(name: str, inside: list[str]) -> str:
    return f"{name}[{' '.join(inside)}]" if inside else name


def parse_word(word: str) -> tuple[str, list[str]]:
    name, _, inside = word.removesuffix("]").partition("[")
    return name, inside.split()
