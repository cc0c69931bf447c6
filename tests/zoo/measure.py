"""How many seeds each bug of the zoo survives; ``make zoo`` runs this and writes what it finds.

    python -m tests.zoo.measure [--by campaign] [--seeds N] [BUG...]

First the scenarios run on the true code over all seeds, and must pass. Then each bug is planted in a copy of the package,
and its scenario runs until the expected property is broken; or, by the campaign, the scenarios of ``make spec`` run until
any is. ``tests/zoo/catches.json`` keeps the seeds for test_zoo.py, and the table of ``docs/zoo.md`` is written from it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.spec.scenario import Scenario
from tests.zoo.bugs import BUGS, Bug
from tests.zoo.scenarios import CAMPAIGN
from tests.zoo.transplant import CHECKOUT, run_python, transplanted

RECORD = Path(__file__).with_name("catches.json")
PAGE = CHECKOUT / "docs" / "zoo.md"
BEGIN, END = "<!-- table: written by make zoo -->", "<!-- end of table -->"
SEEDS = 300
OWN = "its scenario"
"""The other way to look for a bug."""


def search(bug: Bug | None, scenario: str, first: int, count: int, prop: str, timeout_s: float = 1800) -> dict[str, Any]:
    """The first seed with which the scenario breaks the property in a copy with this bug (or with none)."""
    with transplanted(bug.mutations if bug else ()) as root:
        arguments = ["-m", "tests.zoo.catch", scenario, f"{first}:{first + count}", *([prop] if prop else [])]
        done = run_python(root, arguments, timeout_s)
    if done.returncode != 0:
        raise RuntimeError(f"{bug.name if bug else 'the true code'}, {scenario}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def load() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return found


def table(record: dict[str, dict[str, Any]]) -> str:
    """The table of the page."""
    heads = ["bug", "what happened there", "what is mutated here", "caught by", "first seed", "by the campaign", "witness"]
    rows = [heads, ["---"] * len(heads)]
    for bug in BUGS:
        caught = record[bug.name]
        symbols = ", ".join(f"`{symbol}`" for symbol in dict.fromkeys(mutation.symbol for mutation in bug.mutations))
        where = f"{bug.prop} in `{bug.scenario}`"
        by_campaign = _catch(caught.get(CAMPAIGN, {}))
        what = f"{bug.here} ({symbols})"
        rows.append([bug.name, bug.there, what, where, str(caught["seed"]), by_campaign, _witness(bug)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _witness(bug: Bug) -> str:
    """Size of the bug's witness, and links to the pages of its runs."""
    if not bug.witness.exists():
        return "none"
    scenario = Scenario.from_json(bug.witness.read_text())
    tasks, performances = len(scenario.program.tasks()), len(scenario.program.performances())
    sizes = (("task", tasks), ("call", performances - tasks), ("fault", len(scenario.overrides or ())))
    size = ", ".join(f"{count} {word}{'s' * (count != 1)}" for word, count in sizes if count or word == "fault")
    runs = ((f"{bug.name}.html", "with the bug"), (f"{bug.name}_fixed.html", "without"))
    return ", ".join([size, *(f'<a href="zoo_runs/{page}">{text}</a>' for page, text in runs)])


def _catch(found: dict[str, Any]) -> str:
    """``39 (S2, L2)``"""
    if found.get("seed") is None:
        return f"not in {found['tried']}" if found else "not measured"
    return f"{found['seed']} ({', '.join(found['props'])})"


def written_page(page: str, record: dict[str, dict[str, Any]]) -> str:
    """The page with a new table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{after}"


def measure_true_code(scenarios: Iterable[str], seeds: int) -> bool:
    """Whether all of them pass."""
    passes = True
    for scenario in scenarios:
        found = search(None, scenario, 0, seeds, "")
        print(f"the true code, {scenario}: {'passes' if found['seed'] is None else found}", flush=True)
        passes = passes and found["seed"] is None
    return passes


def measure(bug: Bug, by: str, seeds: int, record: dict[str, Any]) -> bool:
    """Look for the first seed, and note it; whether there is one."""
    begun = time.perf_counter()
    scenario, prop = (CAMPAIGN, "") if by == CAMPAIGN else (bug.scenario, bug.prop)
    found = search(bug, scenario, 0, seeds, prop)
    seconds = time.perf_counter() - begun
    seed = found["seed"]
    print(f"{bug.name}, {scenario}: {'not caught' if seed is None else f'seed {seed}'} ({seconds:.0f} s)", flush=True)
    caught = {"seed": seed, "tried": seeds if seed is None else seed + 1, "props": found["props"]}
    if by == CAMPAIGN:
        record.setdefault(bug.name, {})[CAMPAIGN] = caught
    elif seed is not None:
        record.setdefault(bug.name, {}).update(caught)
    return seed is not None


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.measure")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most so many for each bug")
    parser.add_argument("--by", choices=[OWN, CAMPAIGN], default=OWN)
    parser.add_argument("bugs", nargs="*", help="names of bugs; default: all, and the true code")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds: at least one has to be tried, not {options.seeds}")
    known = [bug.name for bug in BUGS]
    unknown = [name for name in options.bugs if name not in known]
    if unknown:
        parser.error(f"there is no bug called {' or '.join(unknown)}; there are {', '.join(known)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    record = load() if RECORD.exists() else {}
    passes = True
    if not options.bugs:
        scenarios = [CAMPAIGN] if options.by == CAMPAIGN else dict.fromkeys(bug.scenario for bug in BUGS)
        passes = measure_true_code(scenarios, options.seeds)
    for bug in BUGS:
        if not options.bugs or bug.name in options.bugs:
            passes = measure(bug, options.by, options.seeds, record) and passes
    if {bug.name for bug in BUGS} <= record.keys():
        RECORD.write_text(json.dumps({bug.name: record[bug.name] for bug in BUGS}, indent=1) + "\n")
        PAGE.write_text(written_page(PAGE.read_text(), record))
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())
