"""What may become of the actors of a program: whether they end, how often they begin anew, and what their calls may raise.

``Fates`` looks at a whole program before the model goes over it, because what ends an actor (``Kill``, a call that exits)
strikes at any time, wherever it stands. The table of ``docs/actor_restarts.md`` says why each error may be raised.

Rules
  * An actor ends for good if it is killed so, ends itself, cannot be made, or crashes more often than it may begin anew; and
    with its owner, if that is a task or another actor (G25).
  * A call that loses its actor uses up a retry (G37). Whoever hears nothing for a while, because something is silent and
    not dead, may use up any number of them (G39b).
  * As long as the driver that has made an actor holds its handle, nobody else's drops matter (G24). Handles from ``Find``
    do not keep it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.programs import Body, Call, Drop, Exit, Generate, Operation, Program, Submit

if TYPE_CHECKING:
    from tests.spec.model import Losses

DRIVER = ""
"""The owner of what drivers make."""
DIED = "ActorDiedError"
UNAVAILABLE = "ActorUnavailableError"


@dataclass
class Fate:
    """Of one actor."""

    create: Create
    owner: str
    """The task or call that makes it."""
    losses: Losses
    ends: bool = False
    """Whether somebody kills it for good, or it ends itself, or its arguments may fail."""
    own_crashes: float = 0
    """So often it crashes at most without a fault."""
    is_let_go: bool = False
    """Whether its driver drops the handle."""
    owner_may_end: bool = False
    is_stillborn: bool = False
    """Whether there will never be one."""

    @property
    def crashes(self) -> float:
        return self.own_crashes + self.losses.deaths

    @property
    def is_kept(self) -> bool:
        """Whether it has a handle as long as its program runs."""
        return self.owner == DRIVER and not self.is_let_go

    @property
    def may_die(self) -> bool:
        """Whether it may be dead for those who have a handle."""
        is_used_up = 0 <= self.create.max_restarts < self.crashes
        return bool(self.create.type) or self.ends or self.owner_may_end or is_used_up

    @property
    def may_end(self) -> bool:
        """Whether its process may."""
        return self.may_die or not self.is_kept or self.crashes > 0

    def most_births(self) -> float:
        """How often its constructor may run (G35)."""
        unlimited = math.inf if self.create.max_restarts < 0 else self.create.max_restarts
        return 1 + min(unlimited, math.inf if self.losses.silence or self.losses.objects else self.crashes)

    def most_tries(self, retries: int, is_repeated: bool) -> float:
        """How often one call may run (G36, G37, G39)."""
        unlimited = math.inf if retries < 0 else retries
        is_any = is_repeated or self.losses.silence or self.losses.objects
        return 1 + min(unlimited, math.inf if is_any else self.crashes)

    def errors(self, retries: int, is_repeated: bool, is_weak: bool) -> set[str]:
        """What the actor's end may make of a call; ``is_weak``: through a handle that does not keep it."""
        found = {DIED} if self.may_die or (is_weak and not self.is_kept) else set()
        is_used_up = 0 <= retries and (self.crashes > retries or self.losses.silence or is_repeated)
        begins_anew = self.create.max_restarts != 0 or self.losses.silence
        return found | ({UNAVAILABLE} if self.crashes > 0 and is_used_up and begins_anew else set())


class Fates:
    """Of all actors of a program."""

    def __init__(self, program: Program, losses: Losses, owners_die: bool) -> None:
        self._of: dict[str, Fate] = {}
        self._found: dict[str, str] = {}
        """Handles by name of ``Find`` -> the actor."""
        self._owners_die = owners_die
        self._actor_of_call = {one.name: one.actor for one in program.performances() if isinstance(one, Call)}
        pairs = [pair for driver in program.drivers for pair in walk(driver, DRIVER)]
        for owner, operation in pairs:
            if isinstance(operation, Create):
                self._of[operation.name] = Fate(operation, owner, losses)
            elif isinstance(operation, Find):
                self._found[operation.name] = operation.actor
        for owner, operation in pairs:
            self._end(owner, operation)
        for fate in self._of.values():
            fate.owner_may_end = self.may_end(fate.owner)

    def of(self, handle: str) -> Fate | None:
        """None: of an actor that this program does not make."""
        return self._of.get(self._found.get(handle, handle))

    def is_weak(self, handle: str) -> bool:
        return handle in self._found

    def may_end(self, owner: str) -> bool:
        """Whether the process that plays this task or call may be gone before its program is over."""
        actor = self._actor_of_call.get(owner)
        if actor is None:
            return owner != DRIVER and self._owners_die
        fate = self.of(actor)
        return fate is None or fate.may_end

    def _end(self, owner: str, operation: Operation) -> None:
        if not isinstance(operation, Kill | Call | Drop):
            return
        fate = self.of(operation.ref if isinstance(operation, Drop) else operation.actor)
        if fate is None:
            return
        times = 1 if owner == DRIVER else math.inf
        if isinstance(operation, Drop):
            fate.is_let_go |= owner == DRIVER and operation.ref == fate.create.name
        elif isinstance(operation, Kill) and not operation.no_restart:
            fate.own_crashes += times
        elif isinstance(operation, Kill) or isinstance(operation.body.end, ExitActor):
            fate.ends = True
        elif isinstance(operation.body.end, Exit):
            retries = retries_of(operation, fate)
            fate.own_crashes += times * (math.inf if retries < 0 else 1 + retries)


def retries_of(call: Call | Generate, fate: Fate) -> int:
    """How often a call may be made again; -1: always."""
    own = call.max_retries if isinstance(call, Generate) else call.max_task_retries
    return fate.create.max_task_retries if own is None else own


def walk(body: Body, owner: str) -> Iterator[tuple[str, Operation]]:
    """All operations with the task or call that performs them."""
    for operation in body.operations:
        yield owner, operation
        if isinstance(operation, Submit | Call):
            yield from walk(operation.body, operation.name)
