"""Work of every kind that is stopped in every way: ``Stopped``.

A task, a call or a generator sleeps, waits for its turn, waits for an argument, is held up by its reader, or ignores
interrupts. Its owner cancels it, cancels it again, with or without force, drops it, or kills its actor. What can be stopped
must end long before its sleep does (G41, G45), and the actor must serve the next call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from tests.spec.stage import Outcome
from tests.spec.stories import Look, Story, look_at, of_anything

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

TASK, PLAIN, THREADED, ASYNC = "task", "plain actor", "threaded actor", "async actor"
PLACES = (TASK, PLAIN, THREADED, ASYNC)
NAPS, IGNORES, QUEUES, STARVES, STREAMS, NAPS_IN_STREAM = "naps", "ignores", "queues", "starves", "streams", "naps in stream"
WORKS = (NAPS, IGNORES, QUEUES, STARVES, STREAMS, NAPS_IN_STREAM)
CANCEL, FORCE, DROP, KILL = "cancel", "force", "drop", "kill"
STOPS = ((CANCEL,), (CANCEL, CANCEL), (CANCEL, FORCE), (FORCE,), (DROP,), (CANCEL, DROP), (KILL,), (CANCEL, KILL))
LONG_S, SHORT_S = 300.0, 0.5
"""Seconds of work that can be stopped, and of work that cannot."""
SOON_S = 60.0
"""Seconds after which the end of stopped work counts as too late."""
LATE = " late"
STOPPED, DONE, HERE, DEAD = "stopped", "done", "here", "dead"
ITEMS = 4
OWN = frozenset(("TaskCancelledError", "KeyboardInterrupt", "CancelledError", "WorkerCrashedError"))
"""Names of the errors of stopped work."""
DIED = frozenset(("ActorDiedError", "ActorUnavailableError"))


class Stopped(Story, frozen=True):
    """Work at a place, and how it is stopped."""

    place: str = TASK
    work: str = NAPS
    stops: tuple[str, ...] = (CANCEL,)
    pause_s: float = 0.1
    """Seconds before each stop."""
    max_retries: int = 3

    def tell(self) -> list[Look]:
        actor = None if self.place == TASK else CREW[self.place].remote()
        seconds = LONG_S if self._can_be_stopped() else SHORT_S
        # A call waits for its turn behind another; a task has no turn, and waits for an argument instead.
        before = [actor.nap.remote(SHORT_S, False) for _ in range(2)] if actor and self.work == QUEUES else []
        work = self._begin(actor, seconds)
        first = look_at(next(work)) if self.work == STREAMS else None
        looks = self._stop(work, actor)
        del work
        if first is not None and looks:
            looks[0] = looks[0] if first == ("value", 0) or first[0] == "error" else ("value", f"{first} first")
        looks += [self._survived(look_at(ref), DONE) for ref in before]
        return looks if actor is None else [*looks, self._survived(look_at(actor.say.remote()), HERE)]

    def _begin(self, actor: Any, seconds: float) -> Any:
        if self.work in (STREAMS, NAPS_IN_STREAM):
            held = {"_generator_backpressure_num_objects": 1} if self.work == STREAMS else {}
            pause_s = 0.0 if self.work == STREAMS else seconds
            source = count.options(max_retries=self.max_retries, **held) if actor is None else actor.count.options(**held)
            return source.remote(pause_s)
        after = [late.remote()] if self.work == STARVES or (self.work == QUEUES and actor is None) else []
        if actor is None:
            return nap.options(max_retries=self.max_retries).remote(seconds, self.work == IGNORES, *after)
        return actor.nap.remote(seconds, self.work == IGNORES, *after)

    def _stop(self, work: Any, actor: Any) -> list[Look]:
        """Stop it, and say how it ends, unless nobody can see that any more."""
        begin = time.monotonic()
        for stop in self.stops:
            time.sleep(self.pause_s)
            if stop == DROP:
                return []
            if stop == KILL:
                minray.kill(actor)
            else:
                minray.cancel(work, force=stop == FORCE)
        kind, shown = _end_of(work)
        is_soon = time.monotonic() - begin < SOON_S
        if kind == "error" and without_task(shown) in (OWN | DIED if KILL in self.stops else OWN):
            kind, shown = "value", STOPPED
        if self.work in (STREAMS, NAPS_IN_STREAM) or not self._can_be_stopped():
            shown = STOPPED if shown == DONE else shown
        return [(kind, shown if is_soon else f"{shown}{LATE}")]

    def _survived(self, look: Look, wanted: str) -> Look:
        """A call of an actor that was killed may also fail."""
        return ("value", wanted) if KILL in self.stops and look[0] == "error" and look[1] in DIED else look

    def _can_be_stopped(self) -> bool:
        """Whether it ends at once: calls in threads, and work that ignores interrupts, go on until they are done."""
        if KILL in self.stops:
            return True
        if self.stops == (DROP,):
            return False
        if self.work == IGNORES:
            return self.place == TASK and FORCE in self.stops
        return self.work == STREAMS or self.place in (TASK, ASYNC)

    def wanted(self) -> list[Any]:
        seen = [] if DROP in self.stops else [STOPPED]
        if self.place == TASK:
            return seen
        return [*seen, *([DONE, DONE] if self.work == QUEUES else []), HERE]

    def errors(self, losses: Losses) -> set[str]:
        return of_anything(losses)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """Allow that work of a process that was silent for a while ends late."""
        looks = outcome["looks"]
        if reading.model.losses.silence:
            looks = [(kind, str(shown).removesuffix(LATE)) for kind, shown in looks]
        yield from super().check(reading, outcome | {"looks": looks})

    def busy_s(self) -> float:
        return 4 * SHORT_S + len(self.stops) * self.pause_s

    def events(self) -> set[str]:
        return {"used", "cancelled" if CANCEL in self.stops else "dropped"}


def _end_of(work: Any) -> Look:
    """Look at a value, or at what ends the items of a generator."""
    if isinstance(work, minray.ObjectRef):
        return look_at(work)
    last: Look = ("value", DONE)
    try:
        for ref in work:
            kind, shown = look_at(ref)
            last = (kind, shown) if kind == "error" else last
    except RayError as error:
        return "error", type(error).__name__
    return last


def without_task(name: str) -> str:
    """Return the name of an error without that of the task that has raised it."""
    return name.removeprefix("RayTaskError(").removesuffix(")")


def _nap(seconds: float, ignores: bool) -> str:
    """Sleep in small pieces, all of them if it ignores interrupts."""
    for _ in range(int(seconds / SHORT_S)):
        try:
            time.sleep(SHORT_S)
        except KeyboardInterrupt:
            if not ignores:
                raise
    return DONE


@minray.remote(num_cpus=0)
def nap(seconds: float, ignores: bool, *_: Any) -> str:
    return _nap(seconds, ignores)


@minray.remote(num_cpus=0)
def count(pause_s: float) -> Iterator[int]:
    for number in range(ITEMS):
        time.sleep(pause_s)
        yield number


@minray.remote(num_cpus=0)
def late() -> None:
    time.sleep(SHORT_S)


class Crew:
    """The methods of actors that work in threads."""

    def nap(self, seconds: float, ignores: bool, *_: Any) -> str:
        return _nap(seconds, ignores)

    def count(self, pause_s: float) -> Iterator[int]:
        for number in range(ITEMS):
            time.sleep(pause_s)
            yield number

    def say(self) -> str:
        return HERE


@minray.remote(num_cpus=0)
class PlainCrew(Crew):
    """Runs one call after the other."""


@minray.remote(num_cpus=0, max_concurrency=2)
class ThreadedCrew(Crew):
    """Runs two calls at once."""


@minray.remote(num_cpus=0, max_concurrency=2)
class AsyncCrew:
    """Runs two coroutines at once."""

    async def nap(self, seconds: float, ignores: bool, *_: Any) -> str:
        for _piece in range(int(seconds / SHORT_S)):
            try:
                await asyncio.sleep(SHORT_S)
            except asyncio.CancelledError:
                if not ignores:
                    raise
        return DONE

    async def count(self, pause_s: float) -> AsyncIterator[int]:
        for number in range(ITEMS):
            await asyncio.sleep(pause_s)
            yield number

    async def say(self) -> str:
        return HERE


CREW: Mapping[str, Any] = {PLAIN: PlainCrew, THREADED: ThreadedCrew, ASYNC: AsyncCrew}
