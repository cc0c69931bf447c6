"""The sequential model: which outcomes the guarantees allow for each operation of a program.

``Model`` goes over a program once, in the order of its text. It says of every object whether ``get`` may return its value
and which errors ``get`` may raise (``Expectation``). ``problems`` compares what a run has shown with that.

Rules
  * Without losses (processes or nodes that faults can kill) every ``get`` without a time-out has one outcome, unless the
    task is cancelled somewhere.
  * A loss ends at most one attempt of a task (G16), or takes its value away, so that the task runs again (G67, G70). Hence a
    task fails because of losses only if it has no more retries than there are losses (G17).
  * Losses are those of a task, call or actor itself, if it is known where it ran (``Losses.of``). Of other losses nothing
    follows for it. One exception: a value that another needs is made again when that other is lost (``lineage``).
  * An object that a task owns is lost when the task's process dies (G62). Faults, forced cancellations and tasks that exit
    bring that about. So do actors that were given the same worker. The process must really have ended, if that is known. An
    object that an actor's call owns is lost with the actor. An object that a driver owns is never lost, unless a disk loses
    it.
  * ``fates`` says how actors may end, and what their calls may raise then. Calls of a plain actor that are never retried
    begin in the order in which one process has made them, by whatever handles (G49). After a driver has killed an actor for
    good, its calls fail (G29).
  * A name is taken while an actor that nothing ends has it. It is free when its only driver has killed the last actor that
    had it (G31). ``get_actor`` always shows the same actor if nothing ends that actor (G33), and never shows an actor that
    was replaced (G39b).
  * A driver that was killed is not judged. What it may have done to actors that others can call counts.
  * A driver that has seen the value or the error of its own object sees the same at every later look (G43). Only a task
    whose value was lost with a node's object store may end otherwise, since it runs again. Until it ends, its object counts
    as not made yet.
  * A task or coroutine that is cancelled while it sleeps is interrupted soon (G41, G45), if nothing was silent near it and
    its node was not lost. Every ``Cancel`` and ``Sleep`` notes the time for that. Calls in threads are never interrupted.

Weak points:
  * A cancellation may strike at any time for the model, so one that certainly comes before its task starts (G40) is not
    judged as such.
  * The sleep of children that are cancelled with their parents (G46) is not judged.
  * A time-out may strike at any time before the value is there.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.judge import INTERRUPTED
from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.bundles import Bundles
from tests.spec.charges import Charges
from tests.spec.contests import Contest
from tests.spec.detached import Farewell
from tests.spec.fates import DIED, DRIVER, GROUP_REMOVED, NO_MEMORY, NO_PLACE, UNAVAILABLE, Fate, Fates, retries_of
from tests.spec.founders import Endowment, Founding
from tests.spec.frees import FREED, Free
from tests.spec.groups import REMOVED, Group, NamedGroup, Remove
from tests.spec.lineage import Lineage
from tests.spec.looks import Look, contradictions, stale
from tests.spec.programs import (
    Body,
    Call,
    Cancel,
    Exit,
    Generate,
    Get,
    Miscount,
    Operation,
    Program,
    RaiseAtFirst,
    Sleep,
    Submit,
    retries_its_exception,
)
from tests.spec.rushes import Rush
from tests.spec.stage import BORN, END, RUN, History, Outcome, parse_word
from tests.spec.stopped import Stopped

LOST_OWNER = "OwnerDiedError"
UNSCHEDULABLE = "TaskUnschedulableError"
NO_ROOM = frozenset({"ObjectStoreFullError", "OutOfDiskError"})
LOST_OBJECT = "ObjectReconstructionFailedError"
LOST = frozenset({LOST_OBJECT, f"RayTaskError({LOST_OBJECT})"})
"""Errors of a lost result, and of a task with a lost argument. Arguments that do not fit into a message are objects, too."""
TIMEOUT = "GetTimeoutError"
UNBEGUN = "TaskCancelledError"
CANCELLED = frozenset({UNBEGUN, INTERRUPTED})
"""Errors of ``get`` for a cancelled task: one that had not begun, and one that had."""
VALUE = "its value"
HEARD_S = 2.0
"""Most seconds after which a cancellation has reached its task, if no process is silent; see ``Losses.lag_s``."""


@dataclass(frozen=True)
class Losses:
    """Losses that faults can cause in a run."""

    deaths: int = 0
    """Number of times that processes may die, or count as dead."""
    nodes: bool = False
    """Whether whole nodes can be among them."""
    objects: bool = False
    """Whether values are in the object stores of such nodes."""
    files: bool = False
    """Whether values can be lost on disk, any number of times, or are not made again."""
    silence: bool = False
    """Whether a process may have said nothing for a while, or was heard late, without being dead."""
    stored: bool = False
    """Whether values are in object stores at all."""
    spilled: bool = False
    """Whether values may be spilled to disk, from where they are restored when a process waits for them."""
    preemptions: int = 0
    """Number of nodes that are to leave. A worker that dies there, even by itself, uses up no retry and no restart."""
    memory: int = 0
    """Number of the deaths that the memory monitor has caused. They use up no retry."""
    room: bool = False
    """Whether a value may have found no room, because nothing could be written to disk."""
    departures: bool = False
    """Whether nodes may leave in good order."""
    hopeless: bool = False
    """Whether a raylet may have given up a lease, because too many workers in a row have failed to start."""
    torn: bool = False
    """Whether a disk may have lost values."""
    forgets_actors: bool = False
    """Whether the gcs keeps so few dead actors that it may have forgotten some."""
    forgets_tasks: bool = False
    """Whether the gcs keeps so few ended tasks that it may have forgotten some."""
    lag_s: float = HEARD_S
    """Seconds after which a cancellation has reached its task, if no process is silent."""
    charges: Charges | None = None
    """Charges of each task, call and actor; None: each may have suffered all losses."""

    def of(self, name: str, needs: Iterable[str] = ()) -> Losses:
        """Losses that may have struck what goes by this name; ``needs``: tasks and calls whose values it takes.

        If nodes leave, its value moves to another node, which may be lost.
        """
        if self.charges is None:
            return self
        charge = self.charges.of(name)
        nodes = charge.nodes or any(self.charges.of(need).nodes for need in needs)
        memory = min(self.memory, charge.memory)
        return replace(
            self,
            deaths=min(self.deaths - self.memory, charge.deaths - charge.memory) + memory,
            nodes=self.nodes and charge.nodes,
            objects=self.objects and (self.torn or nodes or self.departures),
            silence=self.silence and charge.silence,
            preemptions=min(self.preemptions, charge.preemptions),
            memory=memory,
        )

    def of_job_of(self, driver: str) -> Losses:
        """Losses that may have struck what belongs to the job of a driver.

        If nodes leave, values move to nodes where the job has run nothing."""
        if self.charges is None or self.departures:
            return self
        charge = self.charges.of_job_of(driver)
        return replace(
            self,
            deaths=self.deaths if charge.deaths or charge.nodes else 0,
            nodes=self.nodes and charge.nodes,
            objects=self.objects and (self.torn or charge.nodes),
            silence=self.silence and charge.silence,
            memory=self.memory if charge.memory else 0,
        )

    def errors(self) -> set[str]:
        return {"WorkerCrashedError", "NodeDiedError"} if self.nodes else {"WorkerCrashedError"}

    def of_unknown_actor(self) -> set[str]:
        """Outcomes that deaths may give a call of an actor about which nothing is known."""
        return {DIED, UNAVAILABLE} | ({NO_MEMORY} if self.memory else set()) | ({NO_PLACE} if self.hopeless else set())

    def errors_with(self, max_retries: int) -> set[str]:
        """Errors that deaths may give a task with this many retries. A death for want of memory costs no retry (G20)."""
        crashes = self.errors() if self.deaths - self.memory > max_retries >= 0 else set()
        no_memory = {NO_MEMORY} if self.memory and max_retries == 0 else set()
        return crashes | no_memory | ({UNSCHEDULABLE} if self.hopeless else set())

    def without_room(self) -> set[str]:
        """Errors of a value, or of the task that makes it, for which a store had no room."""
        return set(map(_of_a_task, NO_ROOM)) | NO_ROOM if self.room else set()

    def of_any_task(self, max_retries: int, most: int = 1) -> set[str]:
        """Outcomes for a driver's task in a ``Story``, which needs its retries up to ``most`` times for each death."""
        deaths = self.deaths - self.memory
        found = self.errors_with(max_retries) | self.without_room()
        if deaths and (self.files or deaths * most > max_retries >= 0):
            found |= self.errors() | (LOST if self.objects else set())
        return found | (LOST if self.files else set())

    def of_any_actor(self, max_restarts: int) -> set[str]:
        """Outcomes for a driver's actor in a ``Story``, whose calls have as many retries as it has restarts.

        A call fails if there is no room for its arguments or its result.
        """
        is_endless = max_restarts < 0 and not (self.files or self.room)
        crashes = bool(self.deaths or self.silence) and not is_endless
        found = self.of_unknown_actor() if crashes or self.files or self.room else set()
        found |= LOST if self.objects and not is_endless else set()
        found |= self.without_room()
        return found | ({NO_PLACE} if self.hopeless else set())

    def may_move_bundles(self) -> bool:
        """Whether the nodes of a placement group may change, or the gcs may be slow to hear of it."""
        return self.nodes or self.departures or self.silence or self.hopeless


@dataclass(frozen=True)
class Expectation:
    """Outcomes that the guarantees allow for one object."""

    owner: str
    """The task or call that submits or puts it; ``DRIVER`` for a driver."""
    has_value: bool
    """Whether ``get`` may return its value."""
    errors: frozenset[str]
    """Names of the error classes that its owner may see; ``errors_seen_by`` adds those that only borrowers see."""
    inside: tuple[str, ...] = ()
    """The references that its value may hold, in order."""
    surely_inside: frozenset[str] = frozenset()
    """The references that its value must hold."""

    @property
    def is_sure(self) -> bool:
        return not self.errors


@dataclass
class Scope:
    """Goes over one body and keeps what must be true so far; see ``foresee`` of the operations."""

    model: Model
    owner: str
    sure: set[str]
    """Names that must be bound now."""
    killed: set[str] = field(default_factory=set)
    """Actors that this process has killed for good."""
    given: set[str] = field(default_factory=set)
    """Names that a ``Create`` of this body has asked for."""
    latest: dict[str, str] = field(default_factory=dict)
    """Name of an actor -> the handle that was made last with it."""
    freed: set[str] = field(default_factory=set)
    """Names of actors that must be free now."""
    calls: Counter[str] = field(default_factory=Counter)
    """Actor -> the calls of it that were made here."""
    asked: set[str] = field(default_factory=set)
    """Generators that were called here."""
    gone: set[str] = field(default_factory=set)
    """Objects whose values this process cannot get any more, because it has freed them by hand."""

    def foresee_body(self, body: Body) -> None:
        for operation in body.operations:
            self.model.sure_before[operation.name] = before = frozenset(self.sure)
            operation.foresee(self)
            if self.model.losses.room:
                self.sure &= before

    def foresee_task(self, task: Submit) -> None:
        model, losses = self.model, self.model.losses_of(task)
        errors, has_value = self._foresee_performance(task)
        uses_up = model.most_losses(task) > task.max_retries or is_repeated(task) or losses.files
        if losses.deaths > losses.memory and uses_up:
            errors |= losses.errors()
        if losses.memory and task.max_retries == 0:
            errors.add(NO_MEMORY)
        if task.group in model.removed_groups:
            errors.add(REMOVED)
        is_bound = task.node >= 0 and not task.is_soft
        may_miss_node = model.losses.nodes or losses.departures or task.nowhere  # perhaps before it ran anywhere
        if losses.hopeless or (is_bound and may_miss_node):
            errors.add(UNSCHEDULABLE)
        has_value = has_value and not (is_bound and task.nowhere)
        if losses.objects and (uses_up or task.name in model.cancelled):
            errors |= LOST
        if model.cancelled.get(task.name):
            errors.add("WorkerCrashedError")
        self._expect(task, task.parts(), has_value, errors)

    def foresee_call(self, call: Call) -> None:
        model, losses = self.model, self.model.losses_of(call)
        errors, has_value = self._foresee_performance(call)
        fate = model.fates.of(call.actor)
        if fate is None:
            errors |= losses.of_unknown_actor()
        else:
            retries = retries_of(call, fate)
            if fate.surely_returns(call, retries, losses) and call.name not in model.cancelled:
                errors -= {call.body.end.error} - self._errors_of_arguments(call)
            errors |= fate.errors(retries, model.may_be_repeated(call), losses)
            can_be_made_again = retries < 0 and fate.create.max_restarts < 0 and call.name not in model.cancelled
            if losses.objects and (losses.files or not can_be_made_again):
                errors |= LOST
            if losses.objects and not fate.is_kept:
                errors.add(DIED)  # its last handle was dropped: it is gone when the call would have to be made again
            has_value = has_value and not fate.is_stillborn and model.fates.identity(call.actor) not in self.killed
        self._expect(call, call.parts(), has_value, errors)
        actor = model.fates.identity(call.actor)
        may_be_refused = fate is None or 0 <= fate.create.max_pending_calls <= self._most_pending(actor)
        if may_be_refused:
            model.perhaps_refused.add(call.name)
        if may_be_refused or call.actor not in self.sure:
            self.sure.difference_update(call.parts())
        self.calls[actor] += 1

    def _most_pending(self, actor: str) -> float:
        """Upper bound of this process's pending calls. A task may share its worker with pending calls of earlier tasks."""
        return self.calls[actor] if self.owner == DRIVER else math.inf

    def _foresee_performance(self, task: Submit | Call) -> tuple[set[str], bool]:
        """Go over its body. Return the errors that body, arguments and cancellation allow; whether it may have a value."""
        model = self.model
        inner = Scope(model, task.name, {name for name in task.nested if name in self.sure})
        for name in task.args:
            if name in self.sure:
                inner.open(name)
        inner.foresee_body(task.body)
        model.freed_in[task.name] = frozenset(inner.gone)
        end = task.body.end
        errors = set() if isinstance(task, Call) and isinstance(end, Exit) else {end.error} - {""}
        errors |= self._errors_of_arguments(task)
        if task.name in model.cancelled:
            errors |= CANCELLED
        if model.losses.room:
            errors |= set(map(_of_a_task, NO_ROOM))
        refs: tuple[str, ...] = getattr(end, "refs", ())
        model.surely_returned[task.name] = frozenset(name for name in refs if name in inner.sure)
        may_return = not end.error or isinstance(end, RaiseAtFirst | Miscount)
        return errors, may_return and self._may_have_values(task.args)

    def _errors_of_arguments(self, task: Submit | Call) -> set[str]:
        """Errors with which it may fail before it begins."""
        return {_of_a_task(error) for name in task.args for error in self.model.errors_seen_by(task.name, name)}

    def _may_have_values(self, args: tuple[str, ...]) -> bool:
        """Whether all arguments may have values. An argument that its caller may not hold any more does not count."""
        objects = self.model.objects
        known = [name for name in args if name in objects and name in self.sure]
        return all(objects[name].has_value and name not in self.gone for name in known)

    def _expect(self, task: Submit | Call, parts: list[str], has_value: bool, errors: set[str]) -> None:
        refs: tuple[str, ...] = getattr(task.body.end, "refs", ())
        surely = self.model.surely_returned[task.name]
        for part in parts:
            self.model.objects[part] = Expectation(self.owner, has_value, frozenset(errors), refs, surely)
            self.sure.add(part)

    def foresee_actor(self, create: Create) -> None:
        model, fate = self.model, self.model.fates.of(create.name)
        assert fate is not None
        fate.ends |= any(model.errors_seen_by(create.name, name) for name in create.args)
        fate.is_stillborn = bool(create.type) or not self._may_have_values(create.args)
        self.latest.pop(create.called, None)
        if not create.called or create.get_if_exists or self._is_free(create.called):
            self.sure.add(create.name)
            self.latest[create.called] = create.name
        elif self._is_there(create.called):
            model.taken.add(create.name)
        else:
            model.perhaps_taken.add(create.name)
        self.freed.discard(create.called)
        self.given.add(create.called)

    def _is_free(self, name: str) -> bool:
        """Whether no actor can have this name: it was freed, or no actor was to get it yet."""
        return name in self.freed or (self.model.fates.belongs_to_one_driver(name) and name not in self.given)

    def _is_there(self, name: str) -> bool:
        """Whether an actor must have this name."""
        fate = self.model.fates.named(name)
        return fate is not None and fate.is_kept and not fate.may_die and not self.sure.isdisjoint(fate.makers)

    def foresee_found(self, find: Find) -> None:
        if self._is_there(find.called):
            self.sure.add(find.name)
            self.model.sure_finds.add(find.name)
        elif find.called in self.freed:
            self.model.vain_finds.add(find.name)

    def foresee_kill(self, kill: Kill) -> None:
        fates = self.model.fates
        fate = fates.of(kill.actor)
        if not kill.no_restart or kill.is_asked or kill.actor not in self.sure or fate is None:
            return
        self.killed.add(fates.identity(kill.actor))
        name = fate.create.called
        if fates.belongs_to_one_driver(name) and self.latest.get(name) == kill.actor:
            self.freed.add(name)

    def foresee_put(self, name: str, refs: tuple[str, ...]) -> None:
        surely = frozenset(ref for ref in refs if ref in self.sure)
        errors = frozenset({LOST_OBJECT} if self.model.can_be_lost(name) else ())
        self.model.objects[name] = Expectation(self.owner, True, errors, refs, surely)
        self.sure.add(name)

    def foresee_free(self, names: tuple[str, ...]) -> None:
        self.gone.update(name for name in names if name in self.sure and self.model.stays_freed(self.owner, name))

    def foresee_items(self, generator: Generate, names: list[str]) -> None:
        """Expect all items of a generator; ``names`` are those that this operation reads.

        An item that is bound has arrived here, and may be lost later. The references inside the items are those that were
        bound when the generator began, not when the rest of it is read.
        """
        model = self.model
        self.asked.add(generator.name)
        breaks = model.may_break_off(self.owner, generator)
        errors = model.may_become_of_items(self.owner, generator) | (breaks if generator.only_takes else set())
        all_names = generator.item_names()
        begun = [model.objects[name].surely_inside for name in all_names[:1] if name in model.objects]
        surely = begun[0] if begun else frozenset(ref for ref in generator.refs if ref in self.sure)
        model.items.update(all_names)
        for name in all_names:
            model.objects[name] = Expectation(self.owner, True, errors, generator.refs, surely)
        is_asked = not generator.actor or generator.actor in self.sure
        if not errors and is_asked and not breaks:
            self.sure.update(names)
            if names and not generator.only_takes:
                self.sure |= surely

    def foresee_get(self, names: tuple[str, ...]) -> None:
        if all(not self.model.errors_seen_by(self.owner, name) for name in names):
            for name in names:
                if name in self.sure:
                    self.open(name)

    def open(self, name: str) -> None:
        found = self.model.objects.get(name)
        if found is not None and not self.model.errors_seen_by(self.owner, name):
            self.sure |= found.surely_inside


class Model:
    """The foreseen outcomes of one program."""

    def __init__(self, program: Program, losses: Losses, killed_drivers: Collection[int] = ()) -> None:
        self.program = program
        self.losses = losses
        self.tasks: dict[str, Submit | Call] = {task.name: task for task in program.performances()}
        self.actors = {create.name: create for create in program.actors()}
        self.makers = {part: task.name for task in program.performances() for part in (task.name, *task.parts())}
        """Object -> the task or call that returns it."""
        self.objects: dict[str, Expectation] = {}
        self.sure_before: dict[str, frozenset[str]] = {}
        """Operation -> the names that must be bound when it begins."""
        self.cancelled: dict[str, bool] = {}
        """Task or call -> whether it may be cancelled by force."""
        self.freed_by_hand: set[str] = set()
        """Objects that a ``Free`` anywhere in the program may free at any time."""
        self.generators = {operation.name: operation for operation in program.walk() if isinstance(operation, Generate)}
        self.items: set[str] = set()
        """Objects that generators yield."""
        self.freed_in: dict[str, frozenset[str]] = {}
        """Task or call -> the objects that it has surely freed when it ends."""
        self.sure_finds: set[str] = set()
        """``Find`` operations that must find their actors."""
        self.vain_finds: set[str] = set()
        """``Find`` operations that must find no actor."""
        self.taken: set[str] = set()
        """``Create`` operations whose names other actors must have."""
        self.perhaps_taken: set[str] = set()
        """``Create`` operations whose names other actors may have."""
        self.sure_kills: dict[str, frozenset[str]] = {}
        """``Look`` -> the actors that its process has killed for good before."""
        self.perhaps_refused: set[str] = set()
        """Calls that ``max_pending_calls`` of their actors may refuse."""
        self.freed: set[str] = set()
        """Names of actors that drivers have made free for good."""
        self.surely_made: set[str] = set()
        """Names of actors that drivers have surely made."""
        self.shown: dict[str, set[str]] = {}
        """Name -> the ids of the actors that any process was shown by it."""
        self.surely_returned: dict[str, frozenset[str]] = {}
        """Task or call -> the references that its value must hold, if it has one."""
        for operation in program.walk():
            if isinstance(operation, Cancel) and operation.ref in self.makers:
                self._cancel(self.tasks[self.makers[operation.ref]], operation.force, operation.recursive)
            elif isinstance(operation, Free) and not operation.local_only:
                self.freed_by_hand.update(operation.refs)
        exits = any(isinstance(task.body.end, Exit) for task in program.tasks())
        self.bundles = {operation.name: operation.bundles for operation in program.walk() if isinstance(operation, Group)}
        """Placement group -> the number of its bundles."""
        self.removed_groups = {operation.group for operation in program.walk() if isinstance(operation, Remove)}
        makers = Group | Bundles | Founding | Endowment | Contest
        has_groups = any(isinstance(operation, makers) for operation in program.walk())  # all of them end before their jobs
        has_force = any(isinstance(operation, Stopped | Rush) for operation in program.walk())
        self.owners_die = losses.deaths > 0 or exits or has_groups or has_force or any(self.cancelled.values())
        """Whether processes that run tasks can die."""
        forced = {name for name, is_forced in self.cancelled.items() if is_forced}
        self.fates = Fates(program, losses, self.owners_die, killed_drivers, forced)
        self.lineage = Lineage(program, losses, self.fates)
        for number, driver in enumerate(program.drivers):
            if number not in killed_drivers:
                scope = Scope(self, DRIVER, set())
                scope.foresee_body(driver)
                self.freed |= scope.freed
                self.surely_made |= {self.actors[name].called for name in scope.sure & self.actors.keys()}

    def _cancel(self, task: Submit | Call, force: bool, recursive: bool) -> None:
        """Note that it may be cancelled, and its children too if that is recursive. Calls are never forced (G46)."""
        self.cancelled[task.name] = (force and isinstance(task, Submit)) or self.cancelled.get(task.name, False)
        for operation in task.body.operations if recursive else ():
            if isinstance(operation, Submit | Call):
                self._cancel(operation, force, recursive)

    def errors_seen_by(self, viewer: str, name: str) -> frozenset[str]:
        """Errors that a ``get`` may raise in the process of ``viewer``."""
        found = self.objects.get(name)
        if found is None:
            return frozenset()
        lost = found.owner != viewer and self.fates.may_end(found.owner)
        errors = found.errors | ({LOST_OWNER} if lost else set()) | ({FREED} if name in self.freed_by_hand else set())
        errors |= self._errors_of_an_ended_group(name) if viewer != DRIVER else set()
        return errors | (NO_ROOM if self.losses.room else set())

    def _errors_of_an_ended_group(self, name: str) -> set[str]:
        """Errors after a driver's end: its placement groups end with it, and tasks that it left running may still look."""
        task = self.tasks.get(self.makers.get(name, ""))
        if isinstance(task, Submit):
            return {REMOVED} if task.group else set()
        fate = self.fates.of(task.actor) if task is not None else None
        return {GROUP_REMOVED} if fate is not None and fate.create.group else set()

    def stays_freed(self, viewer: str, name: str) -> bool:
        """Whether an object that the viewer has freed stays so. Another owner may make a lost object again, not freed."""
        found = self.objects.get(name)
        return found is not None and (found.owner == viewer or not self.losses.objects)

    def may_break_off(self, owner: str, generator: Generate) -> frozenset[str]:
        """Errors that may end a generator early (G93). Large arguments are objects, and may be lost on a disk."""
        fate = self.fates.of(generator.actor)
        losses = self.losses.of(generator.name)
        if generator.actor:
            crashes = losses.of_unknown_actor() if fate is None else fate.errors(generator.max_retries, False, losses)
        else:
            crashes = losses.errors_with(generator.max_retries)
        cancelled = {*CANCELLED, "WorkerCrashedError"} if owner in self.cancelled else set()
        no_room = set(map(_of_a_task, NO_ROOM)) if self.losses.room else set()
        return frozenset(crashes | cancelled | (LOST if self.losses.files else set()) | no_room)

    def may_become_of_items(self, owner: str, generator: Generate) -> frozenset[str]:
        """Errors of items that have arrived, are lost later, and cannot be made again."""
        losses, fate = self.losses.of(generator.name), self.fates.of(generator.actor)
        if not losses.objects:
            return frozenset()
        is_cancelled = generator.cancel or owner in self.cancelled
        if not (is_cancelled or losses.files or losses.room or self._may_use_up(generator, fate)):
            return frozenset()
        gone = losses.of_unknown_actor() if generator.actor else set()
        return self.may_break_off(owner, generator) | losses.errors() | {LOST_OBJECT} | gone

    def _may_use_up(self, generator: Generate, fate: Fate | None) -> bool:
        """Whether deaths may use up its retries: one for the task, and one for each item that is found lost alone (G70)."""
        if not generator.actor:
            losses = self.losses.of(generator.name)
            most = (losses.deaths - losses.memory) * (1 + generator.yields) + self.lineage.most_remakings(generator.name)
            return most > generator.max_retries >= 0
        return fate is None or not fate.is_kept or fate.create.max_restarts >= 0 or retries_of(generator, fate) >= 0

    def most_runs(self, task: Submit | Call) -> float:
        """How often one submission may run at most (G16, G18, G22, G36)."""
        if isinstance(task, Call):
            fate = self.fates.of(task.actor)
            is_any = self.may_be_repeated(task)
            return 0 if fate is None else fate.most_tries(retries_of(task, fate), is_any, self.losses_of(task))
        losses = self.losses_of(task)
        is_any = is_repeated(task) or self.losses.files or self.losses.room
        retries = task.max_retries if is_any else min(task.max_retries, self.most_losses(task))
        return 1 + retries + losses.preemptions + losses.memory

    def most_losses(self, task: Submit) -> float:
        """How often deaths may make it run again. Each of several returns may be found lost alone, later than others.

        A node that leaves moves values to others, whose deaths count then, too.
        """
        losses = self.losses_of(task)
        deaths = self.losses.deaths if losses.objects and losses.departures else losses.deaths
        own = (deaths - losses.memory) * (max(1, task.returns) if losses.objects else 1)
        return own + self.lineage.most_remakings(task.name)

    def may_be_repeated(self, call: Call) -> bool:
        """Whether its own failures use up its retries, or values that were made of its own and are lost."""
        return is_repeated(call) or self.lineage.most_remakings(call.name) > 0

    def losses_of(self, task: Submit | Call) -> Losses:
        """Losses that may have struck a task or call, and what it takes."""
        return self.losses.of(task.name, [self.maker_of(name) for name in task.args])

    def maker_of(self, name: str) -> str:
        """Name of the task, call or generator that makes an object; of a value that was put, its own."""
        return self.makers.get(name, name.rpartition(".")[0] if name in self.items else name)

    def most_births(self, name: str) -> float:
        """How often the constructor of an actor may run for each ``Create`` that runs."""
        fate = self.fates.of(name)
        return 0 if fate is None else fate.most_births()

    def keeps_order(self, call: Call) -> bool:
        """Whether it begins before all calls that its caller makes later (G49, G51, G52)."""
        fate = self.fates.of(call.actor)
        is_plain = fate is not None and fate.create.keeps_order()
        return is_plain and fate is not None and retries_of(call, fate) == 0 and not self.losses_of(call).objects

    def is_coroutine(self, call: Call) -> bool:
        fate = self.fates.of(call.actor)
        return fate is not None and fate.create.is_async

    def process_of(self, player: str, shown: Mapping[str, str]) -> str:
        """A word for the process that plays a body: the same for two calls of a plain actor that surely has one life.

        ``shown``: handles by name -> the actors that they are of.
        """
        call = self.tasks.get(player)
        fate = self.fates.of(call.actor) if isinstance(call, Call) else None
        if not isinstance(call, Call) or fate is None or not fate.create.keeps_order() or fate.most_births() > 1:
            return player
        return shown.get(call.actor, call.actor)

    def can_be_lost(self, name: str) -> bool:
        """Whether its value may be lost: a task's may have to be made again, one that was put may be gone."""
        losses = self.losses.of(self.maker_of(name))
        return losses.objects and (name in self.makers or name in self.items or losses.files)


def _of_a_task(error: str) -> str:
    """Name the error of a task whose argument failed with this one (G1)."""
    return error if error.startswith("RayTaskError(") else f"RayTaskError({error})"


def is_repeated(task: Submit | Call) -> bool:
    """Whether its own failures use up its retries (G16, G18)."""
    end = task.body.end
    return isinstance(end, Exit) or (bool(end.error) and retries_its_exception(task) and not isinstance(end, ExitActor))


@dataclass
class Reading:
    """Goes over the history of one body and checks it; see ``check`` of the operations."""

    model: Model
    viewer: str
    """The task or call whose history it is; ``DRIVER`` for a driver."""
    driver: str = ""
    """The process of this driver."""
    ready: set[str] = field(default_factory=set)
    """Objects that ``wait`` has named."""
    seen: dict[str, str] = field(default_factory=dict)
    """Objects that the viewer owns -> what a ``get`` has shown of them."""
    freed: set[str] = field(default_factory=set)
    """Objects that the viewer has freed by hand."""
    shown: dict[str, list[str]] = field(default_factory=dict)
    """Name of an actor -> the ids that the viewer was shown by it."""
    named_groups: dict[str, NamedGroup] = field(default_factory=dict)
    """Placement groups of a driver that exist, by their names."""
    removed_groups: set[str] = field(default_factory=set)
    """Placement groups that the driver has removed."""
    ready_groups: dict[str, int] = field(default_factory=dict)
    """Placement groups that were ready and that the driver has not removed -> the number of their bundles."""

    def losses_of_job(self) -> Losses:
        """Losses that may have struck a thing of this driver, of which no more is known."""
        return self.model.losses.of_job_of(self.driver) if self.driver else self.model.losses

    def check_body(self, body: Body, history: History) -> Iterator[str]:
        if len(history) != len(body.operations):
            yield f"history: {len(history)} outcomes of {len(body.operations)} operations"
        for operation, outcome in _outcomes(body, history):
            if "no room" not in outcome:
                yield from operation.check(self, outcome)
            elif not self.model.losses.room:
                yield f"G79: {operation.name} was refused with {outcome['no room']}, and there must be room"

    def check_names(self, name: str, refs: tuple[str, ...], outcome: dict[str, object]) -> Iterator[str]:
        """G11: an operation has used every name that must be bound, in the order of the program's text."""
        of = outcome["of"]
        assert isinstance(of, list)
        missing = [ref for ref in refs if ref in self.model.sure_before[name] and ref not in of]
        if missing or of != [ref for ref in refs if ref in of]:
            yield f"G11: {name} should know {list(refs)}, and knows {of}"

    def has_seen_value(self, name: str) -> bool:
        """Whether the viewer has got the value of its own task or call, which cannot be lost after that."""
        maker = self.model.makers.get(name)
        return maker == name and self.seen.get(name) == VALUE and not self.model.can_be_lost(name)

    def note_ends(self, words: Sequence[str]) -> None:
        """Note the values of tasks and calls: what these have freed is freed for its owner, unless a process was silent."""
        model = self.model
        names = [model.makers.get(parse_word(word)[0], "") for word in words]
        if not (model.losses.silence or model.losses.nodes):
            freed = frozenset().union(*(model.freed_in.get(name, frozenset()) for name in names))
            self.freed.update(name for name in freed if name in model.objects and model.objects[name].owner == self.viewer)

    def is_there(self, name: str) -> bool:
        """Whether its value or error must be here: the viewer has seen it, put it or freed it, or ``wait`` has named it."""
        if name in self.model.freed_by_hand:
            return name in self.freed and self.model.stays_freed(self.viewer, name)
        if self.model.can_be_lost(name) or self.model.losses.spilled:
            return False
        expected = self.model.objects.get(name)
        is_own = expected is not None and expected.owner == self.viewer
        is_put = is_own and name not in self.model.makers and name not in self.model.items
        return is_put or name in self.ready or name in self.seen

    def check_name(self, create: Create, outcome: Mapping[str, object]) -> Iterator[str]:
        """G31: a name is taken if a living actor has it, and only then."""
        model = self.model
        if "is" in outcome:
            yield from self._check_shown(create.name, create.called, str(outcome["is"]))
        if "taken" in outcome and create.name not in model.taken | model.perhaps_taken:
            yield f"G31: the name of {create.name} is taken, and nobody else has it"
        elif "taken" not in outcome and create.name in model.taken:
            yield f"G31: {create.name} was given the name of an actor that lives"

    def check_found(self, find: Find, outcome: Mapping[str, object]) -> Iterator[str]:
        """G31, G32: the name of an actor that must live finds it, and the name of one that was killed finds none."""
        if not outcome["found"]:
            if find.name in self.model.sure_finds:
                yield f"G32: {find.name} did not find {find.called}"
            return
        yield from self._check_shown(find.name, find.called, str(outcome["is"]))
        if find.name in self.model.vain_finds:
            yield f"G31: {find.name} found {find.called}, which was killed"

    def _check_shown(self, place: str, name: str, actor_id: str) -> Iterator[str]:
        """G33, G39b: a name always shows one actor if that never ends, and never shows an actor that was replaced."""
        own, by_anybody = self.shown.setdefault(name, []), self.model.shown.setdefault(name, set())
        fate = self.model.fates.named(name)
        by_anybody.add(actor_id)
        if fate is not None and fate.is_kept and not fate.may_die and len(by_anybody) > 1:
            yield f"G33: {place} is shown another actor by the name {name} than others are"
        if actor_id in own[:-1] and own[-1] != actor_id:
            yield f"G39b: {place} is shown an actor by the name {name} that was replaced"
        own.append(actor_id)

    def check_value(self, place: str, word: str) -> Iterator[str]:
        """Check a value that a ``get`` returned or a task was given."""
        name, inside = parse_word(word)
        expected = self.model.objects.get(name)
        if expected is None or not expected.has_value:
            yield f"G1: {place} got a value of {name}, which has none"
            return
        if name in self.freed and self.model.stays_freed(self.viewer, name):
            yield f"free: {place} got the value of {name}, which it has freed"
        if inside != [ref for ref in expected.inside if ref in inside] or not expected.surely_inside <= set(inside):
            yield f"G60: {place} got {word}, which should hold {list(expected.inside)}"
        yield from self._check_same(place, expected, name, VALUE)

    def check_error(self, place: str, names: Sequence[str], error: str, timeout: float | None) -> Iterator[str]:
        """Check the error that a ``get`` of these raised."""
        if error == TIMEOUT:
            if timeout is None or all(map(self.is_there, names)):
                yield f"G7: {place} timed out on {list(names)}"
            return
        possible = [name for name in names if error in self._errors_of(name)]
        if not possible:
            allowed = {name: sorted(self._errors_of(name)) or "no error" for name in names}
            yield f"G17: {place} got {error}; allowed: {allowed}"
        if len(names) == 1 and possible:
            yield from self._check_same(place, self.model.objects[names[0]], names[0], error)

    def _errors_of(self, name: str) -> frozenset[str]:
        """Errors that the viewer may see of an object now. If it has freed that, its owner may also have died since."""
        errors = self.model.errors_seen_by(self.viewer, name)
        is_gone = name in self.freed and self.model.stays_freed(self.viewer, name)
        return errors & {FREED, LOST_OWNER} if is_gone else errors

    def check_items(self, generator: Generate, items: Sequence[Sequence[str]], known: int = 0) -> Iterator[str]:
        """G90, G92, G93: values in order, perhaps an error, then the end. The first ``known`` items are checked already."""
        place, model = generator.name, self.model
        allowed = model.may_break_off(self.viewer, generator)
        last = {f"RayTaskError({generator.type})"} if generator.type else set()
        is_over = may_be_over = False
        for number, (kind, shown) in enumerate(items, 1):
            name = f"{generator.name}.{number}"
            if kind == "ref":
                may_be_over = may_be_over or bool(allowed)
            elif number <= known:
                may_be_over = may_be_over or kind == "error"
            elif kind == "end":
                if not (is_over or may_be_over) and (generator.type or number != generator.yields + 1):
                    yield f"G93: {place} ended before item {number}, without a word"
            elif is_over:
                yield f"G93: {place} goes on with {shown} after an error"
            elif kind == "value":
                if parse_word(shown)[0] != name or number > generator.yields:
                    yield f"G90: {place} shows {shown} as item {number} of {generator.yields}"
                yield from self.check_value(place, shown)
            elif shown in self._errors_of(name) or (shown in NO_ROOM and model.losses.room):
                may_be_over = True  # an error of this item, which was lost, or of its reader
            else:
                is_over = True
                if shown not in (allowed | last if number == generator.yields + 1 else allowed):
                    yield f"G92: {place} shows {shown} as item {number} of {generator.yields}; allowed: {sorted(allowed)}"

    def _check_same(self, place: str, expected: Expectation, name: str, shown: str) -> Iterator[str]:
        if expected.owner == self.viewer:
            before = self.seen.setdefault(name, shown)
            self.seen[name] = shown
            is_other = before != shown and shown != FREED and shown not in NO_ROOM and before not in NO_ROOM
            if is_other and not (before == VALUE and self.model.can_be_lost(name)):
                yield f"G43: {place} got {shown} of {name}, after {before}"


@dataclass(frozen=True)
class Facts:
    """Facts of a run beside its histories."""

    zones: Mapping[str, str] = field(default_factory=dict)
    """Id of a node -> its zone."""
    ends: Mapping[str, float] = field(default_factory=dict)
    """Id of a worker, driver or node -> the time at which its process has ended."""
    farewells: Sequence[Farewell] = ()
    """Detached actors at the end."""


def problems(
    program: Program,
    losses: Losses,
    histories: Sequence[History | None],
    lines: Sequence[str],
    facts: Facts = Facts(),
) -> list[str]:
    """List what the guarantees forbid in these histories of drivers and printed lines of tasks, one line each.

    A driver that was killed has no history: None.
    """
    killed = [number for number, history in enumerate(histories) if history is None]
    model = Model(program, losses, killed)
    told = [(driver, history) for driver, history in zip(program.drivers, histories, strict=True) if history is not None]
    processes = [f"driver/{number}" for number, history in enumerate(histories) if history is not None]
    found: list[str] = []
    wished: dict[str, Wish] = {}
    marks: dict[str, str | None] = {}
    for process, (driver, history) in zip(processes, told, strict=True):
        found += Reading(model, DRIVER, process).check_body(driver, history)
        wished |= _wished_nodes(driver, history)
        marks |= _marks(driver, "")
    speakers = Program(tuple(driver for driver, _ in told)).speakers()
    said = [json.loads(line) for line in lines]
    runs: Counter[str] = Counter()
    jobs: dict[int, set[str]] = {}
    driver_of = {task.name: number for number, driver in enumerate(program.drivers) for task in driver.tasks_of_job()}
    order: list[str] = []
    ends: list[tuple[str, History]] = []
    for word, name, *details in said:
        if name not in speakers:
            continue
        if word == END:
            ends.append((name, details[0]))
            found += Reading(model, name).check_body(model.tasks[name].body, details[0])
        else:
            assert word in (RUN, BORN)
            runs[name] += 1
            order.append(name)
            taker = model.actors[name] if word == BORN else model.tasks[name]
            words, nested, *place = details
            found += _check_arguments(Reading(model, name), taker, words, nested)
            if isinstance(taker, Submit):
                wish = wished.get(name, Wish())
                node_id, mark, gpus, *context = place
                wish = replace(wish, zones={**facts.zones, **wish.zones})
                found += _check_place(taker, node_id, mark, gpus, wish, marks[name])
                found += _check_context(taker, gpus, *context) if context else []
                if name in driver_of:
                    jobs.setdefault(driver_of[name], set()).update(context[:1])
    born = {name for word, name, *_ in said if word == BORN}
    found += [f"jobs: the tasks of driver {number} have the jobs {ids}" for number, ids in jobs.items() if len(ids) > 1]
    found += [*_check_runs(model, runs), *_check_order(model, order, histories, ends)]
    found += [*_check_interrupts(model, told, ends), *_check_unbegun(model, told, runs)]
    looks = [(one, outcome) for pair in told for one, outcome in _outcomes(*pair) if isinstance(one, Look)]
    found += [*contradictions(looks), *stale(looks, facts.ends, losses.silence or losses.nodes)]
    return [*found, *_check_farewells(model, born, facts.farewells)]


def _check_farewells(model: Model, born: set[str], farewells: Sequence[Farewell]) -> Iterator[str]:
    """G26, G31: a detached actor that nothing has ended lives, answers, and can be killed."""
    for farewell in farewells:
        name, fate = farewell.name, model.fates.named(farewell.name)
        assert fate is not None
        was_made = not born.isdisjoint(fate.makers) or not fate.owner_may_end and name in model.surely_made
        if not farewell.was_found:
            if was_made and not fate.may_end_by_itself:
                yield f"G26: the detached actor {name} is gone, and nobody has ended it"
            continue
        if name in model.freed:
            yield f"G31: the detached actor {name} is there, and was killed"
        if farewell.error not in ({""} if was_made and not fate.may_end_by_itself else {"", DIED}):
            yield f"G26: the detached actor {name} lives, and answers with {farewell.error}"
        if farewell.was_found_again:
            yield f"G31: the detached actor {name} is still there when it was killed"


def _check_arguments(reading: Reading, task: Submit | Call | Create, words: list[str], nested: list[str]) -> Iterator[str]:
    """G10, G11, G12: values at top level, references below."""
    for word in words:
        yield from reading.check_value(f"the body of {task.name}", word)
    outcome: dict[str, object] = {"of": [parse_word(word)[0] for word in words] + nested}
    yield from reading.check_names(task.name, task.args + task.nested, outcome)


def _outcomes(body: Body, history: History) -> Iterator[tuple[Operation, Outcome]]:
    """Pair each operation with its outcome. A history that is too short is another problem."""
    return zip(body.operations, history, strict=False)


@dataclass(frozen=True)
class Wish:
    """Where a task has to run."""

    node_id: str = ""
    zones: Mapping[str, str] = field(default_factory=dict)
    """Id -> zone of the nodes that are known, at least those that its submitter knew."""


def _wished_nodes(body: Body, history: History) -> dict[str, Wish]:
    """Task -> where it has to run, for each task that the body submits."""
    return {
        operation.name: Wish(outcome.get("on", ""), outcome.get("zones", {}))
        for operation, outcome in _outcomes(body, history)
        if isinstance(operation, Submit) and not operation.is_soft
    }


def _marks(body: Body, inherited: str | None) -> Iterator[tuple[str, str | None]]:
    """Task -> the ``MARK`` that its environment must have: its own, or else its parent's.

    None means unknown: the parent is an actor's call, which has the environment of the actor's maker.
    """
    for operation in body.operations:
        if isinstance(operation, Submit | Call):
            mark = None if isinstance(operation, Call) else operation.mark or inherited
            yield operation.name, mark
            yield from _marks(operation.body, mark)


def _check_place(
    task: Submit, node_id: str, mark: str, gpus: list[int], wished: Wish, expected: str | None
) -> Iterator[str]:
    """G102: a task runs on the node or in the zone that it is bound to, in its own environment or its parent's."""
    if wished.node_id and node_id != wished.node_id:
        yield f"G102: {task.name} ran on node {node_id}, and is bound to {wished.node_id}"
    zone = wished.zones.get(node_id)
    if zone is not None and not task.may_run_in(zone):
        yield f"labels: {task.name} ran in zone {zone!r}, and is bound to {task.zone!r}"
    if len(set(gpus)) != math.ceil(task.gpus):
        yield f"GPUs: {task.name} needs {task.gpus}, and was given {gpus}"
    if expected is not None and mark != expected:
        yield f"environment: {task.name} found {mark!r} in its environment, which should say {expected!r}"


def _check_context(task: Submit, gpus: list[int], job_id: str, resources: dict[str, float], visible: str) -> Iterator[str]:
    """G99: a task is told that it holds what it asked for, and libraries are shown its GPUs and no others."""
    asked = {"CPU": float(task.num_cpus), "GPU": task.gpus, **task.resources}
    wanted = {name: amount for name, amount in asked.items() if amount}
    if type(task) is Submit and resources != wanted:
        yield f"G99: {task.name} asked for {wanted}, and is told that it holds {resources}"
    if gpus and visible != ",".join(map(str, gpus)):
        yield f"GPUs: {task.name} was given {gpus}, and libraries are shown {visible!r}"


def _check_runs(model: Model, runs: Counter[str]) -> Iterator[str]:
    parents = {child.name: task.name for task in model.tasks.values() for child in task.body.operations}
    for name, count in runs.items():
        parent = parents.get(name)
        is_actor = name in model.actors
        most = model.most_births(name) if is_actor else model.most_runs(model.tasks[name])
        if count > most * (runs[parent] if parent else 1):
            number = "G35" if is_actor else "G16"
            yield f"{number}: {name} ran {count} times, and may {most} times"


def _check_interrupts(
    model: Model, told: Sequence[tuple[Body, History]], ends: Sequence[tuple[str, History]]
) -> Iterator[str]:
    """G41, G45: a task or coroutine that is cancelled while it sleeps does not sleep to the end."""
    played = [*told, *((model.tasks[name].body, history) for name, history in ends)]
    cancelled: dict[str, list[float]] = {}
    for body, history in played:
        for operation, outcome in _outcomes(body, history):
            if isinstance(operation, Cancel) and "at" in outcome and outcome["of"]:
                cancelled.setdefault(model.makers.get(operation.ref, ""), []).append(outcome["at"])
    for name, history in ends:
        task, losses = model.tasks[name], model.losses.of(name)
        if losses.silence or losses.nodes or isinstance(task, Call) and not model.is_coroutine(task):
            continue
        for operation, outcome in _outcomes(task.body, history):
            for at in cancelled.get(name, ()):
                if isinstance(operation, Sleep) and outcome["begun"] <= at <= outcome["ended"] - losses.lag_s:
                    number = "G45" if isinstance(task, Call) else "G41"
                    yield f"{number}: {name} was cancelled at {at:.3f} and slept from {outcome['begun']:.3f} on to the end"


def _ends_early(model: Model, name: str) -> bool:
    """Whether this is a call whose actor may end while it runs. If the call was cancelled, its caller is told no more."""
    task = model.tasks[name]
    fate = model.fates.of(task.actor) if isinstance(task, Call) else None
    return fate is not None and fate.may_end


def _check_unbegun(model: Model, told: Sequence[tuple[Body, History]], runs: Counter[str]) -> Iterator[str]:
    """G40: a task that was cancelled before it began, without force, has not run. Earlier attempts may have run."""
    for body, history in told:
        for operation, outcome in _outcomes(body, history):
            if isinstance(operation, Get) and outcome.get("error") == UNBEGUN and len(outcome["of"]) == 1:
                name = model.makers.get(outcome["of"][0], "")
                is_own = name in model.tasks and model.objects[name].owner == DRIVER and not is_repeated(model.tasks[name])
                losses = model.losses.of(name)
                has_run_before = losses.deaths or losses.preemptions or losses.silence or losses.files
                if runs[name] and is_own and not (model.cancelled.get(name) or has_run_before or _ends_early(model, name)):
                    yield f"G40: {name} was cancelled before it began, as {operation.name} was told, and it has run"


def _check_order(model: Model, order: Sequence[str], told: Sequence[History | None], ends: Sequence[Any]) -> Iterator[str]:
    """G49: calls that one process makes of one actor begin in order, by whatever handles, unless they may be retried."""
    place = {name: number for number, name in reversed(list(enumerate(order)))}
    once = sorted(((name, history) for name, history in ends if order.count(name) == 1), key=lambda end: place[end[0]])
    played = [
        (f"driver {number}", driver, history)
        for number, (driver, history) in enumerate(zip(model.program.drivers, told, strict=True))
        if history is not None
    ]
    played += [(name, model.tasks[name].body, history) for name, history in once]
    shown = {
        operation.name: str(outcome["is"])
        for _, body, history in played
        for operation, outcome in _outcomes(body, history)
        if "is" in outcome
    }
    last: dict[tuple[str, str], Call] = {}
    for player, body, _ in played:
        caller = model.process_of(player, shown)
        for call in body.operations:
            if isinstance(call, Call) and call.name in place and model.keeps_order(call):
                key = caller, shown.get(call.actor, call.actor)
                before = last.get(key, call)
                if place[call.name] < place[before.name]:
                    yield f"G49: {call.name} began before {before.name}"
                last[key] = call
