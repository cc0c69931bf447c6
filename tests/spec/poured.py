"""Generators of every source that are read in every way: ``Poured``.

A task, or a plain, a threaded or an async actor yields a few items, small or large, and may raise at the end. A driver, a
task or an actor reads all of them at once, one by one, late, backwards, or passes them on; or it takes some and drops the
rest, the generator first or the items first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.filled import filled
from tests.spec.stories import Look, Story, look_at, of_anything

if TYPE_CHECKING:
    from tests.spec.model import Losses

TASK, PLAIN, THREADED, ASYNC = "task", "plain actor", "threaded actor", "async actor"
SOURCES = (TASK, PLAIN, THREADED, ASYNC)
DRIVER, IN_TASK, IN_ACTOR = "driver", "in a task", "in an actor"
READERS = (DRIVER, IN_TASK, IN_ACTOR)
SIZES = (10, 300)
RAISED = "RayTaskError(ValueError)"
LAG_S = 0.3
"""Seconds after which late readers get their items."""


class Poured(Story, frozen=True):
    """A generator, and how it is read."""

    source: str = TASK
    reader: str = DRIVER
    manner: str = "one by one"
    items: int = 3
    size: int = 10
    """Bytes of each item. Worlds with stores keep the large ones there."""
    most_unread: int = -1
    """Number of unread items at which it pauses; -1: it never pauses."""
    pause_s: float = 0.0
    """Seconds before each item."""
    raises: bool = False
    """Whether it raises after all items."""
    max_retries: int = 3

    def tell(self) -> list[Look]:
        cup = self.source, self.manner, self.items, self.size, self.most_unread, self.pause_s, self.raises, self.max_retries
        if self.reader == DRIVER:
            return read(*cup)
        remote = read_in_task if self.reader == IN_TASK else Reader.remote().read
        kind, shown = look_at(remote.remote(*cup))
        return [(word, seen) for word, seen in shown] if kind == "value" else [(kind, shown)] * len(self.wanted())

    def wanted(self) -> list[Any]:
        shown: list[Any] = list(range(MANNERS[self.manner][1](self.items)))
        if self.manner in TO_THE_END:
            shown += [RAISED if self.raises else "end"]
        return shown if self.source == TASK else [*shown, "here"]

    def errors(self, losses: Losses) -> set[str]:
        return of_anything(losses)

    def busy_s(self) -> float:
        return 4 * self.items * self.pause_s + LAG_S


def read(
    source: str, manner: str, items: int, size: int, most_unread: int, pause_s: float, raises: bool, max_retries: int
) -> list[Look]:
    """Read a generator in this process, and call its actor again."""
    actor = None if source == TASK else SPRINGS[source].remote()
    if actor is None:
        pour_out = pour.options(max_retries=max_retries, _generator_backpressure_num_objects=most_unread)
    else:
        pour_out = actor.pour.options(_generator_backpressure_num_objects=most_unread)
    looks = MANNERS[manner][0](pour_out.remote(items, size, pause_s, raises), items)
    looks = [("value", RAISED) if look == ("error", RAISED) else look for look in looks]
    return looks if actor is None else [*looks, look_at(actor.say.remote())]


def _seen(ref: Any) -> Look:
    """Say which item it is."""
    kind, shown = look_at(ref)
    return (kind, _number_of(shown)) if kind == "value" else (kind, shown)


def _number_of(item: Any) -> Any:
    content = item.tobytes()
    return content[0] if len(set(content)) == 1 and len(content) in SIZES else repr(content[:20])


def _whole(looks: list[Look], items: int) -> list[Look]:
    """Let an error stand for the items that did not come; it comes after all of them, or is why they are missing."""
    last = looks[-1] if looks and looks[-1][0] == "error" else ("value", "end")
    shown = [look for look in looks if look != last or look[0] == "value"]
    return [*shown, *[last] * (items + 1 - len(shown))]


def _one_by_one(generator: Any, items: int) -> list[Look]:
    return _whole([_seen(ref) for ref in generator], items)


def _at_the_end(generator: Any, items: int) -> list[Look]:
    refs = list(generator)
    time.sleep(LAG_S)
    return _whole([_seen(ref) for ref in refs], items)


def _backwards(generator: Any, items: int) -> list[Look]:
    refs = list(generator)
    return _whole([_seen(ref) for ref in reversed(refs)][::-1], items)


def _waiting(generator: Any, items: int) -> list[Look]:
    looks = []
    while True:
        minray.wait([generator], timeout=60)
        ref = next(generator, None)
        if ref is None:
            return _whole(looks, items)
        ready, _ = minray.wait([ref])
        looks.append(_seen(ready[0]))


def _complete(generator: Any, items: int) -> list[Look]:
    """The reference that is complete with it shows how it ends, before anybody gets an item."""
    completed, refs = generator.completed(), list(generator)
    kind, shown = look_at(completed)
    looks = [_seen(ref) for ref in refs]
    ends = _whole(looks, items)
    return ends if kind == "value" or ends[-1] == (kind, shown) else [*ends[:-1], (kind, shown)]


def _passing_on(generator: Any, items: int) -> list[Look]:
    return _whole([look_at(number_of.remote(ref)) for ref in generator], items)


def _passing_inside(generator: Any, items: int) -> list[Look]:
    return _whole([look_at(number_inside.remote([ref])) for ref in generator], items)


def _keeping_one(generator: Any, items: int) -> list[Look]:
    """The generator is dropped, and the item stays."""
    ref = next(generator, None)
    del generator
    time.sleep(LAG_S)
    return [("value", "nothing") if ref is None else _seen(ref)]


def _dropping(generator: Any, items: int) -> list[Look]:
    next(generator, None)
    del generator
    time.sleep(LAG_S)
    return []


def _dropping_items(generator: Any, items: int) -> list[Look]:
    """All items are dropped as they come, but for the last."""
    last = None
    for ref in generator:
        last = ref
    return [("value", 0)] if last is not None else []


def _dropping_unread(generator: Any, items: int) -> list[Look]:
    time.sleep(LAG_S)
    del generator
    return []


MANNERS: Mapping[str, tuple[Callable[[Any, int], list[Look]], Callable[[int], int]]] = {
    "one by one": (_one_by_one, lambda items: items),
    "at the end": (_at_the_end, lambda items: items),
    "backwards": (_backwards, lambda items: items),
    "waiting": (_waiting, lambda items: items),
    "passing on": (_passing_on, lambda items: items),
    "passing inside": (_passing_inside, lambda items: items),
    "complete": (_complete, lambda items: items),
    "keeping one": (_keeping_one, lambda items: 1),
    "dropping": (_dropping, lambda items: 0),
    "dropping items": (_dropping_items, lambda items: 1),
    "dropping unread": (_dropping_unread, lambda items: 0),
}
"""Name of a manner -> how it reads, and the number of items that it sees of those that there are."""
TO_THE_END = frozenset(list(MANNERS)[:7])
"""Manners that also see how the generator ends."""


def _pour(items: int, size: int, pause_s: float, raises: bool) -> Iterator[Any]:
    for number in range(items):
        time.sleep(pause_s)
        yield filled(size, number)
    if raises:
        raise ValueError("after all items")


@minray.remote(num_cpus=0)
def pour(items: int, size: int, pause_s: float, raises: bool) -> Iterator[Any]:
    yield from _pour(items, size, pause_s, raises)


class Spring:
    """The methods of actors that pour in a thread."""

    def pour(self, items: int, size: int, pause_s: float, raises: bool) -> Iterator[Any]:
        yield from _pour(items, size, pause_s, raises)

    def say(self) -> str:
        return "here"


@minray.remote(num_cpus=0)
class PlainSpring(Spring):
    """Pours in its only thread."""


@minray.remote(num_cpus=0, max_concurrency=2)
class ThreadedSpring(Spring):
    """Pours in one of two threads."""


@minray.remote(num_cpus=0)
class AsyncSpring:
    """Pours in a coroutine."""

    async def pour(self, items: int, size: int, pause_s: float, raises: bool) -> AsyncIterator[Any]:
        for number in range(items):
            await asyncio.sleep(pause_s)
            yield filled(size, number)
        if raises:
            raise ValueError("after all items")

    async def say(self) -> str:
        return "here"


SPRINGS: Mapping[str, Any] = {PLAIN: PlainSpring, THREADED: ThreadedSpring, ASYNC: AsyncSpring}


@minray.remote(num_cpus=0, max_retries=3)
def read_in_task(*cup: Any) -> list[Look]:
    return read(*cup)


@minray.remote(num_cpus=0)
class Reader:
    """Reads a generator that is its own."""

    def read(self, *cup: Any) -> list[Look]:
        return read(*cup)


@minray.remote(num_cpus=0, max_retries=3)
def number_of(item: Any) -> Any:
    return _number_of(item)


@minray.remote(num_cpus=0, max_retries=3)
def number_inside(refs: list[Any]) -> Any:
    return _number_of(minray.get(refs[0]))
