"""Steps of the scenario ``actors``: actors of all kinds are made, called, killed, dropped, found and replaced.

Each step draws its own shape. Wrong values are not looked for. ``tests/simulation/actor_watch.py`` looks for calls that run
twice, out of order or in a past life. Leftovers after the last handle are looked for, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import minray
from tests.simulation.judge import outcome_of


@minray.remote(num_cpus=0)
class Member:
    """Remembers what it was told."""

    def __init__(self, first: Any = None) -> None:
        self.told = [first]

    def tell(self, number: int, seconds: float = 0.0, argument: Any = None) -> int:
        time.sleep(seconds)
        self.told.append(number)
        return number

    @minray.method(retry_exceptions=True, max_task_retries=-1)
    def tell_twice(self, number: int) -> int:
        """Fails when it hears a number for the first time."""
        self.told.append(number)
        if self.told.count(number) == 1:
            raise ValueError("say it again")
        return number

    def keep(self, value: Any) -> None:
        self.told.append(value)


@minray.remote(num_cpus=0, max_retries=-1)
def wait(seconds: float) -> None:
    time.sleep(seconds)


@minray.remote(num_cpus=0, max_retries=-1)
def tell(handles: list[Any], count: int) -> list[Any]:
    return [outcome_of(ref) for ref in [handles[0].tell.remote(number, 0.01) for number in range(count)]]


def member(draw: Random) -> Any:
    options = {"max_restarts": draw.choice((0, 1, -1)), "max_task_retries": draw.choice((0, 1, -1))}
    argument = wait.remote(draw.choice((0.01, 0.5))) if draw.random() < 0.3 else None
    return Member.options(**options).remote(argument)


def calls(draw: Random) -> None:
    """In order, with late arguments; several callers."""
    actor = member(draw)
    others = [tell.remote([actor], draw.randrange(1, 6)) for _ in range(draw.randrange(3))]
    refs = []
    for number in range(draw.randrange(1, 10)):
        argument = wait.remote(draw.choice((0.0, 0.02, 0.3))) if draw.random() < 0.3 else None
        refs.append(actor.tell.remote(number, draw.choice((0.0, 0.01, 0.05)), argument))
    for ref in refs:
        found = outcome_of(ref)
        assert isinstance(found, str) or found in range(10)
    for ref in others:
        outcome_of(ref)


def cancelled(draw: Random) -> None:
    """Some of a burst, before their turn or in it."""
    actor = member(draw)
    refs = [actor.tell.remote(number, 0.02) for number in range(draw.randrange(3, 8))]
    time.sleep(draw.choice((0.0, 0.03, 0.08)))
    for ref in draw.sample(refs, 2):
        minray.cancel(ref)
    for ref in refs:
        outcome_of(ref)


def repeated(draw: Random) -> None:
    """Calls that fail, and are made again among others."""
    actor = member(draw)
    refs = [actor.tell_twice.remote(number) for number in range(draw.randrange(1, 6))]
    refs += [actor.tell.remote(number, 0.01) for number in range(10, 13)]
    for ref in refs:
        outcome_of(ref)


def killed(draw: Random) -> None:
    """At any moment of its creation or life."""
    actor = member(draw)
    ref = actor.tell.remote(0, 0.05)
    time.sleep(draw.choice((0.0, 0.001, 0.003, 0.01, 0.05, 0.5)))
    minray.kill(actor, no_restart=draw.random() < 0.7)
    outcome_of(ref)
    outcome_of(actor.tell.remote(1))


def dropped(draw: Random) -> None:
    """At once, or held by values, tasks and other actors."""
    actor = member(draw)
    if draw.random() < 0.3:
        time.sleep(draw.choice((0.0, 0.005, 0.1)))
        return
    keeper = member(draw)
    keeper.keep.remote([actor])
    ref = actor.tell.remote(1, 0.1)
    del actor
    outcome_of(ref)


def named(draw: Random) -> None:
    actor = Member.options(name="n", namespace="zoo", get_if_exists=True, max_restarts=-1).remote()
    outcome_of(actor.tell.remote(1))
    if draw.random() < 0.5:
        minray.kill(actor)


def pause(draw: Random) -> None:
    time.sleep(draw.choice((0.01, 0.3, 2.0)))


STEPS: tuple[Callable[[Random], None], ...] = (calls, calls, cancelled, repeated, killed, killed, dropped, named, pause)


def program(seed: int, steps: int) -> Callable[[], None]:
    """Drawn by the seed."""

    def body() -> None:
        draw = Random(seed)
        for _ in range(steps):
            draw.choice(STEPS)(draw)

    return body
