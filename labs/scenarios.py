"""Runs the scenarios of a lab: random programs and faults by seed, in the simulation, until one breaks a guarantee.

Ray: has no counterpart.

    python -m labs.scenarios SIZE FIRST COUNT [--page FILE]

Each child process runs a block of seeds, prints a line for each, and stops at the first that fails. A process keeps some of
each simulated world, so blocks are short. Blocks may run side by side, but the failure that counts is that of the lowest
seed: so the outcome does not depend on how many there are. Only the command above imports minray; the grader does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from labs import permalink
from labs.contract import command, environment
from labs.lab import ROOT, SCENARIO_POINTS, Hole, load, names
from labs.limits import BLOCK_CPU_S, limit_process, why_ended
from labs.score import Part, Tell, silent

BLOCK = 20
"""Number of scenarios that one process runs."""
BLOCK_TIMEOUT_S = 3600
"""Seconds of the clock after which a block is ended that waits for ever; ``BLOCK_CPU_S`` ends a loop."""
NAME = "all scenarios of the simulation"
TOLD_LINES = 8
"""Number of lines of a problem that the reason quotes."""


@dataclass(frozen=True)
class Failing:
    """The first scenario that fails."""

    seed: int
    problems: tuple[str, ...]
    scenario: str = ""
    """In JSON; empty if the process ended before it said which one it ran."""


def check(lab: Hole, root: Path, jobs: int, page: Path | None, tell: Tell = silent) -> Part:
    """Return the part of the score that is for the scenarios; a failing one is written to ``page``."""
    seeds, size = lab.scenarios.seeds, lab.scenarios.size
    failing = first_failing(lab, root, jobs, tell)
    if failing is None:
        return Part(NAME, SCENARIO_POINTS, True, f"{len(seeds)} scenarios passed (seeds {seeds[0]} to {seeds[-1]}, {size})")
    told = [line for problem in failing.problems for line in problem.splitlines()[:TOLD_LINES]][: 2 * TOLD_LINES]
    again = f"run it with: {command(root, '-m', 'labs.scenarios', size, str(failing.seed), '1')}"
    lines = [f"the scenario of seed {failing.seed} fails:", *told, again]
    if page is not None and write_page(root, size, failing.seed, page):
        lines.append(f"its story is the page {page.name}")
    shared = permalink.link(root, lab.file, failing.scenario) if failing.scenario else ""
    return Part(NAME, SCENARIO_POINTS, False, "\n".join(lines), shared)


def first_failing(lab: Hole, root: Path, jobs: int, tell: Tell = silent) -> Failing | None:
    """Run blocks of scenarios, ``jobs`` at a time, until one fails; None if all pass."""
    seeds = lab.scenarios.seeds
    blocks = [seeds[start : start + BLOCK] for start in range(0, len(seeds), BLOCK)]
    done = 0
    tell(f"scenarios: 0 of {len(seeds)}")
    with ThreadPoolExecutor(jobs) as pool:
        for start in range(0, len(blocks), jobs):
            for failing in pool.map(lambda block: _run_block(root, lab.scenarios.size, block), blocks[start : start + jobs]):
                if failing is not None:
                    return failing
                done += min(BLOCK, len(seeds) - done)
                tell(f"scenarios: {done} of {len(seeds)}")
    return None


def _run_block(root: Path, size: str, block: Sequence[int]) -> Failing | None:
    words = [sys.executable, "-m", "labs.scenarios", size, str(block[0]), str(len(block))]
    try:
        done = subprocess.run(
            words, cwd=root, env=environment(root), capture_output=True, text=True, timeout=BLOCK_TIMEOUT_S
        )
        output, trouble = done.stdout, why_ended(done.returncode, BLOCK_CPU_S) or done.stderr
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode() if isinstance(expired.stdout, bytes) else expired.stdout or ""
        trouble = f"it took longer than {BLOCK_TIMEOUT_S} s: look for something that waits for ever"
    judged = [json.loads(line) for line in output.splitlines() if line.startswith('{"seed"')]
    for line in judged:
        if line["problems"]:
            return Failing(line["seed"], tuple(line["problems"]), line["scenario"])
    if len(judged) == len(block):
        return None
    return Failing(block[len(judged)], ("the process has ended: " + "\n".join(trouble.strip().splitlines()[-TOLD_LINES:]),))


def write_page(root: Path, size: str, seed: int, page: Path) -> bool:
    """Write the story of one scenario; False if it could not be run."""
    words = [sys.executable, "-m", "labs.scenarios", size, str(seed), "1", "--page", str(page.resolve())]
    try:
        subprocess.run(words, cwd=root, env=environment(root), capture_output=True, timeout=BLOCK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return page.exists()


def _files_of_one_lab(root: Path = ROOT) -> list[str]:
    """Return the file that a student has written, if this is the archive of one lab; it may be of any design."""
    there = names(root)
    return [load(there[0], root).file] if len(there) == 1 else []


def main(arguments: list[str]) -> None:
    """Run seeds until one fails; print one line of JSON for each."""
    from minray.simulation.garbage import without_garbage_collection
    from minray.simulation.page import headline
    from minray.simulation.page import write_page as write
    from tests.simulation import insides
    from tests.spec.strategies import scenario_of
    from tests.spec.trial import run
    from tests.spec.writer import SIZES

    size, first, count = arguments[0], int(arguments[1]), int(arguments[2])
    page = arguments[4] if arguments[3:4] == ["--page"] else None
    limit_process(BLOCK_CPU_S)
    insides.closed.update(_files_of_one_lab())
    with without_garbage_collection():
        for seed in range(first, first + count):
            scenario = scenario_of(seed, SIZES[size])
            verdict = run(scenario)
            told = {"scenario": scenario.to_json()} if verdict.problems else {}
            print(json.dumps({"seed": seed, "problems": verdict.problems, **told}), flush=True)
            if page is not None:
                outcome = verdict.problems[0].splitlines()[0] if verdict.problems else "nothing broken"
                write(verdict.trace, page, headline(seed, len(scenario.world.nodes), outcome, verdict.trace))
            if verdict.problems:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
