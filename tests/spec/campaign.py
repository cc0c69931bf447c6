"""``make spec``: a campaign draws scenarios by seed, runs them, and shows the first failure made small.

    python -m tests.spec.campaign --seconds 90               seeds 0, 1, 2, ... for 90 seconds
    python -m tests.spec.campaign --seed 4711 --runs 1       one scenario; also larger ones with --size
    python -m tests.spec.campaign --processes 1              in this process alone, not in one for each core
    python -m tests.spec.campaign --coverage                 shows transitions, places of faults, words of the API
    python -m tests.spec.campaign --replay FILE              a witness again, with its story and what its last fault does
    python -m tests.spec.campaign --replay FILE --html PAGE  and as a page for a browser

A failure is saved as a witness in ``tests/regressions/``, which every test run replays. One scenario in a hundred is run
twice, and the digests of both traces must be equal. A scenario whose runs differ is saved as it was drawn: it cannot be made
small, because its runs do not repeat. A replay is run twice and compared, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import click

from minray.simulation.__main__ import refuse_beside, writing
from minray.simulation.arguments import MAX_NODES
from minray.simulation.faults import KINDS, MAX_SEED, MIN_SEED, Oracle
from minray.simulation.garbage import without_garbage_collection
from minray.simulation.page import headline, write_page
from minray.simulation.trace import first_difference, parting
from minray.testing.shrink import describe_fault
from tests.spec.api_coverage import ApiCoverage, Listener
from tests.spec.coverage import Coverage
from tests.spec.numbers import Numbers, cores, in_processes
from tests.spec.pair_coverage import PairCoverage
from tests.spec.scenario import Scenario, read_witness, save
from tests.spec.shrink import Witness, replace, smallest
from tests.spec.strategies import scenario_of
from tests.spec.trial import run
from tests.spec.verdict import Verdict, missed, struck
from tests.spec.writer import SIZES

REGRESSIONS = Path(__file__).resolve().parents[1] / "regressions"
ONE_IN = 100
"""Number of scenarios run for each that is run twice."""
SECONDS = 90
"""How long a campaign runs that is told neither a time nor a number."""
LAST_FIRST_SEED = MAX_SEED // 2
"""Largest seed that a campaign may begin with: none that does gets to ``MAX_SEED``."""


@dataclass
class Statistics:
    """Counts of a campaign."""

    began: float = field(default_factory=time.monotonic)
    scenarios: int = 0
    repeated: int = 0
    steps: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    coverage: Coverage = field(default_factory=Coverage)
    pairs: PairCoverage = field(default_factory=PairCoverage)
    api: ApiCoverage | None = None
    """Counts of the words of the API, if these are listened to."""
    failed: dict[int, str] = field(default_factory=dict)
    """Seed that fails as it was drawn -> its first problem."""
    unrepeatable: dict[int, str] = field(default_factory=dict)
    """Seed whose two runs differ -> where they part."""

    def add(self, verdict: Verdict) -> None:
        self.scenarios += 1
        self.steps += verdict.steps
        self.operations.update(verdict.operations)
        self.faults.update(struck(verdict))
        self.coverage.add(verdict)

    def merge(self, other: Statistics) -> None:
        """Add the counts of the same campaign in another process."""
        self.scenarios += other.scenarios
        self.repeated += other.repeated
        self.steps += other.steps
        self.operations.update(other.operations)
        self.faults.update(other.faults)
        self.coverage.merge(other.coverage)
        self.pairs.merge(other.pairs)
        if self.api is not None and other.api is not None:
            self.api.merge(other.api)
        self.failed.update(other.failed)
        self.unrepeatable.update(other.unrepeatable)

    def line(self) -> str:
        seconds = time.monotonic() - self.began
        operations = " ".join(f"{kind} {count}" for kind, count in sorted(self.operations.items()))
        faults = " ".join(f"{kind} {self.faults[kind]}" for kind in KINDS)
        return (
            f"{self.scenarios} scenarios ({self.repeated} of them twice), {self.scenarios / seconds * 60:.0f} a minute, "
            f"{self.steps / max(1, self.scenarios):.0f} steps each, {self.steps / seconds:.0f} a second; {operations}; "
            f"faults: {faults}; {self.coverage.line()}; "
            f"{self.pairs.line()}"
        )


@dataclass(frozen=True)
class Failure:
    """A scenario that failed as it was drawn."""

    scenario: Scenario
    verdict: Verdict


def campaign(
    first_seed: int,
    runs: int | None = None,
    seconds: float | None = None,
    size: str = "medium",
    listens: bool = False,
    processes: int = 1,
) -> tuple[Statistics, Failure | None]:
    """Run until the time is up, the number is reached, or something fails; ``listens``: count words of the API."""
    statistics = Statistics(api=ApiCoverage() if listens else None)
    numbers = Numbers(runs, seconds)
    for part in in_processes(processes, lambda: _share(numbers, first_seed, size, listens)):
        statistics.merge(part)
    if not statistics.failed:
        return statistics, None
    scenario = scenario_of(min(statistics.failed), SIZES[size])
    verdict = run(scenario)  # again, because a trace is too large to be brought from another process
    if verdict.ok:
        first = statistics.failed[scenario.seed]
        statistics.unrepeatable[scenario.seed] = f"determinism: only one of two runs fails: {first}"
        return statistics, None
    return statistics, Failure(scenario, verdict)


def _share(numbers: Numbers, first_seed: int, size: str, listens: bool) -> Statistics:
    """Run the scenarios whose numbers this process takes."""
    statistics = Statistics(api=ApiCoverage() if listens else None)
    while (number := numbers.take()) is not None:
        scenario = scenario_of(first_seed + number, SIZES[size])
        listener = Listener()
        with listener.listening() if listens else contextlib.nullcontext():
            verdict = run(scenario)
        statistics.add(verdict)
        statistics.pairs.add(scenario, verdict)
        if statistics.api is not None:
            statistics.api.add(scenario, verdict, listener.said)
        if not verdict.ok:
            statistics.failed[scenario.seed] = verdict.problems[0]
            numbers.fail()
        elif number % ONE_IN == 0:
            statistics.repeated += 1
            again = compared(verdict, run(scenario))
            if not again.ok:
                statistics.unrepeatable[scenario.seed] = again.problems[-1]
    return statistics


def compared(first: Verdict, again: Verdict) -> Verdict:
    """Return the verdict of a scenario's second run, with one problem more if it differs from the first."""
    if first.digest == again.digest:
        return again
    parted = first_difference(first.trace, again.trace) or f"the same events in {first.steps} and in {again.steps} steps"
    return dataclasses.replace(again, problems=(*again.problems, f"determinism: {parted}"))


def report(witness: Witness, path: Path) -> str:
    """Text that a person reads first: the failure, the command that replays it, and its story."""
    return f"{witness.describe()}\n{command_for(path)}\n\n{witness.verdict.story}"


def command_for(path: Path) -> str:
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"python -m tests.spec.campaign --replay {shown}"


def replay(path: Path, page: Path | None) -> int:
    """Run one witness twice and show the result. Return the exit code."""
    scenario = read_witness(path, scenario_from)
    verdict = compared(run(scenario), run(scenario))
    click.echo("\n".join(verdict.problems) or f"no problem in {verdict.steps} steps")
    for key, answer in missed(scenario, verdict):
        click.echo(f"{describe_fault(key)}, with the answer {answer}, has not struck", err=True)
    if not verdict.ok:
        click.echo(f"{verdict.story}\n{without_last_fault(scenario, verdict)}", nl=False)
    if page is not None:
        outcome = Witness(scenario, verdict, 0).describe() if verdict.problems else "nothing broken"
        with writing(page):
            write_page(verdict.trace, page, headline(scenario.seed, len(scenario.world.nodes), outcome, verdict.trace))
        click.echo(f"page    {page}")
    return 0 if verdict.ok else 1


def scenario_from(text: str) -> Scenario:
    """Read a scenario. Raises ValueError if the text is none, or if no such world can exist."""
    scenario = Scenario.from_json(text)
    if not 1 <= len(scenario.world.nodes) <= MAX_NODES:
        raise ValueError(f"a world has from 1 to {MAX_NODES} nodes, not {len(scenario.world.nodes)}")
    Oracle(scenario.seed, scenario.world.plan(), dict(scenario.overrides or ()))  # refuses overrides that make no sense
    return scenario


def without_last_fault(scenario: Scenario, verdict: Verdict) -> str:
    """Tell the run without the last fault that struck, and mark where it begins to differ; empty if no fault struck."""
    if not verdict.answers:
        return ""
    *kept, (last, _) = verdict.answers.items()
    other = run(replace(scenario, overrides=tuple(kept)))
    end = f"it fails too, {other.problems[0].splitlines()[0]}" if other.problems else "it passes"
    number = parting(other.trace, verdict.trace)
    differs = "Nothing else differs" if number is None else "It differs from the marked row on"
    story = other.trace.story(marked=number)
    return f"\nWithout the last fault, {describe_fault(last)}, {end}. {differs}:\n\n{story}\n"


@click.command()
@click.option("--seconds", type=click.IntRange(1), help="End after this time. [default: 90, without --runs]")
@click.option("--seed", type=click.IntRange(MIN_SEED, LAST_FIRST_SEED), default=0, help="The first scenario.")
@click.option("--runs", type=click.IntRange(1), help="End after this number of scenarios.")
@click.option("--size", type=click.Choice(list(SIZES)), default="medium", show_default=True)
@click.option(
    "--processes", type=click.IntRange(1), help="Share the scenarios among this number.  [default: one for each core]"
)
@click.option("--coverage", is_flag=True, help="Show the transitions, the places of faults, and the words of the API.")
@click.option("--name", help="What the witness of a failure is called.")
@click.option("--replay", "witness", type=click.Path(exists=True, path_type=Path), help="Run a witness instead.")
@click.option("--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write a page of its run.")
def main(
    seconds: int | None,
    seed: int,
    runs: int | None,
    size: str,
    processes: int | None,
    coverage: bool,
    name: str | None,
    witness: Path | None,
    page: Path | None,
) -> None:
    """Look for a program and a few faults with which minray breaks a guarantee."""
    if witness is not None:
        refuse_beside("--replay", ("seconds", "seed", "runs", "size", "processes", "coverage", "name"))
        raise SystemExit(replay(witness, page))
    if page is not None:
        raise click.UsageError("--html shows the run of a witness: name one with --replay")
    if seconds is None and runs is None:
        seconds = SECONDS
    with without_garbage_collection():
        statistics, failure = campaign(seed, runs, seconds, size, coverage, processes or cores())
    click.echo(statistics.line())
    if statistics.api is not None:
        click.echo(f"{statistics.coverage.tables()}\n\n{statistics.pairs.table()}\n\n{statistics.api.table()}")
    for parted, where in sorted(statistics.unrepeatable.items()):
        path = REGRESSIONS / f"seed_{parted}_twice.json"
        save(scenario_of(parted, SIZES[size]), path)
        click.echo(f"{where}\n{command_for(path)}")
    if failure is not None:
        show_small(failure, size, name)
    if failure is not None or statistics.unrepeatable:
        raise SystemExit(1)


def show_small(failure: Failure, size: str, name: str | None) -> None:
    """Make a failure small, save it as a witness, and tell its story."""
    click.echo(f"seed {failure.scenario.seed} fails: {failure.verdict.problems[0]}", err=True)
    found = smallest(failure.scenario, failure.verdict, lambda seed: scenario_of(seed, SIZES[size]))
    path = REGRESSIONS / f"{name or f'seed_{found.scenario.seed}'}.json"
    save(found.scenario, path)
    click.echo(f"shrunk with {found.runs} re-runs")
    click.echo(report(found, path))


if __name__ == "__main__":
    main()
