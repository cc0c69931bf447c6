"""Values that were lost with their nodes and are made again, from arguments of any kind: ``Remade``.

The driver owns all of it, and has let go of the arguments by then. What made the value may be a task, a generator or a call
of an actor, and the value may have been used before. All that makes it has endless retries. So it is right in the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from tests.spec.actors import away
from tests.spec.filled import filled
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

PLAIN, SMALL, LARGE, MADE, MADE_THERE, NESTED, ACTOR = (
    "plain", "small", "large", "made", "made there", "nested", "actor"
)  # fmt: skip
ARGUMENTS = (PLAIN, SMALL, LARGE, MADE, MADE_THERE, NESTED, ACTOR)
TASK, PARTS, STREAM, CALL = "task", "several returns", "generator", "call of an actor"
MAKERS = (TASK, PARTS, STREAM, CALL)
DRIVER, OTHER, BOTH, READER = "driver", "task", "task and driver", "ordered actor"
READERS = (DRIVER, OTHER, BOTH, READER)
SIZE, SMALL_SIZE, FILLING = 300, 10, 3
"""Bytes of large and of small values, and what they consist of."""
RIGHT = "right"


class Remade(Story, frozen=True):
    """A value that is made on another node, if there is one, and is read when that node may have gone."""

    maker: str = TASK
    arguments: tuple[str, ...] = (SMALL,)
    reader: str = DRIVER
    was_read: bool = False
    """Whether a task has read it before."""
    is_chained: bool = False
    """Whether it is made from another value that was made in the same way, and of which only it knows."""
    pause_s: float = 1.0
    """Seconds for which nobody needs it."""

    def tell(self) -> list[Look]:
        actors: list[Any] = []  # An actor that nobody knows ends, and what it has made cannot be made again.
        try:
            value = self._value(actors)
        except RayError as error:  # of a generator that has ended early
            return [("error", type(error).__name__)] * len(self.wanted())
        looks = [look_at(check.options(max_retries=-1).remote(value))] if self.was_read else [look_at(self._ready(value))]
        time.sleep(self.pause_s)
        if self.reader == READER:
            return [*looks, self._read_in_order(value)]
        if self.reader != DRIVER:
            looks.append(look_at(check.options(max_retries=-1).remote(value)))
        if self.reader != OTHER:
            kind, shown = look_at(value)
            looks.append((kind, _right(shown)) if kind == "value" else (kind, shown))
        return looks

    def _read_in_order(self, value: Any) -> Look:
        """No call of an actor overtakes one that waits for an argument (G49); those that are made again may."""
        reader = Reader.remote()
        numbers = [reader.read.remote(value if number == 1 else None) for number in range(4)]
        looks = [look_at(number) for number in numbers]
        failed = [look for look in looks if look[0] == "error"]
        shown = [shown for _, shown in looks]
        return failed[0] if failed else ("value", RIGHT if shown == [0, 1, 2, 3] else shown)

    def _ready(self, value: Any) -> Any:
        """Wait for the value, without bringing it here."""
        minray.wait([value], fetch_local=False)
        return minray.put(RIGHT)

    def _value(self, actors: list[Any]) -> Any:
        arguments = [_argument(kind) for kind in self.arguments]
        value = self._made(arguments, actors)
        return self._made([value], actors) if self.is_chained else value

    def _made(self, arguments: list[Any], actors: list[Any]) -> Any:
        where = away(0)
        if self.maker == CALL:
            maker = Maker.options(max_restarts=-1, max_task_retries=-1, scheduling_strategy=where).remote()
            actors.append(maker)
            return maker.make.remote(*arguments)
        if self.maker == STREAM:
            items = list(stream.options(max_retries=-1, scheduling_strategy=where).remote(*arguments))
            return items[:2][-1]
        if self.maker == PARTS:
            return parts.options(max_retries=-1, scheduling_strategy=where).remote(*arguments)[1]
        return make.options(max_retries=-1, scheduling_strategy=where).remote(*arguments)

    def wanted(self) -> list[Any]:
        return [RIGHT] * (3 if self.reader == BOTH else 2)

    def errors(self, losses: Losses) -> set[str]:
        lost = losses.of_any_task(-1)
        lost |= losses.of_any_actor(-1) if self.maker == CALL or ACTOR in self.arguments else set()
        lost |= losses.of_any_actor(0) if self.reader == READER else set()
        return also_in_tasks(lost)

    def busy_s(self) -> float:
        return self.pause_s


def _argument(kind: str) -> Any:
    """Make an argument. References to it that the caller does not keep are gone with the call."""
    if kind in (MADE, MADE_THERE):
        where = away(0) if kind == MADE_THERE else "DEFAULT"
        return make.options(max_retries=-1, scheduling_strategy=where).remote()
    if kind == NESTED:
        return [minray.put(filled(SMALL_SIZE, FILLING)), minray.put(filled(SIZE, FILLING))]
    if kind == ACTOR:
        return Maker.options(max_restarts=-1, max_task_retries=-1).remote()
    value = filled(SIZE if kind == LARGE else SMALL_SIZE, FILLING)
    return value if kind == PLAIN else minray.put(value)


def _right(value: Any) -> str:
    """Say whether a value, or what is referred to by it, is what it should be."""
    if isinstance(value, list):
        return RIGHT if all(_right(one) == RIGHT for one in minray.get(value)) else "wrong inside"
    if isinstance(value, minray.actor.ActorHandle):
        return _right(minray.get(value.make.remote()))
    content = value.tobytes()
    return RIGHT if content in (bytes([FILLING]) * SIZE, bytes([FILLING]) * SMALL_SIZE) else repr(content[:20])


def _made_from(arguments: tuple[Any, ...]) -> Any:
    assert all(_right(one) == RIGHT for one in arguments)
    return filled(SIZE, FILLING)


@minray.remote(num_cpus=0)
def make(*arguments: Any) -> Any:
    return _made_from(arguments)


@minray.remote(num_cpus=0, num_returns=2)
def parts(*arguments: Any) -> Any:
    return _made_from(arguments), _made_from(arguments)


@minray.remote(num_cpus=0)
def stream(*arguments: Any) -> Iterator[Any]:
    for _ in range(3):
        yield _made_from(arguments)


@minray.remote(num_cpus=0)
def check(value: Any) -> str:
    return _right(value)


@minray.remote(num_cpus=0)
class Maker:
    """Makes values."""

    def make(self, *arguments: Any) -> Any:
        return _made_from(arguments)


@minray.remote(num_cpus=0)
class Reader:
    """Reads values, one after the other, and says how many it had read before."""

    def __init__(self) -> None:
        self._count = -1

    def read(self, value: Any) -> int:
        assert value is None or _right(value) == RIGHT
        self._count += 1
        return self._count
