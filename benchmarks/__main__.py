"""``python -m benchmarks``: run the workloads of six documents on minray and its peers, in turn, in one run.

    python -m benchmarks [--quick] [--only WORD ...] [--rounds N] [--output FOLDER]

A process of its own measures each part on each system; a round gives each system its turn. Only ratios within one run count:
they are printed with their spread and with minray's targets. After every turn the results are written to FOLDER as JSON, and
as a page with plots, so that a stopped run keeps its results. ``python -m benchmarks.page FILE`` draws the page again.
Systems that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks import machine, results
from benchmarks.document import Document, Part, Size
from benchmarks.documents import DOCUMENTS
from benchmarks.page import write_page
from benchmarks.runner import exit_when_terminated, run
from benchmarks.systems import missing

Step = tuple[Document, Part, str]
"""One turn: the document, the part and the system that is measured."""


def steps(documents: list[Document], size: Size, only: list[str], rounds: int = 0) -> list[Step]:
    """Return all turns: within a part round by round, within a round system by system.

    ``only``: words of which a part's name must contain one; the empty word chooses nothing.
    """
    chosen = []
    for document in documents:
        for part in document.parts:
            if any(word and word in part.name for word in only) or (not only and (part.is_quick or size is not Size.QUICK)):
                systems = [system for system in part.systems if not missing(system)]
                turns = rounds or (part.rounds if size is Size.FULL else 1)
                chosen += [(document, part, system) for _ in range(turns) for system in systems]
    return chosen


def measure(documents: list[Document], todo: list[Step], size: Size) -> Iterator[list[dict[str, Any]]]:
    """Measure all turns; yield the results so far after each turn. A progress bar counts the expected seconds."""
    gathered = results.empty(documents)
    with tqdm(total=sum(part.seconds[size] for _, part, _ in todo), unit="s", bar_format=BAR) as progress:
        for document, part, system in todo:
            progress.set_postfix_str(f"{part.name}: {system}")
            outcome = run(part, system, size)
            found = gathered[documents.index(document)]
            results.add(found, system, outcome.samples)
            if outcome.failure:
                found["failures"].setdefault(part.name, {})[system] = outcome.failure
            progress.update(part.seconds[size])
            yield gathered


BAR = "{percentage:3.0f}%|{bar:30}| {elapsed} gone, {remaining} to go {postfix}"


def left_out(documents: list[Document]) -> dict[str, str]:
    """Return the systems that cannot be measured, each with the module that is not installed."""
    systems = {system for document in documents for part in document.parts for system in part.systems}
    return {system: module for system in sorted(systems) if (module := missing(system))}


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {number}")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.set_defaults(size=Size.FULL)
    parser.add_argument("--quick", action="store_const", const=Size.QUICK, dest="size", help="measure a few minutes")
    parser.add_argument("--tiny", action="store_const", const=Size.TINY, dest="size", help="only test that it runs")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="parts whose name contains one of these")
    parser.add_argument("--rounds", type=positive, default=0, help="turns of each system, instead of those of the part")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/runs"))
    parser.add_argument("--note", default="", help="a sentence about this run, for the page")
    arguments = parser.parse_args()
    todo = steps(DOCUMENTS, arguments.size, arguments.only, arguments.rounds)
    if not todo:
        names = ", ".join(part.name for document in DOCUMENTS for part in document.parts)
        parser.error(f"no part's name contains any of {arguments.only}; parts are {names}")
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --output: {arguments.output} cannot be made: {error.strerror}")
    for system, module in left_out(DOCUMENTS).items():
        print(f"{system} is left out: {module} is not installed (extra 'bench')", file=sys.stderr)
    exit_when_terminated()
    begun = time.monotonic()
    run_of = {"machine": machine.description(), "size": arguments.size, "note": arguments.note}
    path = arguments.output / time.strftime("%Y%m%d-%H%M%S.json", time.gmtime())
    for gathered in measure(DOCUMENTS, todo, arguments.size):
        results.conclude(DOCUMENTS, gathered)
        run_of |= {"seconds": round(time.monotonic() - begun), "documents": gathered}
        path.write_text(json.dumps(run_of, indent=1))
        write_page(path)
    print(results.as_text(gathered))
    print(f"{path}\n{path.with_suffix('.html')}")


if __name__ == "__main__":
    main()
