"""Types of a program, as type checkers see them: ``make types`` checks this file, and a test runs it.

Where a mistake is to be found stands ``type: ignore`` with its kind, and mypy complains if it finds none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import minray as ray
from minray import ObjectRef, ObjectRefGenerator
from minray.actor import ActorClass, ActorHandle, ActorProxy


@ray.remote
def word(number: int) -> str:
    return "x" * number


@ray.remote(num_cpus=0.5)
def weigh(number: int, text: str = "", *, factor: float = 1) -> float:
    return (number + len(text)) * factor


@ray.remote
def total(refs: list[ObjectRef[int]]) -> int:
    return sum(ray.get(refs))


@ray.remote
def count(until: int) -> Iterator[int]:
    yield from range(until)


@ray.remote
def anything(value: object) -> Any:
    return value


@ray.remote(num_returns=2)
def both(number: int) -> tuple[int, int]:
    return number, number + 1


class Tally:
    """mypy knows nothing of decorators of classes: ``ray.remote(Tally)`` is what it understands.

    As with Ray, ``@ray.method`` tells it what the handle of an actor has.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number

    @ray.method
    def add(self, number: int) -> int:
        self.number += number
        return self.number

    @ray.method(max_task_retries=1)
    def twice(self, number: int) -> int:
        return self.add(number) + self.add(number)

    @ray.method
    async def name(self) -> str:
        return "tally"

    @ray.method
    def count(self) -> Iterator[int]:
        yield from range(self.number)

    @ray.method(num_returns=2)
    def both(self) -> tuple[int, int]:
        return self.number, self.number


Counter = ray.remote(num_cpus=0)(Tally)


def calls() -> list[object]:
    number: ObjectRef[int] = ray.put(3)
    assert_type(word.remote(3), ObjectRef[str])
    assert_type(word.remote(number=3), ObjectRef[str])
    assert_type(word.remote(number), ObjectRef[str])
    assert_type(weigh.remote(3, factor=2), ObjectRef[float])
    assert_type(weigh.remote(number, "xx"), ObjectRef[float])
    assert_type(weigh.remote(3, word.remote(number)), ObjectRef[float])
    assert_type(weigh.options(num_cpus=1).remote(number, factor=2), ObjectRef[float])
    assert_type(ray.get(total.remote([number, ray.put(4)])), int)
    assert_type(count.remote(3), ObjectRefGenerator[int])
    assert_type(anything.remote(number), ObjectRef[Any])
    assert_type(count.remote(number), ObjectRefGenerator[int])
    first, second = both.remote(number)
    third, fourth = word.options(num_returns=2).remote(2)
    items = [ray.get(ref) for ref in count.remote(3)]
    assert_type(items, list[int])
    counter = Counter.options(name="tally").remote(1)
    assert_type(Counter, ActorClass[Tally])
    assert_type(counter, ActorProxy[Tally])
    assert_type(counter.add.remote(number), ObjectRef[int])
    assert_type(counter.twice.options(name="twice").remote(2), ObjectRef[int])
    assert_type(counter.name.remote(), ObjectRef[str])
    assert_type(counter.count.remote(), ObjectRefGenerator[int])
    fifth, sixth = counter.both.remote()
    ray.get([fifth, sixth])
    found: ActorHandle[Any] = ray.get(ray.put([ray.get_actor("tally")]))[0]
    ray.get(found.add.remote(1))
    ray.kill(found)
    ray.kill(counter)
    return [*ray.get([first, second, third, fourth]), items, ray.get(Counter.remote().add.remote(number))]


def mistakes() -> None:
    """Never called."""
    word.remote("3")  # type: ignore[call-overload]
    word.remote()  # type: ignore[call-overload]
    word.remote(3, 4)  # type: ignore[call-overload]
    weigh.remote(3, factor="2")  # type: ignore[call-overload]
    total.remote([ray.put("3")])  # type: ignore[arg-type]
    ray.get(3)  # type: ignore[call-overload]
    word.options(nope=1)  # type: ignore[call-overload]
    ray.remote(nope=1)  # type: ignore[call-overload]
    Counter.options(nope=1)  # type: ignore[call-arg]
    Counter.options(num_cpus="2")  # type: ignore[arg-type]
    counter = Counter.remote()
    counter.nope.remote()  # type: ignore[union-attr]
    counter.add.remote("3")  # type: ignore[call-overload]
    counter.add.options(nope=1)  # type: ignore[call-overload]
