"""Dask's own tests on minray: ``make dask-tests``, or ``python -m tests.dask_suite.run [delayed|bag|array|dataframe] ...``.

They come with the installed Dask. Each suite must send at least as many graphs through minray as it did when this was
written (less a tenth), so that a change in Dask cannot quietly take minray out of the way.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

SUITES = {
    "delayed": (["tests.test_delayed"], 70),
    "bag": (["bag.tests.test_bag"], 330),
    "array": ([f"array.tests.test_{name}" for name in ("reductions", "slicing", "rechunk", "overlap", "creation")], 8000),
    "dataframe": (
        ["dataframe.tests.test_shuffle", "dataframe.tests.test_multi"]
        + [f"dataframe.dask_expr.tests.test_{name}" for name in ("merge", "shuffle", "groupby")],
        1800,
    ),
}
"""Name -> modules of Dask, and how many graphs there are at least."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all of them if none is given")
    parser.add_argument("--on", choices=["minray", "processes"], default="minray", help="what computes the graphs")
    parser.add_argument("-k", help="only these tests, as pytest has it")
    options = parser.parse_args()
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    return max(run(name, options) for name in options.suites or SUITES)


def run(name: str, options: argparse.Namespace) -> int:
    modules, graphs = SUITES[name]
    print(f"--- {name}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--tb=short", "-c", str(HERE / "pytest.ini")]
    command += ["-p", "tests.dask_suite.plugin", "-p", "no:cacheprovider", "--on", options.on]
    command += ["-k", options.k] if options.k else ["--graphs-at-least", str(graphs)]
    path = os.pathsep.join(filter(None, [str(HERE.parent.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1"}  # The order of sets decides what Dask fuses.
    return subprocess.run([*command, "--pyargs", *(f"dask.{module}" for module in modules)], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
