"""Many short tasks or calls at once, some of which are cancelled, and one of which is slow: ``Rush``.

Short tasks are pushed to a worker one behind the other. Behind a slow one they are given back, and go elsewhere. Here some
are cancelled on that way, their answers may hold references, and the process that waits for them may be killed. An actor
says at the end what it has run: each call once at most (G36), and in order if it runs one at a time (G49).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.actors import away
from tests.spec.stopped import ASYNC, OWN, PLAIN, TASK, THREADED, without_task
from tests.spec.stories import Look, Story, look_at, of_anything

if TYPE_CHECKING:
    from tests.spec.model import Losses

PLACES = (TASK, TASK, PLAIN, THREADED, ASYNC)
"""Where the work is done, as often as it is drawn."""
NUMBER, LARGE, REF, LARGE_REF = "number", "large", "reference", "reference to large"
RESULTS = (NUMBER, LARGE, REF, REF, LARGE_REF)
DRIVER, OTHER, KILLED = "driver", "task", "killed task"
CALLERS = (DRIVER, DRIVER, OTHER, KILLED)
MARK, MANY = b"r", 300
"""Byte of which large values consist, and their size in bytes."""
ONCE, ENDED = "once", "ended"
"""Shown by an actor that has run each call once at most; and by cancelled work, which has its value or its error."""


class Rush(Story, frozen=True):
    """Short work of one function or one actor, and a slow piece among it."""

    place: str = TASK
    result: str = NUMBER
    caller: str = DRIVER
    count: int = 8
    slow: int = 3
    """Number of the slow piece, from 0."""
    seconds: float = 0.5
    """Virtual seconds that it takes."""
    cancels: tuple[int, ...] = ()
    """Numbers of the pieces that are cancelled."""
    pause_s: float = 0.0
    """Virtual seconds after which that happens, or the caller is killed."""
    max_retries: int = 3
    is_long: bool = False
    """Whether all pieces behind the slow one are slow, too, so that some wait for a place among coroutines or threads."""
    is_far: bool = False
    """Whether it prefers another node, on which it then waits for a CPU."""

    def tell(self) -> list[Look]:
        where = away(0) if self.is_far else "DEFAULT"
        actor = None if self.place == TASK else RUNNERS[self.place].options(scheduling_strategy=where).remote()
        looks = self._looks(actor)
        return looks if actor is None else [*looks, self._history(look_at(actor.history.remote()))]

    def _looks(self, actor: Any) -> list[Look]:
        if self.caller == DRIVER:
            return rush(self, actor)
        # A task that ran again would make all calls again.
        other = rush_in_task.options(max_retries=self.max_retries if actor is None else 0).remote(self, actor)
        if self.caller == OTHER:
            kind, shown = look_at(other)
            return list(map(tuple, shown)) if kind == "value" else [(kind, shown)] * self.count
        time.sleep(self.pause_s)
        minray.cancel(other, force=True)
        return [_ended(look_at(other))]

    def _history(self, look: Look) -> Look:
        """Say whether each call was run once at most, and in which order, if nothing else is right."""
        kind, shown = look
        is_right = kind == "value" and len(set(shown)) == len(shown) and (self.place != PLAIN or shown == sorted(shown))
        return ("value", ONCE) if is_right else look

    def wanted(self) -> list[Any]:
        if self.caller == KILLED:
            looks = [ENDED]
        else:
            looks = [ENDED if number in self.cancels else number for number in range(self.count)]
        return looks if self.place == TASK else [*looks, ONCE]

    def errors(self, losses: Losses) -> set[str]:
        return of_anything(losses)

    def seconds_of(self, number: int) -> float:
        """Virtual seconds that a piece takes."""
        return self.seconds if number == self.slow or (self.is_long and number > self.slow) else 0.0

    def busy_s(self) -> float:
        return sum(map(self.seconds_of, range(self.count))) + self.pause_s

    def events(self) -> set[str]:
        return {"used", "cancelled"} if self.cancels or self.caller == KILLED else {"used", "dropped"}


def rush(story: Rush, actor: Any) -> list[Look]:
    """Begin all pieces, cancel some, and look at all."""
    where = away(0) if story.is_far else "DEFAULT"
    there = run.options(max_retries=story.max_retries, scheduling_strategy=where)
    begin = there.remote if actor is None else actor.run.remote
    if actor is None:
        look_at([begin(number, 0.0, NUMBER) for number in range(2)])  # So the function is known to be short.
    pieces = [begin(one, story.seconds_of(one), story.result) for one in range(story.count)]
    time.sleep(story.pause_s if story.cancels else 0.0)
    for number in story.cancels:
        minray.cancel(pieces[number])
    looks = [_number_of(look_at(piece)) for piece in pieces]
    return [_ended(look) if number in story.cancels else look for number, look in enumerate(looks)]


def _number_of(look: Look) -> Look:
    """Say the number in the result of a piece, which may be in the value to which it refers."""
    kind, shown = look
    if kind == "value" and isinstance(shown, list):
        kind, shown = look_at(shown[0])
    if kind == "value" and isinstance(shown, bytes):
        shown = len(shown) - MANY if shown == MARK * len(shown) else repr(shown)
    return kind, shown


def _ended(look: Look) -> Look:
    kind, shown = look
    return look if kind == "error" and without_task(shown) not in OWN else ("value", ENDED)


def _result(number: int, result: str) -> Any:
    value = MARK * (MANY + number) if result in (LARGE, LARGE_REF) else number
    return [minray.put(value)] if result in (REF, LARGE_REF) else value


@minray.remote(num_cpus=0)
def rush_in_task(story: Rush, actor: Any) -> list[Look]:
    return rush(story, actor)


@minray.remote
def run(number: int, seconds: float, result: str) -> Any:
    time.sleep(seconds)
    return _result(number, result)


class Runner:
    """The methods of actors that work in threads."""

    def __init__(self) -> None:
        self._ran: list[int] = []

    def history(self) -> list[int]:
        return self._ran

    def run(self, number: int, seconds: float, result: str) -> Any:
        self._ran.append(number)
        time.sleep(seconds)
        return _result(number, result)


@minray.remote(num_cpus=0)
class PlainRunner(Runner):
    """Runs one call after the other."""


@minray.remote(num_cpus=0, max_concurrency=2)
class ThreadedRunner(Runner):
    """Runs two calls at once."""


@minray.remote(num_cpus=0, max_concurrency=3)
class AsyncRunner:
    """Runs three coroutines at once."""

    def __init__(self) -> None:
        self._ran: list[int] = []

    async def history(self) -> list[int]:
        return self._ran

    async def run(self, number: int, seconds: float, result: str) -> Any:
        self._ran.append(number)
        await asyncio.sleep(seconds)
        return _result(number, result)


RUNNERS: Mapping[str, Any] = {PLAIN: PlainRunner, THREADED: ThreadedRunner, ASYNC: AsyncRunner}
