"""References that programs pickle themselves: ``Smuggled``, in which they travel as bytes, which minray does not look into.

A process that unpickles such a reference asks its owner for a ticket. The owner keeps a pickled object for ever, since it
cannot know where the bytes are. So an actor owns the object here, and all of it ends with the actor.
"""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

MANNERS = ("task", "driver", "owner", "mixed")
"""The process that unpickles the bytes: a task, the driver, the owner, or a driver that has a counted reference, too."""
LOST_OWNER = "OwnerDiedError"


class Smuggled(Story, frozen=True):
    """An object of an actor, whose reference travels in bytes."""

    manner: str = "task"
    size: int = 10
    """Bytes of the value."""
    pause_s: float = 0.0
    """Seconds between the unpickling and the use."""

    def tell(self) -> list[Look]:
        owner = Packer.remote(self.size)
        packed = look_at(owner.pack.remote())
        if packed[0] == "error":
            return [packed]
        counted = look_at(owner.lend.remote()) if self.manner == "mixed" else None
        look = self._unpack(owner, packed[1])
        del counted
        return [look]

    def _unpack(self, owner: Any, packed: bytes) -> Look:
        if self.manner == "task":
            return look_at(unpack.options(max_retries=-1).remote(packed, self.pause_s))
        if self.manner == "owner":
            return look_at(owner.unpack.remote(packed, self.pause_s))
        ref = pickle.loads(packed)
        twice = pickle.loads(packed)
        time.sleep(self.pause_s)
        del twice
        kind, shown = look_at(ref)
        return (kind, len(shown)) if kind == "value" else (kind, shown)

    def wanted(self) -> list[Any]:
        return [self.size]

    def errors(self, losses: Losses) -> set[str]:
        lost = losses.of_any_actor(0) | losses.of_any_task(-1)
        lost |= {LOST_OWNER} if losses.deaths or losses.silence else set()
        return also_in_tasks(lost)

    def busy_s(self) -> float:
        return self.pause_s


@minray.remote(num_cpus=0)
class Packer:
    """Owns a value, and pickles its reference."""

    def __init__(self, size: int) -> None:
        self._ref = minray.put(b"s" * size)

    def pack(self) -> bytes:
        return pickle.dumps(self._ref)

    def lend(self) -> list[Any]:
        return [self._ref]

    def unpack(self, packed: bytes, pause_s: float) -> int:
        return _length(packed, pause_s)


@minray.remote(num_cpus=0)
def unpack(packed: bytes, pause_s: float) -> int:
    return _length(packed, pause_s)


def _length(packed: bytes, pause_s: float) -> int:
    ref = pickle.loads(packed)
    time.sleep(pause_s)
    return len(minray.get(ref))
