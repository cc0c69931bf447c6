"""Fragments: a few operations for one rare feature, which fit into any driver of any program.

Each function makes operations whose names begin with ``name``. Every fragment ends by itself, as all programs do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tests.spec.abandoned import Abandon
from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.frees import Free
from tests.spec.groups import SLOT, Describe, FindGroup, Group, Remove
from tests.spec.programs import (
    Body,
    Call,
    Cancel,
    Drop,
    Generate,
    Get,
    Operation,
    Peek,
    Program,
    Put,
    RaiseAtFirst,
    ReadOn,
    Return,
    Sleep,
    Submit,
)

PAUSES_S = (0.0, 0.02, 0.2, 1.0)
Write = Callable[[str, Random], list[Operation]]


def _nap(name: str, seconds: float) -> Body:
    return Body((Sleep(f"{name} sleeps", seconds),))


def _called(create: Create, random: Random, count: int, **options: Any) -> list[Operation]:
    """An actor, calls of it, and their values."""
    calls = [f"{create.name} call{number}" for number in range(count)]
    made = [Call(call, create.name, _nap(call, random.choice(PAUSES_S)), **options) for call in calls]
    return [create, *made, *(Get(f"get {call}", (call,)) for call in calls)]


def _got(*tasks: Submit) -> list[Operation]:
    """Tasks, and their values."""
    return [*tasks, *(Get(f"get {task.name}", (task.name,)) for task in tasks)]


def name_reused(name: str, random: Random) -> list[Operation]:
    """End an actor with a name, make another with that name, and look the name up later."""
    first, second = (Create(f"{name} {word}", called=name, num_cpus=0) for word in ("first", "second"))
    end = [Kill(f"{name} end", first.name)]
    return [
        *_called(first, random, 1),
        *(end if random.random() < 0.7 else [Drop(f"{name} drop", first.name)]),
        Sleep(f"{name} pause", random.choice(PAUSES_S)),
        *_called(second, random, 1),
        Sleep(f"{name} lull", random.choice((0.2, 1.0, 5.0))),
        *name_looked_up(f"{name} later", random, name),
    ]


def name_looked_up(name: str, random: Random, called: str = "") -> list[Operation]:
    made = [] if called else [Create(f"{name} actor", called=name, num_cpus=0, max_restarts=random.choice((0, 1)))]
    found, call = Find(f"{name} found", called or name), f"{name} call"
    return [*made, found, Call(call, found.name, _nap(call, 0.02)), Get(f"{name} get", (call,))]


def asked_to_end(name: str, random: Random) -> list[Operation]:
    return [*_called(Create(name, num_cpus=0), random, 2), Kill(f"{name} end", name, is_asked=True)]


def exits(name: str, random: Random) -> list[Operation]:
    leave = Call(f"{name} leaves", name, Body((), ExitActor()))
    later = Call(f"{name} later", name, Body())
    create = Create(name, num_cpus=0, max_restarts=random.choice((0, 1)))
    return [*_called(create, random, 1), leave, later, Get(f"get {later.name}", (later.name,))]


def resident(name: str, random: Random) -> list[Operation]:
    group = Group(f"{name} group", 2, random.choice(("PACK", "SPREAD")))
    return [group, *_called(Create(name, group=group.name, max_restarts=random.choice((0, 1))), random, 2)]


def named_group(name: str, random: Random) -> list[Operation]:
    group = Group(f"{name} group", 1, called=name)
    return [group, FindGroup(f"{name} found", name), Describe(f"{name} described", group.name)]


def removed_group(name: str, random: Random) -> list[Operation]:
    group = Group(f"{name} group", random.choice((1, 2)), random.choice(("PACK", "SPREAD", "STRICT_PACK")))
    body = _nap(name, random.choice(PAUSES_S))
    tasks = [Submit(f"{name} task{number}", body_of(body, number), num_cpus=0, resources={SLOT: 1}, group=group.name)
             for number in range(2)]  # fmt: skip
    pause = Sleep(f"{name} pause", random.choice(PAUSES_S))
    return [group, *tasks, pause, Remove(f"{name} removal", group.name), *_got(*tasks)[2:]]


def body_of(body: Body, number: int) -> Body:
    """Return a body whose operations have names of their own."""
    return Body(tuple(Sleep(f"{one.name}{number}", one.seconds) for one in body.operations if isinstance(one, Sleep)))


def read_on(name: str, random: Random) -> list[Operation]:
    stream = Generate(name, 4, 1, pause_s=random.choice(PAUSES_S), max_retries=random.choice((0, 3)), rest=4)
    return [stream, Sleep(f"{name} lull", random.choice(PAUSES_S)), ReadOn(f"on with {name}", name)]


def generator_of_actor(name: str, random: Random) -> list[Operation]:
    actor = Create(f"{name} actor", num_cpus=0, max_restarts=1, max_task_retries=random.choice((0, 1)))
    return [actor, Generate(name, 3, 4, pause_s=random.choice(PAUSES_S), actor=actor.name)]


def back_pressure(name: str, random: Random) -> list[Operation]:
    return [Generate(name, 4, 5, most_unread=1, pause_s=random.choice((0.0, 0.02)), max_retries=random.choice((0, 3)))]


def generator_dropped(name: str, random: Random) -> list[Operation]:
    return [
        Abandon(
            name,
            random.choice((1, 4, 8)),
            random.choice((0, 1, 2)),
            random.choice((0.0, 0.02, 0.5)),
            random.choice(("", "", "ValueError")),
            random.choice((-1, 1, 2)),
            random.choice((0, 1, 3)),
            random.choice((0.0, 0.02, 1.0)),
        )
    ]


def forced_cancellation(name: str, random: Random) -> list[Operation]:
    task = Submit(name, _nap(name, 30.0), num_cpus=random.choice((0, 1)), max_retries=random.choice((0, 3)))
    return [task, Sleep(f"{name} pause", random.choice(PAUSES_S)), Cancel(f"cancel {name}", name, True), *_got(task)[1:]]


def freed(name: str, random: Random) -> list[Operation]:
    made = Put(name) if random.random() < 0.5 else Submit(name, _nap(name, random.choice(PAUSES_S)))
    reader = Submit(f"{name} reader", Body(), (name,), max_retries=3)
    return [made, reader, Free(f"free {name}", (name,)), *_got(reader)[1:]]


def several_returns(name: str, random: Random) -> list[Operation]:
    task = Submit(name, _nap(name, random.choice(PAUSES_S)), returns=2, yields=random.random() < 0.5)
    return [task, Drop(f"drop {name}", name), Get(f"get {name}.2", (f"{name}.2",))]


def last_tasks(name: str, random: Random) -> list[Operation]:
    return _got(*(Submit(f"{name}.{number}", Body(), is_last=True, spread=random.random() < 0.5) for number in "ab"))


def environments(name: str, random: Random) -> list[Operation]:
    tasks = (Submit(f"{name} {mark}", _nap(f"{name} {mark}", random.choice(PAUSES_S)), mark=mark) for mark in "ab")
    return _got(*tasks)


def bound_to_node(name: str, random: Random) -> list[Operation]:
    return _got(Submit(name, _nap(name, random.choice(PAUSES_S)), node=random.randrange(4), is_soft=False))


def gpus(name: str, random: Random, shares: tuple[float, ...]) -> list[Operation]:
    tasks = []
    for number in range(3):
        one = f"{name} task{number}"
        tasks.append(Submit(one, _nap(one, random.choice((0.02, 0.2))), num_cpus=0, gpus=random.choice(shares)))
    return _got(*tasks)


def retry_used_up(name: str, random: Random) -> list[Operation]:
    body = Body((Sleep(f"{name} sleeps", random.choice((0.2, 1.0, 3.0))),), RaiseAtFirst())
    return _got(Submit(name, body, max_retries=1, retry_exceptions=True))


def array(name: str, random: Random) -> list[Operation]:
    task = Submit(name, Body((), Return((), 300)), spread=random.random() < 0.5)
    reader = Submit(f"{name} reader", _nap(f"{name} reader", random.choice(PAUSES_S)), (name,), spread=True)
    return [task, *_got(reader), Get(f"get {name}", (name,))]


def wait_given_up(name: str, random: Random) -> list[Operation]:
    return [Submit(name, _nap(name, 1.0)), Peek(f"peek {name}", (name,), random.choice((0.0, 0.2)), random.random() < 0.5)]


def with_dropped_generators(program: Program, random: Random) -> Program:
    """In a tenth of the programs, let a driver drop a generator while it holds the reference that is complete with it."""
    if random.random() >= 0.1:
        return program
    drivers = list(program.drivers)
    number = random.randrange(len(drivers))
    drivers[number] = inserted(drivers[number], generator_dropped("dropped", random), random)
    return Program(tuple(drivers))


def inserted(body: Body, operations: list[Operation], random: Random) -> Body:
    """Spread operations, in their order, over a body that ends only after them."""
    merged = list(body.operations)
    places = sorted(random.randint(0, len(merged)) for _ in operations)
    for place, operation in reversed(list(zip(places, operations, strict=True))):
        merged.insert(place, operation)
    return Body(tuple(merged), body.end)


def _actor(count: int = 2, **options: Any) -> Write:
    """Return the writer of an actor with some options."""
    return lambda name, random: _called(Create(name, num_cpus=0, **options), random, count)


FRAGMENTS: Mapping[str, Write] = {
    "a name reused": name_reused,
    "a name looked up": name_looked_up,
    "a detached actor": lambda name, random: _called(Create(name, num_cpus=0, called=name, detached=True), random, 2),
    "an async actor": _actor(3, is_async=True),
    "a concurrency group": lambda name, random: _called(Create(name, has_group=True), random, 3, in_group=True),
    "calls in any order": _actor(3, is_unordered=True),
    "few pending calls": _actor(4, max_pending_calls=2),
    "an actor that takes a while to end": _actor(parting_s=0.5, max_restarts=1),
    "an actor in a placement group": resident,
    "an actor that ends itself": exits,
    "an actor that is asked to end": asked_to_end,
    "a placement group with a name": named_group,
    "a placement group removed": removed_group,
    "a generator read on": read_on,
    "a generator of an actor": generator_of_actor,
    "back-pressure": back_pressure,
    "a generator dropped": generator_dropped,
    "a forced cancellation": forced_cancellation,
    "a value freed by hand": freed,
    "several returns": several_returns,
    "a worker's last task": last_tasks,
    "an environment": environments,
    "a task bound to a node": bound_to_node,
    "a part of a GPU": lambda name, random: gpus(name, random, (0.25, 0.5, 0.5)),
    "whole GPUs": lambda name, random: gpus(name, random, (1.0, 2.0)),
    "a retry used up": retry_used_up,
    "an array": array,
    "a wait given up": wait_given_up,
}
"""Feature of programs -> the writer of a fragment that has it. Drivers that leave are ``conjunctions``' own."""
