"""Conjunctions: scenarios in which two rare features meet on purpose.

Every fourth seed has the next pair of ``features.PAIRS``, in an order that begins with the pairs that other scenarios hardly
ever meet. So the seeds of a campaign cover all pairs in turn. Every twelfth seed has one of ``TOGETHER``: operations and a
world that fit together, for conjunctions that need more than to be in one scenario. What a seed has depends on it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import msgspec

from tests.spec.aims import LATE_FREES, LATE_REQUESTS, quiet_rates
from tests.spec.features import FEATURES, OF_PROGRAMS, OF_WORLDS, PAIRS, RIVALS, Pair, features_of
from tests.spec.fragments import (
    FRAGMENTS,
    array,
    generator_dropped,
    gpus,
    inserted,
    name_reused,
    removed_group,
    resident,
    retry_used_up,
)
from tests.spec.moves import Move
from tests.spec.programs import Body, Drop, Exit, Get, Operation, Program, Put, Return, Sleep, Submit
from tests.spec.scenario import Node, Scenario, World

Condition = Callable[[World, Random], World]
TRIES = 30
"""Number of draws in which a condition of the world is looked for."""
SHARES: Mapping[str, float] = {
    "a generator dropped": 0.0, "an actor that is asked to end": 0.02, "few pending calls": 0.03, "little lineage": 0.04,
    "a rift": 0.04, "a failed start": 0.05, "an actor that ends itself": 0.05, "calls in any order": 0.06,
    "a late message": 0.07, "an actor in a placement group": 0.07, "a placement group removed": 0.07,
    "a slow node": 0.08, "a placement group with a name": 0.09, "a worker crashed": 0.09, "a dead process's message": 0.1,
    "a node draining": 0.1, "a concurrency group": 0.11, "a kill for memory": 0.12, "whole GPUs": 0.13,
    "a part of a GPU": 0.13, "a slow disk": 0.13, "a task bound to a node": 0.14, "a switch of threads": 0.14,
    "a driver on another node": 0.15, "an actor that takes a while to end": 0.15, "a forced cancellation": 0.16,
    "small bounds": 0.17, "the gcs restarted": 0.17,
}  # fmt: skip
"""Rare feature -> its share of other scenarios, measured over 2,000 seeds. All others have a fifth or more."""
COMMON = 0.25


def _rarity(pair: Pair) -> float:
    return SHARES.get(pair[0], COMMON) * SHARES.get(pair[1], COMMON)


def _in_order() -> tuple[Pair, ...]:
    """Order all pairs by rarity, those of about the same rarity by chance."""
    pairs = list(PAIRS)
    Random("pairs").shuffle(pairs)
    return tuple(sorted(pairs, key=lambda pair: round(_rarity(pair), 2)))


ORDER = _in_order()


def pair_of(seed: int) -> Pair | None:
    """Return the pair that a seed has on purpose, if it has one."""
    return ORDER[seed // 4 % len(ORDER)] if seed % 4 == 3 else None


def with_conjunctions(scenario: Scenario, conditions: Mapping[str, Condition]) -> Scenario:
    """Give a scenario the pair of its seed, or one of ``TOGETHER``. ``conditions`` are those that other steps can draw."""
    seed, pair = scenario.seed, pair_of(scenario.seed)
    random = Random(f"conjunctions of {seed}")
    if seed % 12 == 5:
        write = list(TOGETHER.values())[seed // 12 % len(TOGETHER)]
        return write(scenario, random)
    if pair is None:
        return scenario
    for order in (pair, pair[::-1]):
        drawn = scenario
        for name in order:
            drawn = with_feature(drawn, name, conditions, random)
        if set(pair) <= set(features_of(drawn)):
            return drawn
    return scenario


def with_feature(scenario: Scenario, name: str, conditions: Mapping[str, Condition], random: Random) -> Scenario:
    """Give a scenario one feature, unless it has it; a condition that cannot be drawn is left out."""
    if name in OF_PROGRAMS:
        return scenario if OF_PROGRAMS[name](scenario.program) else _with_program_feature(scenario, name, random)
    has, before = OF_WORLDS[name], scenario.world
    if has(before):
        return scenario
    if name in RIVALS:
        before = plain(before)
    for _ in range(TRIES):
        world = ({**CONDITIONS, **conditions})[name](before, random)
        if has(world):
            return msgspec.structs.replace(scenario, world=world)
    return scenario


def _with_program_feature(scenario: Scenario, name: str, random: Random) -> Scenario:
    """Write a fragment into one of the drivers; or add a driver that exits in the middle of its work."""
    drivers, prefix = list(scenario.program.drivers), f"rare{FEATURES.index(name)}"
    if name in FRAGMENTS:
        number = random.randrange(len(drivers))
        drivers[number] = inserted(drivers[number], FRAGMENTS[name](prefix, random), random)
    else:
        work = Submit(prefix, Body((Sleep(f"{prefix} sleeps", 5.0),)))
        drivers.append(Body((work, Put(f"{prefix} put"), Sleep(f"{prefix} pause", random.choice((0.02, 1.0)))), Exit()))
    return msgspec.structs.replace(scenario, program=Program(tuple(drivers)))


def plain(world: World) -> World:
    """Take the loud faults out of a world, and what is aimed at them."""
    return msgspec.structs.replace(
        world, rates=quiet_rates(world), budget=0, aims=(), aimed=(), moves=(), struck_tasks=(), spared_tasks=()
    )


# --- Conditions of worlds ---


def with_more_nodes(world: World, count: int) -> World:
    """Let a world have at least this number of nodes."""
    more = tuple(Node(2) for _ in range(count - len(world.nodes)))
    return msgspec.structs.replace(world, nodes=(*world.nodes, *more))


def _in_stores(world: World, random: Random) -> World:
    return msgspec.structs.replace(world, inline_limit=world.inline_limit or random.choice((1, 40)))


def _spilled(world: World, random: Random) -> World:
    """Let values go to disk, which is slow, in stores with room for some twenty of them."""
    rates = world.rates | {"slow_disk": random.choice((0.1, 0.4))}
    return msgspec.structs.replace(world, rates=rates, inline_limit=1, store_bytes=world.store_bytes or 4000)


def _worker_crashed(world: World, random: Random) -> World:
    """Let workers crash, in tasks that begin or end something, or in the user's code."""
    struck = random.choice((("user_code",), ("user_code", "answer", "lend_item"), ()))
    rates = world.rates | {"crash": random.choice((0.03, 0.1, 0.3))}
    return msgspec.structs.replace(
        world, rates=rates, budget=random.randint(1, 3), targets=("worker/",), struck_tasks=struck, spared_tasks=("Poll",)
    )


def _node_lost(world: World, random: Random) -> World:
    world = with_more_nodes(world, 2)
    move = Move(0, random.choice((0.02, 0.2, 1.0)), dies=True, is_silent=random.random() < 0.3, when="works")
    return msgspec.structs.replace(world, homes=(), moves=(move,))


def _node_draining(world: World, random: Random) -> World:
    """Let nodes leave that work or hold values. Values of a leaving node must fit elsewhere, so disks work."""
    world = with_more_nodes(world, 2)
    rates = {kind: rate for kind, rate in world.rates.items() if kind not in ("disk_error", "disk_full")}
    nodes = random.sample(range(1, len(world.nodes)), min(len(world.nodes) - 1, random.choice((1, 1, 2))))
    moments, deadlines_s = ("", "works", "holds", "several"), (0.0, 0.0, 0.5, 5.0)
    at_s = random.choice((0.0, 0.2, 1.0))
    moves = [Move(node, at_s, True, random.choice(moments), random.choice(deadlines_s)) for node in nodes]
    moves += [Move(moves[0].node, moves[0].at_s + 3.0)] if random.random() < 0.5 else []
    return msgspec.structs.replace(world, rates=rates, homes=(), moves=tuple(moves))


def _driver_elsewhere(world: World, random: Random) -> World:
    world = with_more_nodes(world, 3)
    home = random.randrange(1, len(world.nodes))
    moves = tuple(move for move in world.moves if move.node not in (0, home))
    return msgspec.structs.replace(world, homes=(home, home), moves=moves)


def _little_lineage(world: World, random: Random) -> World:
    kept = random.choice((3000, 10_000)) if world.lineage else 0
    return msgspec.structs.replace(world, inline_limit=1, lineage_bytes=kept)


def _repeated(world: World, random: Random) -> World:
    return msgspec.structs.replace(world, rates=world.rates | {"duplicate": random.choice((0.1, 0.4))})


CONDITIONS: Mapping[str, Condition] = {
    "a worker crashed": _worker_crashed,
    "a node lost": _node_lost,
    "a node draining": _node_draining,
    "a driver on another node": _driver_elsewhere,
    "a repeated message": _repeated,
    "little lineage": _little_lineage,
    "values in stores": _in_stores,
    "spilled": _spilled,
    "a slow disk": _spilled,
}
"""Conditions that are made here; the others are those of ``strategies``."""


# --- What fits together ---


def _write(scenario: Scenario, operations: list[Operation], world: World, random: Random) -> Scenario:
    """Insert operations into the first driver, which stays to its end, and set the world."""
    first, *others = scenario.program.drivers
    first = inserted(Body(first.operations), operations, random)
    return msgspec.structs.replace(scenario, program=Program((first, *others)), world=world)


def _names_and_gcs(scenario: Scenario, random: Random) -> Scenario:
    """A name is reused, the gcs is restarted, and the name is looked up."""
    operations = [one for word in "ab" for one in name_reused(f"again {word}", random)]
    struck = random.choice((("RegisterActor", "CreateActor", "KillActor", "EndActor", "ReportActorExit"), ()))
    world = plain(scenario.world)
    world = msgspec.structs.replace(
        world,
        rates=world.rates | {"crash": random.choice((0.03, 0.1, 0.3))},
        budget=random.choice((1, 2)),
        targets=("gcs",),
        struck_tasks=struck,
        spared_tasks=("Poll", "follow", "watch", "report_resources", "connect"),
        durable=True,
    )
    return _write(scenario, operations, world, random)


def _draining_and_spilled(scenario: Scenario, random: Random) -> Scenario:
    """A node leaves when most of what it holds is on its disk."""
    operations: list[Operation] = []
    names = [f"load{number}" for number in range(random.randint(8, 14))]
    for name in names:
        operations.append(Submit(name, Body((), Return((), 300)), num_cpus=0, max_retries=3, spread=True))
    operations += [Sleep("loaded", random.choice((0.2, 1.0))), *(Get(f"get {name}", (name,)) for name in names)]
    world = plain(scenario.world)
    rates = {kind: rate for kind, rate in world.rates.items() if kind not in ("disk_error", "disk_full", "torn_write")}
    rates["slow_disk"] = random.choice((0.1, 0.4))
    world = msgspec.structs.replace(world, rates=rates, inline_limit=1, store_bytes=2000, io_workers=random.choice((1, 2)))
    world = msgspec.structs.replace(with_more_nodes(world, 3), lineage=True, homes=())
    moves = tuple(Move(node, 0.02, True, random.choice(("holds", "several", "several")), random.choice((0.0, 0.0, 5.0)))
                  for node in random.sample((1, 2), random.choice((1, 1, 2))))  # fmt: skip
    return _write(scenario, operations, msgspec.structs.replace(world, moves=moves), random)


def _memory_and_retries(scenario: Scenario, random: Random) -> Scenario:
    """Tasks that have used up their retries are killed for memory, which costs none (G20)."""
    operations = [one for word in "abc" for one in retry_used_up(f"spent {word}", random)]
    world = plain(scenario.world)
    rates = world.rates | {"memory": random.choice((0.1, 0.3))}
    return _write(scenario, operations, msgspec.structs.replace(world, rates=rates, budget=random.randint(2, 8)), random)


def _shares_of_gpus(scenario: Scenario, random: Random) -> Scenario:
    """Tasks with parts of a GPU and tasks with whole ones wait for each other."""
    operations = gpus("part", random, (0.25, 0.5)) + gpus("whole", random, (1.0, 1.0, 2.0)) + gpus("any", random, (0.5, 1.0))
    random.shuffle(first := operations[:3] + operations[6:9] + operations[12:15])
    gets = operations[3:6] + operations[9:12] + operations[15:]
    return _write(scenario, [*first, *gets], scenario.world, random)


def _dropped_and_lost(scenario: Scenario, random: Random) -> Scenario:
    """A generator is dropped, and its ``completed`` is held, when its worker or its node goes."""
    operations = [one for word in "abc" for one in generator_dropped(f"dropped {word}", random)]
    go = random.choice((_worker_crashed, _node_lost))
    return _write(scenario, operations, go(plain(scenario.world), random), random)


def _late_words(messages: tuple[str, ...]) -> Callable[[Scenario, Random], Scenario]:
    """Return the writer of a process that dies at one of these messages, while others share its values."""

    def write(scenario: Scenario, random: Random) -> Scenario:
        operations: list[Operation] = [Put("held"), *array("shared", random), *array("lent", random)]
        inner = (Put("inner"), Submit("inner_task", Body(), ("inner",)), Get("inner_get", ("inner_task",)))
        body = Body((*inner, Drop("inner_drop", "inner")), Return(("inner_task",)))
        outer = Submit("outer", body, nested=("held",), num_cpus=0)
        operations += [outer, Drop("drop held", "held"), Get("open", ("outer",))]
        world = plain(scenario.world)
        rates = world.rates | {"posthumous": random.choice((0.1, 0.4))}
        rates.pop("crash_prefix", None)
        role = random.choice(("worker/", "worker/", "driver/"))
        world = msgspec.structs.replace(
            world, rates=rates, budget=random.choice((1, 2)), targets=(role,), aims=messages, inline_limit=1
        )
        return _write(scenario, operations, world, random)

    return write


def _groups_and_gcs(scenario: Scenario, random: Random) -> Scenario:
    """Placement groups are made and removed while the gcs is restarted, or their messages are late or repeated."""
    operations = removed_group("gone", random) + resident("stays", random) + removed_group("soon", random)
    world = plain(scenario.world)
    messages = ("CreatePlacementGroup", "RemovePlacementGroup", "PrepareBundles", "CommitBundles", "ReturnBundles",
                "RemoveBundles", "ReleaseUnusedBundles")  # fmt: skip
    kind = random.choice(("posthumous", "long_delay", "reset"))
    rates = world.rates | {kind: random.choice((0.1, 0.4)), "duplicate": 0.4}
    world = msgspec.structs.replace(
        world, rates=rates, budget=2, targets=("gcs",), aims=messages, aimed=("long_delay", "reset"), durable=True
    )
    return _write(scenario, operations, world, random)


TOGETHER: Mapping[str, Callable[[Scenario, Random], Scenario]] = {
    "a name reused, the gcs restarted, the name looked up": _names_and_gcs,
    "draining and spilled": _draining_and_spilled,
    "a kill for memory when the retries are used up": _memory_and_retries,
    "parts of GPUs and whole ones": _shares_of_gpus,
    "a generator dropped while completed is held, and its process lost": _dropped_and_lost,
    "late frees of a dead process": _late_words(LATE_FREES),
    "late requests of a dead process": _late_words(LATE_REQUESTS),
    "placement groups and a gcs that is restarted or heard late": _groups_and_gcs,
}
"""Name -> the writer of a scenario with it."""
