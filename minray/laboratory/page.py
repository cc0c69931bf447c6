"""Writes reports as HTML pages: one file with style and plots inside, which fetches nothing and runs no script.

Ray: has no counterpart

    Path("run.html").write_text(run_page(record, summarise(record)))

Rules
  * The page's security policy forbids everything but its own style. It can be sent by mail, and opened without a network.
  * The same record gives the same bytes. No time of day and no name of a machine is in it.
  * All texts of a trace are data and are escaped.

Left out: plots that can be zoomed. Who wants others takes the JSON and the CSV.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minray.laboratory.charts import MAX_ROWS, bars, curve, distribution, intervals, lanes
from minray.laboratory.comparison import BUSIEST, PERCENTILES, busiest_text
from minray.laboratory.experiment import RunRecord
from minray.laboratory.hot_spots import KINDS
from minray.laboratory.report import SLICES, Figures, busy_curve, task_rows
from minray.laboratory.setup import node_names

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light; --ink: #1c2430; --quiet: #6b7686; --line: #d5dbe3; --fill: #1769e0 }
body { margin: 24px auto; padding: 0 16px; max-width: 700px; background: #fff; color: var(--ink);
  font: 14px/1.5 system-ui, "Liberation Sans", sans-serif }
h1 { font-size: 19px; overflow-wrap: anywhere }
h2 { margin: 28px 0 6px; font-size: 15px }
p, figcaption { margin: 4px 0; color: var(--quiet) }
figure { margin: 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: 2px 14px 2px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
pre { padding: 8px 10px; background: #f6f8fa; overflow-x: auto; font-size: 12px }
svg { display: block; max-width: 100%; height: auto; font: 11px system-ui, "Liberation Sans", sans-serif }
svg text { fill: var(--ink) }
.grid { stroke: var(--line); fill: none }
.area { fill: var(--fill); fill-opacity: .25; stroke: var(--fill) }
.line { fill: none; stroke: var(--fill); stroke-width: 2 }
.limit { fill: none; stroke: var(--quiet); stroke-dasharray: 4 3 }
.bar, .dot { fill: var(--fill) }
.of0 { color: #1769e0 } .of1 { color: #c2410c } .of2 { color: #15803d } .of3 { color: #7e22ce } .of4 { color: #0f766e }
.of5 { color: #6b7686 }
.of0 path, .of1 path, .of2 path, .of3 path, .of4 path, .of5 path { fill: none; stroke: currentColor; stroke-width: 2 }
.of0 circle, .of1 circle, .of2 circle, .of3 circle, .of4 circle, .of5 circle { fill: currentColor }
"""


def run_page(record: RunRecord, figures: Figures) -> str:
    """Return the page of one run."""
    setup, workload = record.setup, figures["workload"]
    machines, cpus = setup.each(), setup.total_cpus()
    title = f"{workload['name']} on {len(machines)} simulated nodes"
    width_s = record.makespan_s / SLICES
    middles = [(index + 0.5) * width_s for index in range(SLICES)]
    delays = [row.queueing_delay_s for row in task_rows(record) if row.queueing_delay_s is not None]
    shown = list(zip(node_names(setup), machines, strict=True))[: MAX_ROWS + 1]
    shares = [(node, [used / (machine.cpus or 1.0) for used in busy_curve(record, node)]) for node, machine in shown]
    hot = figures["hot_spots"]
    links = [(link["link"], link["utilisation"], _percent(link["utilisation"])) for link in hot["links"]]
    disks = [(disk["disk"], disk["utilisation"], _percent(disk["utilisation"])) for disk in hot["disks"]]
    late = [(task["task"], task["queueing_delay_s"], f"{task['queueing_delay_s']:.3f} s") for task in hot["tasks"]]
    messages = [(word, count, str(count)) for word, count in figures["messages"]["most"]]
    kinds = [("bytes " + name, size, f"{size / 1e6:.1f} MB") for name, size in figures["bytes"].items()]
    sections = [
        figure("Busy CPUs", curve(middles, busy_curve(record), "seconds", "busy CPUs", cpus), "Dashed: all CPUs."),
        figure("Nodes over time", lanes(shares, "busy share of each node"), "Darker: more of the node's CPUs are busy."),
        figure("Queueing delay", distribution(delays, "seconds from ready to start"), "Share of tasks with no longer one."),
        figure("Bytes", bars(kinds, "bytes"), "Moved: values between nodes. Control: messages without values."),
        figure("Busiest links", bars(links, "links"), "Mean use of the bandwidth over the whole run."),
        figure("Busiest disks", bars(disks, "disks"), "Share of the run in which the disk of a node served accesses."),
        figure("Longest waits", bars(late, "tasks"), "Tasks with the longest queueing delay."),
        figure("Messages", bars(messages, "messages"), f"{figures['messages']['per_task']:.1f} messages per task in all."),
    ]
    notes = "".join(f"<p>{html.escape(note)}.</p>" for note in workload["notes"])
    setup_text = _setup_text(figures["setup"], f"seed {record.seed}")
    return page(title, [_table(_main_rows(figures)), notes, *sections, setup_text])


def _main_rows(figures: Figures) -> list[tuple[str, str]]:
    delay, tasks, workload = figures["queueing_delay_s"], figures["tasks"], figures["workload"]
    planned = f"; planned: {figures['planned_s']:.3f} s" if figures["planned_s"] else ""
    waits = ", ".join(f"{name} {value:.3f}" for name, value in delay.items())
    return [
        ("Tasks", f"{workload['tasks']}; {tasks['ended']} ended, {tasks['lost']} lost, {tasks['runs_again']} runs again"),
        ("Makespan", f"{figures['makespan_s']:.3f} s" + planned),
        ("Lower bound", f"{figures['lower_bound_s']:.3f} s: arrivals and the critical path, or the work by all CPUs"),
        ("Utilisation", _percent(figures["utilisation"])),
        ("Queueing delay", f"{waits} s"),
        ("Fairness (Jain)", f"nodes {figures['fairness']['nodes']:.3f}, groups {figures['fairness']['groups']:.3f}"),
        ("Workers started", str(figures["workers_started"])),
    ]


def comparison_page(figures: Figures) -> str:
    """Return the page of a comparison: for each metric the mean of each configuration, with its interval.

    Percentiles of the queueing delay share a plot, and so do the uses of the busiest node, link and disk.
    """
    parts = [f"<p>{len(figures['seeds'])} seeds; lines are intervals of 95 % by Student's t.</p>"]
    uses, by_mean = ({KINDS[kind]: field + end for kind, field in BUSIEST.items()} for end in ("_use", "_by_mean"))
    together = {
        "queueing delay: percentiles, in seconds": PERCENTILES,
        "busiest node, link and disk: use": uses,
        "busiest node, link and disk: use by the mean of all": by_mean,
    }
    alone = figures["metrics"].keys() - {metric for metrics in together.values() for metric in metrics.values()}
    for metric in figures["metrics"]:
        if metric in alone:
            parts += _compared(figures, metric.replace("_", " "), {"": metric})
    for title, metrics in together.items():
        parts += _compared(figures, title, metrics)
    parts += _busiest_names(figures)
    parts += [_setup_text(setup, name) for name, setup in figures["setups"].items()]
    return page(f"{figures['trace']}: {' and '.join(figures['setups'])}", parts)


def _compared(figures: Figures, title: str, metrics: Mapping[str, str]) -> list[str]:
    """Return a plot of metrics by their short names, and a table of differences. Metrics that are all 0 are left out."""
    rows, told = [], []
    for short, metric in metrics.items():
        estimates = figures["metrics"][metric]
        if any(any(estimate["values"]) for estimate in estimates.values()):
            for name, estimate in estimates.items():
                rows.append((f"{short}, {name}" if short else name, estimate["mean"], *estimate["t_interval"]))
            told.append((short, _differences(figures["first"], estimates)))
    if not rows:
        return []
    if list(metrics) == [""]:
        return [figure(title, intervals(rows, title), told[0][1])]
    return [figure(title, intervals(rows, title), ""), _table(told) if len(figures["setups"]) > 1 else ""]


def _busiest_names(figures: Figures) -> list[str]:
    """Return a table: which node, link and disk was the busiest with each configuration, in how many runs."""
    rows = [
        (f"{field.replace('_', ' ')}, {name}", busiest_text(figures, field, name))
        for field in BUSIEST.values()
        for name in figures["setups"]
        if any(figures["busiest"][field].values())
    ]
    return ["<h2>Who was the busiest</h2>", _table(rows)] if rows else []


def _differences(first: str, estimates: dict[str, Any]) -> str:
    """Return a sentence about the differences to the first configuration."""
    told = []
    for name, estimate in estimates.items():
        if "difference" in estimate:
            low, high = estimate["difference"]["t_interval"]
            clear = "" if estimate["difference"]["is_clear"] else ", which may be chance"
            change = f"{estimate['difference']['mean']:.4g} ({low:.4g} to {high:.4g}){clear}"
            told.append(f"{name} - {first}: {change if low or high else 'no difference'}")
    return "; ".join(told)


def figure(title: str, svg: str, caption: str) -> str:
    """Return a plot with a title above and a caption below, as a part of a page."""
    return f"<h2>{html.escape(title)}</h2><figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(told)}</td></tr>" for name, told in rows)
    return f"<table>{lines}</table>"


def _setup_text(setup: dict[str, Any], title: str) -> str:
    return f"<h2>Setup: {html.escape(title)}</h2><pre>{html.escape(json.dumps(setup, indent=1))}</pre>"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def page(title: str, parts: Sequence[str]) -> str:
    """Return a whole page of parts, which are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )
