"""State machines as tables: every transition is looked up and recorded, and an unknown one raises.

Ray: scattered over its managers; the states' names are those of gcs.proto and common.proto.

A ``StateMachine`` holds the states of all things of one kind in one process (all leases, all workers, ...). Readers of
the recorder (traces, the state API, ``why``, diagrams of the docs) see each change as ``(table, key, old, new)``. Without
a recorder, a transition costs one dict lookup more than an assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

NEW = ""
"""State of a thing that does not exist yet, and of one that was forgotten."""


class InvalidTransition(AssertionError):
    """A state machine was asked for a step that its table does not have: a bug of minray."""


class StateMachine:
    """Holds the states of all things of one kind, by key."""

    __slots__ = ("name", "_transitions", "_states", "_record", "_show")

    def __init__(
        self,
        name: str,
        transitions: Mapping[str, tuple[str, ...]],
        record: Callable[[str, str, str, str], None] | None,
        show: Callable[[bytes], str] = bytes.hex,
    ) -> None:
        """``transitions`` maps a state to the states that may follow it; ``NEW`` begins and ends every life."""
        self.name = name
        self._transitions = transitions
        self._states: dict[bytes, str] = {}
        self._record = record
        self._show = show

    def get(self, key: bytes) -> str:
        return self._states.get(key, NEW)

    def set(self, key: bytes, new: str) -> None:
        old = self._states.get(key, NEW)
        if new not in self._transitions.get(old, ()):
            raise InvalidTransition(f"{self.name} {self._show(key)}: {old or 'new'} -> {new or 'forgotten'}")
        if new:
            self._states[key] = new
        else:
            del self._states[key]
        if self._record is not None:
            self._record(self.name, self._show(key), old, new)

    def items(self) -> list[tuple[bytes, str]]:
        return list(self._states.items())

    def count(self, state: str) -> int:
        return sum(1 for current in self._states.values() if current == state)

    def __len__(self) -> int:
        return len(self._states)
