"""Runs a scenario over seeds until one of them breaks a property, and prints one line of JSON; run on mutated copies.

    python -m tests.zoo.catch SCENARIO SEED[,SEED...] [PROPERTY]

``10:300`` are the seeds from 10 to 299. Without PROPERTY any will do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from tests.zoo.scenarios import SCENARIOS
from tests.zoo.transplant import assert_transplanted


def main(scenario: str, seeds: Iterable[int], prop: str = "") -> None:
    assert_transplanted()
    for seed in seeds:
        found = SCENARIOS[scenario](seed)
        if prop in found.props or (found.props and not prop):
            print(json.dumps({"seed": seed, "props": found.props, "text": found.text[:4000]}))
            return
    print(json.dumps({"seed": None, "props": [], "text": ""}))


def seeds_of(text: str) -> Iterable[int]:
    first, _, end = text.partition(":")
    return range(int(first), int(end)) if end else map(int, text.split(","))


if __name__ == "__main__":
    main(sys.argv[1], seeds_of(sys.argv[2]), *sys.argv[3:])
