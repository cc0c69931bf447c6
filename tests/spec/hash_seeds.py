"""Check that scenarios run the same under any hash seed, which decides the order of sets of strings in an interpreter.

    python -m tests.spec.hash_seeds [--seed S] [--runs N]

Two interpreters with different hash seeds run the same scenarios. Where the digests of the traces differ, the first event
that differs is shown. ``make trace-equality`` runs this.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import click

from minray.simulation.garbage import without_garbage_collection
from tests.spec.strategies import scenario_of
from tests.spec.trial import run
from tests.spec.verdict import Verdict

CHECKOUT = Path(__file__).resolve().parents[2]
HASH_SEEDS = ("1", "2")


def show_digests(first: int, count: int) -> None:
    """Print the digest of each scenario, in an interpreter with one of the hash seeds."""
    with without_garbage_collection():
        for seed in range(first, first + count):
            print(seed, _verdict(seed).trace.digest(), flush=True)


def show_events(seed: int) -> None:
    """Print the trace of one scenario, a line for each event."""
    print("\n".join(map(str, _verdict(seed).trace.events)))


def _verdict(seed: int) -> Verdict:
    verdict = run(scenario_of(seed))
    assert verdict.ok, f"the scenario of seed {seed} fails: {verdict.problems}"
    return verdict


def compare(first: int, count: int, plant: str = "") -> list[str]:
    """Return a line for each scenario that does not run the same. Both interpreters run ``plant`` before all else."""
    pairs = zip(*_in_both(f"show_digests({first}, {count})", plant), strict=True)
    differing = [one.partition(" ")[0] for one, other in pairs if one != other]
    return [f"the scenario of seed {seed} depends on the hash seed: {_parting(seed, plant)}" for seed in differing]


def _parting(seed: str, plant: str) -> str:
    lines = enumerate(zip_longest(*_in_both(f"show_events({seed})", plant), fillvalue="nothing"))
    number, (one, other) = next(found for found in lines if found[1][0] != found[1][1])
    return f"event {number} is {one} or {other}"


def _in_both(call: str, plant: str) -> list[list[str]]:
    """Return the lines that each interpreter prints. Raises CalledProcessError if a scenario fails there."""
    command = [sys.executable, "-c", f"{plant}\nfrom tests.spec import hash_seeds\nhash_seeds.{call}"]
    environments = [{**os.environ, "PYTHONHASHSEED": hash_seed} for hash_seed in HASH_SEEDS]
    processes = [subprocess.Popen(command, cwd=CHECKOUT, env=one, stdout=subprocess.PIPE, text=True) for one in environments]
    printed = [process.communicate()[0].splitlines() for process in processes]
    for process in processes:
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    return printed


@click.command()
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first scenario.")
@click.option("--runs", type=click.IntRange(1), default=60, show_default=True, help="How many scenarios.")
def main(seed: int, runs: int) -> None:
    """Run scenarios under two hash seeds."""
    found = compare(seed, runs)
    click.echo("\n".join(found) or f"{runs} scenarios run the same under the hash seeds {' and '.join(HASH_SEEDS)}")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
