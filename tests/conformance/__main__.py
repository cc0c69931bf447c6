"""``python -m tests.conformance``: the tests of minray's public API, with Ray in minray's place. Needs an installed Ray.

What they are to find otherwise in Ray than in minray is in the table of docs/differences_from_ray.md; whatever else they
find is a failure, and so is a line of the table that is not true any more. Arguments are pytest's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IN_PLACE = ROOT / "tests" / "conformance" / "in_place"
FILES = (
    "actors",
    "cancellation",
    "dynamic_generators",
    "generators",
    "options",
    "placement_groups",
    "private_names",
    "references",
    "results_and_errors",
    "util",
    "values",
    "wait_and_get",
)
"""Files of tests/real about the promises of tasks and actors, mostly without faults. Others test faults and internals."""
ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "PYTHONPATH": os.pathsep.join([str(IN_PLACE), str(ROOT)]),
}


def main() -> None:
    files = [str(ROOT / "tests" / "real" / f"test_{name}.py") for name in FILES]
    arguments = ["-p", "tests.conformance.plugin", "-W", "default", *files, *sys.argv[1:]]
    os.chdir(ROOT)
    os.execve(sys.executable, [sys.executable, "-m", "pytest", *arguments], {**os.environ, **ENVIRONMENT})


if __name__ == "__main__":
    main()
