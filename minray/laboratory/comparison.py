"""Compares configurations of a cluster over several seeds, with confidence intervals.

Ray: has no counterpart

    compared = compare(lambda seed: workload_of("fft:width=16,durations=exponential", seed), setups, range(10))

Rules
  * All configurations run the same workloads with the same seeds, and so differences are taken pair by pair: what a seed
    makes hard, it makes hard for all.
  * The seed draws the workload if it is generated, and each choice of the cluster in any case.
  * A difference counts as one if its interval of 95 % does not contain 0. With many metrics, one in twenty does so by
    chance alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import msgspec

from minray.laboratory.experiment import simulate
from minray.laboratory.figures import bootstrap_interval, t_interval
from minray.laboratory.hot_spots import KINDS
from minray.laboratory.report import DIGITS, Figures, summarise
from minray.laboratory.setup import Setup
from minray.laboratory.workload import TraceError, Workload

VERSION = 1
MIN_SEEDS = 2
"""Smallest number of seeds of a comparison: one value has no interval."""
NAMED = 3
"""Number of nodes, links and disks that are named as the busiest of a configuration."""


class ComparedRow(msgspec.Struct, frozen=True):
    """The metrics of one run, a line of the table. Fields that are numbers are the metrics.

    ``busiest_...`` names the busiest node, link or disk (None: none was used), ``busiest_..._use`` is its share of what it
    could do, and ``busiest_..._by_mean`` this use by the mean of all nodes, links or disks (0: none was used).
    """

    configuration: str
    seed: int
    makespan_s: float
    utilisation: float
    queueing_mean_s: float
    queueing_p50_s: float
    queueing_p95_s: float
    queueing_p99_s: float
    queueing_p99_9_s: float
    queueing_max_s: float
    moved_bytes: float
    spilled_bytes: float
    messages_per_task: float
    fairness_of_nodes: float
    fairness_of_groups: float
    runs_again: float
    busiest_node: str | None
    busiest_node_use: float
    busiest_node_by_mean: float
    busiest_link: str | None
    busiest_link_use: float
    busiest_link_by_mean: float
    busiest_disk: str | None
    busiest_disk_use: float
    busiest_disk_by_mean: float


METRICS = tuple(field.name for field in msgspec.structs.fields(ComparedRow) if field.type is float)
BUSIEST = {kind: f"busiest_{name}" for kind, name in KINDS.items()}
"""The fields that name the hot spots, by the lists of a report."""
PERCENTILES = {"p50": "queueing_p50_s", "p95": "queueing_p95_s", "p99": "queueing_p99_s"}
PERCENTILES |= {"p99.9": "queueing_p99_9_s", "max": "queueing_max_s"}
"""The metrics that are percentiles of the queueing delay, by their names in a report."""


def row_of(configuration: str, figures: Figures) -> ComparedRow:
    """Take the compared metrics out of the figures of a run."""
    return ComparedRow(
        configuration=configuration,
        seed=figures["seed"],
        makespan_s=figures["makespan_s"],
        utilisation=figures["utilisation"],
        queueing_mean_s=figures["queueing_delay_s"]["mean"],
        **{metric: figures["queueing_delay_s"][name] for name, metric in PERCENTILES.items()},
        moved_bytes=figures["bytes"]["moved"],
        spilled_bytes=figures["bytes"]["spilled"],
        messages_per_task=figures["messages"]["per_task"],
        fairness_of_nodes=figures["fairness"]["nodes"],
        fairness_of_groups=figures["fairness"]["groups"],
        runs_again=figures["tasks"]["runs_again"],
        **_busiest(figures["hot_spots"]),
    )


def _busiest(spots: Figures) -> Figures:
    """Return the fields of a row about the busiest node, link and disk."""
    fields: Figures = {}
    for kind, field in BUSIEST.items():
        use, mean = (spots[kind][0]["utilisation"], spots["mean_utilisation"][kind]) if spots[kind] else (0.0, 0.0)
        fields[field] = spots[kind][0][KINDS[kind]] if use else None
        fields |= {f"{field}_use": use, f"{field}_by_mean": round(use / mean, DIGITS) if mean else 0.0}
    return fields


def compare(
    workload: Callable[[int], Workload],
    setups: Mapping[str, Setup],
    seeds: Sequence[int],
    on_run: Callable[[ComparedRow], None] = lambda row: None,
) -> list[ComparedRow]:
    """Run every configuration with every seed; ``on_run`` hears of each run. Raises TraceError."""
    if len(setups) < 1 or len(set(seeds)) < MIN_SEEDS:
        counts = f"{len(setups)} and {len(seeds)}"
        raise TraceError(f"a comparison has a configuration and {MIN_SEEDS} seeds at least, not {counts}")
    rows = []
    for seed in seeds:
        drawn = workload(seed)
        for name, setup in setups.items():
            rows.append(row_of(name, summarise(simulate(drawn, setup, seed))))
            on_run(rows[-1])
    return rows


def summarise_comparison(trace: str, rows: Iterable[ComparedRow], setups: Mapping[str, Setup]) -> Figures:
    """Return mean values and intervals of each metric and configuration, and the differences to the first one.

    ``trace`` names the workload.
    """
    listed = list(rows)
    values = {
        name: {metric: [getattr(row, metric) for row in listed if row.configuration == name] for metric in METRICS}
        for name in setups
    }
    first = next(iter(setups))
    metrics: dict[str, Any] = {}
    for metric in METRICS:
        metrics[metric] = {name: _estimate(values[name][metric]) for name in setups}
        for name in list(setups)[1:]:
            pairs = zip(values[name][metric], values[first][metric], strict=True)
            difference = _estimate([value - base for value, base in pairs])
            low, high = difference["t_interval"]
            metrics[metric][name]["difference"] = difference | {"is_clear": not low <= 0 <= high}
    return {
        "minray_comparison": VERSION,
        "trace": trace,
        "first": first,
        "setups": {name: msgspec.to_builtins(setup) for name, setup in setups.items()},
        "seeds": list(dict.fromkeys(row.seed for row in listed)),
        "metrics": metrics,
        "busiest": {field: {name: _names(listed, name, field) for name in setups} for field in BUSIEST.values()},
    }


def _names(rows: Iterable[ComparedRow], configuration: str, field: str) -> dict[str, int]:
    """Return in how many runs of a configuration each node, link or disk was the busiest, the most frequent first."""
    names = Counter(getattr(row, field) for row in rows if row.configuration == configuration)
    return {name: count for name, count in sorted(names.items(), key=lambda item: (-item[1], str(item[0]))) if name}


def busiest_text(figures: Figures, field: str, configuration: str) -> str:
    """Return a few words about who was the busiest in how many runs: ``n3 4 of 5, n1 1 of 5``."""
    names, runs = figures["busiest"][field][configuration], len(figures["seeds"])
    return ", ".join(f"{name} {count} of {runs}" for name, count in list(names.items())[:NAMED]) or "none"


def _estimate(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, intervals and values of one metric."""
    intervals = {"t_interval": t_interval(values), "bootstrap_interval": bootstrap_interval(values)}
    rounded = {name: [round(end, DIGITS) for end in interval] for name, interval in intervals.items()}
    return {"mean": round(fmean(values), DIGITS), **rounded, "values": list(values)}


def comparison_text(figures: Figures) -> str:
    """Return the comparison for a terminal: a line for each metric that is not zero everywhere."""
    lines = []
    for metric, estimates in figures["metrics"].items():
        if not any(any(estimate["values"]) for estimate in estimates.values()):
            continue
        lines.append(metric)
        for name, estimate in estimates.items():
            low, high = estimate["t_interval"]
            told = f"  {name:<24}{_shown(estimate['mean']):>12}   95 %: {_shown(low)} to {_shown(high)}"
            if "difference" in estimate:
                change = estimate["difference"]
                told += f"   {_shown(change['mean'], '+')} to {figures['first']}" + (", clear" if change["is_clear"] else "")
            if metric.removesuffix("_use") in figures["busiest"]:
                told += f"   {busiest_text(figures, metric.removesuffix('_use'), name)}"
            lines.append(told)
    return "\n".join(lines)


def _shown(number: float, sign: str = "") -> str:
    """Return a number with four significant digits, in full."""
    digits = max(0, 3 - math.floor(math.log10(abs(number)))) if number else 0
    return f"{number:{sign},.{min(digits, DIGITS)}f}"
