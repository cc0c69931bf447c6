"""Actors with names that several drivers share. They are written into programs that exist already.

A process that knows the name of an actor can call and kill it, so drivers act on each other here. Most of these actors are
detached. Some are made with ``get_if_exists`` by the first process that asks. For some names several drivers contend; others
have one driver that makes the actor. Tasks may make or find such actors too.

Rules
  * Every program still ends: a call of such an actor waits only for tasks that it has submitted itself, and knows no other
    actor.
  * A detached actor is given no references and keeps none, so its restart needs no object of its maker.
  * A detached actor makes plain actors, which end with it, and detached ones, which do not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

import msgspec

from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.programs import (
    Body,
    Call,
    Drop,
    End,
    Exit,
    Generate,
    Get,
    Operation,
    Program,
    Put,
    Raise,
    Return,
    Sleep,
    Submit,
)

SLEEPS_S = (0.0, 0.001, 0.02, 0.2, 1.0)
MOST_NAMES = 2


def with_namesakes(program: Program, random: Random) -> Program:
    """Write one or two shared actors, which most drivers use, into a program that may get one driver more."""
    drivers = list(program.drivers)
    if len(drivers) == 1 and random.random() < 0.5:
        drivers.append(Body())
    writer = NamesakeWriter(random)
    for _ in range(random.randint(1, MOST_NAMES)):
        drivers = writer.rewrite(drivers)
    return Program(tuple(drivers))


class NamesakeWriter:
    """Writes operations between those of drivers."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._count = 0
        self._template = Create("")
        """Options of all actors that get the present name."""
        self._all_make = False
        """Whether every driver and task makes the actor, rather than finding it."""
        self._may_end = random.random() < 0.6

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"shared_{kind}{self._count}"

    def rewrite(self, drivers: Sequence[Body]) -> list[Body]:
        """Write one more shared name into the drivers."""
        random = self._random
        self._template = Create(
            "",
            max_restarts=random.choice((0, 1, 2, -1, -1)),
            max_task_retries=random.choice((0, 0, 1, -1)),
            max_concurrency=random.choice((1, 1, 3)),
            num_cpus=random.choice((None, 0)),
            called=self._name("actor"),
            detached=random.random() < 0.85,
            get_if_exists=random.random() < 0.6,
            seconds=random.choice((0.0, 0.0, 0.02, 0.5)),
        )
        self._all_make = self._template.get_if_exists or random.random() < 0.4
        maker = random.randrange(len(drivers))
        return [
            self._with_story(driver, number == maker)
            if number == maker or random.random() < 0.8 else driver
            for number, driver in enumerate(drivers)
        ]  # fmt: skip

    def _with_story(self, driver: Body, is_maker: bool) -> Body:
        """Spread the story of one driver with the actor over the operations that it has already."""
        random = self._random
        operations = [self._with_task_s_story(operation) for operation in driver.operations]
        dropped = {operation.ref for operation in operations if isinstance(operation, Drop)}
        known = [one.name for one in operations if isinstance(one, Submit | Put) and one.name not in dropped]
        merged: list[Operation] = []
        story = self._story(is_maker, known)
        places = sorted(random.randint(0, len(operations)) for _ in story)
        for place, operation in enumerate([*operations, None]):
            while places and places[0] == place:
                places.pop(0)
                merged.append(story.pop(0))
            if operation is not None:
                merged.append(operation)
        return Body(tuple(merged), driver.end)

    def _story(self, is_maker: bool, known: Sequence[str]) -> list[Operation]:
        """Write the operations of a driver with the actor; ``known`` are objects that the driver may hold."""
        random = self._random
        story = self._chapter(is_maker, known)
        if self._may_end and random.random() < 0.5:
            handle = story[0].name
            story.append(Kill(self._name("kill"), handle, no_restart=random.random() < 0.6))
            if random.random() < 0.5:
                story.append(Find(self._name("find"), self._template.called))
            if random.random() < 0.6:
                story += self._chapter(is_maker, known)
        return story

    def _chapter(self, is_maker: bool, known: Sequence[str]) -> list[Operation]:
        """Make or find the actor, call it, and perhaps drop the handle."""
        random = self._random
        story = [self._handle(is_maker)]
        calls: list[str] = []
        for _ in range(random.randint(0, 4)):
            if random.random() < 0.15:
                story.append(Generate(self._name("generator"), random.randint(1, 4), actor=story[0].name))
                continue
            if random.random() < 0.25:
                story.append(Sleep(self._name("sleep"), random.choice(SLEEPS_S)))
            args = random.sample(known, 1) if known and random.random() < 0.2 else ()
            call = self._call(story[0].name, tuple(args))
            story.append(call)
            calls.append(call.name)
        gets = [Get(self._name("get"), (name,)) for name in calls if random.random() < 0.8]
        if random.random() < 0.2:
            gets.insert(0, Drop(self._name("drop"), story[0].name))  # type: ignore[arg-type]
        return [*story, *gets]

    def _handle(self, is_maker: bool) -> Operation:
        if self._all_make or is_maker:
            return msgspec.structs.replace(self._template, name=self._name("create"))
        return Find(self._name("find"), self._template.called)

    def _call(self, handle: str, args: tuple[str, ...]) -> Call:
        random, name = self._random, self._name("call")
        retries = random.choice((None, None, 0, 1, -1))
        is_endless = (self._template.max_task_retries if retries is None else retries) < 0
        operations: list[Operation] = []
        if random.random() < 0.6:
            operations.append(Sleep(self._name("sleep"), random.choice(SLEEPS_S)))
        if random.random() < 0.2:
            task = self._name("task")
            operations += [Submit(task, Body()), Get(self._name("get"), (task,))]
        end = self._end()
        if isinstance(end, Exit) and is_endless and self._template.max_restarts < 0:
            end = Return()
        return Call(name, handle, Body(tuple(operations), end), args, max_task_retries=retries)

    def _end(self) -> End:
        draw = self._random.random()
        if self._may_end and draw < 0.12:
            return Exit()
        if self._may_end and draw < 0.15:
            return ExitActor()
        return Raise() if draw > 0.94 else Return()

    def _with_task_s_story(self, operation: Operation) -> Operation:
        """Let some tasks make or find the actor too, and call it."""
        random = self._random
        if not isinstance(operation, Submit) or operation.resources or random.random() >= 0.2:
            return operation
        story = [self._handle(False)]
        if random.random() < 0.7:
            call = self._call(story[0].name, ())
            story += [call, Get(self._name("get"), (call.name,))]
        body = Body((*operation.body.operations, *story), operation.body.end)
        return msgspec.structs.replace(operation, body=body)


def with_rounds(program: Program, random: Random) -> Program:
    """In a sixth of the programs drivers drop an actor that has a name, and ask for that name again, several times.

    Each driver has its own name, or all share one. In some rounds a task does this, or is given the handle.
    """
    if random.random() >= 1 / 6:
        return program
    are_together = random.random() < 0.3
    template = Create(
        "",
        max_restarts=random.choice((0, 0, -1)),
        num_cpus=0,
        get_if_exists=True,
        seconds=random.choice((0.0, 0.0, 0.02)),
        parting_s=random.choice((0.0, 0.0, 0.5)),
    )
    drivers = []
    for number, driver in enumerate(program.drivers):
        called = "round" if are_together else f"round{number}"
        writer = RoundWriter(msgspec.structs.replace(template, called=called), f"round{number}", random)
        drivers.append(Body((*driver.operations, *writer.story()), driver.end))
    return Program(tuple(drivers))


class RoundWriter:
    """Writes what one driver does with an actor that it drops and asks for again."""

    def __init__(self, template: Create, prefix: str, random: Random) -> None:
        self._template = template
        self._prefix = prefix
        self._random = random
        self._count = 0

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{self._prefix}_{kind}{self._count}"

    def story(self) -> list[Operation]:
        random, story = self._random, self._round(0.0)
        lent: list[str] = []
        for _ in range(random.randint(1, 4)):
            if random.random() < 0.3:
                story.append(Sleep(self._name("sleep"), random.choice(SLEEPS_S)))
            if random.random() < 0.2:
                lent.append(self._name("task"))
                story.append(Submit(lent[-1], Body(tuple(self._round(0.4)))))
            else:
                story += self._round(0.4)
        return [*story, *(Get(self._name("get"), (name,)) for name in lent)]

    def _round(self, chance_of_find: float) -> list[Operation]:
        """Make or find the actor, call it, perhaps lend it to a task, and drop it."""
        random, name = self._random, self._name("handle")
        is_found = random.random() < chance_of_find
        obtain = Find(name, self._template.called) if is_found else msgspec.structs.replace(self._template, name=name)
        call = Call(self._name("call"), name, self._body())
        drop, look = Drop(self._name("drop"), name), Get(self._name("get"), (call.name,))
        if random.random() < 0.15:
            inner = Call(self._name("call"), name, self._body())
            borrower = Submit(self._name("task"), Body((inner, Get(self._name("get"), (inner.name,)))), nested=(name,))
            return [obtain, call, borrower, look, drop]
        return [obtain, call, drop, look] if random.random() < 0.3 else [obtain, call, look, drop]

    def _body(self) -> Body:
        pause = Sleep(self._name("sleep"), self._random.choice(SLEEPS_S))
        return Body((pause,) if self._random.random() < 0.3 else ())


def with_heirs(program: Program, random: Random) -> Program:
    """In half of the programs with detached actors, let some of their calls make actors, plain and detached ones."""
    detached = {create.called for create in program.actors() if create.detached}
    handles = {one.name for one in program.walk() if isinstance(one, Create | Find) and one.called in detached}
    if not handles or random.random() < 0.5:
        return program
    writer = HeirWriter(handles, random)
    return Program(tuple(writer.rewrite(driver) for driver in program.drivers))


class HeirWriter:
    """Lets detached actors make actors, which the callers then use."""

    def __init__(self, handles: Collection[str], random: Random) -> None:
        self._handles = handles
        """Names of ``Create`` and ``Find`` of detached actors."""
        self._random = random
        self._count = 0

    def rewrite(self, body: Body) -> Body:
        """Rewrite the body of a driver or a task."""
        later: list[Operation] = []
        changed: list[Operation] = []
        for operation in body.operations:
            if isinstance(operation, Submit):
                operation = msgspec.structs.replace(operation, body=self.rewrite(operation.body))
            elif isinstance(operation, Call) and operation.actor in self._handles and self._random.random() < 0.6:
                operation, uses = self._with_heir(operation)
                later += uses
            changed.append(operation)
            while later and self._random.random() < 0.4:
                changed.append(later.pop(0))
        return Body((*changed, *later), body.end)

    def _with_heir(self, call: Call) -> tuple[Call, list[Operation]]:
        """Rewrite the call, and return it with the operations that its caller performs later."""
        random = self._random
        self._count += 1
        name = f"heir{self._count}"
        is_detached = random.random() < 0.4
        heir = Create(
            name,
            max_restarts=random.choice((0, 0, 1, -1)),
            max_task_retries=random.choice((0, 1, -1)),
            num_cpus=random.choice((None, 0)),
            called=name if is_detached else "",
            detached=is_detached,
            get_if_exists=is_detached and random.random() < 0.7,
        )
        uses: list[Operation] = [heir]
        if random.random() < 0.5:
            uses += self._use(f"{name} early", name)
        end = call.body.end
        if isinstance(end, Return) and not is_detached:
            end = Return((*end.refs, name))
        changed = msgspec.structs.replace(call, body=Body((*uses, *call.body.operations), end))
        handle = f"find {name}" if is_detached else name
        found: Operation = Find(handle, name) if is_detached else Get(f"get for {name}", (call.name,))
        return changed, [found, *self._use(f"{name} late", handle), *self._use(f"{name} last", handle)]

    def _use(self, name: str, handle: str) -> list[Operation]:
        pause = Sleep(f"{name} sleeps", self._random.choice(SLEEPS_S))
        return [Call(name, handle, Body((pause,))), Get(f"get {name}", (name,))]
