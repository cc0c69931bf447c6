"""A trial: one scenario, performed in the simulation and judged.

The verdict lists every problem. These are problems:
  * leftovers that ``tests/simulation/judge.py`` finds
  * resources that do not add up during the run
  * outcomes that ``model.py`` forbids
  * a program that does not end
  * an exception that escapes. None escapes from ``run`` itself.

When the head's raylet is dead, the run is over for its drivers. Then only two things are judged: nothing has crashed, and a
fault can have ended the raylet. A driver of another node may wait for ever for values that only the head had.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from minray.common.config import SystemConfig
from minray.platform.base import ProcessGone
from minray.simulation import Deadlock, SimCluster, SimulationFailed
from minray.simulation.cluster import GCS, HEAD, DriverDied
from minray.simulation.faults import DISK, LOUD, Key
from minray.simulation.interpreter import EPOCH_S
from minray.simulation.loop import TICKS_PER_SECOND, SimProcess
from minray.simulation.trace import LIFE
from tests.simulation.census import unfinished
from tests.simulation.invariants import Broken, Watch
from tests.simulation.judge import LIMIT_S, SETTLE_S, Account, leftovers, printed
from tests.simulation.residue import norm, residue
from tests.simulation.rest import is_held_up, unrest
from tests.simulation.views import stale_views
from tests.spec.answers import ask_again
from tests.spec.charges import Attempts, Blows, Charges
from tests.spec.detached import Farewell, detached_names, say_farewell
from tests.spec.ends import (
    ENDS_WORD,
    has_left,
    has_lost_gcs,
    head_has_ended,
    killed_drivers,
    lost_drivers,
    unexplained_end_of_head,
    unexplained_ends,
)
from tests.spec.grumblers import Grumble
from tests.spec.heard import unheard
from tests.spec.job_environments import hook_of
from tests.spec.losses import crashed_by, losses_of
from tests.spec.model import Facts, problems
from tests.spec.moves import Move, Traffic
from tests.spec.programs import Body, Call, Program, Submit, perform
from tests.spec.scenario import Scenario, World
from tests.spec.stage import END, RUN, ZONE, History, Stage, made, raised
from tests.spec.verdict import Verdict

GCS_PAUSES_S = (0.1, 1.0, 4.0, 15.0)
"""Virtual seconds without a gcs after a crash of the gcs."""
GRACE_S = SystemConfig().oom_grace_period_s
"""Seconds that a value waits at most for room in a full store in which nothing else happens."""
SLOW_PIECES = 4
"""Factor for the time of a program whose values come from slow disks in tiny pieces: each piece may take twelve seconds."""
HELD_SETTLE_S = 4.3
"""Virtual seconds after which copies of state are looked at while drivers still hold what they have made."""
QUIET_SETTLE_S = 30.0
"""Virtual seconds in which every run settles; it goes on only if the cluster is not at rest then."""
MOST_LATE_S = 4.0
"""Virtual seconds by which quiet faults delay a program at most; most programs are not late by a tenth of a second."""
EACH_LATE_S = 0.3
"""Virtual seconds more for each operation: some programs are long chains, and each message may be late."""
LOOK_S = 10.0
"""Virtual seconds between two looks of a driver that is done for the verdict."""


class RareAccount(Account):
    """Looks at resources less often than its base, because a campaign has many runs."""

    PERIOD_S = 0.005
    MOST_LOOKS = 300


def run(scenario: Scenario, on_chance: Callable[[Key], None] | None = None, limit_s: float = LIMIT_S) -> Verdict:
    """Perform a scenario, end its faults, settle, and judge; ``on_chance`` hears every question to the oracle.

    A program that takes longer than ``limit_s`` virtual seconds, beside its sleeps, counts as one that never ends.
    """
    scenario = Scenario.from_json(scenario.to_json())
    norm()  # which needs a world of its own, the first time
    overrides = None if scenario.overrides is None else dict(scenario.overrides)
    store = {"object_store_memory": scenario.world.store_bytes} if scenario.world.store_bytes else {}
    nodes: list[dict[str, Any]] = [node.described() | store for node in scenario.world.nodes]
    storage = "gcs.db" if scenario.world.durable else ""
    plan, system = scenario.world.plan(), scenario.world.system_config()
    cluster = SimCluster(nodes, scenario.seed, plan, overrides, system, storage=storage, show_output=False)
    if on_chance is not None:
        cluster.oracle.listen(lambda key, _: on_chance(key))
    found: list[str] = []
    histories: dict[int, History] = {}
    raised.clear()
    made.clear()
    try:
        with _no_news_of_forgotten_tasks(), _unraisable(found), cluster:
            watch, attempts = Watch(cluster, len(scenario.program.performances())), Attempts(cluster)
            try:
                traffic = Traffic(cluster, nodes, scenario.world.moves)
                found += _drive(cluster, scenario, histories, watch, attempts, traffic, limit_s)
            except Broken:
                found += watch.problems
            except SimulationFailed:
                pass  # the cluster has noted the failure itself
            except Deadlock as deadlock:
                if "raylet/head" in cluster.alive():
                    found.append(f"L1: {_head_of(deadlock, 25)}")
            found += [f"escaped: {failure}" for failure in cluster.world.loop.failures]
            cluster.world.loop.failures.clear()
    except Exception as error:
        found.append(f"escaped: {type(error).__name__}: {_head_of(error, 5)}")
    trace = cluster.trace
    is_over = head_has_ended(cluster)
    found += unexplained_end_of_head(cluster.oracle.answers) if is_over else []
    if scenario.world.loses_disk:
        found = _without_memory(found, is_over, GCS in crashed_by(cluster.oracle.answers))
    return Verdict(
        problems=tuple(dict.fromkeys(found)),
        answers=cluster.oracle.answers,
        steps=cluster.world.loop.steps,
        trace=trace,
        operations=_performed(cluster, scenario, histories),
        histories=tuple(histories[number] for number in sorted(histories)),
        is_over=is_over,
    )


def _without_memory(found: list[str], is_over: bool, has_lost_it: bool) -> list[str]:
    """Problems of a world whose gcs may find an empty disk. It may forget all tables then (S9), but must end the cluster."""
    goes_on = ["G110: the gcs knows nothing any more, and the cluster goes on"] if has_lost_it and not is_over else []
    return [problem for problem in found if not problem.startswith("S9:")] + goes_on


@contextlib.contextmanager
def _no_news_of_forgotten_tasks() -> Generator[None, None, None]:
    """Silence what ``list_tasks`` warns of when the gcs keeps few ended tasks; in tests a warning is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*older tasks of ended processes are not kept any more", RuntimeWarning)
        yield


@contextlib.contextmanager
def _unraisable(found: list[str]) -> Generator[None, None, None]:
    """Note exceptions in destructors as problems, except a program's own, and the end of a dead process's thread in one."""
    before = sys.unraisablehook

    def hear(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, ProcessGone | Grumble):
            found.append(f"escaped: {unraisable.exc_value!r} in {unraisable.object}")

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = before


def _head_of(error: BaseException, lines: int) -> str:
    return "\n".join(str(error).splitlines()[:lines])


def _drive(
    cluster: SimCluster,
    scenario: Scenario,
    histories: dict[int, History],
    watch: Watch,
    attempts: Attempts,
    traffic: Traffic,
    limit_s: float,
) -> list[str]:
    """Run all drivers at once, settle, and return the problems."""
    program, world = scenario.program, scenario.world
    lets_go = verdict_is_in = False

    def program_of(number: int, body: Body) -> Any:
        def act() -> None:
            stage = Stage({})
            histories[number] = perform(body, stage)
            while world.keeps and not lets_go and number not in program.leavers():
                time.sleep(LOOK_S)
            del stage
            while not verdict_is_in and number not in program.leavers():
                time.sleep(LOOK_S)

        return act

    if world.durable:
        _restart_gcs(cluster, cluster.processes[GCS], world.loses_disk)
    drivers = [
        _join(cluster, program_of(number, body), number, world, hook_of(body)) for number, body in enumerate(program.drivers)
    ]
    traffic.begin()
    account = RareAccount(cluster)
    busy_s = program.busy_s() + program.most_retries() * world.retry_pause_ms / 1000
    if world.store_bytes:
        busy_s += GRACE_S * len(list(program.walk()))

    def is_over() -> bool:
        return traffic.is_over() and all(number in histories or driver.done() for number, driver in enumerate(drivers))

    begun_at = cluster.world.loop.ticks
    in_pieces = "slow_disk" in world.rates and "object_manager_default_chunk_size" in world.bounds
    cluster.wait_until(is_over, limit_s * (SLOW_PIECES if in_pieces else 1) + busy_s)
    traffic.end()
    found = _lateness(cluster, scenario, (cluster.world.loop.ticks - begun_at) / TICKS_PER_SECOND - busy_s)
    found += _look_at_views(cluster, any(move.dies for move in world.moves), busy_s) if world.keeps else []
    lets_go = True
    _settle(cluster, any(move.dies for move in world.moves), busy_s)
    watch.look_at_gcs()
    found += watch.problems + [f"S1: {problem}" for problem in account.problems]
    charges = _charges(cluster, attempts, world.moves)
    losses, blows = losses_of(cluster.oracle.answers, world, charges), charges.blows
    found += unexplained_ends(cluster, blows)
    if "raylet/head" not in cluster.alive() or has_lost_gcs(cluster, blows):
        return found
    gone = killed_drivers(cluster) | lost_drivers(cluster, drivers, blows)
    lost = {f"driver/{number}" for number in gone}
    found += [f"L2: {problem}" for problem in leftovers(cluster, True, lost)] + unrest(cluster)
    for number, driver in enumerate(drivers):
        if driver.done() and number not in gone and (number not in program.leavers() or not has_left(driver)):
            found.append(f"L1: a driver ended with {driver.exception()!r}")
    found += [*residue(cluster, ("driver", "worker"), lost), *watch.look_at_rest()]
    found += [*unfinished(cluster, frozenset(lost)), *unheard(cluster, program, gone | program.leavers(), blows)]
    found += ask_again(cluster, program, lost, attempts.places())
    verdict_is_in = True
    for driver in drivers:
        if not driver.done():
            cluster.wait_for(driver)
    cluster.settle(collects=False)
    farewells = _say_farewells(cluster, program)
    gone |= program.leavers()
    if len(histories.keys() | gone) == len(drivers):
        told = [None if number in gone else histories[number] for number in range(len(drivers))]
        found += problems(program, losses, told, reports(cluster), _facts(cluster, farewells))
    found += watch.problems + traffic.stayed() + residue(cluster, ("raylet", "gcs"))
    return found + [f"L2: after the drivers' end: {problem}" for problem in leftovers(cluster)]


def _lateness(cluster: SimCluster, scenario: Scenario, late_s: float) -> list[str]:
    """Tell whether programs took longer than their own sleeps, although nothing was lost (L1).

    Then some process has waited for a time-out, because nobody has woken it.
    """
    world, operations = scenario.world, list(scenario.program.walk())
    has_lost = any(key[0] in LOUD or key[0] in DISK for key in cluster.oracle.answers)
    most_s = MOST_LATE_S + EACH_LATE_S * len(operations) + max(world.arrivals, default=0.0)
    if has_lost or world.moves or world.at_messages or late_s <= most_s:
        return []
    return [f"L1: without any loss, the programs took {late_s:.1f} s more than they sleep"]


def _join(cluster: SimCluster, act: Callable[[], None], number: int, world: World, hook: Any) -> asyncio.Future[None]:
    """Start a driver, with the setup hook of its job, when it is to join. It does not join when the head is dead."""
    name, pause_s = f"driver/{number}", world.arrivals[number] if number < len(world.arrivals) else 0.0
    if not pause_s:
        return cluster.start_driver(act, name, world.home(number), setup_hook=hook)
    loop = cluster.world.loop
    over: asyncio.Future[None] = loop.create_future()

    def on_end(driver: asyncio.Future[None]) -> None:
        if (error := driver.exception()) is None:
            over.set_result(None)
        else:
            fail(error)

    def fail(error: BaseException) -> None:
        over.set_exception(error)
        over.exception()  # asyncio complains about an error that nobody asks for

    def start() -> None:
        if "raylet/head" in cluster.alive():
            cluster.start_driver(act, name, setup_hook=hook).add_done_callback(on_end)
        else:
            fail(DriverDied(f"{name} has not joined, because the head is dead"))

    loop.world.call_later(pause_s, start)
    return over


def _charges(cluster: SimCluster, attempts: Attempts, moves: Sequence[Move]) -> Charges:
    """Charges of a run that is over, before its drivers leave."""
    node_of = cluster.trace.nodes()
    blows = Blows.of(cluster.oracle.answers, node_of, moves)
    return Charges(attempts.all(), blows, node_of, node_of.keys() - cluster.alive())


def _facts(cluster: SimCluster, farewells: Sequence[Farewell]) -> Facts:
    """Return what is known of a run beside its histories. Of nodes with the same name only the last one counts."""
    configs = {name: raylet._config for name, raylet in cluster.raylets.items()}
    ids = {f"raylet/{name}": config.node_id for name, config in configs.items()}
    ids |= {name: core.config.worker_id for name, core in cluster.cores.items()}
    deaths = [event for event in cluster.trace.events if event.kind == LIFE and event.details == ENDS_WORD]
    ended_at = {event.process: EPOCH_S + event.ticks / TICKS_PER_SECOND for event in deaths}
    ends = {ids[name].hex(): at for name, at in ended_at.items() if name in ids}
    alive = {ids[name].hex() for name in cluster.alive() if name in ids}
    zones = {config.node_id.hex(): config.labels.get(ZONE, "") for config in configs.values()}
    return Facts(zones, {id_: at for id_, at in ends.items() if id_ not in alive}, farewells)


def _say_farewells(cluster: SimCluster, program: Program) -> list[Farewell]:
    """Say farewell to the detached actors when their makers are gone and faults are over."""
    names = detached_names(program)
    if not names:
        return []
    farewells = cluster.run(lambda: [say_farewell(name) for name in names], LIMIT_S)
    cluster.settle(collects=False)
    return farewells


def _restart_gcs(cluster: SimCluster, process: SimProcess, loses_disk: bool) -> None:
    """Start the gcs again, after a pause, whenever it dies."""

    def start() -> None:
        if loses_disk:
            cluster.world.nodes[HEAD].disk.clear()
        _restart_gcs(cluster, cluster.start_gcs(), loses_disk)

    def on_death() -> None:
        pause_s = GCS_PAUSES_S[cluster.oracle.below(("gcs pause", cluster.world.loop.ticks), len(GCS_PAUSES_S))]
        cluster.world.loop.world.call_later(pause_s, start)

    process.on_death.append(on_death)


def _look_at_views(cluster: SimCluster, may_hear_of_deaths: bool, busy_s: float) -> list[str]:
    """Wait while drivers hold all that they have made, as ``_settle`` does, until all copies of state are right."""
    loud = may_hear_of_deaths or any(key[0] in LOUD for key in cluster.oracle.answers)
    cluster.settle(HELD_SETTLE_S, collects=False)
    rest_s = QUIET_SETTLE_S + busy_s + (SETTLE_S if loud else 0)
    while rest_s > 0 and (is_held_up(cluster) or stale_views(cluster)):
        cluster.settle(HELD_SETTLE_S, collects=False)
        rest_s -= HELD_SETTLE_S
    return stale_views(cluster)


def _settle(cluster: SimCluster, may_hear_of_deaths: bool, busy_s: float) -> None:
    """Wait until the cluster is at rest, but no longer than deaths and delays, if there were any, and tasks may take.

    No garbage is collected meanwhile: dropped references must be released without that (L2).
    """
    loud = may_hear_of_deaths or any(key[0] in LOUD for key in cluster.oracle.answers)
    cluster.settle(QUIET_SETTLE_S, collects=False)
    rest_s = busy_s + (SETTLE_S - QUIET_SETTLE_S if loud else 0)
    while rest_s > 0 and (is_held_up(cluster) or leftovers(cluster, but_detached=True) or unrest(cluster)):
        cluster.settle(QUIET_SETTLE_S, collects=False)
        rest_s -= QUIET_SETTLE_S


def reports(cluster: SimCluster) -> list[str]:
    """Lines that tasks have printed, without minray's hints about long waits, which come the same way."""
    return [line for line in printed(cluster) if line.startswith("[")]


def _performed(cluster: SimCluster, scenario: Scenario, histories: dict[int, History]) -> Counter[str]:
    """Count the operations of the drivers that came to an end, and of the tasks that ran."""
    counts: Counter[str] = Counter()
    for number in histories:
        counts.update(type(operation).__name__ for operation in scenario.program.drivers[number].operations)
    tasks: dict[str, Submit | Call] = {task.name: task for task in scenario.program.performances()}
    for line in reports(cluster):
        word, name, *_ = msgspec.json.decode(line)
        if name not in tasks:
            continue  # an actor, or what a story runs
        if word == END:
            counts.update(type(operation).__name__ for operation in tasks[name].body.operations)
        elif word == RUN:
            counts[type(tasks[name].body.end).__name__] += 1
    return counts
