"""The generated parts of docs/one_scenario.md: one witness of the campaign, told as a conversation.

The page has a block for each part: a comment ``<!-- NAME -->`` and a fenced block. ``python -m tests.spec.one_scenario``
writes them. ``test_one_scenario.py`` compares them, so that the page says what happens today.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from minray.simulation.loop import TICKS_PER_SECOND
from minray.simulation.trace import FAULT, LIFE, OUTPUT, RECEIVE, STATE, Event
from minray.testing.shrink import describe_fault
from tests.spec.campaign import REGRESSIONS
from tests.spec.scenario import Scenario
from tests.spec.trial import run
from tests.spec.verdict import Verdict
from tests.zoo.mistakes import MISTAKES
from tests.zoo.transplant import planted

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/one_scenario.md"
NAME = "planted_retry_forgotten"
BLOCK = re.compile(r"(?P<head><!-- (?P<name>\w+) -->\n```\w*\n)(?P<text>.*?)(?P<tail>```\n)", re.S)
TOLD = ("RequestWorkerLease", "PushTask", "ReportWorkerDeath", "GetLeaseFailure", "ReturnWorkerLease")
"""Messages that the conversation shows, with their answers. Reports and polls are left out."""
SUBJECTS = ("task", "lease", "worker")
"""State machines whose transitions the conversation shows."""

WIDEST = 80
"""Characters of one event: the page's blocks need no scrolling then."""


def parts() -> dict[str, str]:
    """The text of each block of the page, by its name."""
    scenario = Scenario.from_json((REGRESSIONS / f"{NAME}.json").read_text())
    mistake = MISTAKES[NAME]
    sound = run(scenario)
    with planted(mistake.mutations):
        broken = run(scenario)
    (mutation,) = mistake.mutations
    assert scenario.overrides is not None
    return {
        "program": msgspec.json.format(msgspec.json.encode(scenario.program), indent=2).decode() + "\n",
        "fault": "".join(f"{describe_fault(key)}\n" for key, _ in scenario.overrides),
        "conversation": conversation(sound),
        "judgement": judgement(sound),
        "mistake": f"{mutation.symbol}\n- {mutation.fragment}\n+ {mutation.replacement}\n",
        "broken_conversation": conversation(broken, after="!!"),
        "broken_judgement": judgement(broken),
    }


def judgement(verdict: Verdict) -> str:
    return "\n".join(verdict.problems or ["no problem"]) + "\n"


def conversation(verdict: Verdict, after: str = "") -> str:
    """One line for each event that concerns the program, from the first line on that contains ``after``."""
    events = [event for event in verdict.trace.events if _is_told(event)]
    first = next(number for number, event in enumerate(events) if event.kind == STATE and event.details[0] == "task")
    last = max(number for number, event in enumerate(events) if event.kind == STATE and event.details[0] == "task")
    lines = [f"{_second(event)}  {event.process:16} {_short(event.text())}\n" for event in events[first : last + 1]]
    begins = next(number for number, line in enumerate(lines) if after in line)
    return "".join(lines[begins:])


def _second(event: Event) -> str:
    return f"{event.ticks / TICKS_PER_SECOND:8.4f}"


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 4]} ..."


def _is_told(event: Event) -> bool:
    if event.kind == STATE:
        return event.details[0] in SUBJECTS
    if event.kind == OUTPUT:
        return event.process.startswith("worker/") and not event.is_task_mark()
    return event.kind in (FAULT, LIFE) or (event.kind == RECEIVE and event.details[0].removesuffix(" reply") in TOLD)


def filled(text: str) -> str:
    """Return the page with all blocks as today's run fills them."""
    found = parts()
    return BLOCK.sub(lambda match: match["head"] + found[match["name"]] + match["tail"], text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
