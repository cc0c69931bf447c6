"""Variations of programs: changes to their operations, and additions.

Each variation draws from a ``Random`` of its own and leaves most programs as they are. So a new variation does not change
what the others do with a seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

import msgspec

from tests.spec.actors import Create, Find, Kill
from tests.spec.groups import SLOT, Describe, FindGroup, Group, Ready, Remove
from tests.spec.looks import FIELDS, REPORTED_S, RESOURCES, Look
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
"""Name of placement groups; there is no other."""
PAUSES_S = (0.0, 0.001, 0.02, 0.2)
LONG_SLEEPS_S = (3.0, 10.0)
"""Seconds of sleeps that are cancelled: longer than any cancellation may take."""
FAR = "c"
"""The zone of a node that is not the head; see ``with_far_tasks``."""
RAISING = ("Raise", "RaiseAtFirst")
PADDINGS = (1, 30, 300)
"""Bytes of an array in a value: fewer than the rest of the value has, as many, or more."""
WAITING = ("Get", "Await", "Peek", "Wait", "Generate", "ReadOn", "Kill", "Find", "Ready")
"""Operations in which a task may wait for others."""
Tree = dict[str, Any]
"""A record as plain dicts, lists and strings, as JSON holds it."""


def with_async_actors(program: Program, random: Random) -> Program:
    """Make half of the actors that run several calls at once asynchronous, some without a limit."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") == "Create" and tree.get("max_concurrency", 1) > 1 and random.random() < 0.5:
            return {"max_concurrency": random.choice((1, 1, 2)), "is_async": True}
        return {}

    return rewritten(program, change)


def with_first_failures(program: Program, random: Random) -> Program:
    """In a third of the programs, let some tasks and calls raise at first, and be retried for that."""

    def change(tree: Tree) -> Tree:
        end = tree.get("body", {}).get("end", {"kind": "Return"})
        if tree.get("kind") not in ("Submit", "Call") or end["kind"] != "Return" or random.random() >= 0.3:
            return {}
        body = tree["body"] | {"end": end | {"kind": "RaiseAtFirst"}}
        retries = {"max_retries": random.choice((1, 3))}
        if tree["kind"] == "Call":
            retries = {"max_task_retries": random.choice((1, 1, 2, -1))}
        return {"body": body, "retry_exceptions": True, **retries}

    return rewritten(program, change) if random.random() < 0.33 else program


def with_awaits(program: Program, random: Random) -> Program:
    """In a third of the programs, await many values in an event loop, often without holding their references.

    Only drivers and actors do so. A task keeps its CPUs during ``await``, and the awaited task may need these.
    """

    def change(tree: Tree) -> Tree:
        bodies = _bodies(tree) if tree.get("kind") != "Submit" else []
        for operation in [operation for body in bodies for operation in body.get("operations", [])]:
            if operation["kind"] == "Get" and operation.get("timeout") is None and random.random() < 0.6:
                operation |= {"kind": "Await", "lets_go": random.random() < 0.5}
        return {}

    return rewritten(program, change) if random.random() < 0.33 else program


def with_impatience(program: Program, random: Random) -> Program:
    """In a quarter of the programs, give up many awaits and futures after a while, often without holding references."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") not in ("Get", "Await") or random.random() < 0.5:
            return {}
        lets_go, seconds = random.random() < 0.4, random.choice((*PAUSES_S, 2.0))
        if random.random() < 0.5:
            return {"kind": "Await", "timeout": seconds, "lets_go": lets_go}
        tree.pop("timeout", None)
        return {"kind": "Peek", "seconds": seconds, "lets_go": lets_go}

    return rewritten(program, change) if random.random() < 0.25 else program


def with_parts(program: Program, random: Random) -> Program:
    """In a third of the programs, let some tasks return several objects, each of which is used or dropped by itself.

    Only drivers get the further objects, because some tasks must not wait.
    """

    def change(tree: Tree) -> Tree:
        for body in _bodies(tree):
            body["operations"] = _in_parts(body.get("operations", []), "drivers" in tree, random)
        return {}

    return rewritten(program, change) if random.random() < 0.33 else program


def with_miscounts(program: Program, random: Random) -> Program:
    """Let some tasks that return several objects return one too few or too many."""

    def change(tree: Tree) -> Tree:
        end = tree.get("body", {}).get("end", {"kind": "Return"})
        if tree.get("returns", 1) == 1 or end["kind"] != "Return" or random.random() >= 0.15:
            return {}
        return {"body": tree["body"] | {"end": {"kind": "Miscount", "is_more": random.random() < 0.5}}}

    return rewritten(program, change)


def with_padding(program: Program, random: Random) -> Program:
    """In a quarter of the programs, give some values an array, which travels beside the rest."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") not in ("Put", "Return") or random.random() < 0.6:
            return {}
        return {"padding": random.choice(PADDINGS)}

    return rewritten(program, change) if random.random() < 0.25 else program


def _in_parts(operations: list[Tree], may_read: bool, random: Random) -> list[Tree]:
    """Let some tasks return several objects, and the operations after them use all of these."""
    changed: list[Tree] = []
    for operation in reversed(operations):
        returns = random.randint(2, 3) if operation["kind"] == "Submit" and random.random() < 0.5 else 1
        for number in range(2, returns + 1):
            changed = _with_part(changed, operation["name"], f"{operation['name']}.{number}", may_read, random)
        more = {"returns": returns, "yields": random.random() < 0.5} if returns > 1 else {}
        changed.insert(0, operation | more)
    return changed


def _with_part(operations: list[Tree], whole: str, part: str, may_read: bool, random: Random) -> list[Tree]:
    """Let some operations use this part instead of the first one. Perhaps add one that gets or drops it."""
    changed = [_renamed(each, whole, part) if random.random() < 0.3 else each for each in operations]
    if random.random() < 0.6:
        look: Tree = {"kind": "Get", "name": f"look {part}", "refs": [part]}
        drop: Tree = {"kind": "Drop", "name": f"drop {part}", "ref": part}
        changed.insert(random.randint(0, len(changed)), look if may_read and random.random() < 0.5 else drop)
    return changed


def _renamed(tree: Any, old: str, new: str) -> Any:
    """Replace one object by another wherever it is used. The names of operations stay."""
    if isinstance(tree, list):
        return [_renamed(branch, old, new) for branch in tree]
    if isinstance(tree, dict):
        return {key: value if key == "name" else _renamed(value, old, new) for key, value in tree.items()}
    return new if tree == old else tree


def with_options(program: Program, random: Random) -> Program:
    """In a third of the programs, give some tasks rare options.

    These are an environment of their own, a node where they must or should run, no result, or a worker that ends with them.
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

    return rewritten(program, change) if random.random() < 0.33 else program


def with_needs(program: Program, random: Random) -> Program:
    """Let some tasks need GPUs, or parts of one; others must or should run in one zone.

    A task with GPUs waits for no other task. A task that is bound to a node has no such needs, since its node may have less.
    """

    def change(tree: Tree) -> Tree:
        if tree.get("kind") != "Submit" or tree.get("node", -1) >= 0 or tree.get("group") or random.random() < 0.6:
            return {}
        waits = any(inner["kind"] in WAITING for inner in _all_inside(tree))
        needs: Tree = {} if waits else random.choice(({}, {"gpus": random.choice((0.25, 0.5, 0.5, 1.0, 2.0))}))
        if not tree.get("spread") and random.random() < 0.6:
            needs |= {"zone": random.choice(("a", "!b")), "is_soft": random.random() < 0.4}
        return needs

    return rewritten(program, change)


def with_far_tasks(program: Program, random: Random) -> Program:
    """Let some tasks of drivers need a node in the zone ``FAR``. At first there may be none."""

    def change(tree: Tree) -> Tree:
        is_free = tree.get("node", -1) < 0 and not (tree.get("group") or tree.get("gpus") or tree.get("zone"))
        if tree.get("kind") != "Submit" or not is_free or random.random() < 0.6:
            return {}
        return {"zone": FAR, "is_soft": False, "spread": False, "num_cpus": min(1, tree.get("num_cpus", 1)), "resources": {}}

    return rewritten(program, change)


def with_long_sleeps(program: Program, random: Random) -> Program:
    """In a third of the programs, let tasks and calls sleep for seconds when they are cancelled."""
    if random.random() >= 0.33:
        return program
    cancelled = {one.ref for one in program.walk() if isinstance(one, Cancel)}

    def change(tree: Tree) -> Tree:
        for operation in tree["body"].get("operations", ()) if tree.get("name") in cancelled and "body" in tree else ():
            if operation["kind"] == "Sleep":
                operation["seconds"] = random.choice(LONG_SLEEPS_S)
        return {}

    return rewritten(program, change)


def with_looks(program: Program, random: Random) -> Program:
    """In a quarter of the programs, let drivers look at the state API now and then; at resources when groups are ready."""
    has_looks = random.random() < 0.25
    drivers = []
    for number, driver in enumerate(program.drivers):
        operations: list[Operation] = []
        for one in driver.operations:
            operations.append(one)
            if isinstance(one, Group) and random.random() < 0.5:
                operations += [Ready(f"ready too {one.name}", one.name)]
                operations += [Look(f"look at resources with {one.name}", RESOURCES, REPORTED_S)]
        for count in range(random.randint(2, 5) if has_looks else 0):
            look = Look(f"look at state {number}.{count}", random.choice(list(FIELDS)))
            operations.insert(random.randint(0, len(operations)), look)
        drivers.append(Body(tuple(operations), driver.end))
    return Program(tuple(drivers))


def _all_inside(tree: Tree) -> Iterator[Tree]:
    """All operations inside a task or call, including those of its own tasks and calls."""
    for operation in tree.get("body", {}).get("operations", ()):
        yield operation
        yield from _all_inside(operation)


def with_manners(program: Program, random: Random) -> Program:
    """In a quarter of the programs, let some actors without names take calls in special ways.

    These are a concurrency group, calls in any order, and a limit of pending calls.
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

    return rewritten(program, change) if random.random() < 0.25 else program


def with_partings(program: Program, random: Random) -> Program:
    """In a quarter of the programs, let actors without names take a while to end. If they crash then, they may restart."""

    def change(tree: Tree) -> Tree:
        if tree.get("kind") == "Create" and not tree.get("called") and random.random() < 0.7:
            return {"parting_s": random.choice((0.02, 0.5, 5.0)), "max_restarts": tree.get("max_restarts") or 1}
        return {}

    return rewritten(program, change) if random.random() < 0.25 else program


def with_frees(program: Program, random: Random) -> Program:
    """In a fifth of the programs, free values by hand: also before they are made, by borrowers, and more than once."""
    handles = {one.name for one in program.walk() if isinstance(one, Create | Find | Group)}
    names = (f"free{number}" for number in itertools.count(1))

    def change(tree: Tree) -> Tree:
        for body in _bodies(tree):
            body["operations"] = _with_frees(body.get("operations", []), tree.get("nested", ()), handles, names, random)
        return {}

    return rewritten(program, change) if random.random() < 0.2 else program


def _with_frees(
    operations: list[Tree], held: Iterable[str], handles: set[str], names: Iterator[str], random: Random
) -> list[Tree]:
    """Free values in one body, which begins with the references ``held``. Many of them were made just before."""
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
    """Objects that an operation makes, and objects that its value may hold."""
    if operation["kind"] == "Generate":
        return [f"{operation['name']}.{number}" for number in range(1, operation.get("yields", 3) + 1)]
    if operation["kind"] not in ("Submit", "Call", "Put"):
        return []
    parts = [f"{operation['name']}.{number}" for number in range(2, operation.get("returns", 1) + 1)]
    return [operation["name"], *parts, *operation.get("body", {}).get("end", {}).get("refs", ())]


def with_leavers(program: Program, random: Random) -> Program:
    """In a quarter of the programs, let one driver leave, or exit its process, in the middle of its operations."""
    if random.random() >= 0.25:
        return program
    drivers = list(program.drivers)
    number = random.randrange(len(drivers))
    operations = drivers[number].operations
    end = random.choice((Exit(), Exit(), Leave()))
    drivers[number] = Body(operations[: random.randint(min(1, len(operations)), len(operations))], end)
    return Program(tuple(drivers))


def with_groups(program: Program, random: Random) -> Program:
    """In a fifth of the programs, let drivers make placement groups and run some of their tasks there."""
    if random.random() >= 0.2:
        return program
    names = (f"group{number}" for number in itertools.count(1))
    return Program(tuple(Body(_with_groups(driver.operations, names, random), driver.end) for driver in program.drivers))


def _with_groups(operations: tuple[Operation, ...], names: Iterator[str], random: Random) -> tuple[Operation, ...]:
    """Insert one or two groups into the operations of one driver, and perhaps their removals."""
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
    """In half of the programs with placement groups, let drivers give some groups the name ``TEAM``, and look for it."""
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
    """In half of the programs with placement groups, let actors live there, each in a slot of its own."""
    if random.random() < 0.5:
        return program
    return Program(tuple(Body(_with_residents(driver.operations, random), driver.end) for driver in program.drivers))


def _with_residents(operations: tuple[Operation, ...], random: Random) -> tuple[Operation, ...]:
    """Create and call actors anywhere after their group in one driver, even after the group's removal."""
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
    """Let each driver make several actors at once, more than the head has room for, and get the values of their calls.

    The driver puts a value before, since an owner of values is told when nodes die.
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
    """In half of the programs, let some calls of crowds return a reference, in an answer that may be lost."""

    def change(tree: Tree) -> Tree:
        crowd = tree.get("actor", "").partition(".")[0]
        if tree.get("kind") != "Call" or not crowd.startswith("crowd") or random.random() < 0.5:
            return {}
        return {"nested": [crowd], "body": tree["body"] | {"end": {"kind": "Return", "refs": [crowd]}}}

    return rewritten(program, change) if random.random() < 0.5 else program


def with_words(program: Program, random: Random) -> Program:
    """In a third of the programs, replace some operations by others that mean the same, or nearly the same.

    * A task exits by ``sys.exit``.
    * One kind of exception alone is retried.
    * A task is bound to a node that has never existed.
    * A driver reads a generator in an event loop. Actors do not, because coroutines run in a loop already.
    * A driver waits for a placement group by ``ready()``.
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

    return rewritten(program, change) if random.random() < 0.33 else program


def with_good_ends(program: Program, random: Random) -> Program:
    """In a quarter of the programs, ask many actors to end after their earlier calls, instead of killing them."""

    def change(tree: Tree) -> Tree:
        is_killed = tree.get("kind") == "Kill" and tree.get("no_restart", True)
        return {"is_asked": True} if is_killed and random.random() < 0.7 else {}

    return rewritten(program, change) if random.random() < 0.25 else program


def _bodies(tree: Tree) -> list[Tree]:
    """Bodies that a record holds: the drivers of a program, or the one body of a task or call."""
    return [tree["body"]] if "body" in tree else tree.get("drivers", [])


def with_visits(program: Program, random: Random) -> Program:
    """Let each driver run tasks on all nodes for a while, and get their values when nodes may have gone."""
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
    """Let drivers stop reading many of their generators, do something else, and then read on."""
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
    """In a fifth of the programs, let each driver make more calls than an actor can run at once, and cancel some.

    The actor runs two calls at once. The others wait for threads, for coroutines, or in a concurrency group.
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
    """Let each driver run generators on all nodes, and get their items again when nodes may have gone."""
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
    """Let each driver take items of generators on other nodes without getting them; tasks and the driver get them later.

    By then the only copies may be lost with their nodes, some before the generator has ended or was read so far. Items that
    were made again may be lost again.
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
    """Write one generator, of a task or an actor, and its readers. Perhaps a task on another node owns the items."""
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
    if taken:  # read the rest after waiting for lost items among the first, which may hold the generator up
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


def rewritten(program: Program, change: Callable[[Tree], Tree]) -> Program:
    """Return the program with the fields that ``change`` returns for each record, the innermost records first."""

    def walk(tree: Any) -> Any:
        if isinstance(tree, list | tuple):
            return [walk(branch) for branch in tree]
        if not isinstance(tree, dict):
            return tree
        changed = {key: walk(value) for key, value in tree.items()}
        return changed | change(changed)

    return msgspec.convert(walk(msgspec.to_builtins(program)), Program)
