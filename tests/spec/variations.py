"""Changes of programs when they are written: some of what they do is done in another way, some is added.

Each change draws from a ``Random`` of its own and leaves most programs as they are, so that a new one does not change what
the others do with a seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import msgspec

from tests.spec.actors import Create, Find, Kill
from tests.spec.groups import SLOT, Describe, FindGroup, Group, Ready, Remove
from tests.spec.programs import (
    Body,
    Call,
    Cancel,
    Drop,
    Exit,
    Generate,
    Get,
    Leave,
    Operation,
    Program,
    Put,
    ReadOn,
    Return,
    Sleep,
    Submit,
    Wait,
)

TEAM = "team"
"""The one name that placement groups have."""
PAUSES_S = (0.0, 0.001, 0.02, 0.2)
RAISING = ("Raise", "RaiseAtFirst")
PADDINGS = (1, 30, 300)
"""Bytes: fewer than a value has without them, as many, or more."""
WAITING = ("Get", "Await", "Peek", "Wait", "Generate", "ReadOn", "Kill", "Find", "Ready")
"""Operations in which a task may wait for others."""
Tree = dict[str, Any]
"""A record, as JSON would hold it."""


def with_async_actors(program: Program, random: Random) -> Program:
    """Half of the actors that take several calls at once take them as coroutines, some of them as many as come."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") == "Create" and tree.get("max_concurrency", 1) > 1 and random.random() < 0.5:
            return {"max_concurrency": random.choice((1, 1, 2)), "is_async": True}
        return {}

    return _changed(program, change)


def with_first_failures(program: Program, random: Random) -> Program:
    """In a third of the programs some tasks and calls raise at first, and are made again for that."""

    def change(tree: Tree) -> Tree:
        end = tree.get("body", {}).get("end", {"kind": "Return"})
        if tree.get("kind") not in ("Submit", "Call") or end["kind"] != "Return" or random.random() >= 0.3:
            return {}
        body = tree["body"] | {"end": end | {"kind": "RaiseAtFirst"}}
        retries = {"max_retries": random.choice((1, 3))}
        if tree["kind"] == "Call":
            retries = {"max_task_retries": random.choice((1, 1, 2, -1))}
        return {"body": body, "retry_exceptions": True, **retries}

    return _changed(program, change) if random.random() < 0.33 else program


def with_awaits(program: Program, random: Random) -> Program:
    """In a third of the programs many values are awaited in an event loop, often by whoever holds them no longer.

    Only drivers and actors do so: a task keeps its CPUs meanwhile, which what it awaits may need.
    """

    def change(tree: Tree) -> Tree:
        bodies = _bodies(tree) if tree.get("kind") != "Submit" else []
        for operation in [operation for body in bodies for operation in body.get("operations", [])]:
            if operation["kind"] == "Get" and operation.get("timeout") is None and random.random() < 0.6:
                operation |= {"kind": "Await", "lets_go": random.random() < 0.5}
        return {}

    return _changed(program, change) if random.random() < 0.33 else program


def with_impatience(program: Program, random: Random) -> Program:
    """In a quarter of the programs many awaits are given up after a while, and so are futures, often without a reference."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") not in ("Get", "Await") or random.random() < 0.5:
            return {}
        lets_go, seconds = random.random() < 0.4, random.choice((*PAUSES_S, 2.0))
        if random.random() < 0.5:
            return {"kind": "Await", "timeout": seconds, "lets_go": lets_go}
        tree.pop("timeout", None)
        return {"kind": "Peek", "seconds": seconds, "lets_go": lets_go}

    return _changed(program, change) if random.random() < 0.25 else program


def with_parts(program: Program, random: Random) -> Program:
    """In a third of the programs some tasks return several objects, of which each goes its own way.

    Only drivers read parts that nobody has read before: a task may have to wait for nothing.
    """

    def change(tree: Tree) -> Tree:
        for body in _bodies(tree):
            body["operations"] = _in_parts(body.get("operations", []), "drivers" in tree, random)
        return {}

    return _changed(program, change) if random.random() < 0.33 else program


def with_miscounts(program: Program, random: Random) -> Program:
    """Some tasks that return several objects return one too few or too many."""

    def change(tree: Tree) -> Tree:
        end = tree.get("body", {}).get("end", {"kind": "Return"})
        if tree.get("returns", 1) == 1 or end["kind"] != "Return" or random.random() >= 0.15:
            return {}
        return {"body": tree["body"] | {"end": {"kind": "Miscount", "is_more": random.random() < 0.5}}}

    return _changed(program, change)


def with_padding(program: Program, random: Random) -> Program:
    """In a quarter of the programs some values have an array, which travels beside the rest."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") not in ("Put", "Return") or random.random() < 0.6:
            return {}
        return {"padding": random.choice(PADDINGS)}

    return _changed(program, change) if random.random() < 0.25 else program


def _in_parts(operations: list[Tree], may_read: bool, random: Random) -> list[Tree]:
    """Have some tasks return several objects, and the operations after them use all of these."""
    changed: list[Tree] = []
    for operation in reversed(operations):
        returns = random.randint(2, 3) if operation["kind"] == "Submit" and random.random() < 0.5 else 1
        for number in range(2, returns + 1):
            changed = _with_part(changed, operation["name"], f"{operation['name']}.{number}", may_read, random)
        more = {"returns": returns, "yields": random.random() < 0.5} if returns > 1 else {}
        changed.insert(0, operation | more)
    return changed


def _with_part(operations: list[Tree], whole: str, part: str, may_read: bool, random: Random) -> list[Tree]:
    """Some of them take this part instead of the first one; and perhaps one more reads it, or drops it."""
    changed = [_renamed(each, whole, part) if random.random() < 0.3 else each for each in operations]
    if random.random() < 0.6:
        look: Tree = {"kind": "Get", "name": f"look {part}", "refs": [part]}
        drop: Tree = {"kind": "Drop", "name": f"drop {part}", "ref": part}
        changed.insert(random.randint(0, len(changed)), look if may_read and random.random() < 0.5 else drop)
    return changed


def _renamed(tree: Any, old: str, new: str) -> Any:
    """With another object wherever this one is used; the names of operations stay."""
    if isinstance(tree, list):
        return [_renamed(branch, old, new) for branch in tree]
    if isinstance(tree, dict):
        return {key: value if key == "name" else _renamed(value, old, new) for key, value in tree.items()}
    return new if tree == old else tree


def with_options(program: Program, random: Random) -> Program:
    """In a third of the programs some tasks have what tasks seldom have.

    An environment of their own, a node where they have to run, or would like to; no result; or a worker that ends with them.
    """

    def change(tree: Tree) -> Tree:
        if tree.get("kind") != "Submit" or random.random() < 0.5:
            return {}
        changed: Tree = random.choice(({}, {}, {"mark": "a"}, {"mark": random.choice("ab")}))
        if not tree.get("group") and random.random() < 0.4:
            is_soft = random.random() < 0.5
            changed |= {"node": random.randrange(4), "is_soft": is_soft, "spread": False}
            changed |= {} if is_soft else {"num_cpus": min(1, tree.get("num_cpus", 1)), "resources": {}}
        if tree.get("returns", 1) == 1:
            changed |= random.choice(({}, {}, {"is_last": True}, {"is_last": True}, {"returns": 0}))
        return changed

    return _changed(program, change) if random.random() < 0.33 else program


def with_needs(program: Program, random: Random) -> Program:
    """Some tasks need GPUs, or parts of one, and wait for nothing while they have them; some have to run in one zone, or had
    better. But for those that are bound to a node, which may have less."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") != "Submit" or tree.get("node", -1) >= 0 or tree.get("group") or random.random() < 0.6:
            return {}
        waits = any(inner["kind"] in WAITING for inner in _all_inside(tree))
        needs: Tree = {} if waits else random.choice(({}, {"gpus": random.choice((0.25, 0.5, 0.5, 1.0, 2.0))}))
        if not tree.get("spread") and random.random() < 0.6:
            needs |= {"zone": random.choice(("a", "!b")), "is_soft": random.random() < 0.4}
        return needs

    return _changed(program, change)


def _all_inside(tree: Tree) -> Iterator[Tree]:
    """The operations of a task or call, and those of its tasks and calls."""
    for operation in tree.get("body", {}).get("operations", ()):
        yield operation
        yield from _all_inside(operation)


def with_manners(program: Program, random: Random) -> Program:
    """In a quarter of the programs some actors that have no name take calls in another way than most do.

    Some in a concurrency group, or in any order, and some no more than a few at once.
    """
    generating = {operation.actor for operation in program.walk() if isinstance(operation, Generate)}
    grouped: set[str] = set()

    def change(tree: Tree) -> Tree:
        if tree.get("kind") == "Create" and not tree.get("called") and random.random() < 0.6:
            manner = random.choice(({"has_group": True}, {"has_group": True}, {"is_unordered": True}, {}))
            grouped.update({tree["name"]} if "has_group" in manner else ())
            few = tree["name"] not in generating and random.random() < 0.3
            return manner | ({"max_pending_calls": random.randint(1, 3)} if few else {})
        return {"in_group": random.random() < 0.5} if tree.get("actor") in grouped and tree["kind"] == "Call" else {}

    return _changed(program, change) if random.random() < 0.25 else program


def with_partings(program: Program, random: Random) -> Program:
    """In a quarter of the programs actors that have no name take a while to end, and may begin anew if they crash then."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") == "Create" and not tree.get("called") and random.random() < 0.7:
            return {"parting_s": random.choice((0.02, 0.5, 5.0)), "max_restarts": tree.get("max_restarts") or 1}
        return {}

    return _changed(program, change) if random.random() < 0.25 else program


def with_frees(program: Program, random: Random) -> Program:
    """In a fifth of the programs values are freed by hand: before they are made, too, by borrowers, and more than once."""
    handles = {one.name for one in program.walk() if isinstance(one, Create | Find | Group)}
    names = (f"free{number}" for number in itertools.count(1))

    def change(tree: Tree) -> Tree:
        for body in _bodies(tree):
            body["operations"] = _with_frees(body.get("operations", []), tree.get("nested", ()), handles, names, random)
        return {}

    return _changed(program, change) if random.random() < 0.2 else program


def _with_frees(
    operations: list[Tree], held: Iterable[str], handles: set[str], names: Iterator[str], random: Random
) -> list[Tree]:
    """Of one body, which begins with what it has ``held``; most are of what was made just before."""
    changed: list[Tree] = []
    known = [name for name in held if name not in handles]
    for operation in operations:
        changed.append(operation)
        known += [name for name in _objects_of(operation) if name not in handles]
        if known and random.random() < 0.2:
            choice = random.choice((known, known[-3:]))
            refs = random.sample(choice, min(len(choice), random.choice((1, 1, 2))))
            changed.append({"kind": "Free", "name": next(names), "refs": refs, "local_only": random.random() < 0.2})
    return changed


def _objects_of(operation: Tree) -> list[str]:
    """What it makes, and what may be found inside of that."""
    if operation["kind"] == "Generate":
        return [f"{operation['name']}.{number}" for number in range(1, operation.get("yields", 3) + 1)]
    if operation["kind"] not in ("Submit", "Call", "Put"):
        return []
    parts = [f"{operation['name']}.{number}" for number in range(2, operation.get("returns", 1) + 1)]
    return [operation["name"], *parts, *operation.get("body", {}).get("end", {}).get("refs", ())]


def with_leavers(program: Program, random: Random) -> Program:
    """In a quarter of the programs one driver leaves, or ends its process, in the middle of what it does."""
    if random.random() >= 0.25:
        return program
    drivers = list(program.drivers)
    number = random.randrange(len(drivers))
    operations = drivers[number].operations
    end = random.choice((Exit(), Exit(), Leave()))
    drivers[number] = Body(operations[: random.randint(min(1, len(operations)), len(operations))], end)
    return Program(tuple(drivers))


def with_groups(program: Program, random: Random) -> Program:
    """In a fifth of the programs drivers make placement groups, and have some of their tasks run there."""
    if random.random() >= 0.2:
        return program
    names = (f"group{number}" for number in itertools.count(1))
    return Program(tuple(Body(_with_groups(driver.operations, names, random), driver.end) for driver in program.drivers))


def _with_groups(operations: tuple[Operation, ...], names: Iterator[str], random: Random) -> tuple[Operation, ...]:
    """Of one driver: a group or two, from somewhere on, perhaps until somewhere."""
    changed = list(operations)
    for _ in range(random.choice((1, 1, 2))):
        name, at = next(names), random.randint(0, len(changed))
        for index, operation in enumerate(changed[at:], at):
            if isinstance(operation, Submit) and not operation.group and random.random() < 0.5:
                waits = any(isinstance(inner, Get | Wait | Generate | Kill | Find) for inner in operation.body.walk())
                slot = {SLOT: 1} if not waits and random.random() < 0.5 else {}
                changed[index] = msgspec.structs.replace(operation, group=name, num_cpus=0, resources=slot, spread=False)
        changed.insert(at, Group(name, random.randint(1, 2), random.choice(("PACK", "SPREAD", "STRICT_PACK"))))
        if random.random() < 0.3:
            changed.insert(random.randint(at + 1, len(changed)), Ready(f"ready of {name}", name))
        if random.random() < 0.4:
            changed.insert(random.randint(at + 1, len(changed)), Remove(f"removal of {name}", name))
    return tuple(changed)


def with_names_of_groups(program: Program, random: Random) -> Program:
    """In half of the programs with placement groups each driver names some of its own, all alike, and looks for them."""
    if random.random() < 0.5:
        return program
    drivers = []
    for number, driver in enumerate(program.drivers):
        operations = [
            msgspec.structs.replace(one, called=TEAM) if isinstance(one, Group) and random.random() < 0.8 else one
            for one in driver.operations
        ]
        for group in [one for one in operations if isinstance(one, Group)]:
            for count in range(random.randint(1, 3)):
                name, at = f"look{count} at {group.name} of {number}", random.randint(0, len(operations))
                look = FindGroup(name, TEAM) if random.random() < 0.5 else Describe(name, group.name)
                operations.insert(at, look)
        drivers.append(Body(tuple(operations), driver.end))
    return Program(tuple(drivers))


def with_residents(program: Program, random: Random) -> Program:
    """In half of the programs with placement groups actors live there too; each takes a slot of its own."""
    if random.random() < 0.5:
        return program
    return Program(tuple(Body(_with_residents(driver.operations, random), driver.end) for driver in program.drivers))


def _with_residents(operations: tuple[Operation, ...], random: Random) -> tuple[Operation, ...]:
    """Of one driver: made and called anywhere after the group, when that may have been removed."""
    changed = list(operations)
    for group in [operation for operation in operations if isinstance(operation, Group)]:
        count = random.randint(1, 2)
        changed[changed.index(group)] = msgspec.structs.replace(group, bundles=group.bundles + count)
        for number in range(count):
            name = f"resident{number} of {group.name}"
            restarts, retries = random.choice((0, 0, 1, -1)), random.choice((0, 0, 1, -1))
            calls = [f"{name} call{turn}" for turn in range(random.randint(1, 3))]
            bodies = [Body((Sleep(f"sleep of {call}", random.choice((*PAUSES_S, 1.0))),)) for call in calls]
            later: list[Operation] = [Create(name, max_restarts=restarts, max_task_retries=retries, group=group.name)]
            later += [Call(call, name, body) for call, body in zip(calls, bodies, strict=True)]
            later += [Get(f"get {call}", (call,)) for call in calls]
            at = next(place for place, one in enumerate(changed) if one.name == group.name) + 1
            for operation in later:
                at = random.randint(at, len(changed)) if random.random() < 0.5 else at
                changed.insert(at, operation)
                at += 1
    return tuple(changed)


def with_crowds(program: Program, random: Random) -> Program:
    """Each driver makes several actors at once, so that the head has no room for all, and reads what they have made.

    It owns a value by then, and so is told when nodes die.
    """
    drivers = []
    for number, driver in enumerate(program.drivers):
        crowd, calls = [], []
        for count in range(random.randint(2, 4)):
            name = f"crowd{number}.{count}"
            crowd.append(Create(name, max_restarts=2, max_task_retries=2))
            pauses = [Sleep(f"{name} sleeps {turn}", random.choice(PAUSES_S)) for turn in range(random.randint(2, 4))]
            calls += [Call(f"{name} call{turn}", name, Body((pause,))) for turn, pause in enumerate(pauses)]
        gets = [Get(f"get {call.name}", (call.name,)) for call in calls]
        random.shuffle(gets)
        at = random.randint(0, len(driver.operations))
        operations = (*driver.operations[:at], Put(f"crowd{number}"), *crowd, *calls, *gets, *driver.operations[at:])
        drivers.append(Body(operations, driver.end))
    return Program(tuple(drivers))


def with_souvenirs(program: Program, random: Random) -> Program:
    """In half of the programs some calls of crowds bring back a reference, which their caller may never hear of."""

    def change(tree: Tree) -> Tree:
        crowd = tree.get("actor", "").partition(".")[0]
        if tree.get("kind") != "Call" or not crowd.startswith("crowd") or random.random() < 0.5:
            return {}
        return {"nested": [crowd], "body": tree["body"] | {"end": {"kind": "Return", "refs": [crowd]}}}

    return _changed(program, change) if random.random() < 0.5 else program


def with_words(program: Program, random: Random) -> Program:
    """In a third of the programs some things are said in other words that mean the same, or nearly.

    To end by ``sys.exit``, to be made again for one kind of exception alone, to be bound to a node that never was, to read a
    generator in an event loop (drivers alone: coroutines have one), and to wait for a placement group by its reference.
    """

    def change(tree: Tree) -> Tree:
        kind, body, changed = tree.get("kind"), tree.get("body", {}), Tree()
        if body.get("end", {}).get("kind") == "Exit" and random.random() < 0.6:
            code = random.choice((0, 1, 3)) if kind == "Submit" else 1
            changed["body"] = body | {"end": body["end"] | {"raises": True, "code": code}}
        if tree.get("retry_exceptions") and body.get("end", {}).get("kind") in RAISING and random.random() < 0.6:
            changed["retry_only"] = random.choice(("ValueError", "ValueError", "KeyError"))
        if tree.get("node", -1) >= 0:
            changed["nowhere"] = random.random() < 0.3
        if kind == "Ready":
            changed["by_reference"] = random.random() < 0.7
        for driver in tree.get("drivers", ()):
            for operation in driver.get("operations", ()):
                if operation["kind"] == "Generate" and random.random() < 0.5:
                    operation["in_loop"] = True
        return changed

    return _changed(program, change) if random.random() < 0.33 else program


def with_good_ends(program: Program, random: Random) -> Program:
    """In a quarter of the programs many actors are not killed but asked to end when they have done what came before."""

    def change(tree: Tree) -> Tree:
        is_killed = tree.get("kind") == "Kill" and tree.get("no_restart", True)
        return {"is_asked": True} if is_killed and random.random() < 0.7 else {}

    return _changed(program, change) if random.random() < 0.25 else program


def _bodies(tree: Tree) -> list[Tree]:
    """Those that this record holds: of a program, or of a task or call."""
    return [tree["body"]] if "body" in tree else tree.get("drivers", [])


def with_visits(program: Program, random: Random) -> Program:
    """Each driver has tasks run on all nodes for a while, and reads what they have made when nodes may have gone."""
    drivers = []
    for number, driver in enumerate(program.drivers):
        names = [f"visit{number}.{count}" for count in range(random.randint(2, 5))]
        visits = []
        for name in names:
            body = Body((Sleep(f"{name} sleeps", random.choice((0.0, 0.2, 1.0, 5.0))),))
            visits.append(Submit(name, body, spread=True, max_retries=random.choice((0, 3))))
        gets = [Get(f"get {name}", (name,)) for name in names]
        pause = Sleep(f"pause{number}", random.choice((0.2, 5.0, 20.0)))
        at = random.randint(0, len(driver.operations))
        drivers.append(Body((*driver.operations[:at], *visits, pause, *driver.operations[at:], *gets), driver.end))
    return Program(tuple(drivers))


def with_slow_readers(program: Program, random: Random) -> Program:
    """Drivers stop to read many of their generators, do something else, and then go on."""
    drivers = []
    for driver in program.drivers:
        operations = list(driver.operations)
        read_on = {one.generator for one in operations if isinstance(one, ReadOn)}
        for generator in [one for one in operations if isinstance(one, Generate) and not (one.actor or one.rest)]:
            if generator.name in read_on or generator.read < 2 or random.random() < 0.3:
                continue
            first, place = random.randint(0, generator.read - 1), operations.index(generator)
            operations[place] = msgspec.structs.replace(generator, read=first, rest=generator.read - first, cancel=False)
            later = ReadOn(f"on with {generator.name}", generator.name)
            operations.insert(random.randint(place + 1, len(operations)), later)
        drivers.append(Body(tuple(operations), driver.end))
    return Program(tuple(drivers))


def with_jams(program: Program, random: Random) -> Program:
    """In a fifth of the programs each driver makes an actor that takes two calls at once, makes more, and cancels some.

    These may wait for their turn, in threads, among coroutines, or in a concurrency group.
    """
    if random.random() >= 0.2:
        return program
    drivers = []
    for number, driver in enumerate(program.drivers):
        name, pause_s = f"jam{number}", random.choice((0.02, 0.2))
        in_group, is_async = random.random() < 0.3, random.random() < 0.6
        calls = [f"{name} call{count}" for count in range(random.randint(4, 8))]
        operations: list[Operation] = [Create(name, max_concurrency=2, is_async=is_async, has_group=in_group)]
        operations += [Call(f"{name} begins", name, Body()), Get(f"{name} is there", (f"{name} begins",))]
        operations += [Call(call, name, Body((Sleep(f"{call} sleeps", pause_s),)), in_group=in_group) for call in calls]
        operations.append(Sleep(f"{name} sleeps", random.choice((pause_s / 2, pause_s, 2 * pause_s))))
        operations += [Cancel(f"cancel {call}", call) for call in calls if random.random() < 0.4]
        operations += [Get(f"get {call}", (call,)) for call in calls]
        at = random.randint(0, len(driver.operations))
        drivers.append(Body((*driver.operations[:at], *operations, *driver.operations[at:]), driver.end))
    return Program(tuple(drivers))


def with_streams(program: Program, random: Random) -> Program:
    """Each driver has generators run on all nodes, and reads what they have yielded again when nodes may have gone."""
    drivers = []
    for number, driver in enumerate(program.drivers):
        streams = []
        for count in range(random.randint(1, 3)):
            yields = random.randint(2, 5)
            streams.append(
                Generate(
                    f"stream{number}.{count}",
                    yields,
                    random.choice((yields + 1, yields)),
                    pause_s=random.choice((*PAUSES_S, 1.0)),
                    type=random.choice(("", "", "ValueError")),
                    most_unread=random.choice((-1, -1, 1, 2)),
                    max_retries=random.choice((0, 1, 1, 3)),
                    spread=True,
                )
            )
        names = [name for stream in streams for name in stream.item_names()]
        gets = [Get(f"get {name}", (name,)) for name in random.sample(names, random.randint(1, len(names)))]
        pause = Sleep(f"lull{number}", random.choice((0.2, 5.0, 20.0)))
        at = random.randint(0, len(driver.operations))
        drivers.append(Body((*driver.operations[:at], *streams, pause, *driver.operations[at:], *gets), driver.end))
    return Program(tuple(drivers))


def with_harvests(program: Program, random: Random) -> Program:
    """Each driver takes what generators on all nodes yield without looking at it, and has tasks read it, and itself, later.

    By then the only copies may be gone with their nodes, some before the generator has ended or the reader came so far; when
    they were made again they may be lost again.
    """
    drivers = []
    for number, driver in enumerate(program.drivers):
        operations = list(driver.operations[: random.choice((0, 0, 4))])
        for count in range(random.choice((1, 1, 2))):
            at = random.randint(0, len(operations))
            for operation in _harvest(f"harvest{number}.{count}", random):
                operations.insert(at, operation)
                at += 1 if random.random() < 0.8 else random.randint(1, max(1, len(operations) - at))
        drivers.append(Body(tuple(operations), driver.end))
    return Program(tuple(drivers))


def _harvest(name: str, random: Random) -> list[Operation]:
    """A task or an actor yields; perhaps a task on another node owns what is yielded."""
    yields = random.randint(1, 5)
    actor, owner = random.choice(("", "", f"{name} actor")), random.choice(("", "", "", f"{name} owner"))
    stream = Generate(
        name,
        yields,
        random.choice((yields + 1, yields + 1, yields)),
        pause_s=random.choice((*PAUSES_S, 1.0)),
        type=random.choice(("", "", "ValueError")),
        most_unread=random.choice((-1, -1, 1, 2)),
        max_retries=random.choice((-1, -1, -1, 0, 1, 3)),
        actor="" if owner else actor,
        only_takes=True,
        away=random.randrange(3),
    )
    items = stream.item_names()
    taken = random.randint(1, yields) if not (owner or stream.actor) and random.random() < 0.7 else 0
    operations: list[Operation] = []
    if taken:  # the rest when the lost among these have been waited for, with which the generator may be held up
        operations.append(msgspec.structs.replace(stream, read=taken, rest=stream.read - taken))
        items = items[:taken]
    elif owner:
        operations.append(Submit(owner, Body((stream,), Return(tuple(items))), max_retries=3, spread=True))
        operations.append(Get(f"get {owner}", (owner,)))
    elif actor:
        restarts, retries = random.choice(((-1, -1), (-1, -1), (1, 1), (0, 0)))
        operations += [Create(actor, max_restarts=restarts, max_task_retries=retries, away=stream.away), stream]
    else:
        operations.append(stream)
    for turn in range(random.choice((1, 1, 2))):
        for item in random.sample(items, random.randint(0, min(2, len(items)))):
            reader = f"{name} reader{turn} of {item}"
            body = random.choice((Body(), Body((Get(f"{reader} gets", (item,)),)), Body((Sleep(f"{reader} sleeps", 0.2),))))
            args, nested = ((), (item,)) if body.operations and isinstance(body.operations[0], Get) else ((item,), ())
            operations += [Submit(reader, body, args, nested, max_retries=3, spread=True), Get(f"get {reader}", (reader,))]
        operations.append(Sleep(f"{name} lull{turn}", random.choice((0.0, 0.2, 1.0, 5.0))))
        wanted = random.sample(items, random.randint(1, len(items)))
        if random.random() < 0.15:
            operations.append(Drop(f"drop{turn} {wanted[-1]}", wanted.pop()))
        if turn == 0 and wanted and random.random() < 0.3:
            operations.append(Wait(f"{name} wait", tuple(wanted), len(wanted), 2.0))
        else:
            operations += [Get(f"look{turn} {item}", (item,)) for item in wanted]
        if taken and turn == 0:
            operations.append(ReadOn(f"on with {name}", name))
            items = stream.item_names()
    return operations


def _changed(program: Program, change: Callable[[Tree], Tree]) -> Program:
    """With other fields of some of its records, as ``change`` says of each; those inside come first."""

    def walk(tree: Any) -> Any:
        if isinstance(tree, list | tuple):
            return [walk(branch) for branch in tree]
        if not isinstance(tree, dict):
            return tree
        changed = {key: walk(value) for key, value in tree.items()}
        return changed | change(changed)

    return msgspec.convert(walk(msgspec.to_builtins(program)), Program)
