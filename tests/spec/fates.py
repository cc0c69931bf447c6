"""Possible fates of a program's actors: whether they end, how often they restart, and what their calls may raise.

``Fates`` looks at a whole program before the model goes over it. The reason: an operation that ends an actor (``Kill``, a
call that exits) may strike at any time, wherever it stands in the text. The table of ``docs/actor_restarts.md`` says why
each error may be raised.

Rules
  * An actor ends for good if it is killed for good, ends itself, cannot be made, or crashes more often than it may restart.
    It also ends with its owner, if that is a task or another actor (G25).
  * A call that loses its actor uses up a retry (G37). A caller that hears nothing for a while, because a process is silent
    and not dead, may use up any number of retries (G39b).
  * Every handle keeps its actor alive, also one that was found by name (G24, G33a). So one process's drops do not matter to
    others that have a handle. An actor that another driver may have made ends with that driver only if that was killed, has
    left, or has lost its cluster before the others were through.
  * A crash counts only if it has struck a worker that the actor was given. A silence counts only for a caller between which
    and the actor it was (``charges``).
  * A detached actor needs no handle, and ends with no other process (G26). One exception: its maker may die before it has
    told the gcs how the actor is made.
  * An actor that lives in a placement group ends when that is removed. It may restart before, on a node that has not heard
    of the removal. A caller that waits for its creation is told why it will never be made (G106).
  * All actors with one name have one fate. They have the same options, and a handle may be that of any of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.groups import Remove
from tests.spec.programs import (
    Body,
    Call,
    Drop,
    Exit,
    Generate,
    Operation,
    Program,
    RaiseAtFirst,
    Submit,
    retries_its_exception,
)

if TYPE_CHECKING:
    from tests.spec.model import Losses

DRIVER = ""
"""The owner of objects and actors that drivers make."""
KILLED_DRIVER = "a driver that was killed"
"""The owner of objects and actors that killed drivers make."""
DIED = "ActorDiedError"
UNAVAILABLE = "ActorUnavailableError"
NO_MEMORY = "OutOfMemoryError"
"""Replaces either of the two if the memory monitor has killed the actor's worker."""
GROUP_REMOVED = "ActorPlacementGroupRemoved"
NO_PLACE = "ActorUnschedulableError"
TASKS_THAT_END = frozenset({"visit", "find_group", "visit_booth", "visit_after", "linger", "nap", "count", "rush_in_task"})
"""Names of the tasks that stories run in placement groups, or cancel by force. Their workers may own other tasks' values."""



@dataclass
class Fate:
    """Possible ends of one actor, or of all actors that get one name."""

    create: Create
    """The first ``Create`` that makes it."""
    losses: Losses
    makers: dict[str, str] = field(default_factory=dict)
    """``Create`` that makes it -> the task or call that performs it."""
    drivers: set[int] = field(default_factory=set)
    """Numbers of the drivers in whose text these ``Create`` stand."""
    ends: bool = False
    """Whether the program kills it for good, or it ends itself, or its arguments may fail."""
    own_crashes: float = 0
    """Number of times that it may crash without a fault."""
    is_let_go: bool = False
    """Whether its driver drops the handle."""
    owner_may_end: bool = False
    """Whether one of its makers may end before the program is over."""
    is_stillborn: bool = False
    """Whether its constructor can never succeed."""
    loses_group: bool = False
    """Whether its placement group is removed."""

    @property
    def crashes(self) -> float:
        return self.own_crashes + self.losses.deaths

    @property
    def is_kept(self) -> bool:
        """Whether it has a handle as long as its program runs, or needs none."""
        return self.create.detached or (list(self.makers.values()) == [DRIVER] and not self.is_let_go)

    @property
    def may_die(self) -> bool:
        """Whether it may be dead although a process has a handle."""
        return self.owner_may_end or self.may_end_by_itself

    @property
    def may_end_by_itself(self) -> bool:
        """Whether it may be dead for more than its owner's end. A restart may need arguments that an ended maker stored."""
        is_used_up = 0 <= self.create.max_restarts < self.crashes
        is_orphaned = self.losses.stored and self.owner_may_end and self.crashes > 0
        has_lost_arguments = (self.losses.objects and self.losses.files) or self.losses.room
        never_begins = bool(self.create.type) or self.losses.hopeless
        return never_begins or self.ends or is_used_up or is_orphaned or has_lost_arguments

    @property
    def may_end(self) -> bool:
        """Whether its process may end."""
        return self.may_die or not self.is_kept or self.crashes > 0

    def most_births(self) -> float:
        """How often its constructor may run at most (G35)."""
        unlimited = math.inf if self.create.max_restarts < 0 else self.create.max_restarts
        restarts = min(unlimited, math.inf if self.losses.silence or self.losses.objects else self.crashes)
        return 1 + restarts + self.losses.preemptions

    def most_tries(self, retries: int, is_repeated: bool, losses: Losses) -> float:
        """How often one call may run at most (G36, G37, G39); ``losses``: what may have struck the call itself."""
        unlimited = math.inf if retries < 0 else retries
        is_any = is_repeated or losses.silence or losses.objects
        return 1 + min(unlimited, math.inf if is_any else self._crashes_with(losses)) + losses.preemptions

    def errors(self, retries: int, is_repeated: bool, losses: Losses) -> set[str]:
        """Errors that the actor's end may give a call; ``losses``: what may have struck the call itself."""
        found = {DIED} if self.may_die else set()
        found |= {GROUP_REMOVED} if self.loses_group else set()
        found |= {NO_PLACE} if self.losses.hopeless else set()
        crashes, is_silent = self._crashes_with(losses), losses.silence or self.losses.silence
        is_used_up = 0 <= retries and (crashes > retries or is_silent or is_repeated)
        begins_anew = self.create.max_restarts != 0 or is_silent
        found |= {UNAVAILABLE} if crashes > 0 and is_used_up and begins_anew else set()
        return found | ({NO_MEMORY} if self.losses.memory and found & {DIED, UNAVAILABLE} else set())

    def _crashes_with(self, losses: Losses) -> float:
        """Number of times that a call may lose its actor: those of the actor, or those of its caller's view of it."""
        return self.own_crashes + max(self.losses.deaths, losses.deaths)

    def surely_returns(self, call: Call, retries: int, losses: Losses) -> bool:
        """Whether a call that raises at first is surely retried, so that it returns a value (G39)."""
        is_calm = not (self._crashes_with(losses) or losses.silence or losses.objects)
        may_raise = isinstance(call.body.end, RaiseAtFirst) and retries_its_exception(call)
        return may_raise and (retries < 0 or (retries > 0 and is_calm))


class Fates:
    """Fates of all actors of a program."""

    def __init__(
        self,
        program: Program,
        losses: Losses,
        owners_die: bool,
        killed_drivers: Collection[int] = (),
        forced: Collection[str] = (),
    ) -> None:
        """``forced``: tasks that may be cancelled by force."""
        self._of: dict[str, Fate] = {}
        """Name of a ``Create`` -> the fate of its actor."""
        self._named: dict[str, Fate] = {}
        """Name of an actor -> its fate."""
        self._found: dict[str, str] = {}
        """Name of a ``Find`` -> the actor's name that it looks for."""
        self._owners_die = owners_die
        self._charges = losses.charges
        self._losses = losses
        self._ending = _ending_names(program, forced)
        self._lost = {KILLED_DRIVER}
        """Killed drivers with all their tasks and calls: no history tells what they have done."""
        self._actor_of_call = {one.name: one.actor for one in program.performances() if isinstance(one, Call)}
        for number, driver in enumerate(program.drivers):
            is_killed = number in killed_drivers
            self._add(number, list(walk(driver, KILLED_DRIVER if is_killed else DRIVER)), losses)
            if is_killed:
                self._lost |= {one.name for one in driver.walk() if isinstance(one, Submit | Call)}
        for driver in program.drivers:
            for owner, operation in walk(driver, DRIVER):
                self._end(owner, operation)
        for fate in self._of.values():  # It may restart in its maker's worker, which is idle then, and crash there.
            fate.owner_may_end = fate.own_crashes > 0 and any(map(self._has_ended, set(fate.makers.values()) - {DRIVER}))
        unsettled = list(self._of.values())
        while ending := [fate for fate in unsettled if any(map(self.may_end, fate.makers.values()))]:
            for fate in ending:  # An ending actor may be the maker of one that was settled before.
                fate.owner_may_end = True
            unsettled = [fate for fate in unsettled if not fate.owner_may_end]

    def _add(self, driver: int, pairs: list[tuple[str, Operation]], losses: Losses) -> None:
        for owner, operation in pairs:
            if isinstance(operation, Create):
                name = operation.called
                fate = self._named.get(name) or Fate(operation, losses.of(name or operation.name, _places(operation.args)))
                self._of[operation.name] = fate
                if name:
                    self._named[name] = fate
                fate.makers[operation.name] = owner
                fate.drivers.add(driver)
            elif isinstance(operation, Find):
                self._found[operation.name] = operation.called

    def of(self, handle: str) -> Fate | None:
        """Fate of the actor that a handle is of; None if the program does not make that actor."""
        name = self._found.get(handle)
        return self._of.get(handle) if name is None else self._named.get(name)

    def named(self, name: str) -> Fate | None:
        return self._named.get(name)

    def identity(self, handle: str) -> str:
        """A word for the actor. Two handles have the same word only if they certainly are of one actor."""
        fate = self.of(handle)
        return fate.create.name if fate is not None and len(fate.makers) == 1 else handle

    def belongs_to_one_driver(self, name: str) -> bool:
        """Whether all ``Create`` with this name stand in the body of one driver, not in tasks."""
        fate = self._named.get(name)
        return fate is not None and len(fate.drivers) == 1 and set(fate.makers.values()) == {DRIVER}

    def may_end(self, owner: str) -> bool:
        """Whether the process that plays this task or call may be gone before its program is over."""
        if owner in self._lost:
            return True
        actor = self._actor_of_call.get(owner)
        if actor is None:
            return owner != DRIVER and self._owners_die and self._task_may_end(owner)
        fate = self.of(actor)
        return fate is None or (fate.may_end and self._has_ended(owner))

    def _has_ended(self, owner: str) -> bool:
        """Whether a process that has played this task or call has really ended, as far as that is known."""
        return self._charges is None or self._charges.of(owner).has_ended

    def _task_may_end(self, task: str) -> bool:
        """Whether a worker that has run this task has ended, for a reason that is known.

        It was struck; it has worked for a process that has ended; or something that ends its worker ran there, too.
        """
        if self._charges is None:
            return True
        charge, losses = self._charges.of(task), self._losses.of(task)
        is_struck = losses.deaths > 0 or losses.preemptions > 0 or charge.has_lost_source
        return charge.has_ended and (is_struck or not charge.beside.isdisjoint(self._ending))

    def _end(self, owner: str, operation: Operation) -> None:
        if isinstance(operation, Remove):
            for fate in self._of.values():
                if fate.create.group == operation.group:
                    fate.ends = fate.loses_group = True
                    fate.own_crashes = math.inf
        if not isinstance(operation, Kill | Call | Drop):
            return
        fate = self.of(operation.ref if isinstance(operation, Drop) else operation.actor)
        if fate is None:
            return
        times = 1 if owner == DRIVER else math.inf
        if isinstance(operation, Drop):
            fate.is_let_go |= owner == DRIVER and operation.ref in fate.makers
        elif isinstance(operation, Kill) and not operation.no_restart:
            fate.own_crashes += times
        elif isinstance(operation, Kill) or isinstance(operation.body.end, ExitActor):
            fate.ends = True
        elif isinstance(operation.body.end, Exit):
            retries = retries_of(operation, fate)
            fate.own_crashes += times * (math.inf if retries < 0 else 1 + retries)


def _places(args: tuple[str, ...]) -> list[str]:
    """Names of the objects, and of the tasks or generators that these may be parts of."""
    return [*args, *(name.rpartition(".")[0] for name in args)]


def _ending_names(program: Program, forced: Collection[str]) -> set[str]:
    """Names of all that may end the worker in which it runs: actors and their calls, and some tasks."""
    names = {one.called or one.name for one in program.actors()} | TASKS_THAT_END
    for one in program.performances():
        if isinstance(one, Call) or isinstance(one.body.end, Exit) or one.group or one.name in forced:
            names.add(one.name)
    return names


def retries_of(call: Call | Generate, fate: Fate) -> int:
    """How often a call may be retried; -1: without limit."""
    own = call.max_retries if isinstance(call, Generate) else call.max_task_retries
    return fate.create.max_task_retries if own is None else own


def walk(body: Body, owner: str) -> Iterator[tuple[str, Operation]]:
    """All operations, each with the task or call that performs it."""
    for operation in body.operations:
        yield owner, operation
        if isinstance(operation, Submit | Call):
            yield from walk(operation.body, operation.name)
