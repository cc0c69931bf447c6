"""How many seeds each bug of the zoo survives; ``make zoo`` runs this and writes what it finds.

    python -m tests.zoo.measure [--seeds N] [BUG...]

First the scenarios run on the true code over all seeds, and must pass. Then each bug is planted in a copy of the package,
and its scenario runs until the expected property is broken. ``tests/zoo/catches.json`` keeps the seeds for test_zoo.py,
and the table of ``docs/zoo.md`` is written from it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.zoo.bugs import BUGS, Bug
from tests.zoo.transplant import CHECKOUT, run_python, transplanted

RECORD = Path(__file__).with_name("catches.json")
PAGE = CHECKOUT / "docs" / "zoo.md"
BEGIN, END = "<!-- table: written by make zoo -->", "<!-- end of table -->"
SEEDS = 200


def search(bug: Bug | None, scenario: str, first: int, count: int, prop: str, timeout_s: float = 1800) -> dict[str, Any]:
    """The first seed with which the scenario breaks the property in a copy with this bug (or with none)."""
    with transplanted(bug.mutations if bug else ()) as root:
        arguments = ["-m", "tests.zoo.catch", scenario, str(first), str(count), *([prop] if prop else [])]
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
    heads = ["bug", "what happened there", "what is mutated here", "caught by", "first seed", "tried"]
    rows = [heads, ["---"] * len(heads)]
    for bug in BUGS:
        caught = record[bug.name]
        symbols = ", ".join(f"`{symbol}`" for symbol in dict.fromkeys(mutation.symbol for mutation in bug.mutations))
        where = f"{bug.prop} in `{bug.scenario}`"
        rows.append([bug.name, bug.there, f"{bug.here} ({symbols})", where, str(caught["seed"]), str(caught["tried"])])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def written_page(page: str, record: dict[str, dict[str, Any]]) -> str:
    """The page with a new table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(record)}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.measure")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most so many for each bug")
    parser.add_argument("bugs", nargs="*", help="names of bugs; default: all, and the true code")
    options = parser.parse_args()
    record = load() if RECORD.exists() else {}
    failures = 0
    for scenario in dict.fromkeys(bug.scenario for bug in BUGS) if not options.bugs else ():
        found = search(None, scenario, 0, options.seeds, "")
        print(f"the true code, {scenario}: {'passes' if found['seed'] is None else found}", flush=True)
        failures += found["seed"] is not None
    for bug in BUGS:
        if options.bugs and bug.name not in options.bugs:
            continue
        begun = time.perf_counter()
        found = search(bug, bug.scenario, 0, options.seeds, bug.prop)
        seconds = time.perf_counter() - begun
        if found["seed"] is None:
            failures += 1
            print(f"{bug.name}: {bug.prop} is not broken in {options.seeds} seeds ({seconds:.0f} s)", flush=True)
            continue
        record[bug.name] = {"seed": found["seed"], "tried": found["seed"] + 1, "props": found["props"]}
        print(f"{bug.name}: {bug.prop} is broken with seed {found['seed']} ({seconds:.0f} s)", flush=True)
    if {bug.name for bug in BUGS} <= record.keys():
        RECORD.write_text(json.dumps({bug.name: record[bug.name] for bug in BUGS}, indent=1) + "\n")
        PAGE.write_text(written_page(PAGE.read_text(), record))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
