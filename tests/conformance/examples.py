"""``python -m tests.conformance.examples [NAME ...]``: the examples on minray and, but for the import, on Ray.

Each is run in a process of its own at a small size, on both, and says the same on both; what it says is what the table
below takes from the result of its ``main``. Needs an installed Ray.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 300

SAYS = {
    "broadcast": ("megabytes=27, tasks=6, nodes=2", "[told['tasks'], told['sums are right']]"),
    "cancel_and_wait": ("tasks=6", "[told['winner'], told['cancelled']]"),
    "counter_service": ("clients=2, increments=3000", "told"),
    "dereferencing_too_early": ("users=3, size=100_000", "[told['by reference'][0], told['too early'][0]]"),
    "errors_and_retries": ("", "told"),
    "evolution_strategies": ("environments=2, directions=12, generations=3, seed=1", "len(told)"),
    "mistake_get_in_a_loop": ("tasks=6, seconds=0.05, num_cpus=2", "told['get in the loop']"),
    "mistake_large_argument_by_value": ("tasks=5, size=1_000_000", "told['by value'] >= 5 * told['by reference']"),
    "nested_tasks": ("size=500, num_cpus=1", "told[0] == sorted(told[0])"),
    "parameter_server": ("workers=2, steps=150", "told['accuracy'] > 0.8"),
    "pi_monte_carlo": ("tasks=10, darts=5_000", "told"),
    "several_nodes": (
        "tasks=12",
        "[told['nodes'], told['the resource led to its node'], told['affinity led to each node']]",
    ),
    "web_crawler": (
        "pages=20, requests_per_second=400, seconds=0.02",
        "[told['pages'], told['dead links'], told['requests']]",
    ),
}
"""By name: arguments of ``main``, and what of its result must be the same."""
ONLY_MINRAY = {
    "external_sort": "says what its store did; `benchmarks/sort.py` runs such tasks on Ray",
    "identifier_index": "counts the messages that its tasks cost",
    "model_from_s3": "needs a server that plays S3",
    "over_constrained": "asks why",
    "policy_lab": "brings a scheduling policy, which Ray does not take from programs",
    "sparrow_figure": "simulates clusters with policies, which Ray does not take from programs",
    "source_statistics": "says enable_dask_on_minray; `make dask-on-ray` runs that scheduler on Ray",
}


def for_ray(text: str) -> str:
    """The whole change."""
    return text.replace("import minray as ray", "import ray").replace("from minray.", "from ray.")


def run(folder: Path, name: str) -> str:
    """Run an example, and return its result or its error."""
    arguments, expression = SAYS[name]
    program = f"import {name}\ntold = {name}.main({arguments})\nprint('says:', {expression})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    says = [line.removeprefix("says: ") for line in done.stdout.splitlines() if line.startswith("says: ")]
    if done.returncode or not says:
        return f"exit code {done.returncode}: {done.stderr[-3000:]}"
    return says[-1]


def main(names: list[str]) -> int:
    """How many examples differ."""
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in EXAMPLES.glob("*.py"):
            (Path(folder) / path.name).write_text(for_ray(path.read_text()))
        for name in names or SAYS:
            ours, theirs = run(EXAMPLES, name), run(Path(folder), name)
            different += ours != theirs
            print(f"same: {name}: {ours}" if ours == theirs else f"DIFFERENT: {name}: {ours} / {theirs}", flush=True)
    return different


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
