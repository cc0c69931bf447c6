"""Scenarios: a program and a world, with all variations in their order, drawn from a seed or by Hypothesis.

``writer`` writes the plain program, and ``worlds`` the world. ``write_scenario`` is the list of all variations, in the order
in which they apply. A campaign draws from a seed, so that a scenario is reproducible from that alone, at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import msgspec
from hypothesis import strategies as st

from tests.spec.aims import (
    HEAVY,
    is_aimed,
    quiet_rates,
    with_conversations,
    with_instants,
    with_late_messages,
    with_posthumous_messages,
    with_silence,
    with_talk_of_stories,
)
from tests.spec.bouquets import Bouquet
from tests.spec.bundles import Bundles
from tests.spec.conjunctions import with_conjunctions, with_more_nodes
from tests.spec.conversations import CONVERSATIONS
from tests.spec.fickle import Fickle
from tests.spec.fragments import with_dropped_generators
from tests.spec.frees import Free
from tests.spec.groups import SLOT, Group
from tests.spec.knobs import with_few_references, with_small_bounds
from tests.spec.moves import Move
from tests.spec.namesakes import with_heirs, with_namesakes, with_rounds
from tests.spec.overtaken import Overtaken
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
from tests.spec.poured import SIZES, Poured
from tests.spec.programs import (
    Body,
    Get,
    Operation,
    Program,
    Put,
    has_wishes,
)
from tests.spec.rushes import Rush
from tests.spec.scenario import Node, Scenario, World
from tests.spec.scenes import with_scenes
from tests.spec.stories import Story
from tests.spec.variations import (
    FAR,
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
from tests.spec.vocabulary import (
    needs_gpus,
    with_crossings,
    with_endowments,
    with_homecomings,
    with_last_moments,
    with_later_stories,
    with_lines,
    with_new_stories,
    with_odd_stories,
    with_remakes,
    with_riches,
    with_setup_hooks,
    with_spoiled_jobs,
    with_vocabulary,
)
from tests.spec.worlds import (
    ANSWERING,
    ANSWERS,
    CUSTOM,
    HOARD_BYTES,
    at_busy_moments,
    has_harvests,
    has_rifts,
    struck_at_messages,
    with_broken_disks,
    with_busy_disks,
    with_crashes_in_windows,
    with_deaf_workers,
    with_deaths_of_holders,
    with_deaths_of_hosts,
    with_departures_of_hosts,
    with_forgetful_gcs,
    with_last_words,
    with_little_memory,
    with_lost_items,
    with_lost_nodes,
    with_moves,
    with_node_losses,
    with_quick_health_checks,
    with_repeats,
    with_restarts,
    with_retry_pauses,
    with_rifts,
    with_second_thoughts,
    with_short_memory,
    with_slow_nodes,
    with_stillbirths,
    with_stores,
    with_switches,
    write_world,
)
from tests.spec.writer import MEDIUM, Size, Writer

ARRIVALS_S = (0.2, 1.0, 5.0)
"""Virtual seconds after which late drivers join."""
LOSING = frozenset(("node_loss", "last_words", "cut", "rift"))
"""Faults that may take away the values in a node's store."""
HOARD = (10, 16)
"""Number of values in a hoard, from and to."""


# --- The scenario of a seed


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
    world = with_instants(world, Random(f"instants of {seed}"))
    world = with_small_bounds(world, Random(f"bounds of {seed}"))
    program = with_long_sleeps(program, Random(f"long sleeps of {seed}"))
    program = with_looks(program, Random(f"looks of {seed}"))
    scenario = with_equipment(Scenario(program, world, seed), Random(f"equipment of {seed}"))
    conjoined = with_scenes(with_conjunctions(scenario, CONDITIONS))
    if conjoined is scenario:  # A conjunction needs the world that it has.
        conjoined = with_far_zones(scenario, Random(f"far zones of {seed}"))
    scenario = with_rare_words(fitted(conjoined, Random(f"fitting of {seed}")))
    keeps = Random(f"keeping of {seed}").random() < 0.5
    return msgspec.structs.replace(scenario, world=msgspec.structs.replace(scenario.world, keeps=keeps))


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


# --- Variations of programs and worlds together


def with_slots(nodes: tuple[Node, ...], count: int) -> tuple[Node, ...]:
    return tuple(msgspec.structs.replace(node, resources=node.resources | {SLOT: count}) for node in nodes)


def with_rare_words(scenario: Scenario) -> Scenario:
    """Write rare words into the program, and give the nodes what these need."""
    program, world = with_vocabulary(scenario.program, scenario.seed, has_gpus=True), scenario.world
    program = with_later_stories(program, Random(f"later stories of {scenario.seed}"))
    program = with_new_stories(program, Random(f"new stories of {scenario.seed}"))
    program = with_lines(program, Random(f"lines of {scenario.seed}"))
    program = with_odd_stories(program, Random(f"odd stories of {scenario.seed}"))
    program = with_crossings(program, Random(f"crossings of {scenario.seed}"), keeps_drivers(world))
    if len(world.nodes) > 1 and world.inline_limit and _loses_nodes(world):
        program = with_remakes(program, Random(f"remakes of {scenario.seed}"))
    program = with_setup_hooks(program, Random(f"setup hooks of {scenario.seed}"))
    if keeps_drivers(world) and not program.leavers():
        program = with_endowments(program, Random(f"endowments of {scenario.seed}"))
    program = with_spoiled_jobs(program, Random(f"spoiled jobs of {scenario.seed}"))
    program = with_homecomings(program, Random(f"homecomings of {scenario.seed}"))
    program = with_last_moments(program, Random(f"last moments of {scenario.seed}"))
    if has_wishes(program):
        head, *others = with_riches(world.nodes)
        head = msgspec.structs.replace(head, num_gpus=max(head.num_gpus, int(needs_gpus(program))))
        world = msgspec.structs.replace(world, nodes=(head, *others))
    operations = list(program.walk())
    if any(isinstance(one, Bouquet) for one in operations):
        world = with_few_references(world, Random(f"few references of {scenario.seed}"))
    pours_much = any(isinstance(one, Poured) and one.size == max(SIZES) for one in operations)
    if any(isinstance(one, Fickle) for one in operations) or (pours_much and scenario.seed % 3 == 0):
        world = with_lost_items(world, Random(f"lost items of {scenario.seed}"))
    if any(isinstance(one, Overtaken) for one in operations):
        world = with_silence(world, HEAVY, Random(f"silence of {scenario.seed}"))
    elif scenario.seed % 2 == 0 and any(isinstance(one, Rush) for one in operations):
        world = with_silence(world, CONVERSATIONS["lease"], Random(f"silence of leases of {scenario.seed}"))
    if any(isinstance(one, Group | Bundles) for one in operations):
        world = with_departures_of_hosts(world, Random(f"departures of hosts of {scenario.seed}"))
    world = with_second_thoughts(world, Random(f"second thoughts of {scenario.seed}"))
    world = with_late_drivers(world, len(program.drivers), Random(f"late drivers of {scenario.seed}"))
    stories = {type(one).__name__ for one in operations if isinstance(one, Story)}
    world = with_talk_of_stories(world, stories, Random(f"talk of stories of {scenario.seed}"))
    return msgspec.structs.replace(scenario, program=program, world=world)


def _loses_nodes(world: World) -> bool:
    return any(move.dies or move.leaves for move in world.moves) or not LOSING.isdisjoint(world.rates)


def keeps_drivers(world: World) -> bool:
    """Tell whether no fault takes a driver away, unless it takes the head."""
    return not any(world.homes) and not any(target.startswith("driver") or not target for target in world.targets)


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


# --- Drawn by a seed, or by Hypothesis


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
