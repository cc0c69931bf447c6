"""The figures of one run: makespan, utilisation, queueing delays, bytes, fairness, messages, hot spots.

Ray: has no counterpart

    figures = summarise(simulate(workload, setup, seed))      # for people and programs
    Path("run.json").write_bytes(to_json(figures))

Definitions (docs/laboratory.md has them for readers of reports)
  * A task is ready when it has been submitted and all tasks whose results it uses have ended. Its queueing delay lasts from
    then until it first starts: scheduling, starts of workers and transfers of arguments are in it.
  * Utilisation is CPU seconds of tasks that ended, by CPUs of all nodes and the makespan. Runs cut off by a failure are idle
    time here.
  * Bytes moved are those of values between nodes. Control messages are counted apart.

Rules
  * The same record gives the same bytes, on each machine: numbers are rounded, and lists have an order.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import msgspec

from minray.laboratory.experiment import RunRecord, TaskRun
from minray.laboratory.figures import jain, percentile
from minray.laboratory.hot_spots import hot_spots, most
from minray.laboratory.setup import node_names
from minray.laboratory.workload import TraceTask, cpus_of, critical_path_s, earliest_end_s, work_s
from minray.simulation.costs import READ, WRITE

VERSION = 1
SLICES = 120
"""Number of equal slices of time in the curve of busy CPUs."""
DIGITS = 6
"""Decimal places of numbers in reports: microseconds."""
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
"""The percentiles of the queueing delay."""

Figures = dict[str, Any]


class ReportRow(msgspec.Struct, frozen=True):
    """One task in the table of a run. Times are in seconds; those of a task that never ended are None."""

    task: str
    kind: str
    group: str
    cpus: float
    node: str | None
    submitted_s: float
    ready_s: float | None
    start_s: float | None
    end_s: float | None
    queueing_delay_s: float | None
    runs: int


def task_rows(record: RunRecord) -> list[ReportRow]:
    """Return the table of all tasks, in the order of their arrival."""
    runs: dict[str, list[TaskRun]] = defaultdict(list)
    for execution in record.executions:
        runs[execution.task].append(execution)
    cpus = cpus_of(record.workload)
    return [_row(task, cpus[task.id], record, runs) for task in record.workload.tasks]


def _row(task: TraceTask, cpus: float, record: RunRecord, runs: Mapping[str, list[TaskRun]]) -> ReportRow:
    submitted_s, own = record.submitted_s[task.id], runs.get(task.id, [])
    first_ends = [min((run.end_s for run in runs.get(source, [])), default=math.inf) for source, _ in task.inputs]
    ready_s = max([submitted_s, *first_ends])
    first = min(own, key=lambda run: run.start_s) if own else None
    # A task may start early only if its argument was made again, from a run that had no end.
    delay_s = None if first is None else max(0.0, first.start_s - ready_s)
    return ReportRow(
        task=task.id,
        kind=task.kind,
        group=task.group,
        cpus=cpus,
        node=None if first is None else first.node,
        submitted_s=_rounded(submitted_s),
        ready_s=None if math.isinf(ready_s) else _rounded(ready_s),
        start_s=None if first is None else _rounded(first.start_s),
        end_s=None if first is None else _rounded(first.end_s),
        queueing_delay_s=delay_s if delay_s is None else _rounded(delay_s),
        runs=len(own),
    )


def summarise(record: RunRecord) -> Figures:
    """Return all figures of a run, as plain data."""
    rows, setup, tasks = task_rows(record), record.setup, record.workload.tasks
    cpus, machines, total_cpus = cpus_of(record.workload), setup.each(), setup.total_cpus()
    busy: Counter[str] = Counter()
    for run in record.executions:
        busy[run.node] += cpus[run.task] * (run.end_s - run.start_s)  # type: ignore[assignment]
    nodes = node_names(setup)
    power = math.fsum(machine.cpus * machine.speed for machine in machines)
    fastest = max(machine.speed for machine in machines)
    bound_s = max(earliest_end_s(tasks, fastest), work_s(record.workload) / power if power else 0.0)
    figures: Figures = _plain(
        {
            "minray_report": VERSION,
            "workload": _facts_of_workload(record),
            "setup": msgspec.to_builtins(setup),
            "nodes_and_cpus": [len(machines), total_cpus],
            "seed": record.seed,
            "planned_s": record.planned_s or None,
            "makespan_s": record.makespan_s,
            "lower_bound_s": bound_s,
            "utilisation": sum(busy.values()) / (total_cpus * record.makespan_s) if total_cpus else 0.0,
            "queueing_delay_s": _delays(rows),
            "bytes": {
                "moved": sum(record.pairs.values()),
                "spilled": _at_disks(record, WRITE),
                "restored": _at_disks(record, READ),
                "control": record.control_bytes,
            },
            "fairness": {"nodes": jain([busy[node] for node in nodes]), "groups": jain(_stretches(rows))},
            "messages": {
                "total": sum(record.messages.values()),
                "per_task": sum(record.messages.values()) / len(tasks),
                "most": most(record.messages),
            },
            "tasks": {
                "ended": sum(row.runs > 0 for row in rows),
                "lost": sum(row.runs == 0 for row in rows),
                "runs_again": sum(max(0, row.runs - 1) for row in rows),
            },
            "workers_started": record.workers,
            "hot_spots": {**hot_spots(record, busy), "tasks": _longest_delays(rows)},
            "nodes": {node: {"busy_cpu_s": busy[node]} for node in nodes},
            "busy_cpus": {"slice_s": record.makespan_s / SLICES, "cpus": busy_curve(record)},
        }
    )
    return figures


def _facts_of_workload(record: RunRecord) -> Figures:
    workload = record.workload
    return {
        "name": workload.name,
        "tasks": len(workload.tasks),
        "actors": len(workload.actors),
        "work_cpu_s": work_s(workload),
        "critical_path_s": critical_path_s(workload.tasks),
        "output_bytes": sum(sum(task.outputs) for task in workload.tasks),
        "failures": msgspec.to_builtins(workload.failures),
        "notes": list(workload.notes),
    }


def _delays(rows: Iterable[ReportRow]) -> dict[str, float]:
    """Return the mean and the percentiles of the queueing delays."""
    delays = sorted(row.queueing_delay_s for row in rows if row.queueing_delay_s is not None) or [0.0]
    return {"mean": fmean(delays), **{name: percentile(delays, share) for name, share in SHARES.items()}}


def _longest_delays(rows: Iterable[ReportRow]) -> list[Figures]:
    delays_s = {row.task: row.queueing_delay_s for row in rows if row.queueing_delay_s}
    return [{"task": task, "queueing_delay_s": delay_s} for task, delay_s in most(delays_s)]


def _at_disks(record: RunRecord, operation: str) -> int:
    return sum(size for (_, what), size in record.disks.items() if what == operation)


def _stretches(rows: Iterable[ReportRow]) -> list[float]:
    """Return for each group the mean of its tasks' stretch: time from ready to end, by the time that the task ran."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.start_s is not None and row.end_s is not None and row.end_s > row.start_s:
            assert row.queueing_delay_s is not None
            groups[row.group].append(1 + row.queueing_delay_s / (row.end_s - row.start_s))
    return [fmean(stretches) for stretches in groups.values()] or [1.0]


def busy_curve(record: RunRecord, node: str | None = None) -> list[float]:
    """Return the mean number of CPUs in use, of one node or of all, in each of ``SLICES`` equal slices of the run."""
    cpus = cpus_of(record.workload)
    width_s = record.makespan_s / SLICES
    totals = [0.0] * SLICES
    for run in record.executions:
        if node in (None, run.node):
            for index in range(int(run.start_s / width_s), min(SLICES - 1, int(run.end_s / width_s)) + 1):
                overlap_s = min(run.end_s, (index + 1) * width_s) - max(run.start_s, index * width_s)
                totals[index] += cpus[run.task] * max(0.0, overlap_s)
    return [total / width_s for total in totals]


def _rounded(number: float) -> float:
    return round(number, DIGITS)


def _plain(value: Any) -> Any:
    """Return plain data with rounded numbers."""
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def to_json(figures: Figures) -> bytes:
    return msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n"


def to_csv(rows: Iterable[msgspec.Struct]) -> str:
    """Return a table with a line for each record; a missing value is empty."""
    listed = list(rows)
    lines = [",".join(listed[0].__struct_fields__)] if listed else []
    lines += [",".join(_cell(value) for value in msgspec.structs.astuple(row)) for row in listed]
    return "\n".join([*lines, ""])


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text


def text(figures: Figures) -> str:
    """Return the main figures for a terminal."""
    delay, moved, workload = figures["queueing_delay_s"], figures["bytes"], figures["workload"]
    nodes, cpus = figures["nodes_and_cpus"]
    planned = f"; planned: {figures['planned_s']:.3f} s" if figures["planned_s"] else ""
    rows = [
        ("tasks", f"{figures['tasks']['ended']} of {workload['tasks']} ended, {figures['tasks']['runs_again']} runs again"),
        ("makespan", f"{figures['makespan_s']:.3f} s; no schedule is below {figures['lower_bound_s']:.3f} s" + planned),
        ("utilisation", f"{figures['utilisation']:.1%} of {cpus:g} CPUs on {nodes} nodes"),
        ("queueing", ", ".join(f"{name} {delay[name]:.3f}" for name in ("mean", *SHARES)) + " s"),
        ("bytes", ", ".join(f"{name} {size / 1e6:.1f}" for name, size in moved.items()) + " MB"),
        ("fairness", ", ".join(f"{name} {index:.3f}" for name, index in figures["fairness"].items()) + " (Jain)"),
        ("messages", f"{figures['messages']['per_task']:.1f} per task"),
    ]
    hot = figures["hot_spots"]
    spots = [f"{node['node']} {node['utilisation']:.0%}" for node in hot["nodes"][:2]]
    spots += [f"{link['link']} {link['utilisation']:.0%}" for link in hot["links"][:2]]
    return "\n".join(f"{name:<12}{told}" for name, told in [*rows, ("hot spots", ", ".join(spots))])
