"""The smallest scenario that shows a bug of the zoo, and the page of its run.

    python -m tests.zoo.witness find [BUG...]            shrink what the campaign found; tests/zoo/witnesses/BUG.json
    python -m tests.zoo.witness pages FOLDER [BUG...]    the runs of the witnesses with their bugs, and of the true code
    python -m tests.zoo.witness tell BUG...              what the bugs break, in words

``make zoo ZOO_ARGS="--by campaign"`` notes with which seed the campaign finds a bug. The first two commands plant the bug in
a copy of the package, and run this module there with ``shrink`` or ``show``; tests do so with ``replay``. ``tell`` plants
it in this process.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from minray.simulation.page import headline, write_page
from tests.spec.scenario import Scenario, save
from tests.spec.shrink import Witness, smallest
from tests.spec.strategies import scenario_of
from tests.spec.trial import run
from tests.zoo.bugs import BUGS, Bug
from tests.zoo.measure import load
from tests.zoo.scenarios import CAMPAIGN
from tests.zoo.transplant import assert_transplanted, planted, run_python, transplanted

TIMEOUT_S = 1800.0
MAX_RUNS = 250
"""For each failure that is made small."""
MOST_CHARACTERS = 120
"""Characters of one problem that is told: one line of a terminal and a half."""


def in_copy(bug: Bug | None, *arguments: str) -> dict[str, Any]:
    """Run this module with the bug planted (or with none), and return what it prints last."""
    with transplanted(bug.mutations if bug else ()) as root:
        done = run_python(root, ["-m", "tests.zoo.witness", *arguments], TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{bug.name if bug else 'the true code'}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def find(bugs: list[Bug]) -> None:
    """Shrink the first failures of the campaign for each bug that it finds."""
    for bug in bugs:
        seed = load()[bug.name].get(CAMPAIGN, {}).get("seed")
        if seed is None:
            print(f"{bug.name}: the campaign does not find it", flush=True)
        else:
            print(f"{bug.name}: {in_copy(bug, 'shrink', str(seed), str(bug.witness))['text']}", flush=True)


def write_pages(folder: Path, bugs: list[Bug]) -> list[Path]:
    """``BUG.html`` and ``BUG_fixed.html`` for every bug that has a witness; raises if that does not fail, or always does."""
    written = []
    for bug in bugs:
        if not bug.witness.exists():
            continue
        for inmate, name in ((bug, bug.name), (None, f"{bug.name}_fixed")):
            page = folder / f"{name}.html"
            found = in_copy(inmate, "show", str(bug.witness), str(page))
            if bool(found["problems"]) != (inmate is not None):
                raise RuntimeError(f"{name}: {found['problems'] or 'no problem'}; make a new witness with `find {bug.name}`")
            written.append(page)
    return written


def told(bug: Bug) -> str:
    """Return what the bug does, what its witness breaks with it, and what the same scenario breaks without it."""
    scenario = Scenario.from_json(bug.witness.read_text())
    with planted(bug.mutations):
        problems = run(scenario).problems
    lines = [f"the bug      {bug.here}", *(f"with it      {_first_line(problem)}" for problem in problems)]
    sound = run(scenario).problems or ["nothing is broken"]
    return "\n".join([*lines, *(f"without it   {_first_line(problem)}" for problem in sound)])


def _first_line(problem: str) -> str:
    line = problem.partition("\n")[0]
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 4]} ..."


# --- In the copy ---


def shrunk(seed: int, path: Path) -> dict[str, Any]:
    """Shrink the failure of this seed, or of a later one. The bug causes every failure: the true code passes these seeds."""
    scenario = scenario_of(seed)
    verdict = run(scenario)
    if verdict.ok:
        return {"problems": [], "text": f"seed {seed} breaks nothing any more"}
    witness = smallest(scenario, verdict, scenario_of, MAX_RUNS, any_code=True)
    save(witness.scenario, path)
    return {"problems": witness.verdict.problems, "text": f"{witness.runs} re-runs: {witness.describe()}"}


def show(path: Path, page: Path) -> dict[str, Any]:
    scenario = Scenario.from_json(path.read_text())
    verdict = run(scenario)
    outcome = Witness(scenario, verdict, 0).describe() if verdict.problems else "nothing broken"
    write_page(verdict.trace, page, headline(scenario.seed, len(scenario.world.nodes), outcome, verdict.trace))
    return {"problems": verdict.problems}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.witness")
    parser.add_argument("what", choices=["find", "pages", "tell", "shrink", "show", "replay"])
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.what in ("shrink", "show", "replay"):
        assert_transplanted()
        if options.what == "shrink":
            seed, path = options.arguments
            print(json.dumps(shrunk(int(seed), Path(path))))
        elif options.what == "replay":
            print(json.dumps({"problems": run(Scenario.from_json(Path(*options.arguments).read_text())).problems}))
        else:
            print(json.dumps(show(*map(Path, options.arguments))))
        return 0
    folder, names = (options.arguments[:1], options.arguments[1:]) if options.what == "pages" else ([], options.arguments)
    bugs = [bug for bug in BUGS if not names or bug.name in names]
    if options.what == "find":
        find(bugs)
    elif options.what == "tell":
        for bug in bugs:
            print(told(bug))
    else:
        for page in write_pages(Path(folder[0]).resolve(), bugs):
            print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
