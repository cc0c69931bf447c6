"""Patterns of work that need several operations which fit together. A random writer hardly ever draws them.

Like ``variations``, each pattern draws from a ``Random`` of its own.
"""

from __future__ import annotations

from random import Random

import msgspec

from tests.spec.actors import Create
from tests.spec.frees import Free
from tests.spec.programs import (
    Body,
    Call,
    Cancel,
    Drop,
    End,
    Exit,
    Get,
    Operation,
    Program,
    Put,
    Raise,
    Return,
    Sleep,
    Submit,
    Wait,
    Why,
)

LINKS = (3, 8, 20, 120, 120)
"""Lengths of chains. The longest is there to break code that recurses along a chain."""
NESTS = (2, 2, 3, 4)
"""Numbers of values in a nest, each inside the next."""
RATIONS = 6
"""Number of values that share the memory; a task takes some of them at once."""


def with_chains(program: Program, random: Random) -> Program:
    """In a tenth of the programs each driver has a chain of tasks, each of which takes the value of the one before.

    An error or a cancellation of one link reaches all links after it.
    """
    if random.random() >= 0.1:
        return program
    bodies = enumerate(program.drivers)
    return Program(tuple(_inserted(driver, _chain(f"chain{number}", random), random) for number, driver in bodies))


def _chain(name: str, random: Random) -> list[Operation]:
    links = [f"{name}.{count}" for count in range(random.choice(LINKS))]
    first = Body((Sleep(f"{name} begins", random.choice((0.0, 0.02, 0.5))),), _end(random))
    retries = random.choice((0, 3))
    operations: list[Operation] = [Submit(links[0], first, max_retries=retries)]
    for before, link in zip(links[:-1], links[1:], strict=True):
        operations.append(Submit(link, Body(), (before,), max_retries=retries, spread=random.random() < 0.3))
    for link in links[1:-1]:
        operations += [Drop(f"drop {link}", link)] if random.random() < 0.7 else []
    struck = random.choice((links[0], links[0], random.choice(links)))
    blow = random.choice(("", "", "cancel", "drop", "free", "why"))
    if blow == "cancel":
        operations.append(Cancel(f"cancel {struck}", struck))
    elif blow == "drop":
        operations.append(Drop(f"drop {links[0]}", links[0]))
    elif blow == "free":
        operations.append(Free(f"free {struck}", (struck,)))
    elif blow == "why":
        operations.append(Why(f"why {links[-1]}", links[-1]))
    if random.random() < 0.3:
        operations.append(Wait(f"wait {links[-1]}", (links[-1],), 1, random.choice((0.0, 2.0))))
    return [*operations, Get(f"get {links[-1]}", (links[-1],))]


def _end(random: Random) -> End:
    return random.choice((Return(), Return(), Raise("ValueError"), Exit(1)))


def with_nests(program: Program, random: Random) -> Program:
    """Let each driver make nests: values inside values, on any nodes. It gets them after a pause in which nodes may die.

    Mostly only the outer value holds the inner one. So all of a nest may be lost at once, and some of it for good.
    """
    drivers = []
    for number, driver in enumerate(program.drivers):
        operations = [
            operation for count in range(random.randint(1, 3)) for operation in _nest(f"nest{number}.{count}", random)
        ]
        drivers.append(_inserted(driver, operations, random))
    return Program(tuple(drivers))


def _nest(name: str, random: Random) -> list[Operation]:
    """Make values from the innermost out, mostly on one node. A task without retries keeps no lineage of the inner ones."""
    layers, node = [f"{name}.{depth}" for depth in range(random.choice(NESTS))], random.randrange(3)
    actor = f"{name} actor"
    operations: list[Operation] = [Create(actor, num_cpus=0, away=node)]
    for depth, layer in enumerate(layers):
        inside, sleep = tuple(layers[:depth][-1:]), Sleep(f"{layer} sleeps", random.choice((0.0, 0.2, 1.0)))
        body, retries, maker = Body((sleep,), Return(inside)), random.choice((0, 0, 3)), random.random()
        if maker < 0.2:
            operations.append(Put(layer, inside))
        elif maker < 0.5:
            operations.append(Call(layer, actor, body, nested=inside))
        else:
            is_together = random.random() < 0.7
            place = {"node": 1 + node} if is_together else {}
            operations.append(
                Submit(layer, body, nested=inside, num_cpus=0, max_retries=retries, spread=not is_together, **place)
            )
        operations += [Drop(f"drop {one}", one) for one in inside if random.random() < 0.8]
    operations.append(Sleep(f"{name} lull", random.choice((0.2, 1.0, 2.0, 5.0))))
    return operations + [Get(f"open {layer}", (layer,)) for layer in reversed(layers)]


def with_naps(program: Program, random: Random) -> Program:
    """In a seventh of the programs let each driver cancel tasks, and calls of an async actor, that sleep long."""
    if random.random() >= 0.15:
        return program
    drivers = []
    for number, driver in enumerate(program.drivers):
        actor, names = f"napper{number}", [f"nap{number}.{count}" for count in range(random.randint(2, 4))]
        operations: list[Operation] = [Create(actor, num_cpus=0, is_async=True)]
        for name in names:
            body = Body((Sleep(f"{name} sleeps", random.choice((5.0, 20.0))),))
            operations.append(Call(name, actor, body) if random.random() < 0.5 else Submit(name, body, num_cpus=0))
        operations.append(Sleep(f"naps{number} begin", random.choice((0.02, 0.5, 2.0))))
        operations += [Cancel(f"cancel {name}", name) for name in names if random.random() < 0.8]
        drivers.append(_inserted(driver, operations + [Get(f"get {name}", (name,)) for name in names], random))
    return Program(tuple(drivers))


def with_families(program: Program, random: Random) -> Program:
    """In a tenth of the programs each driver submits many tasks of one kind, each of which waits for a child or two.

    A task that is queued behind another must not wait for the children of that.
    """
    if random.random() >= 0.1:
        return program
    drivers = []
    for number, driver in enumerate(program.drivers):
        parents = [f"parent{number}.{count}" for count in range(random.randint(4, 8))]
        families = [_family(parent, random) for parent in parents]
        gets = [Get(f"get {parent}", (parent,)) for parent in parents]
        drivers.append(_inserted(driver, [*families, *gets], random))
    return Program(tuple(drivers))


def _family(name: str, random: Random) -> Submit:
    children = [f"{name} child{count}" for count in range(random.choice((1, 1, 2)))]
    operations: list[Operation] = [Sleep(f"{name} sleeps", random.choice((0.0, 0.001, 0.02)))]
    for child in children:
        operations.append(Submit(child, Body((Sleep(f"{child} sleeps", random.choice((0.0, 0.02, 0.2))),))))
    operations += [Get(f"get {child}", (child,)) for child in children]
    return Submit(name, Body(tuple(operations)), max_retries=random.choice((0, 3)))


def with_force(program: Program, random: Random) -> Program:
    """In half of the programs, cancel the tasks that nap by force."""
    if random.random() < 0.5:
        return program
    naps = {task.name for task in program.tasks() if task.name.startswith("nap")}
    drivers = []
    for driver in program.drivers:
        forced = [
            msgspec.structs.replace(one, force=True) if isinstance(one, Cancel) and one.ref in naps else one
            for one in driver.operations
        ]
        drivers.append(Body(tuple(forced), driver.end))
    return Program(tuple(drivers))


def with_relays(program: Program, random: Random) -> Program:
    """Let each driver put values whose references go to tasks, on to their children, and back in the returned values."""
    drivers = []
    for number, driver in enumerate(program.drivers):
        operations = [step for count in range(random.randint(1, 3)) for step in _relay(f"relay{number}.{count}", random)]
        drivers.append(_inserted(driver, operations, random))
    return Program(tuple(drivers))


def _relay(name: str, random: Random) -> list[Operation]:
    """The last tasks return the baton to the first, which borrows it too. Each may die before it has passed it on."""
    baton, first = f"{name}.baton", f"{name}.first"
    lasts = [f"{name}.last{count}" for count in range(random.randint(1, 3))]
    inner: list[Operation] = []
    for last in lasts:
        run = Body((Sleep(f"{last} sleeps", random.choice((0.0, 0.02, 0.2))),), Return((baton,)))
        inner.append(Submit(last, run, nested=(baton,)))
    inner += [Get(f"get {last}", (last,)) for last in lasts]
    end, retries = random.choice((Return(), Return((baton,)))), random.choice((0, 3))
    operations: list[Operation] = [Put(baton), Submit(first, Body(tuple(inner), end), nested=(baton,), max_retries=retries)]
    operations += [Drop(f"drop {baton}", baton)] if random.random() < 0.5 else []
    return [*operations, Get(f"get {first}", (first,))]


def with_deliveries(program: Program, random: Random) -> Program:
    """Let each driver pass values of tasks on any node to unordered calls. A value may be lost on its way and come again."""
    drivers = []
    for number, driver in enumerate(program.drivers):
        actor = f"addressee{number}"
        manner = random.choice(({"is_unordered": True}, {"is_async": True}, {"max_concurrency": 3}))
        restarts = random.choice((0, -1))
        operations: list[Operation] = [Create(actor, num_cpus=0, max_restarts=restarts, away=random.randrange(3), **manner)]
        for count in range(random.randint(2, 4)):
            parcel, delivery = f"parcel{number}.{count}", f"delivery{number}.{count}"
            packing = Body((Sleep(f"{parcel} is packed", random.choice((0.0, 0.2, 1.0))),))
            operations.append(Submit(parcel, packing, num_cpus=0, max_retries=random.choice((0, 3)), spread=True))
            operations.append(Call(delivery, actor, Body(), (parcel,), max_task_retries=random.choice((0, -1))))
            operations += [Drop(f"drop {parcel}", parcel)] if random.random() < 0.5 else []
        gets = [Get(f"get {one.name}", (one.name,)) for one in operations if isinstance(one, Call)]
        drivers.append(_inserted(driver, [*operations, *gets], random))
    return Program(tuple(drivers))


def with_rations(program: Program, random: Random, custom: dict[str, int]) -> Program:
    """Let each driver submit tasks with several arguments, of which few fit into the store at once; their children, too.

    Some tasks need ``custom``. A task that holds it waits for children that do not need it.
    """
    drivers = []
    for number, driver in enumerate(program.drivers):
        rations = [f"ration{number}.{count}" for count in range(RATIONS)]
        meals = [f"meal{number}.{count}" for count in range(random.randint(2, 4))]
        operations: list[Operation] = [*map(Put, rations), *(_meal(meal, rations, custom, 2, random) for meal in meals)]
        drivers.append(_inserted(driver, operations + [Get(f"get {meal}", (meal,)) for meal in meals], random))
    return Program(tuple(drivers))


def _meal(name: str, rations: list[str], custom: dict[str, int], depth: int, random: Random) -> Submit:
    """Submit a task that takes some rations, and waits for a child or two that take some of the others."""
    args = tuple(random.sample(rations, min(len(rations), random.randint(2, 4))))
    left = [ration for ration in rations if ration not in args]
    names = [f"{name}.{count}" for count in range(random.choice((0, 1, 1, 2)) if depth and left else 0)]
    needs = custom if random.random() < 0.4 else {}
    children = [_meal(child, left, {} if needs else custom, depth - 1, random) for child in names]
    gets: list[Operation] = [Get(f"get {child}", (child,)) for child in names]
    operations = (Sleep(f"{name} sleeps", random.choice((0.0, 0.02, 0.2))), *children, *gets)
    nested = tuple(left) if names else ()
    return Submit(name, Body(operations), args, nested, num_cpus=random.choice((0, 1, 1)), resources=needs)


def _inserted(driver: Body, operations: list[Operation], random: Random) -> Body:
    """Insert operations into a driver's, in their order. Most follow each other directly; some come later."""
    changed = list(driver.operations)
    at = random.randint(0, len(changed))
    for operation in operations:
        changed.insert(at, operation)
        at = at + 1 if random.random() < 0.9 else random.randint(at + 1, len(changed))
    return Body(tuple(changed), driver.end)
