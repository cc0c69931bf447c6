"""The generated parts of docs/one_scenario.md: one witness of the campaign, told as a conversation.

The page has a block for each part: a comment ``<!-- NAME -->`` and a fenced block. ``python -m tests.spec.one_scenario``
writes them. ``test_one_scenario.py`` compares them, so that the page says what happens today.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from minray.simulation.trace import LIFE, OUTPUT
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
    lines = verdict.trace.conversation(*SUBJECTS, *TOLD, LIFE, OUTPUT).splitlines(keepends=True)
    tasks = [number for number, line in enumerate(lines) if re.search(r"  task \S+: ", line)]
    told = lines[tasks[0] : tasks[-1] + 1]
    begins = next(number for number, line in enumerate(told) if after in line)
    return "".join(told[begins:])


def filled(text: str) -> str:
    """Return the page with all blocks as today's run fills them."""
    found = parts()
    return BLOCK.sub(lambda match: match["head"] + found[match["name"]] + match["tail"], text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
