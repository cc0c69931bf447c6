"""Worlds: nodes and a swarm of faults, drawn by ``write_world``, and the variations that aim the faults or add conditions.

Each variation draws from a stream of chance of its own, leaves most worlds as they are, and says in its docstring which it
changes. ``strategies.write_scenario`` says in which order they come. The order decides which draws a seed sees, so a change
of it changes all scenarios. Here the variations stand by what they do.
"""

from __future__ import annotations

from random import Random

import msgspec

from minray.simulation.faults import LOUD, QUIET, SLOW_NODE, SWARM, SWITCH
from tests.spec.aims import (
    is_aimed,
    quiet_rates,
)
from tests.spec.conversations import MIXED
from tests.spec.moves import Move
from tests.spec.programs import (
    Cancel,
    Program,
)
from tests.spec.scenario import Node, World
from tests.spec.variations import (
    PAUSES_S,
)

ROLES = ("worker/", "raylet/n", "driver/", "gcs")
"""Roles whose processes crash or stall for long. Most worlds strike one or two, so that deaths of one role coincide."""
CUSTOM = "gadget"
BORROWING = ("AddBorrower", "RemoveBorrower")
REPORTS = ("ReportGeneratorItem",)
ANSWERS = "PushActorTask"
HEARS_CANCEL = "receive CancelTask"
"""The moment at which a worker receives a cancellation."""
LAST_WORDS = (*[ANSWERS] * 4, "PushTask", "ReportGeneratorItem", "UpdateObjectLocations", "GetObject")
"""Messages with which, or with whose answers, a node tells owners and borrowers about values in its store.

Most weight is on calls of actors. An owner may believe such an answer although it knows that the node is dead: the actor is
not dead until the gcs says so.
"""
RIFTS = (*[ANSWERS] * 3, "PushTask", "ReportGeneratorItem", "GetObject", "ReadChunk")
"""Messages with which a caller may give up a process that lives, and that the gcs counts as living."""
IDLE_TASKS = ("Poll", "follow", "watch", "report_resources", "connect")
"""Tasks of processes in an idle cluster, and the beginnings of all connections."""
ANSWERING = ("worker/", ("answer", "lend_item"))
"""Moments at which a worker has told owners about new borrowers of their objects, and not yet told the borrowers."""
GROUP_WINDOW = "gcs", ("CreatePlacementGroup", "place_group", "commit_bundles", "lose_bundles", "ReturnBundles")
"""Moments at which the gcs has made half of a placement group."""
WINDOWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gcs", ("KillActor", "EndActor", "exit_actor", "ReportActorExit")),
    ("gcs", ("RegisterActor", "CreateActor", "create_actor", "give_back")),
    ("gcs", ("FinishJob", "remove_group", "RemovePlacementGroup", "RemoveBundles")),
    GROUP_WINDOW,
    ("worker/", ("end_actor",)),
    ANSWERING,
    ("raylet/n", ("leave_cluster", "move")),
    ("raylet/n", ("worker_process", "ask_to_exit", "pull", "push")),
)
"""Role and tasks of moments at which a process has done one step and not yet the next. A gcs has stored a change and told
nobody; an actor cleans up; a node leaves."""
INLINE_LIMITS = (0, 0, 1, 40)
"""Bytes. Values of programs have some tens: in half of the worlds none is in the object store, in the others all or some."""
STORE_BYTES = 4000
"""Bytes of a small store: some twenty values. They are few enough for spilling, and more than the tasks of a node use."""
LINEAGE_BYTES = (3000, 10_000)
"""Bytes of lineage: those of two or three tasks, or of some more."""
HOARD_BYTES = 2000
"""Bytes of a store that is smaller than the values that a driver hoards."""


# --- The nodes, and the kinds of faults that strike


def write_world(random: Random) -> World:
    """Write nodes and a swarm of faults: a few kinds, each at a rate of its own, and a small budget of loud ones.

    Most worlds have only one or two loud kinds. Of many, the frequent ones would use up the budget before the rare ones.
    """
    count = random.choice((1, 1, 2, 2, 3, 4))
    nodes = tuple(
        Node(random.choice((1, 2, 2, 3)), {CUSTOM: random.randint(1, 2)} if random.random() < 0.4 else {})
        for _ in range(count)
    )
    if random.random() < 0.15:
        return World(nodes)
    rates = {kind: random.choice((0.0, 0.01, 0.1, 0.4)) for kind in QUIET}
    loud = random.sample(("crash", *SWARM), random.choice((1, 2, 2, 6)))
    rates |= {kind: random.choice((0.002, 0.005, 0.02)) for kind in loud}
    rates = {kind: rate for kind, rate in rates.items() if rate > 0}
    targets = tuple(random.sample(ROLES, random.choice((1, 1, 2, 4))))
    aims = random.choice((*MIXED, ())) if random.random() < 0.7 else ()
    return World(nodes, rates, random.randint(1, 3), targets, aims, durable="gcs" in targets)


# --- When processes crash


def at_busy_moments(world: World, random: Random) -> World:
    """In half of the worlds with crashes, let processes crash only in tasks that begin, end or change something.

    In the other half most steps, and so most crashes, are in polls and reports that never end.
    """
    if "crash" not in world.rates or random.random() < 0.5:
        return world
    rates = world.rates | {"crash": random.choice((0.01, 0.03))}
    return msgspec.structs.replace(world, rates=rates, spared_tasks=IDLE_TASKS)


def with_crashes_in_windows(world: World, random: Random) -> World:
    """In a sixth of the worlds, let processes crash only in a short moment, which other crashes hardly ever meet."""
    if random.random() >= 0.17 or not world.rates.keys().isdisjoint(("last_words", "rift")):
        return world
    target, tasks = random.choice(WINDOWS)
    rates = quiet_rates(world)
    rates |= {"crash": random.choice((0.03, 0.1, 0.3))}
    return msgspec.structs.replace(
        world, rates=rates, budget=random.randint(1, 3), targets=(target,), struck_tasks=tasks, durable=target == "gcs"
    )


def struck_at_messages(world: World, random: Random) -> World:
    """In a tenth of the worlds, strike processes also between a message's arrival and the task that handles it."""
    return msgspec.structs.replace(world, at_messages=True) if random.random() < 0.1 else world


def with_restarts(world: World, random: Random) -> World:
    """In a sixth of the worlds, crash the gcs early, so that most of a program meets one that has loaded its tables."""
    if random.random() >= 0.17:
        return world
    rates = world.rates | {"crash": random.choice((0.03, 0.1))}
    return msgspec.structs.replace(
        world, rates=rates, budget=world.budget + 1, targets=("gcs",), spared_tasks=IDLE_TASKS, durable=True
    )


def with_forgetful_gcs(world: World, random: Random) -> World:
    """In a third of the worlds with placement groups and no aimed faults, crash the gcs while it makes a group."""
    if is_aimed(world) or random.random() >= 0.33:
        return world
    rates = quiet_rates(world)
    rates |= {"crash": random.choice((0.03, 0.1, 0.3))}
    target, tasks = GROUP_WINDOW
    budget = random.randint(1, 3)
    return msgspec.structs.replace(world, rates=rates, budget=budget, targets=(target,), struck_tasks=tasks, durable=True)


def with_stillbirths(world: World, random: Random) -> World:
    """In an eighth of the worlds, let some workers fail to start: no process, one that ends at once, or a silent one.

    In half of these enough workers fail in a row for leases to be given up.
    """
    if random.random() >= 0.125 or "last_words" in world.rates:
        return world
    rate, most = random.choice(((0.1, 4), (0.5, 4), (0.5, 12), (1.0, 12)))
    budget = world.budget + random.randint(1, most)
    return msgspec.structs.replace(world, rates={**world.rates, "spawn": rate}, budget=budget)


def with_deaf_workers(world: World, program: Program, random: Random) -> World:
    """In half of the worlds with forced cancellations, let workers stall when they receive a cancellation."""
    is_forced = any(isinstance(operation, Cancel) and operation.force for operation in program.walk())
    if not is_forced or random.random() < 0.5:
        return world
    rates = quiet_rates(world) | {"long_stall": 0.5}
    return msgspec.structs.replace(
        world, rates=rates, budget=random.randint(1, 3), targets=("worker/",), struck_tasks=(HEARS_CANCEL,), at_messages=True
    )


def with_little_memory(world: World, random: Random) -> World:
    """In a sixth of the worlds, let nodes lack memory now and then, so that the memory monitor kills workers.

    The only other loud faults are crashes, which use up retries.
    """
    if random.random() >= 0.17 or "last_words" in world.rates:
        return world
    rates = {kind: rate for kind, rate in world.rates.items() if kind not in LOUD or kind == "crash"}
    return msgspec.structs.replace(
        world, rates=rates | {"memory": random.choice((0.03, 0.15, 0.5))}, budget=world.budget + random.randint(2, 12)
    )


# --- Nodes that come, leave and die


def has_rifts(world: World, random: Random) -> bool:
    """Draw whether a world has rifts: a quarter of the worlds with three nodes or more do (see ``with_rifts``)."""
    return len(world.nodes) >= 3 and "last_words" not in world.rates and random.random() < 0.25


def with_rifts(world: World, drivers: int, random: Random) -> World:
    """Cut nodes off from each other: callers give up actors that live, and try again.

    Drivers run on nodes that may be cut off from the nodes of their actors, one of which may be the head.
    """
    rates = quiet_rates(world)
    rates |= {"rift": random.choice((0.02, 0.1))}
    homes = tuple(random.randrange(1, len(world.nodes)) for _ in range(drivers))
    return msgspec.structs.replace(world, rates=rates, budget=3, aims=(random.choice(RIFTS),), homes=homes)


def with_node_losses(world: World, random: Random) -> World:
    """In a sixth of the worlds with several nodes, lose one or two of them in the middle of their work."""
    if is_aimed(world) or len(world.nodes) == 1 or random.random() >= 0.17:
        return world
    rates = quiet_rates(world)
    rates |= {"node_loss": random.choice((0.01, 0.03, 0.1))}
    targets = random.choice((("worker/",), ("raylet/n",), ("worker/", "raylet/n")))
    return msgspec.structs.replace(
        world, rates=rates, budget=random.randint(1, 2), targets=targets, spared_tasks=IDLE_TASKS
    )


def with_last_words(world: World, random: Random) -> World:
    """In a quarter of the worlds with several nodes, let a node die when its message about a stored value is on its way.

    Other loud faults would use up the budget before there is such a message, so there are none. Processes hear of the death
    at different times.
    """
    if len(world.nodes) == 1 or random.random() >= 0.25:
        return world
    rates = quiet_rates(world)
    return msgspec.structs.replace(
        world,
        rates=rates | {"last_words": random.choice((0.1, 0.5)), "delay": 0.4},
        budget=random.choice((1, 1, 2)),
        aims=(random.choice(LAST_WORDS),),
        inline_limit=world.inline_limit or 1,
    )


def with_moves(world: World, random: Random) -> World:
    """In a fifth of the worlds, let nodes come and go, except those where drivers run.

    Values of a leaving node must fit elsewhere, so disks work in these worlds.
    """
    if random.random() >= 0.2 or not world.rates.keys().isdisjoint(("disk_error", "disk_full")):
        return world
    count = len(world.nodes)
    guests = [number for number in range(1, count) if number not in world.homes]
    moves = []
    for _ in range(random.randint(1, 3)):
        at_s = random.choice((*PAUSES_S, 1.0, 3.0))
        if guests and random.random() < 0.75:
            when, remaining_s = random.choice(("", "works", "works", "holds", "holds")), random.choice((0.0, 0.0, 0.5, 5.0))
            moves.append(Move(random.choice(guests), at_s, True, when, remaining_s, random.random() < 0.25))
            moves += [Move(moves[-1].node, at_s + random.choice((0.3, 3.0, 10.0)))] if random.random() < 0.5 else []
        else:
            moves.append(Move(count + random.randint(0, 1), at_s))
    return msgspec.structs.replace(world, moves=tuple(moves))


def with_second_thoughts(world: World, random: Random) -> World:
    """Let half of the nodes that are told to leave be told again soon, perhaps with another deadline or reason."""
    again = [
        Move(
            move.node,
            move.at_s + random.choice((0.0, 0.05, 0.5, 2.0)),
            leaves=True,
            remaining_s=random.choice((0.0, 0.5, 5.0, 20.0)),
            if_idle=random.random() < 0.25,
        )
        for move in world.moves
        if move.leaves and random.random() < 0.5
    ]
    return msgspec.structs.replace(world, moves=(*world.moves, *again))


def with_departures_of_hosts(world: World, random: Random) -> World:
    """In a third of the worlds with several nodes and no aimed faults, tell nodes to leave where a group has bundles.

    Values of a leaving node must fit elsewhere, so disks work in these worlds.
    """
    guests = [number for number in range(1, len(world.nodes)) if number not in world.homes]
    has_full_disks = not world.rates.keys().isdisjoint(("disk_error", "disk_full"))
    if is_aimed(world) or has_full_disks or not guests or random.random() >= 0.33:
        return world
    moves = []
    for _ in range(random.randint(1, 2)):
        when, remaining_s = random.choice(("prepares", "hosts", "hosts")), random.choice((0.0, 0.5, 5.0, 20.0))
        node, if_idle = random.choice(guests), random.random() < 0.25
        moves.append(Move(node, random.choice((*PAUSES_S, 1.0)), True, when, remaining_s, if_idle))
        moves += [Move(node, 15.0)] if random.random() < 0.3 else []
    return msgspec.structs.replace(world, moves=tuple(moves))


def has_harvests(world: World, random: Random) -> bool:
    """Draw whether a world has harvests: half of those with several nodes and no other aimed faults do.

    See ``with_lost_nodes``.
    """
    is_plain = world.rates.keys().isdisjoint(("last_words", "rift", "memory")) and not (world.struck_tasks or world.moves)
    return is_plain and len(world.nodes) > 1 and world.lineage and random.random() < 0.5


def with_lost_nodes(world: World, random: Random) -> World:
    """Let nodes die while they work, or hold values of other owners, and new ones join. Workers may crash, too.

    Items may be late, even later than their successors, so that some have not arrived when their node dies.
    """
    rates = quiet_rates(world)
    is_late = random.random() < 0.3
    rates |= {"break": random.choice((0.1, 0.4)), "delay": 0.4} if is_late else {}
    rates |= {"crash": random.choice((0.02, 0.1))} if random.random() < 0.3 else {}
    guests = [number for number in range(1, len(world.nodes)) if number not in world.homes]
    moves = []
    for _ in range(random.choice((1, 1, 2, 3)) if guests else 0):
        at_s, is_silent = random.choice((*PAUSES_S, 1.0, 5.0)), random.random() < 0.4
        when = random.choice(("works", "holds", "item", "item", "item", "items", "items", "items"))
        moves.append(Move(random.choice(guests) if world.homes else 0, at_s, dies=True, is_silent=is_silent, when=when))
    moves += [Move(number, random.choice((0.5, 3.0, 10.0))) for number in guests if random.random() < 0.3]
    return msgspec.structs.replace(
        world,
        rates=rates,
        budget=random.randint(1, 2),
        targets=("worker/",),
        struck_tasks=("user_code",),
        aims=REPORTS if is_late else world.aims,
        inline_limit=1,
        moves=tuple(moves),
    )


def with_lost_items(world: World, random: Random) -> World:
    """In most of the worlds without other aimed faults, let a node with items die; for generators of large items.

    No node has a label then, for which tasks would wait after its death.
    """
    has_zones = any(node.zone for node in world.nodes)
    if is_aimed(world) or world.loses_disk or has_zones or random.random() < 0.2:
        return world
    more = tuple(Node(2) for _ in range(3 - len(world.nodes)))
    times_s, moments = (0.02, random.choice((0.5, 1.5))), ("item", "items", "items")
    moves = tuple(Move(0, at_s, dies=True, when=random.choice(moments)) for at_s in times_s)
    return msgspec.structs.replace(
        world, nodes=(*world.nodes, *more), rates=quiet_rates(world), inline_limit=1, homes=(), lineage=True, moves=moves
    )


def with_deaths_of_holders(world: World, random: Random) -> World:
    """Let most of the nodes that die do so when they hold several values."""
    chosen = [move.dies and random.random() < 0.7 for move in world.moves]
    moves = zip(world.moves, chosen, strict=True)
    moved = tuple(msgspec.structs.replace(move, when="several") if is_chosen else move for move, is_chosen in moves)
    return msgspec.structs.replace(world, moves=moved)


def with_deaths_of_hosts(world: World, random: Random) -> World:
    """In most of the worlds with several nodes, placement groups and no aimed faults, let nodes with bundles die."""
    if is_aimed(world) or "node_loss" in world.rates or len(world.nodes) == 1 or random.random() < 0.2:
        return world
    rates = quiet_rates(world)
    guests = [number for number in range(1, len(world.nodes)) if number not in world.homes]
    moves = []
    for _ in range(random.choice((1, 1, 2)) if not world.homes else 0):
        when, is_silent = random.choice(("prepares", "hosts")), random.random() < 0.3
        moves.append(Move(0, random.choice(PAUSES_S), dies=True, is_silent=is_silent, when=when))
    moves += [Move(number, random.choice((0.5, 3.0))) for number in guests if random.random() < 0.3]
    return msgspec.structs.replace(world, rates=rates, moves=tuple(moves))


def with_quick_health_checks(world: World, random: Random) -> World:
    """In a third of the worlds where nodes may be silent for long, count them as dead while they live, and tell them."""
    is_silent = not world.rates.keys().isdisjoint(("long_stall", "cut", "long_delay"))
    if not is_silent or len(world.nodes) == 1 or random.random() >= 0.33:
        return world
    return msgspec.structs.replace(world, quick_health_checks=True)


# --- What takes longer, or comes again


def with_repeats(world: World, random: Random) -> World:
    """In a sixth of the worlds, duplicate many requests and lose answers: of all messages, or of those of borrowers."""
    if random.random() >= 0.17:
        return world
    rates = world.rates | {"duplicate": 0.4, "break": 0.1}
    return msgspec.structs.replace(world, rates=rates, aims=random.choice(((), (), BORROWING)))


def with_retry_pauses(world: World, random: Random) -> World:
    """In a fifth of the worlds, let tasks wait before a retry. They may be cancelled meanwhile, or be needed no more."""
    if random.random() >= 0.2:
        return world
    return msgspec.structs.replace(world, retry_pause_ms=random.choice((20, 300, 3000)))


def with_switches(world: World, random: Random) -> World:
    """In an eighth of the worlds, let user threads yield to the loop in the middle of minray's code."""
    if random.random() >= 0.125:
        return world
    return msgspec.structs.replace(world, rates={**world.rates, SWITCH: random.choice((0.001, 0.01, 0.05))})


def with_slow_nodes(world: World, random: Random) -> World:
    """In an eighth of the worlds, slow some nodes down, so that they are far behind the others."""
    if random.random() >= 0.125:
        return world
    return msgspec.structs.replace(world, rates={**world.rates, SLOW_NODE: random.choice((0.3, 0.7))})


# --- Stores and disks


def with_stores(world: World, random: Random) -> World:
    """In half of the worlds, put values into the object stores."""
    world = msgspec.structs.replace(world, inline_limit=random.choice(INLINE_LIMITS))
    return with_small_stores(world, random) if world.inline_limit else world


def with_small_stores(world: World, random: Random) -> World:
    """In half of the worlds, let values be spilled to a disk that is slow, and in some worlds loses files.

    Where writing fails, the store has more room, and no lineage keeps more values in memory than programs do.
    """
    if random.random() < 0.5:
        return world
    rates = {"slow_disk": random.choice((0.0, 0.1, 0.4))}
    if random.random() < 0.3:
        rates |= {random.choice(("disk_error", "torn_write")): random.choice((0.01, 0.1))}
    rates = {kind: rate for kind, rate in rates.items() if rate}
    works = "disk_error" not in rates
    store_bytes = STORE_BYTES if works else 4 * STORE_BYTES
    return msgspec.structs.replace(world, store_bytes=store_bytes, rates=world.rates | rates, lineage=works)


def with_short_memory(world: World, random: Random) -> World:
    """In a tenth of the worlds with large values, keep little lineage. A value without lineage is lost for good."""
    if not world.inline_limit or not world.lineage or random.random() >= 0.1:
        return world
    return msgspec.structs.replace(world, lineage_bytes=random.choice(LINEAGE_BYTES))


def with_broken_disks(world: World, random: Random) -> World:
    """In a quarter of the worlds with hoards, let some writes to disk fail. A value without room is refused then."""
    if world.store_bytes != HOARD_BYTES or random.random() >= 0.25:
        return world
    rates = world.rates | {random.choice(("disk_error", "disk_full")): random.choice((0.02, 0.1, 0.4))}
    return msgspec.structs.replace(world, rates=rates)


def with_busy_disks(world: World, random: Random) -> World:
    """In a third of the worlds with small stores, let reads from disk fail for a while now and then."""
    if not world.store_bytes or random.random() >= 0.33:
        return world
    return msgspec.structs.replace(world, rates={**world.rates, "disk_busy": 0.1})
