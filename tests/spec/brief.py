"""Actors that end soon after they were asked for, at any stage of their creation: ``Brief``.

An actor may end while its registration is stored, while it waits for an argument or for a place, in its constructor, or
when it has answered. It is killed, dropped, or leaves. Its name is free then (G31), and the next one takes it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayError
from tests.spec.frees import FREED
from tests.spec.stopped import DIED, OWN
from tests.spec.stories import Look, Story, look_at, of_anything

if TYPE_CHECKING:
    from tests.spec.model import Losses

QUICK, SLOW, STARVES, HOMELESS = "quick", "slow", "starves", "homeless"
STATES = (QUICK, QUICK, SLOW, STARVES, HOMELESS)
"""States of a creation, as often as they are drawn: a moment, a slow constructor, a late argument, a place that is not."""
KILL, RESTART, DROP, LEAVE, OTHER = "kill", "restart and kill", "drop", "leave", "killed in a task"
ORPHAN = "its owner is killed"
ENDS = (KILL, RESTART, DROP, LEAVE, OTHER, ORPHAN)
ASKED_S = 6.0
"""Seconds after which a process asks again about an actor of which nobody has told it."""
SLOW_S = 0.4
"""Seconds of a slow constructor, and after which a late argument is made."""
PATIENCE_S, LOOK_AGAIN_S = 60.0, 0.05
"""Seconds after which a name counts as taken for ever, and between two tries to take it."""
LEFT, KILLED = ("error", "ActorDiedError"), ("value", None)
"""Outcomes of the calls that end an actor from inside and from another process."""
NOWHERE = {"nowhere": 1.0}
"""Resources that no node has."""
ENDED, DEAD, FREE, TAKEN, FOUND = "ended", "dead", "free", "taken", "found by its name when a call has said that it left"


class Brief(Story, frozen=True):
    """Actors with one name, one after the other."""

    state: str = QUICK
    ends: tuple[str, ...] = (KILL,)
    """How each actor ends."""
    is_named: bool = True
    is_detached: bool = False
    is_called: bool = False
    """Whether it has a call at once."""
    pause_s: float = 0.0
    """Seconds from its creation to its end."""

    def tell(self) -> list[Look]:
        looks = []
        for end in self.ends:
            parent = Parent.remote() if end == ORPHAN else None
            try:
                actor = self._begin(parent)
            except RayError as error:  # of the parent
                return [("error", type(error).__name__)] * len(self.wanted())
            if actor is None:
                return [*looks, ("value", TAKEN)]
            call = actor.say.remote() if self.is_called else None
            time.sleep(self.pause_s)
            last = self._end(actor, end, parent)
            del actor, parent
            looks += [_outcome(look_at(call))] if call is not None else []
            looks += last
        return [*looks, ("value", self._name_at_the_end())]

    def _begin(self, parent: Any) -> Any:
        """Create an actor as soon as its name is free, or have its parent do so; None: it never is."""
        lifetime = "detached" if self.is_detached and parent is None else None
        options: dict[str, Any] = {"max_restarts": -1, "lifetime": lifetime}
        options |= {"name": f"mayfly {self.name}"} if self.is_named else {}
        options |= {"resources": NOWHERE} if self.state == HOMELESS else {}
        argument = late.remote() if self.state == STARVES else None
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            try:
                seconds = SLOW_S if self.state == SLOW else 0.0
                if parent is None:
                    return Mayfly.options(**options).remote(seconds, argument)
                return minray.get(parent.bear.remote(options, seconds, [argument]))
            except ValueError:  # the last one is not dead yet
                time.sleep(LOOK_AGAIN_S)
        return None

    def _end(self, actor: Any, end: str, parent: Any) -> list[Look]:
        """Let it end, and call it once more if that can be."""
        if self._is_dropped(end):
            return []
        if end == LEAVE and self.state != HOMELESS:
            left, behind = actor.leave.remote(), actor.say.remote()
            if look_at(behind) == LEFT and self._is_found():
                return [("value", FOUND)]
            if look_at(left) != LEFT:  # the call was lost with the actor's node, and the actor begins again
                minray.kill(actor)
        elif end == ORPHAN:
            minray.kill(parent)
        elif end == OTHER:
            if look_at(kill.remote(actor)) != KILLED:
                minray.kill(actor)
        else:
            if end == RESTART:
                minray.kill(actor, no_restart=False)
            minray.kill(actor)
        return [_outcome(look_at(actor.say.remote()))]

    def _is_found(self) -> bool:
        """Whether the name still finds an actor. The gcs knows of an exit before a caller does."""
        if not self.is_named:
            return False
        try:
            minray.get_actor(f"mayfly {self.name}")
        except ValueError:
            return False
        return True

    def _is_dropped(self, end: str) -> bool:
        """A detached actor is killed instead, and one whose call waits for ever, which keeps it alive."""
        return end == DROP and not self.is_detached and not (self.state == HOMELESS and self.is_called)

    def _name_at_the_end(self) -> str:
        until = time.monotonic() + PATIENCE_S
        while is_found := self._is_found():
            if time.monotonic() > until:
                break
            time.sleep(LOOK_AGAIN_S)
        return TAKEN if is_found else FREE

    def wanted(self) -> list[Any]:
        looks = 0
        for end in self.ends:
            looks += self.is_called + (not self._is_dropped(end))
        return [ENDED] * looks + [FREE]

    def errors(self, losses: Losses) -> set[str]:
        return of_anything(losses) | {FREED}

    def busy_s(self) -> float:
        return len(self.ends) * (self.pause_s + 4 * SLOW_S) + self.ends.count(ORPHAN) * ASKED_S

    def events(self) -> set[str]:
        return {"used", "dropped"} if any(map(self._is_dropped, self.ends)) else {"used"}


def _outcome(look: Look) -> Look:
    """A call of an actor that ends may have been answered before; it raises otherwise."""
    kind, shown = look
    return ("value", ENDED) if kind == "value" or shown in DIED | OWN else look


@minray.remote(num_cpus=0)
def late() -> None:
    time.sleep(SLOW_S)


@minray.remote(num_cpus=0)
def kill(actor: Any) -> None:
    minray.kill(actor)


@minray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Parent:
    """Owns an actor."""

    def bear(self, options: dict[str, Any], seconds: float, argument: list[Any]) -> Any:
        """``argument``: the argument, perhaps a reference, in a list."""
        return Mayfly.options(**options).remote(seconds, argument[0])


@minray.remote(num_cpus=0)
class Mayfly:
    """Lives for a short time."""

    def __init__(self, seconds: float, argument: Any) -> None:
        time.sleep(seconds)

    def say(self) -> str:
        return DEAD

    def leave(self) -> None:
        minray.actor.exit_actor()
