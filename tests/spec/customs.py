"""Actors and generators with unusual manners: ``Customs``, one of which a driver meets in each story.

Each custom is a small class or function below, with what a call of it shows. All are told in the same way: the driver makes
the thing, looks at a few of its values, and lets it go.
"""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import minray
from minray.common.package_uri import package_name, uri_of
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

DIED = "ActorDiedError"
NAP_S = 45.0
"""Seconds of calls that outlast the time that minray leaves them when their actor ends."""
PATIENCE_S = 120.0
"""Seconds for which it waits for a call that an ending actor may have refused."""


class Customs(Story, frozen=True):
    """A driver that meets one of ``CUSTOMS``."""

    custom: str = "slow birth"
    seconds: float = 0.05

    def tell(self) -> list[Look]:
        return CUSTOMS[self.custom][0](self.seconds)

    def wanted(self) -> list[Any]:
        return CUSTOMS[self.custom][1]

    def errors(self, losses: Losses) -> set[str]:
        lost = losses.of_any_task(0) | losses.of_any_actor(0)
        return also_in_tasks(lost)

    def busy_s(self) -> float:
        return 10 * self.seconds + PATIENCE_S


def _is_born_slowly(seconds: float) -> list[Look]:
    actor = BornSlowly.remote(seconds)
    refs = [actor.say.remote(), actor.__ray_call__.remote(lambda self: self.word), actor.age.remote()]
    return [look_at(ref) for ref in refs]


def _hides_a_method(_seconds: float) -> list[Look]:
    actor = Hiding.remote()
    return [look_at(actor.word.remote()), look_at(actor.count.remote())]


def _leaves_while_others_run(seconds: float) -> list[Look]:
    return _leaves(Crowd.options(max_concurrency=3).remote(), seconds)


def _leaves_its_coroutines(seconds: float) -> list[Look]:
    return _leaves(AsyncCrowd.remote(), seconds)


def _leaves(actor: Any, seconds: float) -> list[Look]:
    """One call makes an actor end while others sleep, or wait for their turn."""
    refs = [actor.sleep.remote(NAP_S), actor.sleep.remote(NAP_S)]
    time.sleep(seconds)
    last = actor.leave.remote()
    refs += [last, actor.sleep.remote(0.0)]
    return [_ended(look_at(ref, PATIENCE_S)) for ref in refs]


def _gathers_items(seconds: float) -> list[Look]:
    """All items come in one value, also those before an exception."""
    whole, broken = gather.remote(3, seconds, False), gather.remote(2, seconds, True)
    looks = [look for ref in (whole, broken) for look in _items_of(ref)]
    dropped, late = gather.remote(2, seconds, False), gather.remote(2, 20.0, False)
    minray.cancel(late)
    del dropped
    kind, shown = look_at(late)
    return [*looks, ("value", "cancelled") if kind == "error" and shown in CANCELLED else (kind, "late")]


def _items_of(ref: Any) -> list[Look]:
    """Look at all items together, and at the exception that ends them."""
    kind, shown = look_at(ref)
    if kind == "error":
        return [(kind, shown)] * 2
    looks = [look_at(item) for item in shown]
    values = [value for kind, value in looks if kind == "value"]
    failed = [("value", RAISED) if look == ("error", RAISED) else look for look in looks if look[0] == "error"]
    return [("value", values), *(failed or [("value", "no error")])]


def _iterates(_seconds: float) -> list[Look]:
    """A task, an actor and an async actor return iterators that are no generators, and something that is none."""
    sources = [iterate, AsyncIterating.remote().iterate, Iterating.remote().iterate]
    looks = []
    for source in sources:
        shown = [look_at(ref) for ref in source.options(num_returns="streaming").remote(2)]
        looks += [*shown, *shown[-1:] * (2 - len(shown))]  # an error ends it early
        last = look_at(next(source.options(num_returns="streaming").remote(-1)))
        looks.append(("value", RAISED) if last == ("error", RAISED) else last)
    return looks


def _breaks_iterators_off(seconds: float) -> list[Look]:
    """Generators that are held up by their reader, or sleep, are cancelled."""
    looks = []
    for source in (iterate, AsyncIterating.remote().iterate):
        items = source.options(num_returns="streaming", _generator_backpressure_num_objects=1).remote(9)
        first = look_at(next(items))
        time.sleep(seconds)
        minray.cancel(items)
        looks.append(first)
    return looks


def _waits_without_patience(seconds: float) -> list[Look]:
    """Many waits for an object end by themselves, beside one that goes on."""
    slow = answer.remote(seconds)
    future = slow.future()
    for number in range(70):
        minray.wait([slow], timeout=0.001 * (number % 3))
    shown = [look_at(pass_on.remote([slow])), look_at(slow)]
    return [("value", future.result()) if shown[1][0] == "value" else shown[1], *shown]


def _loses_its_luggage(_seconds: float) -> list[Look]:
    """A task has a working directory that nobody has uploaded."""
    lost = {"working_dir": uri_of(package_name(f"lost {minray.get_runtime_context().get_job_id()}".encode()))}
    kind, shown = look_at(answer.options(runtime_env=lost).remote(0.0))
    return [("value", "refused") if shown == "RuntimeEnvSetupError" else (kind, shown)]


def _cleans_up_in_vain(seconds: float) -> list[Look]:
    """Actors end whose destructors take a while."""
    actor = Tidy.remote(seconds)
    look = look_at(actor.say.remote())
    last = actor.leave.remote()
    return [look, _ended(look_at(last, PATIENCE_S))]


def _exits_with_words(_seconds: float) -> list[Look]:
    kind, shown = look_at(exit_with_words.remote())
    return [("value", "crashed") if shown == "WorkerCrashedError" else (kind, shown)]


def _is_abandoned(seconds: float) -> list[Look]:
    """A task is interrupted while it waits until the gcs has registered an actor with a name."""
    refs = [make_named.remote(f"foundling {minray.get_runtime_context().get_job_id()} {number}") for number in range(3)]
    looks = []
    for number, ref in enumerate(refs):
        time.sleep(0.001 + seconds * number)
        minray.cancel(ref)
        kind, shown = look_at(ref)
        looks.append(("value", "over") if shown == "method" or shown in CANCELLED else (kind, shown))
    return looks


def _ended(look: Look) -> Look:
    return ("value", "over") if look == ("error", DIED) else look


CANCELLED = frozenset(("TaskCancelledError", "RayTaskError(TaskCancelledError)", "RayTaskError(KeyboardInterrupt)"))
RAISED = "RayTaskError(ValueError)"
Custom = tuple[Callable[[float], list[Look]], list[Any]]
CUSTOMS: Mapping[str, Custom] = {
    "slow birth": (_is_born_slowly, ["born", "born", "old"]),
    "hidden method": (_hides_a_method, ["method", 1]),
    "leaving threads": (_leaves_while_others_run, ["over"] * 4),
    "leaving coroutines": (_leaves_its_coroutines, ["over"] * 4),
    "gathered items": (_gathers_items, [[0, 1, 2], "no error", [0, 1], RAISED, "cancelled"]),
    "iterators": (_iterates, [0, 1, RAISED] * 3),
    "broken iterators": (_breaks_iterators_off, [0, 0]),
    "impatience": (_waits_without_patience, ["answer"] * 3),
    "lost luggage": (_loses_its_luggage, ["refused"]),
    "cleaning": (_cleans_up_in_vain, ["tidy", "over"]),
    "last words": (_exits_with_words, ["crashed"]),
    "foundlings": (_is_abandoned, ["over"] * 3),
}
"""Name of a custom -> how a driver meets it, and the values that it shows."""


@minray.remote(num_cpus=0)
class BornSlowly:
    """An actor whose constructor is a coroutine."""

    async def __init__(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.word = "born"

    def __repr__(self) -> str:
        return f"BornSlowly({self.word})"

    def say(self) -> str:
        return self.word

    async def age(self) -> str:
        await asyncio.sleep(0)
        return "old"


@minray.remote(num_cpus=0)
class Hiding:
    """An actor with attributes that have the names of its methods."""

    def __init__(self) -> None:
        setattr(self, "word", "attribute")  # noqa: B010 (no checker of types likes it otherwise)
        setattr(self, "count", 0)  # noqa: B010

    def word(self) -> str:
        return "method"

    def count(self) -> int:
        return 1


@minray.remote(num_cpus=0)
class Crowd:
    """A threaded actor that ends while its calls run."""

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "over"

    def leave(self) -> None:
        minray.actor.exit_actor()


@minray.remote(num_cpus=0)
class AsyncCrowd:
    """An async actor that ends while its coroutines run."""

    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "over"

    async def leave(self) -> None:
        minray.actor.exit_actor()


def gather_all(count: int, seconds: float, raises: bool) -> Iterator[int]:
    for number in range(count):
        time.sleep(seconds)
        yield number
    if raises:
        raise ValueError("after all items")


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    gather = minray.remote(num_cpus=0, num_returns="dynamic")(gather_all)


class Numbers:
    """An iterator without a ``close``."""

    def __init__(self, count: int) -> None:
        self._left = iter(range(count))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._left)


@minray.remote(num_cpus=0)
def iterate(count: int) -> Any:
    """Return an iterator; with a count below 0, something that is none."""
    return Numbers(count) if count >= 0 else [count]


class ReturnsIterators:
    """The method of two kinds of actors."""

    def iterate(self, count: int) -> Any:
        return Numbers(count) if count >= 0 else [count]


@minray.remote(num_cpus=0)
class Iterating(ReturnsIterators):
    """An actor that returns iterators."""


@minray.remote(num_cpus=0)
class AsyncIterating(ReturnsIterators):
    """An actor that returns iterators, and has coroutines."""

    async def rest(self) -> None:
        await asyncio.sleep(0)


@minray.remote(num_cpus=0)
class Tidy:
    """An actor with a method for its end, which sleeps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def say(self) -> str:
        return "tidy"

    def leave(self) -> None:
        minray.actor.exit_actor()

    def __ray_shutdown__(self) -> None:
        time.sleep(self._seconds)


@minray.remote(num_cpus=0, max_retries=3)
def answer(seconds: float) -> str:
    time.sleep(seconds)
    return "answer"


@minray.remote(num_cpus=0)
def pass_on(refs: list[Any]) -> Any:
    return minray.get(refs[0])


@minray.remote(num_cpus=0, max_retries=0)
def exit_with_words() -> None:
    sys.exit("the task has had enough")


@minray.remote(num_cpus=0, max_retries=0)
def make_named(called: str) -> str:
    """Make an actor with a name, and drop its handle."""
    handle = Hiding.options(name=called).remote()
    return str(minray.get(handle.word.remote()))
