"""A scenario: a program, a world with faults, and a seed; ``run`` performs it in the simulation and judges it.

The verdict lists every problem as a sentence that begins with its number (``L2: ...``). These are problems:
  * leftovers that ``tests/simulation/judge.py`` finds
  * resources that do not add up during the run
  * outcomes that ``model.py`` forbids
  * a program that does not end
  * an exception that escapes. None escapes from ``run`` itself.

Rules
  * A scenario always has the same run. With ``overrides`` (the answers of the oracle that were not 0) the plan is not asked.
    Every scenario is written to JSON and read again before it runs. Otherwise pickles would differ: one in which parts are
    the same object is smaller than one in which they are only equal.
  * ``is_feasible`` says whether every program can end: the head alone can run every task.
  * When the head's raylet is dead, the run is over for its drivers. Then only two things are judged: nothing has crashed,
    and a fault can have ended the raylet. A driver of another node may wait for ever for values that only the head had.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from minray.common.config import SystemConfig
from minray.platform.base import ProcessGone
from minray.raylet.start_failures import MAX_FAILED_IN_A_ROW
from minray.simulation import Deadlock, FaultPlan, SimCluster, SimulationFailed
from minray.simulation.cluster import GCS, HEAD, DriverDied
from minray.simulation.faults import (
    AIMED,
    DELAYS_S,
    DISK,
    KINDS,
    LONG_DELAYS_S,
    LONG_STALLS_S,
    LOUD,
    POSTHUMOUS_S,
    QUIET,
    SLOW_NODE,
    STALLS_S,
    SWITCH,
    SWITCHES_S,
    Key,
)
from minray.simulation.interpreter import EPOCH_S
from minray.simulation.loop import TICKS_PER_SECOND, SimProcess
from minray.simulation.trace import LIFE, Trace
from tests.simulation.invariants import Broken, Watch
from tests.simulation.judge import LIMIT_S, SETTLE_S, Account, leftovers, printed
from tests.simulation.rest import is_held_up, unrest
from tests.simulation.views import stale_views
from tests.spec.answers import ask_again
from tests.spec.charges import GCS_STALLS_S, PATIENCE_S, Attempts, Blows, Charges
from tests.spec.detached import Farewell, detached_names, say_farewell
from tests.spec.groups import SLOT, Group
from tests.spec.grumblers import Grumble
from tests.spec.model import HEARD_S, Facts, Losses, problems
from tests.spec.moves import Move, Traffic
from tests.spec.programs import Body, Call, Program, Submit, has_wishes, perform
from tests.spec.stage import END, RUN, ZONE, History, Record, Stage, has_lost_its_node, made, raised
from tests.spec.stories import Story
from tests.spec.wishes import RICHES

QUICK_HEALTH_CHECKS = {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000, "health_check_failure_threshold": 2}
"""System configuration with which a silent node is dead after some ten seconds: more than ``PATIENCE_S``."""
MOMENT_S = 0.05
"""Virtual seconds after which a cancellation has reached its task, if nothing delays it."""
GCS_PAUSES_S = (0.1, 1.0, 4.0, 15.0)
"""Virtual seconds without a gcs after a crash of the gcs."""
HARMLESS = frozenset((*QUIET, *DISK, "crash", "memory", "spawn", SWITCH, SLOW_NODE))
"""Faults that end no node, if only workers crash."""
ENDS = ("crash", "memory", "spawn")
"""Loud faults that end a process, or keep it from starting. They count as silence only for the gcs, which comes back."""
SILENCING = ("long_delay", "reset", "cut", "rift", "last_words")
"""Faults after which one process may hear nothing of another."""
ENDS_WORD = ("ends",)
HEAD_ENDS = ("raylet/head", ENDS_WORD)
"""Process and details of the ``LIFE`` event in a trace that says that the head's raylet has ended."""
ROOMY_BYTES = 4000
"""Bytes of an object store from which on no program has to wait for spilling."""
GRACE_S = SystemConfig().oom_grace_period_s
"""Seconds that a value waits at most for room in a full store in which nothing else happens."""
HELD_SETTLE_S = 4.3
"""Virtual seconds after which copies of state are looked at while drivers still hold what they have made."""
QUIET_SETTLE_S = 30.0
"""Virtual seconds in which every run settles; it goes on only if the cluster is not at rest then."""
LOOK_S = 10.0
"""Virtual seconds between two looks of a driver that is done for the verdict."""
T = TypeVar("T")
KeyPart = str | int
Answers = tuple[tuple[tuple[KeyPart, ...], int], ...]


class Node(Record, frozen=True):
    """One machine; the first is the head."""

    num_cpus: int = 2
    resources: dict[str, int] = {}
    num_gpus: int = 0
    zone: str = ""
    """Value of its label ``ZONE``, if it has one."""

    def described(self) -> dict[str, Any]:
        """Arguments for ``add_node`` of a cluster."""
        labels = {"labels": {ZONE: self.zone}} if self.zone else {}
        return {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "resources": dict(self.resources), **labels}

    def fits(self, task: Submit) -> bool:
        """Whether it has the resources and the label that a task needs."""
        has_resources = all(n <= self.resources.get(key, 0) for key, n in task.resources.items())
        return task.num_cpus <= self.num_cpus and task.gpus <= self.num_gpus and has_resources and task.may_run_in(self.zone)


class World(Record, frozen=True):
    """The nodes on which a program runs, their configuration, and the faults that may strike."""

    nodes: tuple[Node, ...] = (Node(),)
    rates: dict[str, float] = {}
    """See ``FaultPlan`` for this field and the next six."""
    budget: int = 0
    targets: tuple[str, ...] = ("worker/",)
    aims: tuple[str, ...] = ()
    spared_tasks: tuple[str, ...] = ()
    struck_tasks: tuple[str, ...] = ()
    at_messages: bool = False
    aimed: tuple[str, ...] = ()
    """Kinds of faults, beside ``AIMED``, that strike only the messages of ``aims``."""
    durable: bool = False
    """Whether the gcs has a store, and is started again when it crashes."""
    inline_limit: int = 0
    """Bytes above which a value is in the object store; 0: the default, so that no value of a program is there."""
    store_bytes: int = 0
    """Bytes of each node's object store; 0: enough that nothing is ever spilled."""
    io_workers: int = 0
    """Number of spill files written at once. They are small, and spilling starts when the store is full; 0: the defaults."""
    loses_disk: bool = False
    """Whether a gcs that is started again finds its store empty; then its cluster is over."""
    lineage: bool = True
    """Whether lineage is kept, so that lost objects are made again."""
    lineage_bytes: int = 0
    """Bytes of lineage kept at most; 0: the default, so that no lineage of a program is evicted."""
    homes: tuple[int, ...] = ()
    """Number of the node on which each driver runs. Drivers beyond the end run on the head."""
    arrivals: tuple[float, ...] = ()
    """Virtual seconds after which each driver joins; only if all are on the head. Drivers beyond the end join at once."""
    moves: tuple[Move, ...] = ()
    """Nodes that join, leave or die."""
    keeps: bool = False
    """Whether drivers keep what they have made until the cluster is at rest, so that all copies of it can be compared."""
    retry_pause_ms: int = 0
    """Milliseconds that a task waits before a retry."""
    bounds: dict[str, int] = {}
    """Further entries of the system configuration: bounds on memory and traffic (``knobs.py``)."""
    quick_health_checks: bool = False
    """Whether silent nodes count as dead after some ten seconds, not a minute. They may live, and be told of their death."""

    def plan(self) -> FaultPlan:
        return FaultPlan(
            self.rates,
            self.budget,
            self.targets,
            aims=self.aims,
            aimed=(*AIMED, *self.aimed),
            spared_tasks=self.spared_tasks,
            struck_tasks=self.struck_tasks,
            at_messages=self.at_messages,
        )

    def system_config(self) -> dict[str, Any]:
        system: dict[str, Any] = dict(self.bounds)
        if self.inline_limit:
            system["max_direct_call_object_size"] = self.inline_limit
        if self.io_workers:
            system |= {"max_io_workers": self.io_workers, "min_spilling_size": 1, "object_spilling_threshold": 1.0}
        if not self.lineage:
            system["lineage_pinning_enabled"] = False
        if self.lineage_bytes:
            system["max_lineage_bytes"] = self.lineage_bytes
        if "memory" in self.rates:
            system["memory_monitor_refresh_ms"] = 50
        if self.quick_health_checks:
            system |= QUICK_HEALTH_CHECKS
        if self.retry_pause_ms:
            system["task_retry_delay_ms"] = self.retry_pause_ms
        return system

    def staying_nodes(self, overrides: Answers | None = None) -> list[Node]:
        """Nodes that no fault can take away, also those that join: all, or only the head."""
        head, *others = self.nodes
        kinds = self.rates.keys() | {key[0] for key, _ in overrides or ()}
        crashed = [str(key[1]) for key, _ in overrides or () if key[0] == "crash"]
        crashed += self.targets if "crash" in self.rates else ()
        is_quiet = HARMLESS.issuperset(kinds) and all(place.startswith("worker/") for place in crashed)
        if not is_quiet or any(move.leaves or move.dies for move in self.moves):
            return [head]
        joining = [msgspec.structs.replace(self.nodes[move.node % len(self.nodes)], zone=move.zone) for move in self.moves]
        return [head, *others, *(node for node in joining if node.zone)]

    def home(self, driver: int) -> str:
        """Name of the node on which a driver runs."""
        number = self.homes[driver] if driver < len(self.homes) else 0
        return f"n{number}" if 0 < number < len(self.nodes) else HEAD


class Scenario(Record, frozen=True):
    """All data that decide a run."""

    program: Program
    world: World = World()
    seed: int = 0
    overrides: Answers | None = None

    def __post_init__(self) -> None:
        kinds = self.world.rates.keys() | {key[0] if key else "" for key, _ in self.overrides or ()}
        if unknown := kinds.difference(KINDS):
            raise ValueError(f"there is no kind of fault {min(map(str, unknown))!r}, only {', '.join(sorted(KINDS))}")

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        return msgspec.json.decode(text, type=cls)

    def is_feasible(self) -> bool:
        """Whether every task and actor can run on a node that no fault takes away; and names and groups are sound.

        The head is never taken away. Actors fit there.
        """
        if not self.world.nodes or not self.program.drivers or not self.program.names_actors_well():
            return False
        head, groups = self.world.nodes[0], self._groups()
        staying = self.world.staying_nodes(self.overrides)
        if not self._uses_groups_well(groups):
            return False
        slots = sum(group.bundles for group in groups)
        has_riches = all(key in head.resources for key in RICHES) or not has_wishes(self.program)
        needs = [one.needs() for one in self.program.walk() if isinstance(one, Story)]
        has_riches = has_riches and all(need.get("GPU", 0) <= head.num_gpus for need in needs)
        has_slots = slots + 1 <= head.resources.get(SLOT, 1)
        actors_fit = all(actor.cpus_to_be_placed() <= head.num_cpus for actor in self.program.actors())
        tasks_fit = all(any(node.fits(task) for node in staying) for task in self.program.tasks())
        return has_slots and has_riches and actors_fit and tasks_fit

    def _groups(self) -> list[Group]:
        return [operation for operation in self.program.walk() if isinstance(operation, Group)]

    def _uses_groups_well(self, groups: list[Group]) -> bool:
        """Whether every placement group has slots for its actors and one for tasks, and actors have their calls' groups."""
        names, residents = {group.name for group in groups}, Counter(actor.group for actor in self.program.actors())
        without = {actor.name for actor in self.program.actors() if not actor.has_group}
        calls = [call for call in self.program.performances() if isinstance(call, Call)]
        return (
            all(residents[group.name] < group.bundles for group in groups)
            and not any(task.num_cpus and task.group in names for task in self.program.tasks())
            and not any(call.in_group and call.actor in without for call in calls)
        )


def losses_of(answers: Mapping[Key, int], world: World, charges: Charges | None = None) -> Losses:
    """Losses that the faults that struck may have caused; ``charges``: what they have struck."""
    crashed = crashed_by(answers)
    raylets = [name for name in crashed if name.startswith("raylet/")]
    workers = [name for name in crashed if name.startswith("worker/")]
    nodes = [key for key, answer in answers.items() if _may_end_a_node(key, answer)]
    preemptions = sum(move.leaves and not move.if_idle for move in world.moves)
    ended = sum(move.ends_work() for move in world.moves)
    killed = sum(move.dies for move in world.moves)
    may_lose_nodes = bool(raylets or nodes or ended or killed)
    may_lose_files = any(key[0] in ("disk_error", "torn_write") for key in answers)
    may_lack_room = 0 < world.store_bytes < ROOMY_BYTES and any(key[0] in ("disk_error", "disk_full") for key in answers)
    may_lose_objects = may_lose_files or (may_lose_nodes and world.inline_limit > 0)
    memory = sum(key[0] == "memory" for key in answers)
    deaths = len(raylets) + len(workers) + len(nodes) + ended + killed + memory
    unborn = sum(key[0] == "spawn" for key in answers)
    silence = any(key[0] in LOUD and (key[0] not in ENDS or key[1] == GCS) for key in answers)
    is_hopeless = 0 < unborn and unborn + deaths >= MAX_FAILED_IN_A_ROW
    stalled_s = sum(STALLS_S[answer] for key, answer in answers.items() if key[:2] == ("stall", GCS))
    silence = silence or stalled_s > GCS_STALLS_S or any(move.is_silent for move in world.moves)
    return Losses(
        deaths,
        may_lose_nodes,
        may_lose_objects,
        files=may_lose_files or not world.lineage or is_hopeless or (world.lineage_bytes > 0 and may_lose_objects),
        silence=silence,
        stored=world.inline_limit > 0,
        spilled=world.store_bytes > 0,
        preemptions=preemptions,
        memory=memory,
        room=may_lack_room,
        departures=any(move.leaves for move in world.moves),
        hopeless=is_hopeless,
        torn=may_lose_files,
        lag_s=_lag_s(answers),
        charges=charges,
    )


def _lag_s(answers: Mapping[Key, int]) -> float:
    """Seconds after which a cancellation has reached its task: what quiet faults have added to a moment, at most."""
    lag_s = MOMENT_S
    for key, answer in answers.items():
        if key[0] == "delay" and str(key[2]).startswith(("CancelTask", "connect")):
            lag_s += DELAYS_S[answer]
        elif key[0] == "stall":
            lag_s += STALLS_S[answer]
        elif key[0] == "switch":
            lag_s += SWITCHES_S[answer]
        elif key[0] in ("break", "slow_node"):
            return HEARD_S
    return min(lag_s, HEARD_S)


def crashed_by(answers: Iterable[Key]) -> list[str]:
    """Names of the processes that have crashed, at a step or at a message."""
    return [str(key[1]).partition(">")[0] for key in answers if key[0] in ("crash", "posthumous")]


def _may_end_a_node(key: Key, answer: int) -> bool:
    """Whether a fault may end a node or a process, or make it count as dead for processes that hear nothing of it."""
    kind = key[0]
    if kind == "posthumous":
        return POSTHUMOUS_S[answer] > PATIENCE_S and crashed_by([key]) == [GCS]
    if kind == "long_delay":
        return LONG_DELAYS_S[answer] > PATIENCE_S
    if kind == "long_stall":
        return LONG_STALLS_S[answer] > PATIENCE_S
    return kind in ("node_loss", "cut", "rift", "last_words")


def save(scenario: Scenario, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(scenario.to_json() + "\n")


def read_witness(path: Path, from_json: Callable[[str], T]) -> T:
    """Read a witness from a file. Raises UsageError if the file is none."""
    try:
        return from_json(path.read_text())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} is no witness: {error}") from None


@dataclass(frozen=True)
class Judgement:
    """Problems of a run, simulated or real."""

    problems: tuple[str, ...]
    """Sentences that begin with the number of the broken guarantee or invariant."""

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def codes(self) -> set[str]:
        """Numbers of the broken guarantees and invariants: ``{"L2", "G17"}``."""
        return {problem.partition(":")[0] for problem in self.problems}


@dataclass(frozen=True)
class Verdict(Judgement):
    """Result of a run."""

    answers: Mapping[Key, int]
    """The oracle's answers that were not 0."""
    steps: int
    digest: str
    trace: Trace
    operations: Counter[str]
    """Kind of operation -> the number of times that drivers and tasks have performed it."""
    histories: tuple[History, ...]
    is_over: bool = False
    """Whether the head's raylet was dead, so that only crashes and hangs were judged."""

    @property
    def story(self) -> str:
        """Story of the run, if there are problems."""
        return self.trace.story() if self.problems else ""


class RareAccount(Account):
    """Looks at resources less often than its base, because a campaign has many runs."""

    PERIOD_S = 0.005
    MOST_LOOKS = 300


def run(scenario: Scenario, on_chance: Callable[[Key], None] | None = None, limit_s: float = LIMIT_S) -> Verdict:
    """Perform a scenario, end its faults, settle, and judge; ``on_chance`` hears every question to the oracle.

    A program that takes longer than ``limit_s`` virtual seconds, beside its sleeps, counts as one that never ends.
    """
    scenario = Scenario.from_json(scenario.to_json())
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
        with _unraisable(found), cluster:
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
    is_over = any(event.kind == LIFE and (event.process, event.details) == HEAD_ENDS for event in trace.events)
    if is_over and not any(map(_may_end_the_head, cluster.oracle.answers)):
        found.append("G108: the head's raylet has ended, and nothing that has struck can have ended it")
    if scenario.world.loses_disk:
        found = _without_memory(found, is_over, GCS in crashed_by(cluster.oracle.answers))
    return Verdict(
        problems=tuple(dict.fromkeys(found)),
        answers=cluster.oracle.answers,
        steps=cluster.world.loop.steps,
        digest=trace.digest(),
        trace=trace,
        operations=_performed(cluster, scenario, histories),
        histories=tuple(histories[number] for number in sorted(histories)),
        is_over=is_over,
    )


def _may_end_the_head(key: Key) -> bool:
    """Whether this fault may have ended the head's raylet: the raylet or the gcs died, or heard too little of the other."""
    is_end = key[0] in ("crash", "posthumous", "long_stall") and key[1].partition(">")[0] in ("raylet/head", GCS)
    return is_end or key[0] in SILENCING


def _without_memory(found: list[str], is_over: bool, has_lost_it: bool) -> list[str]:
    """Problems of a world whose gcs may find an empty disk. It may forget all tables then (S9), but must end the cluster."""
    goes_on = ["G110: the gcs knows nothing any more, and the cluster goes on"] if has_lost_it and not is_over else []
    return [problem for problem in found if not problem.startswith("S9:")] + goes_on


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
        _join(cluster, program_of(number, body), number, world) for number, body in enumerate(program.drivers)
    ]
    traffic.begin()
    account = RareAccount(cluster)
    busy_s = program.busy_s() + program.most_retries() * world.retry_pause_ms / 1000
    if world.store_bytes:
        busy_s += GRACE_S * len(list(program.walk()))

    def is_over() -> bool:
        return traffic.is_over() and all(number in histories or driver.done() for number, driver in enumerate(drivers))

    cluster.wait_until(is_over, limit_s + busy_s)
    traffic.end()
    found = _look_at_views(cluster, any(move.dies for move in world.moves), busy_s) if world.keeps else []
    lets_go = True
    _settle(cluster, any(move.dies for move in world.moves), busy_s)
    watch.look_at_gcs()
    found += watch.problems + [f"S1: {problem}" for problem in account.problems]
    charges = _charges(cluster, attempts, world.moves)
    losses, blows = losses_of(cluster.oracle.answers, world, charges), charges.blows
    found += _unexplained_ends(cluster, blows)
    if "raylet/head" not in cluster.alive() or _has_lost_gcs(cluster, blows):
        return found
    gone = _killed_drivers(cluster) | _lost_drivers(cluster, drivers, blows)
    lost = {f"driver/{number}" for number in gone}
    found += [f"L2: {problem}" for problem in leftovers(cluster, True, lost)] + unrest(cluster)
    for number, driver in enumerate(drivers):
        if driver.done() and number not in gone and (number not in program.leavers() or not _has_left(driver)):
            found.append(f"L1: a driver ended with {driver.exception()!r}")
    found += ask_again(cluster, program, lost)
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
    found += watch.problems + traffic.stayed()
    return found + [f"L2: after the drivers' end: {problem}" for problem in leftovers(cluster)]


def _join(cluster: SimCluster, act: Callable[[], None], number: int, world: World) -> asyncio.Future[None]:
    """Start a driver when it is to join. It does not join when the head is dead."""
    name, pause_s = f"driver/{number}", world.arrivals[number] if number < len(world.arrivals) else 0.0
    if not pause_s:
        return cluster.start_driver(act, name, world.home(number))
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
            cluster.start_driver(act, name).add_done_callback(on_end)
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


def _killed_drivers(cluster: SimCluster) -> set[int]:
    """Numbers of the drivers that a crash has struck. They end without a history."""
    crashed = crashed_by(cluster.oracle.answers)
    return {int(name.removeprefix("driver/")) for name in crashed if name.startswith("driver/")}


def _unexplained_ends(cluster: SimCluster, blows: Blows) -> list[str]:
    """Nodes that have ended although nothing has struck them, and nobody has told them to leave (G108).

    Without a gcs that comes back every node ends (G111).
    """
    if GCS not in cluster.alive():
        return []
    ended = {f"raylet/{name}": name for name in cluster.raylets if f"raylet/{name}" not in cluster.alive()}
    return [
        f"G108: {raylet} has ended, and nothing that has struck can have ended it"
        for raylet, name in ended.items()
        if name != HEAD and name not in blows.leaving_nodes and not blows.explain_loss_of(name)
    ]


def _lost_drivers(cluster: SimCluster, drivers: Sequence[asyncio.Future[Any]], blows: Blows) -> set[int]:
    """Numbers of the drivers that have died with their nodes or lost their raylets. Their histories do not count."""
    lost = set()
    node_of = cluster.trace.nodes()
    for number, driver in enumerate(drivers):
        if not blows.explain_loss_of(node_of[f"driver/{number}"], f"driver/{number}"):
            continue
        core = cluster.cores.get(f"driver/{number}")
        error = driver.exception() if driver.done() else None
        is_homeless = isinstance(error, DriverDied) or has_lost_its_node(error)
        if is_homeless or (core is not None and core.raylet.death is not None):
            lost.add(number)
    return lost


def _has_left(driver: asyncio.Future[Any]) -> bool:
    """Whether a driver that leaves or exits has ended in that way, and not by another error."""
    return driver.exception() is None or isinstance(driver.exception(), DriverDied)


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


def _has_lost_gcs(cluster: SimCluster, blows: Blows) -> bool:
    """Whether a driver has given up the gcs, for a reason, so that all is over for that driver."""
    node_of = cluster.trace.nodes()
    given_up = [name for name, core in cluster.cores.items() if name.startswith("driver/") and core.gcs.death]
    return any(blows.explain_loss_of(node_of[name], name) for name in given_up)


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


def missed(scenario: Scenario, verdict: Verdict) -> Answers:
    """The overrides of a scenario that have not struck: the oracle was not asked, or there is no such answer."""
    return tuple((key, answer) for key, answer in scenario.overrides or () if verdict.answers.get(key) != answer)


def struck(verdict: Verdict) -> Counter[str]:
    """Kind of fault -> the number of times that it struck."""
    return Counter(str(key[0]) for key in verdict.answers)
