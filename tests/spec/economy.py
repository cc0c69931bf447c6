"""Economy: what small programs cost without faults, counted: messages by kind, workers started, transfers, files.

    python -m tests.spec.economy --write        counts again, after a change that is meant to cost more or less

A detour, a needless question or a second try changes no outcome, and costs too little time to be noticed. So the counts of
some programs are kept in ``economy.json``, and a test compares them. The programs are those of ``exhaustive``, and stories.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from minray.simulation.trace import LIFE, SEND, Trace
from tests.spec.bundles import Benches, Bundles
from tests.spec.contests import Contest
from tests.spec.exhaustive import PROGRAMS
from tests.spec.generators import ASKS, READS, WAITS, Stream
from tests.spec.lanes import Lanes
from tests.spec.lines import Line
from tests.spec.programs import Body, Program
from tests.spec.residents import Seating
from tests.spec.scenario import Node, Scenario, World
from tests.spec.trial import run
from tests.spec.vocabulary import with_riches

COUNTS = Path(__file__).with_suffix(".json")
NODES = with_riches((Node(2), Node(2)))
STORIES = (
    Stream("waits", 5, WAITS, 1),
    Stream("asks", 5, ASKS),
    Stream("reads", 20, READS, 10),
    Bundles("bundles", 2, "STRICT_SPREAD"),
    Benches("benches", 2, "PACK", captures=True),
    Contest("contest", 3, 2, 0.3, 2, "STRICT_PACK"),
    Lanes("lanes", True, 6, 0.5),
    Line("line", 8),
    Seating("seating", 3, "seat"),
)
SCENARIOS: dict[str, Scenario] = {name: one for name, one in PROGRAMS.items() if not name.startswith("gcs")} | {
    f"story {story.name}": Scenario(Program((Body((story,)),)), World(NODES), 3) for story in STORIES
}
IDLE = ("Poll", "CheckAlive", "ReportResources")
"""Messages whose number tells how long a program takes, and not what it does."""


def counts_of(name: str) -> dict[str, int]:
    """Run a program without faults, and count what it costs: ``role > role: message`` -> a number."""
    verdict = run(SCENARIOS[name])
    assert verdict.ok, verdict.problems
    return dict(sorted(_count(verdict.trace).items()))


def _count(trace: Trace) -> Counter[str]:
    counts: Counter[str] = Counter()
    for event in trace.events:
        if event.kind == SEND and event.details[0] not in IDLE and " " not in event.details[0]:  # not a reply
            word, target = event.details[:2]
            counts[f"{_role(event.process)} > {_role(target)}: {word}"] += 1
        elif event.kind == LIFE and event.process.startswith("worker/"):
            counts[f"worker {event.details[0]}"] += 1
    return counts


def _role(process: str) -> str:
    return process.partition("/")[0]


def read_counts() -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = json.loads(COUNTS.read_text())
    return counts


@click.command()
@click.option("--write", is_flag=True, required=True, help="Count again and keep the counts.")
def main(write: bool) -> None:
    """Count what the programs cost."""
    assert write
    lines = (f"{json.dumps(name)}: {json.dumps(counts_of(name))}" for name in SCENARIOS)
    COUNTS.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
