"""Coverage of conjunctions: the pairs of rare features that runs have met."""

from __future__ import annotations

from collections import Counter

from tests.spec.features import FEATURES, PAIRS, Pair, met_features, pairs_of
from tests.spec.scenario import Scenario
from tests.spec.verdict import Verdict, struck

OFTEN = 3
"""Number of runs in which a pair has been met often."""
SHOWN = 20
"""Number of unmet pairs that the table names."""


class PairCoverage:
    """Counts of features and pairs, for all runs that were added."""

    def __init__(self) -> None:
        self.features: Counter[str] = Counter()
        self.pairs: Counter[Pair] = Counter()

    def add(self, scenario: Scenario, verdict: Verdict) -> None:
        names = met_features(scenario, struck(verdict))
        self.features.update(names)
        self.pairs.update(pairs_of(names))

    def merge(self, other: PairCoverage) -> None:
        self.features.update(other.features)
        self.pairs.update(other.pairs)

    def line(self) -> str:
        """Summary in one line."""
        often = sum(count >= OFTEN for count in self.pairs.values())
        met, total = len(self.pairs), len(PAIRS)
        return f"pairs of features met: {met} of {total} ({met / total:.0%}), {often} at least {OFTEN} times"

    def table(self) -> str:
        """For each feature the number of runs with it, and the number of other features that it has met."""
        partners = Counter(name for pair in self.pairs for name in pair)
        rows = [f"{'rare feature':<52} {'runs':>6} {'met others':>11}"]
        rows += [f"{name:<52} {self.features[name]:>6} {partners[name]:>11}" for name in FEATURES]
        unmet = [f"{one} + {other}" for one, other in PAIRS if (one, other) not in self.pairs]
        more = f"; {len(unmet) - SHOWN} more" if len(unmet) > SHOWN else ""
        return "\n".join([*rows, f"pairs not met: {'; '.join(unmet[:SHOWN]) or 'none'}{more}"])
