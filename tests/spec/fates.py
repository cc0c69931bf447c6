"""What may become of the actors of a program: whether they end, how often they begin anew, and what their calls may raise.

``Fates`` looks at a whole program before the model goes over it, because what ends an actor (``Kill``, a call that exits)
strikes at any time, wherever it stands. The table of ``docs/actor_restarts.md`` says why each error may be raised.

Rules
  * An actor ends for good if it is killed so, ends itself, cannot be made, or crashes more often than it may begin anew; and
    with its owner, if that is a task or another actor (G25).
  * A call that loses its actor uses up a retry (G37). Whoever hears nothing for a while, because something is silent and
    not dead, may use up any number of them (G39b).
  * Every handle keeps its actor, also one that was found by name (G24, G33a): nobody's drops matter to those who have one.
    But an actor that another driver may have made ends with that driver.
  * A detached actor is kept by nobody and ends with nobody (G26), but for a maker who dies before it has said what the
    actor is made of.
  * One that lives in a placement group which is removed ends with it, perhaps after it has begun anew where the removal was
    not heard of yet; who waits until it could be made is told why it will never be (G106).
  * All that get one name have one fate: they are alike, and whoever has a handle has that of any of them.
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
"""The owner of what drivers make."""
KILLED_DRIVER = "a driver that was killed"
"""The same of those that have not lived to tell."""
DIED = "ActorDiedError"
UNAVAILABLE = "ActorUnavailableError"
NO_MEMORY = "OutOfMemoryError"
"""In the place of either, if its worker was killed for that."""
GROUP_REMOVED = "ActorPlacementGroupRemoved"
NO_PLACE = "ActorUnschedulableError"


@dataclass
class Fate:
    """Of one actor, or of all that get one name."""

    create: Create
    """The first that makes it."""
    losses: Losses
    makers: dict[str, str] = field(default_factory=dict)
    """Those ``Create``, and the task or call that does it."""
    drivers: set[int] = field(default_factory=set)
    """Of which drivers they are."""
    ends: bool = False
    """Whether somebody kills it for good, or it ends itself, or its arguments may fail."""
    own_crashes: float = 0
    """So often it crashes at most without a fault."""
    is_let_go: bool = False
    """Whether its driver drops the handle."""
    owner_may_end: bool = False
    """Whether one of its makers may, before its program is over."""
    is_stillborn: bool = False
    """Whether there will never be one."""
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
        """Whether it may be dead for those who have a handle."""
        return self.owner_may_end or self.may_end_by_itself

    @property
    def may_end_by_itself(self) -> bool:
        """Whether it may be dead although it has been asked for; to be made it may need what its makers had stored."""
        is_used_up = 0 <= self.create.max_restarts < self.crashes
        is_orphaned = self.losses.stored and self.owner_may_end and self.crashes > 0
        return bool(self.create.type) or self.ends or is_used_up or is_orphaned or self.losses.files or self.losses.room

    @property
    def may_end(self) -> bool:
        """Whether its process may."""
        return self.may_die or not self.is_kept or self.crashes > 0

    def most_births(self) -> float:
        """How often its constructor may run (G35)."""
        unlimited = math.inf if self.create.max_restarts < 0 else self.create.max_restarts
        restarts = min(unlimited, math.inf if self.losses.silence or self.losses.objects else self.crashes)
        return 1 + restarts + self.losses.preemptions

    def most_tries(self, retries: int, is_repeated: bool) -> float:
        """How often one call may run (G36, G37, G39)."""
        unlimited = math.inf if retries < 0 else retries
        is_any = is_repeated or self.losses.silence or self.losses.objects
        return 1 + min(unlimited, math.inf if is_any else self.crashes) + self.losses.preemptions

    def errors(self, retries: int, is_repeated: bool, is_loose: bool) -> set[str]:
        """What the actor's end may make of a call; ``is_loose``: it may end with its driver during the call."""
        found = {DIED} if self.may_die or is_loose else set()
        found |= {GROUP_REMOVED} if self.loses_group else set()
        found |= {NO_PLACE} if self.losses.hopeless else set()
        is_used_up = 0 <= retries and (self.crashes > retries or self.losses.silence or is_repeated)
        begins_anew = self.create.max_restarts != 0 or self.losses.silence
        found |= {UNAVAILABLE} if self.crashes > 0 and is_used_up and begins_anew else set()
        return found | ({NO_MEMORY} if self.losses.memory and found & {DIED, UNAVAILABLE} else set())

    def surely_returns(self, call: Call, retries: int) -> bool:
        """Whether it is made again when it has raised for the first time, and that time is the last (G39)."""
        is_calm = not (self.crashes or self.losses.silence or self.losses.objects)
        may_raise = isinstance(call.body.end, RaiseAtFirst) and retries_its_exception(call)
        return may_raise and (retries < 0 or (retries > 0 and is_calm))


class Fates:
    """Of all actors of a program."""

    def __init__(self, program: Program, losses: Losses, owners_die: bool, killed_drivers: Collection[int] = ()) -> None:
        self._of: dict[str, Fate] = {}
        """By ``Create``."""
        self._named: dict[str, Fate] = {}
        self._found: dict[str, str] = {}
        """Handles by name of ``Find`` -> what it looks for."""
        self._driver_of: dict[str, int] = {}
        """Of each handle by name of ``Create`` or ``Find``: in whose text that is."""
        self._finder_of: dict[str, str] = {}
        """The task or call that makes it or looks for it."""
        self._submitter_of: dict[str, str] = {}
        """Of each task and call."""
        self._dropped: set[str] = set()
        """Tasks and calls with results that nobody waits for, perhaps."""
        self._owners_die = owners_die
        self._lost = {KILLED_DRIVER}
        """Whoever cannot tell what has become of him: killed drivers with all their tasks and calls."""
        self._actor_of_call = {one.name: one.actor for one in program.performances() if isinstance(one, Call)}
        for number, driver in enumerate(program.drivers):
            is_killed = number in killed_drivers
            self._add(number, list(walk(driver, KILLED_DRIVER if is_killed else DRIVER)), losses)
            if is_killed:
                self._lost |= {one.name for one in driver.walk() if isinstance(one, Submit | Call)}
        for driver in program.drivers:
            for owner, operation in walk(driver, DRIVER):
                self._end(owner, operation)
        for fate in self._of.values():  # It may begin anew in its maker's worker, which is idle then, and crash there.
            fate.owner_may_end = fate.own_crashes > 0 and set(fate.makers.values()) != {DRIVER}
        unsettled = list(self._of.values())
        while ending := [fate for fate in unsettled if any(map(self.may_end, fate.makers.values()))]:
            for fate in ending:  # which may be the maker of one that was looked at before
                fate.owner_may_end = True
            unsettled = [fate for fate in unsettled if not fate.owner_may_end]

    def _add(self, driver: int, pairs: list[tuple[str, Operation]], losses: Losses) -> None:
        for owner, operation in pairs:
            if isinstance(operation, Create | Find):
                self._driver_of[operation.name] = driver
                self._finder_of[operation.name] = owner
            if isinstance(operation, Create):
                name = operation.called
                fate = self._named.get(name) or Fate(operation, losses)
                self._of[operation.name] = fate
                if name:
                    self._named[name] = fate
                fate.makers[operation.name] = owner
                fate.drivers.add(driver)
            elif isinstance(operation, Find):
                self._found[operation.name] = operation.called
            elif isinstance(operation, Submit | Call):
                self._submitter_of[operation.name] = owner
            elif isinstance(operation, Drop):
                self._dropped.add(operation.ref.partition(".")[0])

    def of(self, handle: str) -> Fate | None:
        """None: of an actor that this program does not make."""
        name = self._found.get(handle)
        return self._of.get(handle) if name is None else self._named.get(name)

    def named(self, name: str) -> Fate | None:
        return self._named.get(name)

    def is_loose(self, handle: str) -> bool:
        """Whether the actor may end with the driver that has made it while somebody uses this handle."""
        fate = self.of(handle)
        if fate is None or fate.create.detached or list(fate.makers) == [handle]:
            return False
        return fate.drivers != {self._driver_of[handle]} or self._may_outlast_its_driver(self._finder_of[handle])

    def _may_outlast_its_driver(self, owner: str) -> bool:
        """Whether a task may go on when its driver has done everything, and holds nothing any more."""
        while owner in self._submitter_of:
            if owner in self._dropped:
                return True
            owner = self._submitter_of[owner]
        return False

    def identity(self, handle: str) -> str:
        """A word for the actor: the same for two handles only if it is the same for certain."""
        fate = self.of(handle)
        return fate.create.name if fate is not None and len(fate.makers) == 1 else handle

    def belongs_to_one_driver(self, name: str) -> bool:
        """Whether whoever gives this name does so in the text of one driver."""
        fate = self._named.get(name)
        return fate is not None and len(fate.drivers) == 1 and set(fate.makers.values()) == {DRIVER}

    def may_end(self, owner: str) -> bool:
        """Whether the process that plays this task or call may be gone before its program is over."""
        if owner in self._lost:
            return True
        actor = self._actor_of_call.get(owner)
        if actor is None:
            return owner != DRIVER and self._owners_die
        fate = self.of(actor)
        return fate is None or fate.may_end

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
