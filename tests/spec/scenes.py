"""Scenes: operations and a world that fit together, as in ``conjunctions.TOGETHER``, for faults that come twice.

Every sixth seed has the next of ``SCENES``. A fault that strikes once is survived in another way than one that strikes
again before all is mended. So a node is silent, comes back, and is silent again; an actor loses a node that had to leave,
and then its worker; a node leaves when it has just been given bundles; a gcs dies in the middle of a request about a death.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import msgspec

from tests.spec.actors import Create
from tests.spec.bundles import Bundles
from tests.spec.conjunctions import plain, with_more_nodes
from tests.spec.conversations import CONVERSATIONS
from tests.spec.fragments import PAUSES_S, inserted, removed_group, resident
from tests.spec.moves import Move
from tests.spec.programs import Body, Call, Cancel, Drop, Generate, Get, Operation, Put, ReadOn, Return, Sleep, Submit
from tests.spec.scenario import Scenario, World

LAPSES: tuple[Mapping[str, int], ...] = (
    {"health_check_period_ms": 500, "health_check_timeout_ms": 2000, "health_check_failure_threshold": 9},
    {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 4},
)
"""Health checks of which a process that stands still for 15 s misses most, but not all."""
SIZES = (1, 30, 60, 300)
"""Bytes of arrays in values that are read together."""


def with_scenes(scenario: Scenario) -> Scenario:
    """Give every sixth seed one of the scenes, and every twelfth one of the later ones.

    Other seeds have pairs of features, or what stands in ``TOGETHER``."""
    if scenario.seed % 12 in (1, 9):
        write = list(SCENES.values())[scenario.seed // 6 % len(SCENES)]
    elif scenario.seed % 12 == 4:
        write = list(LATER_SCENES.values())[scenario.seed // 12 % len(LATER_SCENES)]
    else:
        return scenario
    return write(scenario, Random(f"scenes of {scenario.seed}"))


def _write(scenario: Scenario, operations: list[Operation], world: World, random: Random) -> Scenario:
    first, *others = scenario.program.drivers
    drivers = inserted(Body(first.operations), operations, random), *others
    return msgspec.structs.replace(scenario, program=msgspec.structs.replace(scenario.program, drivers=drivers), world=world)


def _read_together(scenario: Scenario, random: Random) -> Scenario:
    """Several processes read the values of others, many at once; arrays of many sizes lie beside the values.

    All values but the first hold a reference to that, so a reader gets several tickets for it."""
    operations: list[Operation] = []
    names = [f"sheaf{number}" for number in range(random.randint(3, 7))]
    for name in names:
        inside, size = tuple(names[:1] if name != names[0] else ()), random.choice(SIZES)
        end = Return(inside, size)
        made: Operation = Put(name, inside, size) if random.random() < 0.4 else Submit(name, Body((), end), nested=inside)
        operations.append(made)
    for number in range(random.randint(2, 4)):
        reader, taken = f"reader{number}", tuple(sorted(random.sample(names, random.randint(2, len(names)))))
        body = Body((Get(f"{reader} gets", taken), Get(f"{reader} gets again", taken)), Return(taken[:1]))
        operations += [Submit(reader, body, taken[:1], taken, num_cpus=0, spread=True), Get(f"get {reader}", (reader,))]
    operations += [Drop(f"drop {name}", name) for name in random.sample(names, 2)]
    bounds = {"max_questions_per_message": random.choice((2, 3, 100)), "max_borrower_tickets": random.choice((1, 2, 100))}
    world = msgspec.structs.replace(scenario.world, bounds=scenario.world.bounds | bounds)
    return _write(scenario, operations, world, random)


def _silent_again(scenario: Scenario, random: Random) -> Scenario:
    """Nodes stand still, are heard of, and stand still again, each time for less than a death takes."""
    world = with_more_nodes(plain(scenario.world), random.choice((2, 3)))
    world = msgspec.structs.replace(
        world,
        rates=world.rates | {"long_stall": random.choice((0.003, 0.01, 0.03))},
        budget=random.randint(4, 8),
        targets=("raylet/n",),
        bounds=world.bounds | random.choice(LAPSES),
    )
    operations: list[Operation] = []
    for number in range(3):
        name = f"lapse{number}"
        tasks = [f"{name}.{count}" for count in range(3)]
        body = [Body((Sleep(f"{task} sleeps", random.choice(PAUSES_S)),)) for task in tasks]
        operations += [Submit(task, one, spread=True, max_retries=9) for task, one in zip(tasks, body, strict=True)]
        operations += [Sleep(f"{name} pause", random.choice((1.0, 15.0))), *(Get(f"get {task}", (task,)) for task in tasks)]
    return _write(scenario, operations, world, random)


def _leaves_with_bundles(scenario: Scenario, random: Random) -> Scenario:
    """Nodes are told to leave while bundles are prepared there or when they have just been opened, and messages are late."""
    operations = removed_group("moved", random) + resident("moves", random)
    operations.append(Bundles("moving", 2, random.choice(("PACK", "SPREAD", "STRICT_SPREAD")), random.random() < 0.5))
    operations += removed_group("later", random)
    world = with_more_nodes(plain(scenario.world), 3)
    moments = ("prepares", "prepares", "hosts")
    moves = [
        Move(node, random.choice((0.0, 0.05)), True, random.choice(moments), random.choice((0.0, 0.0, 5.0)))
        for node in random.sample((1, 2), random.choice((1, 2)))
    ]
    birth = CONVERSATIONS["birth of a placement group"]
    world = msgspec.structs.replace(
        world, rates=world.rates | {"delay": 0.4}, aims=birth, aimed=("delay",), homes=(), moves=tuple(moves)
    )
    return _write(scenario, operations, world, random)


def _lost_again(scenario: Scenario, random: Random) -> Scenario:
    """Actors with few restarts live on nodes that must leave, and their workers crash before or after that."""
    operations: list[Operation] = []
    for number in range(random.randint(2, 4)):
        name, restarts = f"nomad{number}", random.choice((1, 1, 2))
        operations.append(Create(name, num_cpus=0, away=number, max_restarts=restarts, max_task_retries=-1))
        for count in range(6):
            call = f"{name} call{count}"
            operations.append(Call(call, name, Body((Sleep(f"{call} sleeps", random.choice((0.2, 0.5, 1.0))),))))
        operations.append(Get(f"{name} get", (f"{name} call5",)))
    random.shuffle(gets := [one for one in operations if isinstance(one, Get)])
    operations = [one for one in operations if not isinstance(one, Get)] + gets
    world = with_more_nodes(plain(scenario.world), 3)
    moves = [Move(node, random.choice((0.2, 0.5, 1.0)), True, "works", random.choice((0.5, 0.5, 2.0))) for node in (1, 2)]
    moves += [Move(node, 4.0) for node in (1, 2)]
    world = msgspec.structs.replace(
        world,
        rates=world.rates | {"crash": random.choice((0.01, 0.03, 0.1))},
        budget=random.randint(1, 3),
        targets=("worker/",),
        struck_tasks=("user_code",),
        homes=(),
        moves=tuple(moves),
    )
    return _write(scenario, operations, world, random)


def _deaths_and_gcs(scenario: Scenario, random: Random) -> Scenario:
    """Workers die, and the gcs dies while it is told so, or has stored one of several consequences."""
    operations: list[Operation] = []
    for number in range(3):
        name = f"mortal{number}"
        operations.append(Create(name, num_cpus=0, max_restarts=random.choice((0, 1, -1)), max_task_retries=-1))
        calls = [f"{name} call{count}" for count in range(3)]
        operations += [Call(call, name, Body((Sleep(f"{call} sleeps", 0.2),))) for call in calls]
        operations += [Get(f"get {call}", (call,)) for call in calls]
    struck = ("user_code", "ReportWorkerDeath", "watch(", "FinishJob", "EndActor", "create_actor", "give_back")
    world = plain(scenario.world)
    world = msgspec.structs.replace(
        world,
        rates=world.rates | {"crash": random.choice((0.05, 0.15, 0.4))},
        budget=random.randint(2, 4),
        targets=("worker/", "gcs"),
        struck_tasks=struck,
        durable=True,
    )
    return _write(scenario, operations, world, random)


def _carried_everywhere(scenario: Scenario, random: Random) -> Scenario:
    """All nodes read the same values in small pieces, few at a time, while some values are dropped and nodes are full."""
    operations: list[Operation] = []
    names = [f"parcel{number}" for number in range(random.randint(4, 8))]
    for name in names:
        operations.append(Submit(name, Body((), Return((), 300)), num_cpus=0, max_retries=9, spread=True))
    if random.random() < 0.5:
        operations.append(Generate("parcels", 3, 4, max_retries=-1, spread=True))
    for number in range(random.randint(4, 8)):
        reader, taken = f"carrier{number}", tuple(random.sample(names, random.randint(1, 3)))
        body = Body((Sleep(f"{reader} sleeps", random.choice((0.0, 0.2))), Get(f"{reader} gets", taken)))
        args = taken[:1] if random.random() < 0.5 else ()
        operations.append(Submit(reader, body, args, taken, num_cpus=0, max_retries=9, spread=True))
    operations += [Drop(f"drop {name}", name) for name in random.sample(names, 3)]
    operations += [Get(f"get carrier{number}", (f"carrier{number}",)) for number in range(4)]
    world = with_more_nodes(plain(scenario.world), 3)
    rates = {kind: rate for kind, rate in world.rates.items() if kind not in ("disk_error", "disk_full", "torn_write")}
    bounds = {"object_manager_max_bytes_in_flight": random.choice((1, 200, 400)), "object_manager_default_chunk_size": 64}
    bounds["object_manager_chunks_at_once"] = random.choice((1, 2, 8))
    world = msgspec.structs.replace(
        world, rates=rates, inline_limit=1, store_bytes=random.choice((0, 4000, 4000)), lineage=True, bounds=bounds, homes=()
    )
    return _write(scenario, operations, world, random)


def _made_in_vain(scenario: Scenario, random: Random) -> Scenario:
    """Workers die when they have stored large results and are about to tell of them; some attempts end otherwise."""
    operations: list[Operation] = [Create("maker", num_cpus=0, max_restarts=-1, max_task_retries=-1, away=0)]
    for number in range(random.randint(3, 6)):
        name, end = f"vain{number}", Return((), 300)
        returns, retries = random.choice((1, 2, 3)), random.choice((0, 3))
        if random.random() < 0.3:
            operations.append(Call(name, "maker", Body((), end)))
        else:
            operations.append(Submit(name, Body((), end), num_cpus=0, max_retries=retries, returns=returns, spread=True))
        operations.append(Get(f"get {name}", (name,)))
    operations.append(Generate("vain items", 4, 5, max_retries=3, spread=True))
    world = with_more_nodes(plain(scenario.world), 2)
    answers = random.choice((("send PushTask reply",), ("send PushActorTask reply",), ("send ReportGeneratorItem",)))
    world = msgspec.structs.replace(
        world,
        rates=world.rates | {"crash": random.choice((0.1, 0.4))},
        budget=random.randint(1, 3),
        targets=("worker/",),
        struck_tasks=answers,
        at_messages=True,
        inline_limit=1,
    )
    return _write(scenario, operations, world, random)


def _answered_in_vain(scenario: Scenario, random: Random) -> Scenario:
    """Actors live on other nodes, and the channels to them break when they answer with references."""
    operations: list[Operation] = []
    for number in range(random.randint(2, 3)):
        name, retries = f"teller{number}", random.choice((0, 0, -1))
        operations.append(Create(name, num_cpus=0, away=number, max_task_retries=retries))
        for count in range(3):
            call = f"{name}_call{count}"
            inner = (Put(f"{call}_put"), Submit(f"{call}_task", Body()), Sleep(f"{call} sleeps", random.choice(PAUSES_S)))
            operations.append(Call(call, name, Body(inner, Return((f"{call}_put", f"{call}_task")))))
        operations += [Get(f"get {name}_call{count}", (f"{name}_call{count}",)) for count in range(3)]
        operations.append(Sleep(f"{name} pause", random.choice((1.0, 5.0))))
    world = with_more_nodes(plain(scenario.world), 2)
    world = msgspec.structs.replace(
        world,
        rates=world.rates | {"reset": random.choice((0.1, 0.4))},
        budget=random.randint(2, 5),
        aims=("PushActorTask",),
        aimed=("reset",),
    )
    return _write(scenario, operations, world, random)


def _dowries_are_lost(scenario: Scenario, random: Random) -> Scenario:
    """Constructors wait for a CPU while a node dies that has their large arguments, which take long to be made again."""
    operations: list[Operation] = []
    for number in range(4):
        name = f"dowry{number}"
        body = Body((Sleep(f"{name} sleeps", random.choice((0.5, 1.0, 3.0))),), Return((), 300))
        operations.append(Submit(name, body, num_cpus=0, max_retries=9, spread=True))
    naps = [Body((Sleep(f"busy{number} sleeps", random.choice((2.0, 4.0))),)) for number in range(6)]
    operations += [Submit(f"busy{number}", nap, max_retries=9, spread=True) for number, nap in enumerate(naps)]
    for number in range(4):
        heir, call = f"late_heir{number}", f"late_heir{number} call"
        operations.append(Create(heir, (f"dowry{number}",), max_restarts=random.choice((0, 1, -1)), max_task_retries=-1))
        operations.append(Call(call, heir, Body()))
    operations += [Get(f"get late_heir{number} call", (f"late_heir{number} call",)) for number in range(4)]
    world = with_more_nodes(plain(scenario.world), 3)
    moves = [Move(0, random.choice((0.7, 1.2, 1.7)), dies=True, when="several")]
    moves += [Move(0, random.choice((1.5, 2.5)), dies=True, when="holds")] if random.random() < 0.5 else []
    world = msgspec.structs.replace(world, inline_limit=1, store_bytes=0, lineage=True, homes=(), moves=tuple(moves))
    return _write(scenario, operations, world, random)


def _calls_behind_arguments(scenario: Scenario, random: Random) -> Scenario:
    """Calls of actors wait there behind one whose large argument comes slowly, and then their channel breaks.

    In half of the queues, the first call waits here for a slow task, and is cancelled."""
    operations: list[Operation] = []
    for number in range(3):
        name, retries = f"queue{number}", random.choice((0, -1))
        taken = tuple(f"{name} value{count}" for count in range(4))
        operations.append(Create(name, num_cpus=0, away=number, max_task_retries=retries))
        operations += [Put(value, (), 2000) for value in taken]
        slow, first = Submit(f"{name} slow", Body((Sleep(f"{name} slow sleeps", 30.0),)), num_cpus=0), f"{name} first"
        operations += [slow, Call(first, name, Body(), (slow.name,))] if random.random() < 0.5 else []
        operations += [Call(f"{name} call{count}", name, Body(), (value,), taken[:1]) for count, value in enumerate(taken)]
        if slow in operations:
            operations += [Sleep(f"{name} pause", random.choice(PAUSES_S)), Cancel(f"cancel {first}", first)]
    operations += [Get(f"get queue{number} call3", (f"queue{number} call3",)) for number in range(3)]
    world = with_more_nodes(plain(scenario.world), 2)
    world = msgspec.structs.replace(
        world,
        rates=world.rates | {"reset": random.choice((0.1, 0.3)), "delay": 0.9},
        budget=random.randint(3, 6),
        aims=("PushActorTask", "ReadChunk", "GetObjectLocations", "OpenLanes"),
        aimed=("reset", "delay"),
        inline_limit=1,
        store_bytes=0,
        bounds=world.bounds | {"object_manager_default_chunk_size": 64, "object_manager_chunks_at_once": 1},
    )
    return _write(scenario, operations, world, random)


def _items_move_and_are_lost(scenario: Scenario, random: Random) -> Scenario:
    """Generators run on a node that leaves and hands their items over, and the node that has them then dies."""
    operations: list[Operation] = []
    items = random.choice((4, 8))
    for number in range(3):
        operations.append(
            Generate(f"moved{number}", items, 2, pause_s=random.choice((0.3, 0.6)), max_retries=9, spread=True, rest=items)
        )
    operations += [Sleep("moved away", random.choice((0.5, 2.0)))]
    operations += [ReadOn(f"on with moved{number}", f"moved{number}") for number in range(3)]
    world = with_more_nodes(plain(scenario.world), 4)
    moves = [Move(node, random.choice((0.0, 0.5)), True, "item") for node in random.sample((1, 2, 3), 2)]
    moves += [Move(0, at_s, dies=True, when=random.choice(("item", "items"))) for at_s in (random.choice((0.8, 1.5)), 2.5)]
    world = msgspec.structs.replace(world, inline_limit=1, store_bytes=0, lineage=True, homes=(), moves=tuple(moves))
    return _write(scenario, operations, world, random)


def _items_with_holes(scenario: Scenario, random: Random) -> Scenario:
    """Channels break while generators report items without a pause, and then their workers crash."""
    operations: list[Operation] = []
    for number in range(4):
        manner = {"max_retries": random.choice((0, 1, 3)), "type": random.choice(("", "ValueError"))}
        operations.append(Generate(f"holed{number}", 12, 13, spread=True, **manner))
    world = with_more_nodes(plain(scenario.world), 2)
    world = msgspec.structs.replace(
        world,
        rates=world.rates | {"reset": random.choice((0.1, 0.3)), "delay": 0.4, "crash": random.choice((0.03, 0.1))},
        budget=random.randint(4, 8),
        targets=("worker/",),
        struck_tasks=("send ReportGeneratorItem", "receive ReportGeneratorItem reply"),
        at_messages=True,
        aims=("ReportGeneratorItem",),
        aimed=("reset", "delay"),
        homes=(),
    )
    return _write(scenario, operations, world, random)


LATER_SCENES: Mapping[str, Callable[[Scenario, Random], Scenario]] = {
    "constructors whose arguments are lost while they wait": _dowries_are_lost,
    "calls that wait behind a slow argument when their channel breaks": _calls_behind_arguments,
    "items that move to another node and are lost there": _items_move_and_are_lost,
    "items with holes between them when their worker crashes": _items_with_holes,
}
"""Name -> the writer of a scenario with it; as ``SCENES``, but for other seeds."""
SCENES: Mapping[str, Callable[[Scenario, Random], Scenario]] = {
    "values of others, read together": _read_together,
    "nodes that are silent again": _silent_again,
    "a node that leaves with bundles": _leaves_with_bundles,
    "actors that lose a leaving node, and their workers": _lost_again,
    "a gcs that dies when it is told of deaths": _deaths_and_gcs,
    "values that all nodes carry": _carried_everywhere,
    "large results that their workers do not live to tell of": _made_in_vain,
    "answers with references that get lost": _answered_in_vain,
}
"""Name -> the writer of a scenario with it."""
