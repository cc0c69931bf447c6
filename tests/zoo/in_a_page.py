"""Judged scenarios in the playground: the witness of a bug of the zoo, or the failing scenario of a lab.

    show(b'{"name": "ray-24359", "planted": true}')      JSON in, JSON out, as the page's other answers
    show_scenario(b'{"program": ...}')                   a scenario, with the code that this process has

The bug is planted into the functions of this process, and taken back after the run. Nothing here needs numpy, which the site
does not have (``tests/spec/filled.py``).
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from minray.simulation.browser.answers import DRAWN_EVENTS
from minray.simulation.loop import TICKS_PER_SECOND
from minray.simulation.page import headline, page_data
from tests.spec.scenario import Scenario
from tests.spec.trial import run
from tests.spec.verdict import Verdict
from tests.zoo.bugs import BUGS
from tests.zoo.transplant import planted

NAMED = {bug.name: bug for bug in BUGS}
GUARANTEES = re.compile(r"^\| ([A-Z]+\d+) \| ([^|]+) \|", re.M)
"""Matches the number and the sentence of a guarantee in a table of the documentation."""


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of the page."""

    name: str
    planted: bool


def menu(pages: list[Path]) -> list[dict[str, Any]]:
    """Return what the page's menu says of each bug; the pages have the sentences of the guarantees."""
    sentences = {number: words for page in pages for number, words in GUARANTEES.findall(page.read_text())}
    return [
        {
            "name": bug.name,
            "there": bug.there,
            "here": bug.here,
            "guarantee": f"{bug.prop}: {sentences.get(bug.prop, 'an exception that nobody caught')}",
            "program": readable(Scenario.from_json(bug.witness.read_text())),
        }
        for bug in BUGS
    ]


def readable(scenario: Scenario) -> str:
    """Return the drivers of a scenario as text, without the fields that have their defaults."""
    drivers = msgspec.json.encode(scenario.program)
    return msgspec.json.format(drivers, indent=2).decode()


def show(question: str) -> bytes:
    """Run the witness of a bug; return what the page shows of it."""
    wish = msgspec.json.decode(question, type=Wish)
    bug = NAMED[wish.name]
    scenario = Scenario.from_json(bug.witness.read_text())
    with planted(bug.mutations) if wish.planted else nullcontext():
        verdict = run(scenario)
    return _answer(scenario, verdict)


def show_scenario(text: str) -> bytes:
    """Run a scenario in JSON; return what the page shows of it."""
    scenario = Scenario.from_json(text)
    return _answer(scenario, run(scenario))


def _answer(scenario: Scenario, verdict: Verdict) -> bytes:
    events = verdict.trace.events
    outcome = "a guarantee is broken" if verdict.problems else "nothing is broken"
    answer = {
        "outcome": outcome,
        "details": "",
        "problems": verdict.problems,
        "headline": headline(scenario.seed, len(scenario.world.nodes), outcome, verdict.trace),
        "digest": verdict.digest,
        "seconds": events[-1].ticks / TICKS_PER_SECOND,
        "output": [],
        "answers": list(verdict.answers.items()),
        "missed": [],
        "events": len(events),
        "page": page_data(verdict.trace, DRAWN_EVENTS),
    }
    return msgspec.json.encode(answer)
