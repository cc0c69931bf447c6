"""``make exhaustive``: small programs, with every fault of three kinds at every point where they touch the platform.

    python -m tests.spec.exhaustive                          all programs but the long ones; pairs for the two smallest
    python -m tests.spec.exhaustive --program nested         one of them
    python -m tests.spec.exhaustive --pairs 100000           all pairs, if there are no more

A point is a question to the oracle. For a crash or a long stall it is a process before a step of one of its tasks, or before
it sends or receives a message. For a reset it is a message on its way. No list of points is kept. Instead a dry run, in
which every kind may strike and none does, collects the questions. Then each question is answered once with every answer of
``STRIKES``, in a run of its own.

Rules
  * Faults begin when a driver is connected, and end when all drivers are through. A driver that sleeps at its end lets
    leases expire and nodes report while faults may still strike.
  * Until the fault strikes, a run is equal to the dry run. A run that does not reach its point shows a bug of the simulation
    or of minray: two runs differ. The sweep is not complete then.
  * When the head dies, everything ends. Such runs are counted apart; they must only not hang and not crash.
  * A program with an aim (``AIMS``) is struck only at those points. Three programs crash a gcs that comes back with all that
    it had stored, without its last writes, or with an empty disk. One has a raylet that is declared dead and comes back.
  * The second fault of a pair strikes at a point after the first. These points come from the run with the first fault alone.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import click
import msgspec

from minray.simulation.faults import LONG_STALLS_S, RESETS, Key
from minray.simulation.garbage import without_garbage_collection
from tests.spec.actors import Create, Find, Kill
from tests.spec.campaign import REGRESSIONS, report
from tests.spec.coverage import Place, place_of
from tests.spec.moves import Move
from tests.spec.programs import (
    Await,
    Body,
    Call,
    Cancel,
    Drop,
    Exit,
    Get,
    Operation,
    Program,
    Put,
    Raise,
    Return,
    Sleep,
    Submit,
    Wait,
)
from tests.spec.scenario import Node, Scenario, World, save
from tests.spec.shrink import replace, shrink
from tests.spec.trial import run
from tests.spec.verdict import Verdict

STRIKES: dict[str, tuple[int, ...]] = {
    "crash": (1,),
    "reset": tuple(range(1, len(RESETS))),
    "long_stall": (LONG_STALLS_S.index(15.0), LONG_STALLS_S.index(70.0)),
}
"""Kind -> the answers that are tried at each point. A reset has all its meanings. One stall is longer than most time-outs;
after the other a node counts as dead."""
WANTED = tuple(((kind, "nowhere"), 1) for kind in STRIKES)
"""Overrides that strike nowhere, and make the simulation ask the oracle about every kind."""
MOST_SHRUNK = 3
"""Number of failures made small; the others are counted."""
Fault = tuple[Key, int]


def one_driver(*operations: Operation) -> Program:
    return Program((Body(operations),))


ONE_NODE, TWO_NODES = World(), World((Node(1), Node(1)))
TWO_STORES = World((Node(1), Node(1)), inline_limit=16)
"""Two nodes. Values of more than 16 bytes (puts, bodies of tasks, results) are in object stores, and fetched from there."""
PROGRAMS: dict[str, Scenario] = {
    "one task": Scenario(one_driver(Submit("a", Body()), Get("get", ("a",))), ONE_NODE),
    "last task": Scenario(
        one_driver(Submit("a", Body(end=Raise()), max_retries=1, retry_exceptions=True, is_last=True), Get("get", ("a",))),
        ONE_NODE,
    ),
    "argument": Scenario(
        one_driver(Submit("a", Body()), Submit("b", Body(), args=("a",)), Get("get", ("b",))),
        ONE_NODE,
    ),
    "idle": Scenario(
        one_driver(Submit("a", Body()), Get("get", ("a",)), Drop("drop", "a"), Sleep("rest", 2.0)),
        ONE_NODE,
    ),
    "nested": Scenario(
        one_driver(Submit("a", Body((Submit("b", Body()), Get("inner", ("b",))), Return(("b",)))), Get("get", ("a", "b"))),
        ONE_NODE,
    ),
    "borrowed": Scenario(
        one_driver(
            Put("x"),
            Submit("a", Body((Get("inner", ("x",)),), Return(("x",))), nested=("x",)),
            Drop("drop", "x"),
            Get("outer", ("a",)),
            Get("again", ("x",)),
        ),
        ONE_NODE,
    ),
    "wait": Scenario(
        one_driver(
            Submit("a", Body((Sleep("long", 0.2),))),
            Submit("b", Body()),
            Wait("first", ("a", "b")),
            Wait("both", ("a", "b"), 2, 5.0),
        ),
        ONE_NODE,
    ),
    "cancelled": Scenario(
        one_driver(
            Submit("a", Body((Submit("b", Body((Sleep("long", 2.0),))), Get("inner", ("b",))))),
            Sleep("while", 0.2),
            Cancel("cancel", "a"),
            Get("get", ("a",)),
        ),
        ONE_NODE,
    ),
    "retried": Scenario(
        one_driver(
            Submit("a", Body(end=Exit()), max_retries=1),
            Submit("b", Body(end=Raise()), max_retries=1, retry_exceptions=True),
            Get("get", ("a",)),
            Get("other", ("b",)),
        ),
        ONE_NODE,
    ),
    "two drivers": Scenario(
        Program(
            (
                Body((Submit("a", Body((Sleep("long", 0.1),)), num_cpus=2), Get("get", ("a",)))),
                Body((Submit("b", Body(), num_cpus=2), Get("other", ("b",)))),
            )
        ),
        ONE_NODE,
    ),
    "spilled": Scenario(
        one_driver(
            Submit("a", Body((Sleep("long", 0.1),))),
            Submit("b", Body((Sleep("longer", 0.2),))),
            Get("get", ("a", "b")),
        ),
        TWO_NODES,
    ),
    "large": Scenario(
        one_driver(
            Put("x"),
            Submit("a", Body((Sleep("long", 0.1),)), args=("x",)),
            Submit("b", Body((Sleep("longer", 0.2),)), args=("x",)),
            Drop("drop", "x"),
            Get("get", ("a", "b")),
        ),
        TWO_STORES,
    ),
    "parts": Scenario(
        one_driver(
            Submit("a", Body((Sleep("long", 0.1),)), returns=2, yields=True),
            Submit("b", Body((Sleep("longer", 0.2),)), args=("a",)),
            Drop("drop", "a"),
            Await("get", ("b", "a.2"), lets_go=True),
        ),
        TWO_STORES,
    ),
    "left": Scenario(
        one_driver(
            Submit("a", Body((Sleep("long", 0.1),))),
            Submit("b", Body((Sleep("longer", 0.2),))),
            Sleep("while", 1.0),
            Get("get", ("a", "b")),
        ),
        msgspec.structs.replace(TWO_STORES, moves=(Move(1, leaves=True, when="works"),)),
    ),
}
"""Programs by name, the smallest first; those with actors follow."""
CALLED = (Create("a", max_restarts=1, max_task_retries=1), Call("c", "a", Body()), Get("get", ("c",)))
PROGRAMS |= {
    "actor": Scenario(one_driver(*CALLED), ONE_NODE),
    "begun anew": Scenario(
        one_driver(
            Create("a", max_restarts=1, max_task_retries=1),
            Call("b", "a", Body(end=Exit()), max_task_retries=0),
            Call("c", "a", Body()),
            Get("get", ("b",)),
            Get("other", ("c",)),
        ),
        ONE_NODE,
    ),
    "named": Scenario(
        one_driver(Create("a", called="a"), Find("b", "a"), Call("c", "b", Body()), Drop("drop", "a"), Get("get", ("c",))),
        ONE_NODE,
    ),
    "killed": Scenario(one_driver(Create("a"), Call("c", "a", Body()), Kill("kill", "a"), Get("get", ("c",))), ONE_NODE),
    "gcs, all stored": Scenario(one_driver(*CALLED), World(durable=True)),
    "gcs, tail lost": Scenario(one_driver(*CALLED), World(durable=True)),
    "gcs, empty disk": Scenario(one_driver(*CALLED), World(durable=True, loses_disk=True)),
    "zombie": Scenario(
        one_driver(
            Submit("t", Body((Sleep("long", 0.1),))),
            Create("a", num_cpus=1, max_restarts=1, max_task_retries=1),
            Call("c", "a", Body((Sleep("longer", 0.2),))),
            Get("get", ("c", "t")),
        ),
        TWO_NODES,
    ),
}


@dataclass(frozen=True)
class Aim:
    """Selects the points of a program that are struck: one kind of fault in one process."""

    kind: str
    process: str
    beside: tuple[Fault, ...] = ()
    """Faults that strike in every run."""

    def includes(self, key: Key) -> bool:
        return bool(key[0] == self.kind and key[1] == self.process)


AIMS = {
    "gcs, all stored": Aim("crash", "gcs", ((("unsynced", "gcs", 1), 1),)),
    "gcs, tail lost": Aim("crash", "gcs"),
    "gcs, empty disk": Aim("crash", "gcs"),
    "zombie": Aim("long_stall", "raylet/n1"),
}
PAIRED = ("one task", "argument")
"""Programs that are also struck by pairs of faults: the two smallest."""
ONLY_NAMED = ("large", "parts", "left", "zombie")
"""Programs that run only when they are named: each takes as long as most of the others together."""


def listen(scenario: Scenario, faults: Sequence[Fault] = ()) -> tuple[Verdict, list[Key]]:
    """Run a scenario with these faults only. Also return the points, in the order in which the oracle was asked."""
    asked: dict[Key, None] = {}
    verdict = run(replace(scenario, overrides=(*faults, *WANTED)), lambda key: asked.update({key: None}))
    return verdict, [key for key in asked if key[0] in STRIKES]


def faults_at(points: Iterable[Key]) -> Iterator[Fault]:
    for key in points:
        for answer in STRIKES[key[0]]:
            yield key, answer


def _by_place(faults: Iterable[Fault]) -> list[list[Fault]]:
    places: dict[tuple[str, Place], list[Fault]] = {}
    for key, answer in faults:
        places.setdefault((key[0], place_of(key)), []).append((key, answer))
    return list(places.values())


@dataclass(frozen=True)
class Failure:
    """A run that breaks a guarantee or an invariant."""

    scenario: Scenario
    verdict: Verdict

    def group(self) -> tuple[object, ...]:
        """Key of a failure's group: its codes, and the places of its faults. A group has one cause, as a rule."""
        faults = self.scenario.overrides or ()
        return tuple(sorted(self.verdict.codes)), *((key[0], *place_of(key)) for key, _ in faults)


@dataclass
class Sweep:
    """Results of one program: its points, and the runs that struck them."""

    name: str
    points: list[Key] = field(default_factory=list)
    runs: int = 0
    steps: int = 0
    over: Counter[tuple[str, Place]] = field(default_factory=Counter)
    """Kind and place -> the number of runs whose head has died."""
    struck: dict[Fault, list[Key]] = field(default_factory=dict)
    """Fault that has struck -> the points after it, which pairs need; empty for other programs and after the pairs."""
    missed: list[Fault] = field(default_factory=list)
    """Faults that did not strike although their points are known."""
    failures: list[Failure] = field(default_factory=list)
    pairs: int = 0
    """Number of all pairs."""
    pairs_struck: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every known point was struck with every answer."""
        return not self.missed and set(self.struck) == set(faults_at(self.points))

    def line(self) -> str:
        kinds = Counter(key[0] for key in self.points)
        points = ", ".join(f"{kinds[kind]} {kind}" for kind in STRIKES)
        pairs = f"; {self.pairs_struck} of {self.pairs} pairs" if self.pairs else ""
        singles = len(self.struck)
        return (
            f"{self.name:<15} {len(self.points):>4} points ({points}), {singles} faults, "
            f"{sum(self.over.values())} of them end the head{pairs}; {self.runs} runs, {len(self.failures)} failed"
        )


class Sweeper:
    """Strikes every point of one program."""

    def __init__(self, name: str, scenario: Scenario) -> None:
        self.sweep = Sweep(name)
        self._scenario = scenario
        self._aim = AIMS.get(name)

    def strike_all(self, kinds: Sequence[str] = tuple(STRIKES)) -> Sweep:
        """Run the program without a fault, then once with each fault."""
        _, points = self._run(())
        aim = self._aim
        self.sweep.points = [key for key in points if key[0] in kinds and (aim is None or aim.includes(key))]
        for fault in faults_at(self.sweep.points):
            self.strike(fault)
        return self.sweep

    def strike(self, fault: Fault) -> None:
        verdict, asked = self._run((fault,))
        if fault[0] not in verdict.answers:
            self.sweep.missed.append(fault)
            return
        # The points are kept only for pairs: each run's garbage collection would go through all of them.
        self.sweep.struck[fault] = asked[asked.index(fault[0]) + 1 :] if self.sweep.name in PAIRED else []
        self.sweep.over[fault[0][0], place_of(fault[0])] += verdict.is_over

    def strike_pairs(self, most: int, seed: int = 0) -> Sweep:
        """Strike two faults in each run: all pairs, or ``most`` of them, drawn by a seed."""
        pairs = [(first, second) for first, rest in self.sweep.struck.items() for second in faults_at(rest)]
        self.sweep.pairs = len(pairs)
        for first, second in pairs if most >= len(pairs) else self._draw_pairs(most, random.Random(seed)):
            verdict, _ = self._run((first, second))
            if {first[0], second[0]} <= set(verdict.answers):
                self.sweep.pairs_struck += 1
            else:
                self.sweep.missed.append(second)
        self.sweep.struck = {fault: [] for fault in self.sweep.struck}
        return self.sweep

    def _draw_pairs(self, most: int, draw: random.Random) -> Iterable[tuple[Fault, Fault]]:
        """Draw pairs so that every place has the same chance, although a node's reports have a hundred times more points."""
        seconds = {first: _by_place(faults_at(rest)) for first, rest in self.sweep.struck.items() if rest}
        drawn: dict[tuple[Fault, Fault], None] = {}
        while len(drawn) < most:
            first, places = draw.choice(list(seconds.items()))
            drawn[first, draw.choice(draw.choice(places))] = None
        return drawn

    def _run(self, faults: tuple[Fault, ...]) -> tuple[Verdict, list[Key]]:
        faults += self._aim.beside if self._aim is not None else ()
        verdict, asked = listen(self._scenario, faults)
        self.sweep.runs += 1
        self.sweep.steps += verdict.steps
        if not verdict.ok:
            self.sweep.failures.append(Failure(replace(self._scenario, overrides=faults), verdict))
        return verdict, asked


def table(sweeps: Sequence[Sweep]) -> str:
    """Table of all programs: the faults known and struck at each place, and the number that ended the head."""
    known = Counter((key[0], place_of(key)) for sweep in sweeps for key, _ in faults_at(sweep.points))
    struck = Counter((key[0], place_of(key)) for sweep in sweeps for key, _ in sweep.struck)
    over: Counter[tuple[str, Place]] = sum((sweep.over for sweep in sweeps), Counter())
    rows = [f"{'who':<16} {'where':<34} " + " ".join(f"{kind:>11}" for kind in STRIKES) + f" {'head ended':>11}"]
    for place in sorted({place for _, place in known}):
        cells = [f"{struck[kind, place]}/{known[kind, place]}" if known[kind, place] else "" for kind in STRIKES]
        ended = sum(over[kind, place] for kind in STRIKES)
        rows.append(f"{place[0]:<16} {place[1]:<34} " + " ".join(f"{cell:>11}" for cell in [*cells, str(ended or "")]))
    return "\n".join(row.rstrip() for row in rows)


def show_failures(sweep: Sweep, say: Callable[[str], None]) -> None:
    """Make one failure of each group small, save it as a witness, and tell its story."""
    groups: dict[tuple[object, ...], list[Failure]] = {}
    for failure in sweep.failures:
        groups.setdefault(failure.group(), []).append(failure)
    for number, (group, failures) in enumerate(groups.items()):
        say(f"{sweep.name}: {len(failures)} failures like {group}")
        if number < MOST_SHRUNK:
            witness = shrink(failures[0].scenario, failures[0].verdict)
            path = REGRESSIONS / f"exhaustive_{sweep.name.replace(' ', '_')}_{number}.json"
            save(witness.scenario, path)
            say(report(witness, path))


@click.command()
@click.option("--program", "names", multiple=True, type=click.Choice(list(PROGRAMS)), help="Only this one; may be repeated.")
@click.option("--pairs", type=click.IntRange(0), default=200, show_default=True, help="Most pairs of faults for a program.")
@click.option("--seed", default=0, show_default=True, help="Draws the pairs, if they are not all.")
@click.option("--list", "only_list", is_flag=True, help="Name the programs that are tried when none is named.")
def main(names: tuple[str, ...], pairs: int, seed: int, only_list: bool) -> None:
    """Strike every point of small programs."""
    if only_list:
        click.echo("\n".join(name for name in PROGRAMS if name not in ONLY_NAMED))
        return
    began, sweeps = time.monotonic(), []
    with without_garbage_collection():
        for name in names or [name for name in PROGRAMS if name not in ONLY_NAMED]:
            sweeper = Sweeper(name, PROGRAMS[name])
            sweeper.strike_all()
            if name in PAIRED and pairs:
                sweeper.strike_pairs(pairs, seed)
            click.echo(sweeper.sweep.line())
            sweeps.append(sweeper.sweep)
        seconds = time.monotonic() - began
        click.echo(table(sweeps))
        runs = sum(sweep.runs for sweep in sweeps)
        click.echo(f"{runs} runs in {seconds:.0f} s, {runs / seconds * 60:.0f} a minute")
        for sweep in sweeps:
            show_failures(sweep, click.echo)
    for sweep in sweeps:
        for key, answer in sweep.missed:
            click.echo(f"{sweep.name}: {key} was not asked about, so {answer} did not strike: two runs differ")
    if any(sweep.failures or not sweep.is_complete for sweep in sweeps):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
