"""``make spec-real``: programs of the campaign on real clusters, struck by real faults, held against the same model.

    python -m tests.spec.real_tier --seconds 60            seeds 0, 1, 2, ... for 60 seconds
    python -m tests.spec.real_tier --seed 4711 --runs 1    one of them
    python -m tests.spec.real_tier --replay FILE           a failure again, --runs times, since no two real runs are equal
    python -m tests.spec.real_tier --simulate FILE         its program in the simulation, under faults of the same kinds

Rules
  * A program's sleeps and time-outs are ``SCALE`` times those of the simulation.
  * Neighbouring seeds have the same cluster. A failure is saved, and the cluster that has shown it is not used again.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import click
import msgspec

from minray.simulation.garbage import without_garbage_collection
from tests import leaks
from tests.spec.abandoned import Abandon
from tests.spec.actors import Create
from tests.spec.bundles import Bundles
from tests.spec.generators import Stream
from tests.spec.lanes import Lanes
from tests.spec.moves import Move
from tests.spec.programs import Body, Call, Generate, Get, Operation, Peek, Program, Sleep, Submit, Wait
from tests.spec.real_cluster import PROXY, TCP, UNIX, Shape
from tests.spec.real_faults import (
    CUT,
    DRIVER,
    FILL,
    GCS,
    HOLD,
    JOIN,
    KILL,
    LAST_WORDS,
    LEAVE,
    NODE,
    RAYLET,
    RESET,
    RESET_ALL,
    STOP,
    TEAR,
    WORKER,
    ZYGOTE,
    draw_faults,
)
from tests.spec.real_trial import SCENARIOS_PER_CLUSTER, RealScenario, RealTier, RealVerdict
from tests.spec.residents import Seating
from tests.spec.scenario import Scenario, World, read_witness
from tests.spec.strategies import equipped, hoarding, with_hoards, with_slots, write_homes, write_program
from tests.spec.trial import run as simulate
from tests.spec.variations import with_harvests, with_leavers, with_needs, with_streams
from tests.spec.vocabulary import with_riches, with_vocabulary
from tests.spec.worlds import HOARD_BYTES, with_retry_pauses, with_stores, write_world
from tests.spec.writer import MEDIUM, Size

SECONDS = 60
"""How long a campaign runs that is told neither a time nor a number."""
SCALE = 0.05
"""Factor for all times of a program, so that one takes seconds here and not minutes."""
SLOTS = 20
"""Number of slots for placement groups on each node: more than the bundles of any program."""
SIZES = (MEDIUM, MEDIUM, Size((20, 50), 3))
"""Sizes of programs, of which each scenario draws one."""
IN_SIMULATION = {
    KILL: "crash",
    STOP: "long_stall",
    RESET: "reset",
    RESET_ALL: "reset",
    HOLD: "long_delay",
    CUT: "cut",
    LAST_WORDS: "last_words",
    TEAR: "torn_write",
    FILL: "disk_full",
}
"""Kind of fault of this tier -> its kind in the simulation."""
IN_ROLE = {WORKER: "worker/", RAYLET: "raylet/n", ZYGOTE: "raylet/n", NODE: "raylet/n", DRIVER: "driver/", GCS: "gcs"}
"""Role that a fault strikes -> the first letters of its processes' names in the simulation."""


def scaled(program: Program, factor: float) -> Program:
    """Return the program with all its times multiplied."""
    return Program(tuple(_scaled_body(driver, factor) for driver in program.drivers))


def _scaled_body(body: Body, factor: float) -> Body:
    return Body(tuple(_scaled(operation, factor) for operation in body.operations), body.end)


def _scaled(operation: Operation, factor: float) -> Operation:
    if isinstance(operation, Submit | Call):
        return msgspec.structs.replace(operation, body=_scaled_body(operation.body, factor))
    if isinstance(operation, Sleep | Peek | Create | Lanes):
        return msgspec.structs.replace(operation, seconds=operation.seconds * factor)
    if isinstance(operation, Abandon):
        seconds, pause_s = operation.seconds * factor, operation.pause_s * factor
        return msgspec.structs.replace(operation, seconds=seconds, pause_s=pause_s)
    if isinstance(operation, Generate | Seating | Stream | Bundles):
        return msgspec.structs.replace(operation, pause_s=operation.pause_s * factor)
    if isinstance(operation, Get | Wait) and operation.timeout is not None:
        return msgspec.structs.replace(operation, timeout=operation.timeout * factor)
    return operation


def real_scenario_of(seed: int) -> RealScenario:
    """Draw the scenario of a seed. ``SCENARIOS_PER_CLUSTER`` neighbouring seeds have the same cluster."""
    cluster = seed // SCENARIOS_PER_CLUSTER
    shape = _shape_of(Random(f"cluster {cluster}"), Random(f"equipment of cluster {cluster}"))
    random = Random(f"scenario {seed}")
    program = write_program(random, seed, random.choice(SIZES), shape.nodes)
    program = hoarding(program, Random(f"hoards of {seed}")) if shape.store_bytes == HOARD_BYTES else program
    streams = Random(f"streams of {seed}")
    if shape.inline_limit and len(shape.nodes) > 1 and streams.random() < 0.3:
        program = (with_streams if streams.random() < 0.5 else with_harvests)(program, streams)
    program = with_leavers(program, Random(f"leavers of {seed}"))
    program = with_needs(program, Random(f"needs of {seed}")) if shape.nodes[0].num_gpus else program
    program = with_vocabulary(program, seed, shape.nodes[0].num_gpus > 0)
    homes = write_homes(program, shape.nodes, Random(f"homes of {seed}"))
    return RealScenario(scaled(program, SCALE), shape, homes, draw_faults(random, shape), seed)


def _shape_of(random: Random, equipment: Random) -> Shape:
    nodes = with_riches(with_slots(write_world(random).nodes, SLOTS))
    nodes = equipped(nodes, equipment) if equipment.random() < 0.3 else nodes
    wire, is_durable = random.choice((UNIX, PROXY, PROXY, TCP)), random.random() < 0.3
    world = with_retry_pauses(with_hoards(Scenario(Program(()), with_stores(World(nodes), random)), random).world, random)
    pause_ms = round(world.retry_pause_ms * SCALE)
    return Shape(
        nodes, wire, is_durable, world.inline_limit, world.store_bytes, world.lineage, world.io_workers, pause_ms
    )


# --- The campaign


@dataclass
class Statistics:
    """Counts of a campaign."""

    began: float = field(default_factory=time.monotonic)
    scenarios: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    """Kind -> number of operations in drivers' bodies."""
    drawn: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)

    def add(self, scenario: RealScenario, verdict: RealVerdict) -> None:
        self.scenarios += 1
        for body in scenario.program.drivers:
            self.operations.update(type(operation).__name__ for operation in body.operations)
        self.drawn.update(f"{fault.kind} {fault.role}" for fault in scenario.faults)
        self.struck.update(f"{fault.kind} {fault.role}" for fault in verdict.struck)

    def line(self) -> str:
        seconds = time.monotonic() - self.began
        operations = " ".join(f"{kind} {count}" for kind, count in sorted(self.operations.items()))
        faults = ", ".join(f"{kind} {self.struck[kind]}/{count}" for kind, count in sorted(self.drawn.items()))
        return f"{self.scenarios} scenarios in {seconds:.0f} s; {operations}; faults (struck/drawn): {faults}"


@dataclass(frozen=True)
class RealFailure:
    """A scenario that has broken a guarantee."""

    scenario: RealScenario
    verdict: RealVerdict

    def describe(self) -> str:
        """Describe the failure: evidence first, so that the end of a long output is the summary."""
        struck = self.verdict.struck
        lines = [self.verdict.evidence, f"seed {self.scenario.seed} fails; its program:", *_outline(self.scenario.program)]
        lines += ["cluster:", f"  {self.scenario.shape}", "faults:"]
        lines += [f"  {fault.describe()}{'' if fault in struck else ' (found nobody)'}" for fault in self.scenario.faults]
        return "\n".join([*lines, "problems:", *(f"  {problem}" for problem in self.verdict.problems)])


def _outline(program: Program) -> list[str]:
    """Return a line for each operation; those of a task stand below the one that submits it."""

    def of(body: Body, indent: str) -> Iterator[str]:
        for operation in body.operations:
            told = msgspec.to_builtins(operation)
            inner = told.pop("body", None)
            words = " ".join(f"{key}={value}" for key, value in told.items() if key not in ("kind", "name"))
            yield f"{indent}{operation.name}: {type(operation).__name__} {words}".rstrip()
            if isinstance(operation, Submit) and inner:
                yield from of(operation.body, indent + "    ")
                yield f"{indent}    {operation.body.end}"

    return [line for n, body in enumerate(program.drivers) for line in (f"  driver {n}", *of(body, "    "))]


def campaign(
    tier: RealTier, scenarios: Iterable[RealScenario], seconds: float, tell: Callable[[str], None] = str
) -> tuple[Statistics, RealFailure | None]:
    """Run until there are no more scenarios, the time is up, or one fails; ``tell`` hears of each before its run."""
    statistics = Statistics()
    for scenario in scenarios:
        now_s = time.monotonic() - statistics.began
        if now_s >= seconds:
            break
        tell(f"{now_s:.1f} s: seed {scenario.seed}; " + "; ".join(fault.describe() for fault in scenario.faults))
        verdict = tier.run(scenario)
        statistics.add(scenario, verdict)
        for delay in verdict.delays:
            tell(f"    {delay}")
        if not verdict.ok:
            return statistics, RealFailure(scenario, verdict)
    return statistics, None


def in_simulation(scenario: RealScenario, seed: int) -> Scenario:
    """Make a scenario of the simulation with the same program and faults of the same kinds."""
    shape, faults = scenario.shape, scenario.faults
    rates = {
        "node_loss" if (fault.kind, fault.role) == (KILL, NODE) else IN_SIMULATION[fault.kind]: 0.02
        for fault in faults
        if fault.kind not in (LEAVE, JOIN)
    }
    moves = [
        Move(fault.node or 1, fault.at_s, fault.kind == LEAVE, remaining_s=fault.for_s)
        for fault in faults
        if fault.kind in (LEAVE, JOIN) and fault.node not in scenario.homes
    ]
    targets = {"worker/"} | {IN_ROLE[fault.role] for fault in faults if fault.kind in (KILL, STOP)}
    world = World(
        shape.nodes,
        rates | {"delay": 0.2, "stall": 0.01},
        2,
        tuple(sorted(targets)),
        durable=shape.durable,
        inline_limit=shape.inline_limit,
        store_bytes=shape.store_bytes,
        io_workers=shape.io_workers,
        lineage=shape.lineage,
        homes=scenario.homes,
        moves=tuple(moves),
        retry_pause_ms=shape.retry_pause_ms,
    )
    return Scenario(scenario.program, world, seed)


def _simulate(scenario: RealScenario, runs: int) -> int:
    with without_garbage_collection():
        for seed in range(runs):
            verdict = simulate(in_simulation(scenario, seed))
            if not verdict.ok:
                click.echo("\n".join([f"seed {seed}:", *verdict.problems, verdict.story]))
                return 1
    click.echo(f"{runs} runs in the simulation, and no problem")
    return 0


@click.command()
@click.option("--seconds", type=click.IntRange(1), help="End after this time. [default: 60, without --runs]")
@click.option("--seed", default=0, show_default=True, help="The first scenario.")
@click.option("--runs", type=click.IntRange(1), help="How many scenarios, or how often the one of a file.")
@click.option("--replay", type=click.Path(exists=True, path_type=Path), help="Run the scenario of a file.")
@click.option("--simulate", "simulated", type=click.Path(exists=True, path_type=Path), help="The same in the simulation.")
@click.option("--verbose", is_flag=True, help="Say what is run.")
def main(
    seconds: int | None, seed: int, runs: int | None, replay: Path | None, simulated: Path | None, verbose: bool
) -> None:
    """Look for a program and a few faults with which minray breaks a guarantee in the real world."""
    if simulated is not None:
        raise SystemExit(_simulate(read_witness(simulated, RealScenario.from_json), runs or 100))
    root = Path(f"/tmp/minray-real-{os.getpid()}")
    os.environ["MINRAY_TMPDIR"] = str(root)
    scenarios: Iterable[RealScenario] = map(real_scenario_of, itertools.count(seed))
    if replay is not None:
        scenarios = itertools.repeat(read_witness(replay, RealScenario.from_json))
        runs = runs or 1
    limit_s = seconds or (SECONDS if runs is None else math.inf)
    with RealTier() as tier:
        statistics, failure = campaign(tier, itertools.islice(scenarios, runs), limit_s, click.echo if verbose else str)
        left = tier.close()
    click.echo(statistics.line())
    if failure is None and not left:
        shutil.rmtree(root)
        return
    click.echo("\n".join(left), nl=bool(left))
    if failure is not None:
        path = root / "tier" / leaks.LOGS / f"seed_{failure.scenario.seed}.json"
        path.write_text(failure.scenario.to_json() + "\n")
        click.echo(failure.describe())
        click.echo(f"python -m tests.spec.real_tier --replay {path} --runs 20")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
