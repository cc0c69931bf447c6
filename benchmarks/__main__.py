"""``python -m benchmarks``: minray beside Ray, in turn, in one run; only the ratios of one run count.

Prints a table of medians with the ratio and its spread over the rounds (each round runs both libraries), the target of the
row, and whether it is met; writes JSON and, if matplotlib is there, a plot beside it. Without Ray installed the ratios are
left out. ``--quick`` takes about two minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TARGETS = {
    "single client get calls": 10,
    "single client put calls": 20,
    "multi client put calls": 20,
    "single client put gigabytes": 3,
    "multi client put gigabytes": 1,
    "single client tasks and get batch": 25,
    "single client get object containing 10k refs": 3,
    "single client wait 1k refs": 10,
    "single client tasks sync": 10,
    "single client tasks async": 25,
    "multi client tasks async": 20,
    "1:1 actor calls sync": 6,
    "1:1 actor calls async": 10,
    "1:1 actor calls concurrent": 5,
    "1:n actor calls async": 10,
    "n:n actor calls async": 8,
    "n:n actor calls with arg async": 10,
    "1:1 async-actor calls sync": 8,
    "1:1 async-actor calls async": 10,
    "1:1 async-actor calls with args async": 10,
    "1:n async-actor calls async": 10,
    "n:n async-actor calls async": 10,
    "placement group create/removal": 5,
}
"""At least so many times as fast as Ray."""
LIMITS = {
    "init (s)": 0.3,
    "first task after init (s)": 0.03,
    "shutdown (s)": 0.1,
    "hello-world script, whole process (s)": 0.6,
    "idle memory, 2 workers (MB PSS)": 80,
}
"""At most this."""


def run(module: str, library: str, *options: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", f"benchmarks.{module}", library, *options]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def collect(libraries: list[str], rounds: int, round_s: float) -> dict[str, Any]:
    """All measurements: table to row to library to one number per round."""
    tables: dict[str, Any] = {"microbenchmark": {}, "start and stop": {}}
    for number in range(rounds):
        for library in libraries:
            left_s = (rounds - number) * len(libraries) * (len(TARGETS) * 1.5 * round_s + 12)
            print(f"round {number + 1} of {rounds}, {library}; about {left_s:.0f} s to go", file=sys.stderr)
            rates = run("microbenchmark", library, "--rounds", "1", "--round-seconds", str(round_s))
            for row, values in rates.items():
                tables["microbenchmark"].setdefault(row, {}).setdefault(library, []).extend(values)
            for row, value in run("start_and_stop", library).items():
                tables["start and stop"].setdefault(row, {}).setdefault(library, []).append(value)
    return tables


def report(tables: dict[str, Any]) -> str:
    """The tables as text."""
    lines = [f"{'row':46} {'minray':>12} {'Ray':>12} {'ratio':>8} {'spread':>15} {'target':>8}"]
    for row, results in tables["microbenchmark"].items():
        lines.append(_line(row, results, TARGETS[row], lambda ours, theirs: ours / theirs, at_least=True))
    lines.append("")
    for row, results in tables["start and stop"].items():
        lines.append(_line(row, results, LIMITS[row], lambda ours, theirs: theirs / ours, at_least=False))
    return "\n".join(lines)


def _line(row: str, results: dict[str, list[float]], target: float, ratio_of: Any, *, at_least: bool) -> str:
    ours = statistics.median(results["minray"])
    text = f"{row:46} {ours:12,.2f} "
    if "ray" not in results:
        return text
    ratios = [ratio_of(a, b) for a, b in zip(results["minray"], results["ray"], strict=True)]
    ratio = statistics.median(ratios)
    met = ratio >= target if at_least else ours <= target
    spread = f"{min(ratios):.1f}-{max(ratios):.1f}"
    sign = ">=" if at_least else "<="
    theirs = statistics.median(results["ray"])
    text += f"{theirs:12,.2f} {ratio:7.1f}x {spread:>15} {sign}{target:>6g} {'met' if met else 'MISSED'}"
    return text


def plot(tables: dict[str, Any], path: Path) -> None:
    """Ratios as bars, on a logarithmic scale."""
    from matplotlib import pyplot

    rows = [row for row, results in tables["microbenchmark"].items() if "ray" in results]
    medians = [statistics.median(tables["microbenchmark"][row]["minray"]) for row in rows]
    peers = [statistics.median(tables["microbenchmark"][row]["ray"]) for row in rows]
    figure, axes = pyplot.subplots(figsize=(9, 4))
    axes.barh(rows, [ours / theirs for ours, theirs in zip(medians, peers, strict=True)])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("times as fast as Ray (median over rounds, same run)")
    axes.set_title(f"minray beside Ray, {os.cpu_count()} cores, Python {platform.python_version()}")
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-seconds", type=float, default=2.0)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    rounds, round_s = (2, 0.7) if arguments.quick else (arguments.rounds, arguments.round_seconds)
    libraries = ["minray"] + (["ray"] if importlib.util.find_spec("ray") else [])
    if len(libraries) == 1:
        print("Ray is not installed (extra 'bench'): no ratios", file=sys.stderr)
    tables = collect(libraries, rounds, round_s)
    print(report(tables))
    arguments.output.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    name = time.strftime("%Y%m%d-%H%M%S")
    (arguments.output / f"{name}.json").write_text(json.dumps({"machine": machine, "tables": tables}, indent=1))
    if len(libraries) == 2 and importlib.util.find_spec("matplotlib"):
        plot(tables, arguments.output / f"{name}.png")


if __name__ == "__main__":
    main()
