"""Hypothesis strategies for programs, worlds and scenarios, and the same drawn from a seed.

A writer draws from a ``random.Random``. Hypothesis has one whose draws it knows and can replay (``st.randoms``). A campaign
makes one from a seed, so that a scenario is reproducible from that seed alone, at no cost.

Rules
  * Every program ends. A task waits only for tasks that were submitted before it. Every task fits on the head. A task that
    holds custom resources waits for nothing. Actors hold no CPU. A call waits only for tasks that it has submitted itself,
    and no actor calls or keeps an actor that was made before it.
  * A name has the kind of its operation and a count: ``task1``, ``put2``, ``get3``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import msgspec
from hypothesis import strategies as st

from minray.simulation.faults import LOUD, QUIET, SLOW_NODE, SWARM, SWITCH
from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.aims import (
    is_aimed,
    quiet_rates,
    with_conversations,
    with_late_messages,
    with_posthumous_messages,
)
from tests.spec.conjunctions import with_conjunctions, with_more_nodes
from tests.spec.conversations import MIXED
from tests.spec.fragments import with_dropped_generators
from tests.spec.frees import Free
from tests.spec.groups import SLOT, Group
from tests.spec.knobs import with_small_bounds
from tests.spec.moves import Move
from tests.spec.namesakes import with_heirs, with_namesakes, with_rounds
from tests.spec.patterns import (
    with_chains,
    with_deliveries,
    with_families,
    with_force,
    with_naps,
    with_nests,
    with_rations,
    with_relays,
)
from tests.spec.programs import (
    Body,
    Call,
    Cancel,
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
    ReturnUnpicklable,
    Sleep,
    Submit,
    Wait,
    Why,
    has_wishes,
)
from tests.spec.scenario import Node, Scenario, World
from tests.spec.variations import (
    FAR,
    PAUSES_S,
    with_async_actors,
    with_awaits,
    with_crowds,
    with_far_tasks,
    with_first_failures,
    with_frees,
    with_good_ends,
    with_groups,
    with_harvests,
    with_impatience,
    with_jams,
    with_leavers,
    with_long_sleeps,
    with_looks,
    with_manners,
    with_miscounts,
    with_names_of_groups,
    with_needs,
    with_options,
    with_padding,
    with_partings,
    with_parts,
    with_residents,
    with_slow_readers,
    with_souvenirs,
    with_streams,
    with_visits,
    with_words,
)
from tests.spec.vocabulary import needs_gpus, with_riches, with_vocabulary

SLEEPS_S = (*PAUSES_S, 1.0, 5.0)
TIMEOUTS_S = (0.0, 0.001, 0.05, 2.0, 30.0)
ARRIVALS_S = (0.2, 1.0, 5.0)
"""Virtual seconds after which late drivers join."""
CUSTOM = "gadget"
LONGEST_BURST = 6
ROLES = ("worker/", "raylet/n", "driver/", "gcs")
"""Roles whose processes crash or stall for long. Most worlds strike one or two, so that deaths of one role coincide."""
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
LOSING = frozenset(("node_loss", "last_words", "cut", "rift"))
"""Faults that may take away the values in a node's store."""
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
HOARD = (10, 16)
"""Number of values in a hoard, from and to."""
DEPTH = 2
"""Levels of nested bodies with operations of all kinds. A deeper body only sleeps."""


@dataclass(frozen=True)
class Size:
    """Size of programs."""

    operations: tuple[int, int]
    """Number of operations of one driver, from and to."""
    drivers: int = 1
    """Number of drivers at most."""


SMALL, MEDIUM, LARGE = Size((1, 4)), Size((6, 16), 2), Size((60, 120), 3)
SIZES = {"small": SMALL, "medium": MEDIUM, "large": LARGE}


class Writer:
    """Writes one program."""

    def __init__(self, random: Random, nodes: tuple[Node, ...]) -> None:
        self._random = random
        self._head = nodes[0]
        self._count = 0
        # Programs differ in what may happen in them at all.
        self._may_fail = random.random() < 0.6
        self._may_cancel = random.random() < 0.5
        self._may_end_workers = random.random() < 0.3
        self._has_actors = random.random() < 0.6
        self._actors: dict[str, Create] = {}
        """Handle -> its ``Create``, in the order in which the actors are made."""
        self._calling = -1
        """Place of the actor whose call is being written. A call knows only actors that are made later."""
        self._may_kill = random.random() < 0.5
        self._named: list[str] = []
        """Actors of this driver that have names."""
        self._bare: set[str] = set()
        """Objects without references inside."""

    def program(self, size: Size) -> Program:
        count = self._random.randint(1, size.drivers)
        return Program(tuple(self._driver(self._random.randint(*size.operations)) for _ in range(count)))

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _driver(self, length: int) -> Body:
        known: list[str] = []
        self._named = []
        operations: list[Operation] = []
        while len(operations) < length:
            if length >= LONGEST_BURST and self._random.random() < 0.06:
                operations += self._burst(known)
            elif self._handles(known) and self._random.random() < 0.1:
                operations += self._calls(known)
            else:
                operations.append(self._operation(known, 0))
        gets = [Get(self._name("get"), (name,)) for name in self._objects(known) if self._random.random() < 0.8]
        return Body((*operations, *gets))

    def _burst(self, known: list[str]) -> list[Operation]:
        """Submit many short tasks of one kind at once, which queue for the same workers. Some may be cancelled meanwhile."""
        random = self._random
        seconds, num_cpus = random.choice(PAUSES_S), min(self._head.num_cpus, random.choice((1, 1, 2)))
        names = [self._name("task") for _ in range(random.randint(3, LONGEST_BURST))]
        known += names
        bodies = [Body((Sleep(self._name("sleep"), seconds),) if random.random() < 0.8 else ()) for _ in names]
        operations: list[Operation] = [
            Submit(name, body, num_cpus=num_cpus) for name, body in zip(names, bodies, strict=True)
        ]
        if self._may_cancel:
            operations.append(Sleep(self._name("sleep"), random.choice(PAUSES_S)))
            operations += [self._cancel([name]) for name in names if random.random() < 0.6]
        return operations

    def _calls(self, known: list[str]) -> list[Operation]:
        """Make many short calls of one actor at once, which wait for each other. Some may be cancelled meanwhile."""
        random, handle = self._random, self._random.choice(self._handles(known))
        seconds = random.choice(PAUSES_S)
        names = [self._name("call") for _ in range(random.randint(3, LONGEST_BURST))]
        known += names
        bodies = [Body((Sleep(self._name("sleep"), seconds),) if random.random() < 0.8 else ()) for _ in names]
        operations: list[Operation] = [Call(name, handle, body) for name, body in zip(names, bodies, strict=True)]
        if self._may_cancel:
            operations.append(Sleep(self._name("sleep"), random.choice(PAUSES_S)))
            operations += [self._cancel([name]) for name in names if random.random() < 0.5]
        if self._may_kill and random.random() < 0.3:
            operations.append(self._kill([handle]))
        return operations

    def _operation(self, known: list[str], depth: int) -> Operation:
        """Write any operation; ``known`` are the names that are bound here."""
        random = self._random
        writers: list[tuple[int, Callable[[], Operation]]] = [(8 if depth == 0 else 3, lambda: self._submit(known, depth))]
        writers += [(2, lambda: self._put(known)), (2, lambda: Sleep(self._name("sleep"), random.choice(SLEEPS_S)))]
        writers.append((1, lambda: self._generate(known)))
        if self._objects(known):
            writers += [(3, lambda: self._get(known)), (2, lambda: self._wait(known))]
        if known:
            writers += [(1, lambda: self._drop(known)), (1, lambda: Why(self._name("why"), random.choice(known)))]
        if self._has_actors:
            writers += self._actor_writers(known, depth)
        cancellable = [name for name in known if name.startswith(("task", "call"))]
        if cancellable and self._may_cancel:
            writers.append((2, lambda: self._cancel(cancellable)))
        return random.choices([write for _, write in writers], [weight for weight, _ in writers])[0]()

    def _actor_writers(self, known: list[str], depth: int) -> list[tuple[int, Callable[[], Operation]]]:
        handles, named = self._handles(known), [name for name in self._named if self._place(name) > self._calling]
        weight = 1 if depth > 0 or handles else 6
        writers: list[tuple[int, Callable[[], Operation]]] = [(weight, lambda: self._create(known, depth))]
        if handles:
            writers.append((12, lambda: self._call(known, depth)))
            writers.append((1, lambda: self._generate(known, self._random.choice(handles))))
        if handles and self._may_kill:
            writers.append((2, lambda: self._kill(handles)))
        if named:
            writers.append((1, lambda: self._find(known, named)))
        return writers

    def _place(self, handle: str) -> int:
        return list(self._actors.values()).index(self._actors[handle])

    def _handles(self, known: list[str]) -> list[str]:
        return [name for name in known if name in self._actors]

    def _objects(self, known: list[str]) -> list[str]:
        return [name for name in known if name not in self._actors]

    def _create(self, known: list[str], depth: int) -> Create:
        random, name = self._random, self._name("actor")
        args = self._some(self._objects(known), 1) if random.random() < 0.3 else ()
        create = Create(
            name,
            args,
            self._some([ref for ref in known if ref in self._bare], 1),
            max_restarts=random.choice((0, 0, 1, 2, -1)),
            max_task_retries=random.choice((0, 0, 1, 2, -1)),
            max_concurrency=random.choice((1, 1, 1, 3)),
            num_cpus=random.choice((None, 0)),
            called=name if depth == 0 and random.random() < 0.4 else "",
            seconds=random.choice((0.0, 0.0, 0.02, 0.5)),
            type="ValueError" if self._may_fail and random.random() < 0.1 else "",
        )
        known.append(name)
        self._actors[name] = create
        if create.called:
            self._named.append(name)
        return create

    def _call(self, known: list[str], depth: int) -> Call:
        """Write a call that ends: it never exits its actor where both call and actor are retried without limit."""
        random, name = self._random, self._name("call")
        handle = random.choice(self._handles(known))
        actor, place = self._actors[handle], self._place(handle)
        later = [other for other in self._handles(known) if self._place(other) > place]
        args, keep = self._some(self._objects(known), 2) if random.random() < 0.4 else (), random.random() < 0.2
        kept = later + [ref for ref in known if ref in self._bare]
        nested = self._some([ref for ref in (kept if keep else self._objects(known) + later) if ref not in args], 2)
        before, self._calling = self._calling, place
        body = self._body([ref for ref in nested if ref in later], depth + 1, self._call_end)
        self._calling = before
        retries = random.choice((None, None, 0, 1, -1))
        is_endless = (actor.max_task_retries if retries is None else retries) < 0
        if isinstance(body.end, Exit) and is_endless and actor.max_restarts < 0:
            body = Body(body.operations)
        known.append(name)
        return Call(name, handle, body, args, nested, keep, retries, not is_endless and random.random() < 0.2)

    def _call_end(self, known: list[str]) -> End:
        is_over = self._may_kill and self._random.random() < 0.08
        return ExitActor() if is_over else self._end(known)

    def _kill(self, handles: list[str]) -> Kill:
        return Kill(self._name("kill"), self._random.choice(handles), self._random.random() < 0.5)

    def _find(self, known: list[str], named: list[str]) -> Find:
        name, actor = self._name("find"), self._random.choice(named)
        known.append(name)
        self._actors[name] = self._actors[actor]
        return Find(name, actor)

    def _some(self, known: list[str], most: int) -> tuple[str, ...]:
        return tuple(self._random.sample(known, min(len(known), self._random.randint(0, most))))

    def _submit(self, known: list[str], depth: int) -> Submit:
        random, name = self._random, self._name("task")
        args = self._some(self._objects(known), 2)
        nested = self._some([ref for ref in known if ref not in args], 2)
        body = self._body(list(nested), depth + 1, self._end)
        known.append(name)
        waits = any(isinstance(operation, Get | Wait | Generate | Kill | Find) for operation in body.operations)
        own = self._head.resources.get(CUSTOM, 0)
        custom = {CUSTOM: random.randint(1, own)} if own and not waits and random.random() < 0.3 else {}
        return Submit(
            name,
            body,
            args,
            nested,
            num_cpus=min(self._head.num_cpus, random.choice((1, 1, 1, 0, 2))),
            resources=custom,
            max_retries=random.choice((3, 3, 0, 1, 2)),
            retry_exceptions=random.random() < 0.2,
            spread=random.random() < 0.3,
        )

    def _body(self, known: list[str], depth: int, end: Callable[[list[str]], End]) -> Body:
        length = self._random.choice((0, 0, 1, 2, 3)) if depth <= DEPTH else self._random.randint(0, 1)
        operations = tuple(
            self._operation(known, depth) if depth <= DEPTH else Sleep(self._name("sleep"), 0.02) for _ in range(length)
        )
        return Body(operations, end(known))

    def _end(self, known: list[str]) -> End:
        draw = self._random.random()
        if self._may_fail and draw < 0.12:
            return Raise(self._random.choice(("ValueError", "KeyError")))
        if self._may_fail and draw < 0.16:
            return ReturnUnpicklable()
        if self._may_end_workers and draw > 0.9:
            return Exit(self._random.randint(0, 3))
        return Return(self._some(known, 2))

    def _put(self, known: list[str]) -> Put:
        refs, name = self._some(known, 2), self._name("put")
        known.append(name)
        if not refs:
            self._bare.add(name)
        return Put(name, refs)

    def _generate(self, known: list[str], actor: str = "") -> Generate:
        random, yields = self._random, self._random.randint(0, 5)
        generator = Generate(
            self._name("generator"),
            yields,
            random.choice((yields, yields + 2, yields // 2)),
            () if actor else self._some(known, 2),
            random.choice(PAUSES_S),
            random.choice(("ValueError", "KeyError")) if self._may_fail and random.random() < 0.3 else "",
            random.choice((-1, -1, 1, 2)),
            random.choice((3, 3, 0, 1)),
            self._may_cancel and random.random() < 0.3,
            actor,
        )
        known += generator.item_names()
        return generator

    def _timeout(self) -> float | None:
        return self._random.choice(TIMEOUTS_S) if self._random.random() < 0.3 else None

    def _get(self, known: list[str]) -> Get:
        objects = self._objects(known)
        return Get(self._name("get"), self._some(objects, 3) or (objects[-1],), self._timeout())

    def _wait(self, known: list[str]) -> Wait:
        objects = self._objects(known)
        refs = self._some(objects, 4) or (objects[-1],)
        return Wait(self._name("wait"), refs, self._random.randint(1, len(refs)), self._timeout())

    def _drop(self, known: list[str]) -> Drop:
        ref = self._random.choice(known)
        known.remove(ref)
        return Drop(self._name("drop"), ref)

    def _cancel(self, tasks: list[str]) -> Cancel:
        ref = self._random.choice(tasks)
        force = self._may_end_workers and ref.startswith("task") and self._random.random() < 0.5
        return Cancel(self._name("cancel"), ref, force, self._random.random() < 0.7)


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


def write_scenario(random: Random, seed: int, size: Size = MEDIUM) -> Scenario:
    world = write_world(random)
    program = write_program(random, seed, size, world.nodes)
    world = with_stores(world, random)
    world = at_busy_moments(world, Random(f"moments of {seed}"))
    world = with_restarts(world, Random(f"restarts of {seed}"))
    random = Random(f"last words of {seed}")
    world = with_last_words(with_repeats(world, Random(f"repeats of {seed}")), random)
    program = with_crowds(program, random) if world.aims == (ANSWERS,) and "last_words" in world.rates else program
    slots = 1 + sum(one.bundles for driver in program.drivers for one in driver.operations if isinstance(one, Group))
    if slots > 1:
        world = msgspec.structs.replace(world, nodes=with_slots(world.nodes, slots))
    scenario = with_hoards(Scenario(program, world, seed), Random(f"hoards of {seed}"))
    random = Random(f"freed hoards of {seed}")
    spoils = scenario.world.store_bytes == HOARD_BYTES and random.random() < 0.33
    program = with_freed_hoards(scenario.program, random) if spoils else scenario.program
    program = with_leavers(program, Random(f"leavers of {seed}"))
    homes = write_homes(program, scenario.world.nodes, Random(f"homes of {seed}"))
    random = Random(f"moves of {seed}")
    world = with_busy_disks(scenario.world, Random(f"busy disks of {seed}"))
    world = with_broken_disks(world, Random(f"broken disks of {seed}"))
    world = msgspec.structs.replace(world, homes=homes)
    rifts = Random(f"rifts of {seed}")
    if has_rifts(world, rifts):
        world, program = with_rifts(world, len(program.drivers), rifts), with_crowds(program, rifts)
        program = with_souvenirs(program, Random(f"souvenirs of {seed}"))
    world = with_crashes_in_windows(world, Random(f"windows of {seed}"))
    world = with_node_losses(world, Random(f"node losses of {seed}"))
    world = with_moves(world, random)
    if slots > 1:
        world = with_deaths_of_hosts(world, Random(f"deaths of hosts of {seed}"))
        world = with_forgetful_gcs(world, Random(f"forgetful gcs of {seed}"))
    world = with_retry_pauses(world, Random(f"retry pauses of {seed}"))
    world = with_little_memory(world, Random(f"memory of {seed}"))
    world = with_switches(world, Random(f"switches of {seed}"))
    world = with_slow_nodes(world, Random(f"slow nodes of {seed}"))
    world = struck_at_messages(world, Random(f"messages of {seed}"))
    world = with_short_memory(world, Random(f"short memory of {seed}"))
    program = with_visits(program, random) if world.moves else program
    random = Random(f"streams of {seed}")
    may_lose = world.inline_limit and len(world.nodes) > 1 and (world.moves or not LOSING.isdisjoint(world.rates))
    if may_lose and random.random() < 0.5:
        program = with_slow_readers(with_streams(program, random), random)
    random = Random(f"harvests of {seed}")
    if has_harvests(world, random):
        world = with_lost_nodes(world, random)
        program = with_harvests(program, random)
        program = with_slow_readers(program, random) if random.random() < 0.5 else program
    world = with_quick_health_checks(world, Random(f"health checks of {seed}"))
    world = with_stillbirths(world, Random(f"stillbirths of {seed}"))
    random = Random(f"nests of {seed}")
    if any(move.dies for move in world.moves) and random.random() < 0.5:
        world, program = with_deaths_of_holders(world, random), with_nests(program, random)
    random = Random(f"rations of {seed}")
    if world.store_bytes == HOARD_BYTES and random.random() < 0.4:
        custom = {key: count for key, count in world.nodes[0].resources.items() if key == CUSTOM}
        program = with_rations(program, random, custom)
    random = Random(f"deliveries of {seed}")
    if any(move.dies for move in world.moves) and world.inline_limit and random.random() < 0.4:
        program = with_deliveries(program, random)
    random = Random(f"relays of {seed}")
    if (world.targets, world.struck_tasks) == ((ANSWERING[0],), ANSWERING[1]) and random.random() < 0.7:
        program = with_relays(program, random)
    program = with_naps(with_chains(program, Random(f"chains of {seed}")), Random(f"naps of {seed}"))
    program = with_force(program, Random(f"force of {seed}"))
    program = with_families(program, Random(f"families of {seed}"))
    world = with_deaf_workers(world, program, Random(f"deaf workers of {seed}"))
    world = with_conversations(world, Random(f"conversations of {seed}"))
    world = with_late_messages(world, Random(f"late messages of {seed}"))
    world = with_posthumous_messages(world, Random(f"posthumous messages of {seed}"))
    world = with_small_bounds(world, Random(f"bounds of {seed}"))
    program = with_long_sleeps(program, Random(f"long sleeps of {seed}"))
    program = with_looks(program, Random(f"looks of {seed}"))
    scenario = with_equipment(Scenario(program, world, seed), Random(f"equipment of {seed}"))
    conjoined = with_conjunctions(scenario, CONDITIONS)
    if conjoined is scenario:  # A conjunction needs the world that it has.
        conjoined = with_far_zones(scenario, Random(f"far zones of {seed}"))
    return with_rare_words(fitted(conjoined, Random(f"fitting of {seed}")))


def fitted(scenario: Scenario, random: Random) -> Scenario:
    """Give the nodes the slots and the GPUs that the program needs."""
    program, nodes = scenario.program, scenario.world.nodes
    slots = 1 + sum(one.bundles for one in program.walk() if isinstance(one, Group))
    nodes = with_slots(nodes, slots) if slots > 1 else nodes
    if any(task.gpus > nodes[0].num_gpus for task in program.tasks()):
        nodes = equipped(nodes, random)
    return msgspec.structs.replace(scenario, world=msgspec.structs.replace(scenario.world, nodes=nodes))


def write_program(random: Random, seed: int, size: Size, nodes: tuple[Node, ...]) -> Program:
    """Write a program with all variations but ``with_leavers``, which cuts programs short and comes later."""
    program = with_async_actors(Writer(random, nodes).program(size), Random(f"async actors of {seed}"))
    random = Random(f"namesakes of {seed}")
    program = with_namesakes(program, random) if random.random() < 0.35 else program
    program = with_first_failures(program, Random(f"first failures of {seed}"))
    program = with_parts(with_awaits(program, Random(f"awaits of {seed}")), Random(f"parts of {seed}"))
    program = with_miscounts(program, Random(f"miscounts of {seed}"))
    program = with_options(with_groups(program, Random(f"groups of {seed}")), Random(f"options of {seed}"))
    program = with_manners(program, Random(f"manners of {seed}"))
    program = with_heirs(program, Random(f"heirs of {seed}"))
    program = with_residents(program, Random(f"residents of {seed}"))
    program = with_names_of_groups(program, Random(f"names of groups of {seed}"))
    program = with_partings(with_jams(program, Random(f"jams of {seed}")), Random(f"partings of {seed}"))
    random = Random(f"slow readers of {seed}")
    program = with_slow_readers(program, random) if random.random() < 0.33 else program
    program = with_frees(program, Random(f"frees of {seed}"))
    program = with_words(program, Random(f"words of {seed}"))
    program = with_good_ends(program, Random(f"good ends of {seed}"))
    program = with_padding(program, Random(f"padding of {seed}"))
    program = with_impatience(program, Random(f"impatience of {seed}"))
    program = with_rounds(program, Random(f"rounds of {seed}"))
    return with_dropped_generators(program, Random(f"dropped generators of {seed}"))


def write_homes(program: Program, nodes: tuple[Node, ...], random: Random) -> tuple[int, ...]:
    """In a quarter of the scenarios, let drivers run on any node, which they can lose."""
    if random.random() >= 0.25:
        return ()
    return tuple(random.randrange(len(nodes)) for _ in program.drivers)


def with_slots(nodes: tuple[Node, ...], count: int) -> tuple[Node, ...]:
    return tuple(msgspec.structs.replace(node, resources=node.resources | {SLOT: count}) for node in nodes)


def with_rare_words(scenario: Scenario) -> Scenario:
    """Write rare words into the program, and give the nodes what these need."""
    program, world = with_vocabulary(scenario.program, scenario.seed, has_gpus=True), scenario.world
    if has_wishes(program):
        head, *others = with_riches(world.nodes)
        head = msgspec.structs.replace(head, num_gpus=max(head.num_gpus, int(needs_gpus(program))))
        world = msgspec.structs.replace(world, nodes=(head, *others))
    world = with_late_drivers(world, len(program.drivers), Random(f"late drivers of {scenario.seed}"))
    return msgspec.structs.replace(scenario, program=program, world=world)


def with_late_drivers(world: World, drivers: int, random: Random) -> World:
    """In a fifth of the worlds with several drivers, all on the head, let some join when others have worked for a while."""
    if drivers == 1 or any(world.homes) or random.random() >= 0.2:
        return world
    return msgspec.structs.replace(world, arrivals=tuple(random.choice((0.0, *ARRIVALS_S)) for _ in range(drivers)))


def with_equipment(scenario: Scenario, random: Random) -> Scenario:
    """In a fifth of the scenarios, give nodes GPUs and labels, which some tasks need."""
    if random.random() >= 0.2:
        return scenario
    world = msgspec.structs.replace(scenario.world, nodes=equipped(scenario.world.nodes, random))
    return msgspec.structs.replace(scenario, program=with_needs(scenario.program, random), world=world)


def equipped(nodes: tuple[Node, ...], random: Random) -> tuple[Node, ...]:
    """Give nodes GPUs and labels. The head has all that tasks need (see ``with_needs``)."""
    head, *others = nodes
    more = [
        msgspec.structs.replace(node, num_gpus=random.randint(0, 2), zone=random.choice(("", "a", "b"))) for node in others
    ]
    return msgspec.structs.replace(head, num_gpus=2, zone="a"), *more


def with_far_zones(scenario: Scenario, random: Random) -> Scenario:
    """In a quarter of the scenarios without aimed faults, let only another node have the label that some tasks need.

    That node may join later, so that the tasks have to wait. No fault may take a node away.
    """
    world = scenario.world
    if is_aimed(world) or random.random() >= 0.25:
        return scenario
    rates, guest = quiet_rates(world), random.randrange(len(world.nodes))
    if "crash" in world.rates:
        rates |= {"crash": world.rates["crash"]}
    nodes, moves = list(world.nodes), [Move(len(world.nodes), random.choice((0.0, 0.3, 2.0, 10.0)), zone=FAR)]
    if guest and random.random() < 0.5:
        nodes[guest], moves = msgspec.structs.replace(nodes[guest], zone=FAR), []
    changed = msgspec.structs.replace(world, nodes=tuple(nodes), moves=tuple(moves), rates=rates, targets=("worker/",))
    return msgspec.structs.replace(scenario, program=with_far_tasks(scenario.program, random), world=changed)


def at_busy_moments(world: World, random: Random) -> World:
    """In half of the worlds with crashes, let processes crash only in tasks that begin, end or change something.

    In the other half most steps, and so most crashes, are in polls and reports that never end.
    """
    if "crash" not in world.rates or random.random() < 0.5:
        return world
    rates = world.rates | {"crash": random.choice((0.01, 0.03))}
    return msgspec.structs.replace(world, rates=rates, spared_tasks=IDLE_TASKS)


def with_restarts(world: World, random: Random) -> World:
    """In a sixth of the worlds, crash the gcs early, so that most of a program meets one that has loaded its tables."""
    if random.random() >= 0.17:
        return world
    rates = world.rates | {"crash": random.choice((0.03, 0.1))}
    return msgspec.structs.replace(
        world, rates=rates, budget=world.budget + 1, targets=("gcs",), spared_tasks=IDLE_TASKS, durable=True
    )


def with_repeats(world: World, random: Random) -> World:
    """In a sixth of the worlds, duplicate many requests and lose answers: of all messages, or of those of borrowers."""
    if random.random() >= 0.17:
        return world
    rates = world.rates | {"duplicate": 0.4, "break": 0.1}
    return msgspec.structs.replace(world, rates=rates, aims=random.choice(((), (), BORROWING)))


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


def has_rifts(world: World, random: Random) -> bool:
    """Draw whether a world has rifts: a quarter of the worlds with three nodes or more do (see ``with_rifts``)."""
    return len(world.nodes) >= 3 and "last_words" not in world.rates and random.random() < 0.25


def with_rifts(world: World, drivers: int, random: Random) -> World:
    """Cut nodes off from each other, but not from the head: callers give up actors that live, and try again.

    Drivers run on nodes that may be cut off from the nodes of their actors.
    """
    rates = quiet_rates(world)
    rates |= {"rift": random.choice((0.02, 0.1))}
    homes = tuple(random.randrange(1, len(world.nodes)) for _ in range(drivers))
    return msgspec.structs.replace(world, rates=rates, budget=3, aims=(random.choice(RIFTS),), homes=homes)


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


def with_deaths_of_holders(world: World, random: Random) -> World:
    """Let most of the nodes that die do so when they hold several values."""
    chosen = [move.dies and random.random() < 0.7 for move in world.moves]
    moves = zip(world.moves, chosen, strict=True)
    moved = tuple(msgspec.structs.replace(move, when="several") if is_chosen else move for move, is_chosen in moves)
    return msgspec.structs.replace(world, moves=moved)


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


def with_forgetful_gcs(world: World, random: Random) -> World:
    """In a third of the worlds with placement groups and no aimed faults, crash the gcs while it makes a group."""
    if is_aimed(world) or random.random() >= 0.33:
        return world
    rates = quiet_rates(world)
    rates |= {"crash": random.choice((0.03, 0.1, 0.3))}
    target, tasks = GROUP_WINDOW
    budget = random.randint(1, 3)
    return msgspec.structs.replace(world, rates=rates, budget=budget, targets=(target,), struck_tasks=tasks, durable=True)


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


def struck_at_messages(world: World, random: Random) -> World:
    """In a tenth of the worlds, strike processes also between a message's arrival and the task that handles it."""
    return msgspec.structs.replace(world, at_messages=True) if random.random() < 0.1 else world


def with_quick_health_checks(world: World, random: Random) -> World:
    """In a third of the worlds where nodes may be silent for long, count them as dead while they live, and tell them."""
    is_silent = not world.rates.keys().isdisjoint(("long_stall", "cut", "long_delay"))
    if not is_silent or len(world.nodes) == 1 or random.random() >= 0.33:
        return world
    return msgspec.structs.replace(world, quick_health_checks=True)


def with_short_memory(world: World, random: Random) -> World:
    """In a tenth of the worlds with large values, keep little lineage. A value without lineage is lost for good."""
    if not world.inline_limit or not world.lineage or random.random() >= 0.1:
        return world
    return msgspec.structs.replace(world, lineage_bytes=random.choice(LINEAGE_BYTES))


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


def with_hoards(scenario: Scenario, random: Random) -> Scenario:
    """In half of the scenarios with small stores, let drivers put more than the store holds, and read some of it again.

    A reader then waits for memory until another value is spilled.
    """
    if not scenario.world.store_bytes or random.random() < 0.5:
        return scenario
    world = msgspec.structs.replace(
        scenario.world,
        rates={kind: rate for kind, rate in scenario.world.rates.items() if kind != "disk_error"},
        store_bytes=HOARD_BYTES,
        inline_limit=1,
        io_workers=random.choice((1, 1, 2)),
        lineage=True,
    )
    return msgspec.structs.replace(scenario, program=hoarding(scenario.program, random), world=world)


CONDITIONS: Mapping[str, Callable[[World, Random], World]] = {
    "the gcs restarted": with_restarts,
    "a kill for memory": with_little_memory,
    "a failed start": with_stillbirths,
    "a rift": lambda world, random: with_rifts(with_more_nodes(world, 3), 2, random),
    "a late message": with_late_messages,
    "a dead process's message": with_posthumous_messages,
    "a slow node": with_slow_nodes,
    "a switch of threads": with_switches,
    "a pause before retries": with_retry_pauses,
    "small bounds": with_small_bounds,
}
"""Conditions that ``conjunctions`` draws again until they hold."""


def hoarding(program: Program, random: Random) -> Program:
    """Give each driver of a program a hoard."""
    drivers = enumerate(program.drivers)
    return Program(tuple(Body(_with_hoard(driver.operations, n, random), driver.end) for n, driver in drivers))


def _with_hoard(operations: tuple[Operation, ...], number: int, random: Random) -> tuple[Operation, ...]:
    """Insert a hoard, and reads of its values, into the operations of one driver."""
    names = [f"hoard{number}.{count}" for count in range(random.randint(*HOARD))]
    at = random.randint(0, len(operations))
    later: list[Operation] = list(operations[at:])
    for count in range(random.randint(2, 4)):
        look = Get(f"look{number}.{count}", tuple(random.sample(names, random.randint(1, 4))))
        later.insert(random.randint(0, len(later)), look)
    return (*operations[:at], *map(Put, names), *later)


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


def with_freed_hoards(program: Program, random: Random) -> Program:
    """Free some values of hoards by hand, perhaps while they are spilled or restored."""
    drivers = []
    for number, driver in enumerate(program.drivers):
        operations = list(driver.operations)
        for count in range(random.randint(2, 5)):
            at = random.randint(0, len(operations))
            hoarded = [one.name for one in operations[:at] if one.name.startswith(f"hoard{number}.")]
            refs = tuple(random.sample(hoarded, min(len(hoarded), random.choice((1, 3)))))
            operations.insert(at, Free(f"spoil{number}.{count}", refs))
        drivers.append(Body(tuple(operations), driver.end))
    return Program(tuple(drivers))


def scenario_of(seed: int, size: Size = MEDIUM) -> Scenario:
    """Write the scenario of a seed."""
    return write_scenario(Random(seed), seed, size)


def programs(size: Size = MEDIUM, nodes: tuple[Node, ...] = (Node(),)) -> st.SearchStrategy[Program]:
    return st.randoms(use_true_random=False).map(lambda random: Writer(random, nodes).program(size))


def worlds() -> st.SearchStrategy[World]:
    return st.randoms(use_true_random=False).map(write_world)


def scenarios(size: Size = MEDIUM) -> st.SearchStrategy[Scenario]:
    return st.builds(
        lambda random, seed: write_scenario(random, seed, size),
        st.randoms(use_true_random=False),
        st.integers(0, 2**32 - 1),
    )
