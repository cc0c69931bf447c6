"""Many short tasks or calls at once, some of which are cancelled, and one of which is slow: ``Rush``.

Short tasks are pushed to a worker one behind the other. Behind a slow one they are given back, and go elsewhere. Here some
are cancelled on that way, their answers may hold references, and the process that waits for them may be killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stopped import OWN
from tests.spec.stories import Look, Story, look_at, of_anything

if TYPE_CHECKING:
    from tests.spec.model import Losses

TASK, PLAIN, THREADED, ASYNC = "task", "plain actor", "threaded actor", "async actor"
PLACES = (TASK, TASK, PLAIN, THREADED, ASYNC)
"""Where the work is done, as often as it is drawn."""
NUMBER, LARGE, REF, LARGE_REF = "number", "large", "reference", "reference to large"
RESULTS = (NUMBER, LARGE, REF, REF, LARGE_REF)
DRIVER, OTHER, KILLED = "driver", "task", "killed task"
CALLERS = (DRIVER, DRIVER, OTHER, KILLED)
MARK, MANY = b"r", 300
"""What large values consist of, and their size in bytes."""
ENDED = "ended"
"""Shown by work that was cancelled: it has its value, or its error."""


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
    cancelled: tuple[int, ...] = ()
    """Numbers of the pieces that are cancelled."""
    pause_s: float = 0.0
    """Virtual seconds after which that happens, or the caller is killed."""
    max_retries: int = 3

    def tell(self) -> list[Look]:
        if self.caller == DRIVER:
            return rush(self, None if self.place == TASK else RUNNERS[self.place].remote())
        actor = None if self.place == TASK else RUNNERS[self.place].remote()
        other = rush_in_task.options(max_retries=self.max_retries).remote(self, actor)
        if self.caller == OTHER:
            kind, shown = look_at(other)
            return list(map(tuple, shown)) if kind == "value" else [(kind, shown)] * self.count
        time.sleep(self.pause_s)
        minray.cancel(other, force=True)
        looks = [_ended(look_at(other))]
        return looks if actor is None else [*looks, look_at(actor.run.remote(0, 0.0, NUMBER))]

    def wanted(self) -> list[Any]:
        if self.caller == KILLED:
            return [ENDED] if self.place == TASK else [ENDED, 0]
        return [ENDED if number in self.cancelled else number for number in range(self.count)]

    def errors(self, losses: Losses) -> set[str]:
        return of_anything(losses)

    def busy_s(self) -> float:
        return self.seconds + self.pause_s

    def events(self) -> set[str]:
        return {"used", "cancelled"} if self.cancelled or self.caller == KILLED else {"used", "dropped"}


def rush(story: Rush, actor: Any) -> list[Look]:
    """Begin all pieces, cancel some, and look at all."""
    begin = run.options(max_retries=story.max_retries).remote if actor is None else actor.run.remote
    if actor is None:
        look_at([begin(number, 0.0, NUMBER) for number in range(2)])  # So the function is known to be short.
    pieces = [begin(one, story.seconds if one == story.slow else 0.0, story.result) for one in range(story.count)]
    time.sleep(story.pause_s if story.cancelled else 0.0)
    for number in story.cancelled:
        minray.cancel(pieces[number])
    looks = [_number_of(look_at(piece)) for piece in pieces]
    return [_ended(look) if number in story.cancelled else look for number, look in enumerate(looks)]


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
    return look if kind == "error" and shown.removeprefix("RayTaskError(").removesuffix(")") not in OWN else ("value", ENDED)


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
    """The method of actors that work in threads."""

    def run(self, number: int, seconds: float, result: str) -> Any:
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

    async def run(self, number: int, seconds: float, result: str) -> Any:
        await asyncio.sleep(seconds)
        return _result(number, result)


RUNNERS: Mapping[str, Any] = {PLAIN: PlainRunner, THREADED: ThreadedRunner, ASYNC: AsyncRunner}
