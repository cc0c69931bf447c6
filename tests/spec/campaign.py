"""``make spec``: a campaign draws scenarios by seed, runs them, and shows the first failure made small.

    python -m tests.spec.campaign --seconds 90               seeds 0, 1, 2, ... for so long
    python -m tests.spec.campaign --seed 4711 --runs 1       one scenario; also larger ones with --size
    python -m tests.spec.campaign --replay FILE              a witness again, with its story

A failure is saved as a witness in ``tests/regressions/``, which every test run replays. One scenario in a hundred is run
twice, and the digests of both traces must be equal.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import click

from minray.simulation.cluster import without_garbage_collection
from minray.simulation.faults import LOUD, QUIET, SWITCH
from tests.spec.scenario import Scenario, Verdict, read_witness, run, save, struck
from tests.spec.shrink import Witness, smallest
from tests.spec.strategies import SIZES, scenario_of

REGRESSIONS = Path(__file__).resolve().parents[1] / "regressions"
ONE_IN = 100
"""So many scenarios are run for each that is run twice."""


@dataclass
class Statistics:
    """What a campaign has done."""

    began: float = field(default_factory=time.monotonic)
    scenarios: int = 0
    repeated: int = 0
    steps: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        self.scenarios += 1
        self.steps += verdict.steps
        self.operations.update(verdict.operations)
        self.faults.update(struck(verdict))

    def line(self) -> str:
        seconds = time.monotonic() - self.began
        operations = " ".join(f"{kind} {count}" for kind, count in sorted(self.operations.items()))
        faults = " ".join(f"{kind} {self.faults[kind]}" for kind in (*LOUD, *QUIET, SWITCH))
        return (
            f"{self.scenarios} scenarios ({self.repeated} of them twice), {self.scenarios / seconds * 60:.0f} a minute, "
            f"{self.steps / max(1, self.scenarios):.0f} steps each, {self.steps / seconds:.0f} a second; {operations}; "
            f"faults: {faults}"
        )


@dataclass(frozen=True)
class Failure:
    """A scenario that failed as it was drawn."""

    scenario: Scenario
    verdict: Verdict


def campaign(first_seed: int, runs: int | None, seconds: float, size: str = "medium") -> tuple[Statistics, Failure | None]:
    """Run until the time is up, the number is reached, or something fails."""
    statistics = Statistics()
    for number in itertools.count():
        if number == runs or (runs is None and time.monotonic() - statistics.began >= seconds):
            return statistics, None
        scenario = scenario_of(first_seed + number, SIZES[size])
        verdict = run(scenario)
        statistics.add(verdict)
        if not verdict.ok:
            return statistics, Failure(scenario, verdict)
        if number % ONE_IN == 0:
            again = run(scenario)
            statistics.repeated += 1
            if again.digest != verdict.digest:
                problem = f"determinism: {verdict.digest} and then {again.digest}"
                return statistics, Failure(scenario, Verdict(**{**vars(again), "problems": (problem,)}))
    raise AssertionError("there is always another seed")


def report(witness: Witness, path: Path) -> str:
    """What a person reads first."""
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    command = f"python -m tests.spec.campaign --replay {shown}"
    return f"{witness.describe()}\n{command}\n\n{witness.verdict.story}"


def replay(path: Path) -> int:
    """Run one witness; the exit code."""
    verdict = run(read_witness(path, Scenario.from_json))
    click.echo("\n".join(verdict.problems) or f"no problem in {verdict.steps} steps")
    click.echo(verdict.story, nl=bool(verdict.story))
    return 0 if verdict.ok else 1


@click.command()
@click.option("--seconds", default=90.0, show_default=True, help="How long, unless --runs is given.")
@click.option("--seed", default=0, show_default=True, help="The first scenario.")
@click.option("--runs", type=int, help="How many scenarios.")
@click.option("--size", type=click.Choice(list(SIZES)), default="medium", show_default=True)
@click.option("--name", help="What the witness of a failure is called.")
@click.option("--replay", "witness", type=click.Path(exists=True, path_type=Path), help="Run a witness instead.")
def main(seconds: float, seed: int, runs: int | None, size: str, name: str | None, witness: Path | None) -> None:
    """Look for a program and a few faults with which minray breaks a guarantee."""
    if witness is not None:
        raise SystemExit(replay(witness))
    with without_garbage_collection():
        statistics, failure = campaign(seed, runs, seconds, size)
    click.echo(statistics.line())
    if failure is None:
        return
    click.echo(f"seed {failure.scenario.seed} fails: {failure.verdict.problems[0]}", err=True)
    found = smallest(failure.scenario, failure.verdict, lambda seed: scenario_of(seed, SIZES[size]))
    path = REGRESSIONS / f"{name or f'seed_{found.scenario.seed}'}.json"
    save(found.scenario, path)
    click.echo(f"shrunk with {found.runs} re-runs")
    click.echo(report(found, path))
    raise SystemExit(1)


if __name__ == "__main__":
    main()
