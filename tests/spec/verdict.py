"""The verdict of a run: problems as sentences, each of which begins with its number (``L2: ...``), and what has happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from minray.simulation.faults import Key
from minray.simulation.trace import Trace
from tests.spec.scenario import Answers, Scenario
from tests.spec.stage import History


@dataclass(frozen=True)
class Judgement:
    """Problems of a run, simulated or real."""

    problems: tuple[str, ...]
    """Sentences that begin with the number of the broken guarantee or invariant."""

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def codes(self) -> set[str]:
        """Numbers of the broken guarantees and invariants: ``{"L2", "G17"}``."""
        return {problem.partition(":")[0] for problem in self.problems}


@dataclass(frozen=True)
class Verdict(Judgement):
    """Result of a run."""

    answers: Mapping[Key, int]
    """The oracle's answers that were not 0."""
    steps: int
    trace: Trace
    operations: Counter[str]
    """Kind of operation -> the number of times that drivers and tasks have performed it."""
    histories: tuple[History, ...]
    is_over: bool = False
    """Whether the head's raylet was dead, so that only crashes and hangs were judged."""

    @cached_property
    def digest(self) -> str:
        """Digest of the trace. Only runs that are compared need it."""
        return self.trace.digest()

    @property
    def story(self) -> str:
        """Story of the run, if there are problems."""
        return self.trace.story() if self.problems else ""


def missed(scenario: Scenario, verdict: Verdict) -> Answers:
    """The overrides of a scenario that have not struck: the oracle was not asked, or there is no such answer."""
    return tuple((key, answer) for key, answer in scenario.overrides or () if verdict.answers.get(key) != answer)


def struck(verdict: Verdict) -> Counter[str]:
    """Kind of fault -> the number of times that it struck."""
    return Counter(str(key[0]) for key in verdict.answers)
