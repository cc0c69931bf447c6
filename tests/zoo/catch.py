"""Runs a scenario over seeds until one of them breaks a property, and prints one line of JSON; run on mutated copies.

    python -m tests.zoo.catch SCENARIO FIRST_SEED COUNT [PROPERTY]

Without PROPERTY any will do.
"""

from __future__ import annotations

import json
import sys

from tests.zoo.scenarios import SCENARIOS
from tests.zoo.transplant import assert_transplanted


def main(scenario: str, first: int, count: int, prop: str = "") -> None:
    assert_transplanted()
    for seed in range(first, first + count):
        found = SCENARIOS[scenario](seed)
        if prop in found.props or (found.props and not prop):
            print(json.dumps({"seed": seed, "props": found.props, "text": found.text[:4000]}))
            return
    print(json.dumps({"seed": None, "props": [], "text": ""}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
