"""References in any state that are used in any way: ``Held``.

An object has an owner, a kind and a fate: it is there, on its way, an error, freed, cancelled, or its owner is dead. A
driver, a task or an actor holds its reference and uses it a few times. Other programs seldom have a rare use of a reference
in a rare state. This story draws both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import minray
import minray.internal
from minray.exceptions import GetTimeoutError, RayError
from tests.spec.actors import away
from tests.spec.filled import filled
from tests.spec.frees import FREED
from tests.spec.stage import Outcome
from tests.spec.stories import Look, Story, look_at, of_anything

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

DRIVER, TASK, ACTOR, ASYNC = "driver", "task", "actor", "async actor"
OWNERS = (DRIVER, TASK, ACTOR)
USERS = (DRIVER, TASK, ACTOR, ASYNC)
SMALL, LARGE, RAISED, LATE, LATE_LARGE = "small", "large", "raised", "late", "late and large"
NESTED, NESTED_LARGE = "nested", "nested and large"
KINDS = (SMALL, LARGE, RAISED, LATE, LATE_LARGE, NESTED, NESTED_LARGE)
"""Nested ones have a reference to another value beside their bytes."""
BYTES = {SMALL: 10, RAISED: 0, LATE: 10, LARGE: 300, LATE_LARGE: 300, NESTED: 10, NESTED_LARGE: 300}
"""Kind -> size of its value. Worlds with stores keep the large ones there."""
LATE_S = 0.4
"""Seconds after which a late object is made."""
KEPT, FETCHED, FREE, CANCEL, KILL = "kept", "fetched", "freed", "cancelled", "its owner killed"
FATES = (KEPT, FETCHED, FREE, CANCEL, KILL)
FILLING = 7
DEAD = "ActorDiedError"
"""The error of an actor that could not be made, because an argument is an error."""
RIGHT, READY, NOT_YET, IN_VAIN = "right", "ready", "not yet", "in vain"
ENDS: Mapping[str, frozenset[str]] = {
    FREE: frozenset((FREED,)),
    CANCEL: frozenset(("TaskCancelledError", "KeyboardInterrupt")),
    KILL: frozenset(("OwnerDiedError", "ActorDiedError", "ActorUnavailableError", "ObjectReconstructionFailedError")),
}
"""Fate -> names of the errors that it may have made of the object."""


class Held(Story, frozen=True):
    """A reference, what has become of its object, and its uses."""

    owner: str = DRIVER
    object_kind: str = SMALL
    fate: str = KEPT
    user: str = DRIVER
    uses: tuple[str, ...] = ("get",)
    before: int = 0
    """Number of uses before the fate. A task has none."""
    is_far: bool = True
    """Whether the object is made on another node, if there is one."""
    pause_s: float = 0.0
    """Seconds between the fate and the next use."""

    def tell(self) -> list[Look]:
        where = away(0) if self.is_far else "DEFAULT"
        keeper = Keeper.options(scheduling_strategy=where).remote()
        try:
            refs = self._made(keeper, where)
        except RayError as error:
            return [("error", type(error).__name__)] * len(self.uses)
        user = self._user(refs)
        looks = user(self.uses[: self.before])
        self._meet_fate(refs, keeper)
        if self.user not in (DRIVER, TASK):
            del refs
        time.sleep(self.pause_s)
        return looks + user(self.uses[self.before :])

    def _made(self, keeper: Any, where: Any) -> list[Any]:
        """Return the reference, in a list."""
        if self.owner == DRIVER:
            return [make(self.object_kind, where)]
        make_there = keeper.make if self.owner == ACTOR else lend.options(scheduling_strategy=where)
        found: list[Any] = minray.get(make_there.remote(self.object_kind))
        return found

    def _meet_fate(self, refs: list[Any], keeper: Any) -> None:
        if self.fate == FETCHED:
            minray.wait(refs, timeout=1.0)
        elif self.fate == FREE:
            minray.internal.free(refs)
        elif self.fate == CANCEL and self.object_kind in (LATE, LATE_LARGE):
            minray.cancel(refs[0])
        elif self.fate == KILL:
            minray.kill(keeper)

    def _user(self, refs: list[Any]) -> Callable[[tuple[str, ...]], list[Look]]:
        """Return what uses the references in these ways."""
        if self.user == DRIVER:
            return lambda uses: list(use(refs, uses))
        if self.user == TASK:
            return lambda uses: _looks_of(use_in_task.remote(refs, uses), uses)
        actor = (User if self.user == ACTOR else AsyncUser).remote(refs)
        return lambda uses: _looks_of(actor.use.remote(uses), uses)

    def wanted(self) -> list[Any]:
        waits = (READY if use in WAITS else RIGHT for use in self.uses)
        return list(waits)

    def errors(self, losses: Losses) -> set[str]:
        found = of_anything(losses) | {NOT_YET}
        found |= {"ValueError"} if self.object_kind == RAISED else set()
        if self.object_kind == RAISED or self.fate in ENDS:
            found |= {DEAD} if "pass to an actor" in self.uses else set()
        found |= ENDS.get(self.fate, frozenset())
        return found | {f"RayTaskError({error})" for error in found}

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """Allow that polls are in vain for long if a process was silent for a while."""
        looks = outcome["looks"]
        if reading.model.losses.silence:
            looks = [("error", NOT_YET) if shown == IN_VAIN else (kind, shown) for kind, shown in looks]
        yield from super().check(reading, outcome | {"looks": looks})

    def busy_s(self) -> float:
        return self.pause_s + 2 * LATE_S + len(self.uses) * SOON_S


def make(kind: str, where: Any = "DEFAULT") -> Any:
    """Make an object that this process owns."""
    if kind in (SMALL, LARGE, NESTED, NESTED_LARGE) and where == "DEFAULT":
        return minray.put(_value(kind))
    return produce.options(scheduling_strategy=where).remote(kind)


def _looks_of(ref: Any, uses: tuple[str, ...]) -> list[Look]:
    """Return what the uses have shown elsewhere; an error stands for all of them."""
    if not uses:
        return []
    kind, shown = look_at(ref)
    return [(word, seen) for word, seen in shown] if kind == "value" else [(kind, shown)] * len(uses)


def use(refs: list[Any], uses: tuple[str, ...]) -> list[tuple[str, str]]:
    """Use the reference in these ways, and say what each has shown."""
    return [_seen(lambda way=way: WAYS[way](refs[0])) for way in uses]  # type: ignore[misc]


def _seen(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        return "value", call()
    except GetTimeoutError:
        return "error", NOT_YET
    except RayError as error:
        return "error", type(error).__name__


def _value(kind: str) -> Any:
    value = filled(BYTES[kind], FILLING)
    return [value, minray.put(filled(BYTES[LARGE], FILLING))] if kind in (NESTED, NESTED_LARGE) else value


def _right(value: Any) -> str:
    if isinstance(value, list):
        beside, inner = value
        shown = _right(beside), _get(inner)
        return RIGHT if shown == (RIGHT, RIGHT) else str(shown)
    content = value.tobytes()
    return RIGHT if content in {bytes([FILLING]) * size for size in BYTES.values()} else repr(content[:20])


SOON_S = 0.002
POLL_S, PATIENCE_S = 0.05, 60.0
"""Seconds between two polls, and after which polls are in vain."""


def _get(ref: Any) -> str:
    return _right(minray.get(ref))


def _get_soon(ref: Any) -> str:
    return _right(minray.get(ref, timeout=SOON_S))


def _get_beside_late(ref: Any) -> str:
    """An error is raised at once, although another value takes a while."""
    return _right(minray.get([ref, produce.remote(LATE), ref])[0])


def _await(ref: Any) -> str:
    return _right(ref.future().result())


def _wait(ref: Any) -> str:
    return _waited(minray.wait([ref]))


def _wait_fetching_nothing(ref: Any) -> str:
    return _waited(minray.wait([ref], fetch_local=False))


def _wait_for_one_of_two(ref: Any) -> str:
    ready, unready = minray.wait([ref, make(SMALL)], num_returns=2)
    return _waited((ready, unready))


def _wait_soon(ref: Any) -> str:
    minray.wait([ref], timeout=SOON_S)
    return READY


def _poll(ref: Any) -> str:
    """Ask again and again, and never wait."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return _right(minray.get(ref, timeout=0))
        except GetTimeoutError:
            if time.monotonic() > until:
                return IN_VAIN
        time.sleep(POLL_S)


def _poll_by_wait(ref: Any) -> str:
    until = time.monotonic() + PATIENCE_S
    while not minray.wait([ref], timeout=0)[0]:
        if time.monotonic() > until:
            return IN_VAIN
        time.sleep(POLL_S)
    return READY


def _waited(found: tuple[list[Any], list[Any]]) -> str:
    ready, unready = found
    return READY if ready and not unready else f"{len(ready)} ready, {len(unready)} not"


def _pass(ref: Any) -> str:
    return str(minray.get(look.remote(ref)))


def _pass_inside(ref: Any) -> str:
    return str(minray.get(look_inside.remote([ref])))


def _pass_to_actor(ref: Any) -> str:
    return str(minray.get(Beholder.remote(ref).say.remote()))


def _pass_to_call(ref: Any) -> str:
    return str(minray.get(Beholder.remote(None).look.remote(ref)))


def _give_back(ref: Any) -> str:
    return _get(minray.get(give_back.remote([ref]))[0])


def _put_inside(ref: Any) -> str:
    outer = minray.put([ref])
    return _get(minray.get(outer)[0])


def _pass_and_cancel(ref: Any) -> str:
    """A task that may wait for the value is cancelled."""
    waiting = look.remote(ref)
    minray.cancel(waiting)
    try:
        return str(minray.get(waiting))
    except RayError as error:
        if "Cancelled" in type(error).__name__ or "KeyboardInterrupt" in type(error).__name__:
            return RIGHT
        raise


WAYS: Mapping[str, Callable[[Any], str]] = {
    "get": _get,
    "get soon": _get_soon,
    "get beside a late one": _get_beside_late,
    "await": _await,
    "wait": _wait,
    "wait, fetching nothing": _wait_fetching_nothing,
    "wait for both": _wait_for_one_of_two,
    "wait soon": _wait_soon,
    "poll": _poll,
    "wait without a pause": _poll_by_wait,
    "pass": _pass,
    "pass inside": _pass_inside,
    "pass to an actor": _pass_to_actor,
    "pass to a call": _pass_to_call,
    "give back": _give_back,
    "put inside": _put_inside,
    "pass and cancel": _pass_and_cancel,
}
QUICK = ("wait, fetching nothing", "wait, fetching nothing", "get soon", "wait soon")
"""Ways that often bring no value here."""
WAITS = frozenset(way for way in WAYS if way.startswith("wait"))


@minray.remote(num_cpus=0, max_retries=3)
def produce(kind: str) -> Any:
    if kind == RAISED:
        raise ValueError(kind)
    time.sleep(LATE_S if kind in (LATE, LATE_LARGE) else 0.0)
    return _value(kind)


@minray.remote(num_cpus=0, max_retries=3)
def lend(kind: str) -> list[Any]:
    return [make(kind)]


@minray.remote(num_cpus=0)
class Keeper:
    """Owns the object, perhaps on another node."""

    def make(self, kind: str) -> list[Any]:
        return [make(kind)]


@minray.remote(num_cpus=0, max_retries=3)
def use_in_task(refs: list[Any], uses: tuple[str, ...]) -> list[tuple[str, str]]:
    return use(refs, uses)


@minray.remote(num_cpus=0)
class User:
    """Uses a reference in an actor, which keeps it."""

    def __init__(self, refs: list[Any]) -> None:
        self._refs = refs

    def use(self, uses: tuple[str, ...]) -> list[tuple[str, str]]:
        return use(self._refs, uses)


@minray.remote(num_cpus=0)
class AsyncUser:
    """Awaits a reference in a coroutine, whatever its uses are elsewhere."""

    def __init__(self, refs: list[Any]) -> None:
        self._refs = refs

    async def use(self, uses: tuple[str, ...]) -> list[tuple[str, str]]:
        refs, shown = self._refs, []
        for way in uses:
            try:
                value = await refs[0]
                if isinstance(value, list):
                    value, inner = value
                    await inner
                found = _right(value)
                shown.append(("value", READY if way in WAITS and found == RIGHT else found))
            except RayError as error:
                shown.append(("value", READY) if way in WAITS else ("error", type(error).__name__))
        return shown


@minray.remote(num_cpus=0, max_retries=3)
def look(value: Any) -> str:
    return _right(value)


@minray.remote(num_cpus=0, max_retries=3)
def look_inside(refs: list[Any]) -> str:
    return _get(refs[0])


@minray.remote(num_cpus=0, max_retries=3)
def give_back(refs: list[Any]) -> list[Any]:
    return refs


@minray.remote(num_cpus=0)
class Beholder:
    """Is given a value when it is made, or when it is called."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def say(self) -> str:
        return _right(self._value)

    def look(self, value: Any) -> str:
        return _right(value)
