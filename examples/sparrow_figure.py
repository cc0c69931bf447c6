"""Repeat a figure of Sparrow's paper (SOSP 2013): the response time of jobs by load, for several ways to place tasks.

Jobs arrive as a Poisson process. All tasks of a job take the same time, which is exponentially distributed over the jobs
with a mean of one second. The response time of a job lasts from its arrival until its last task has ended.

    python examples/sparrow_figure.py --html sparrow.html --csv sparrow.csv --processes 2     # the figure: half an hour
    python examples/sparrow_figure.py --loads 0.8 --seeds 2 --jobs 40                         # one column, roughly

The scheduler is minray's own, with policies of `minray.policies`, on simulated nodes. docs/policy_lab.md compares the result
with the paper.
"""

import argparse
import heapq
import html
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import msgspec

from minray.laboratory.charts import Line, lines
from minray.laboratory.draws import Draws
from minray.laboratory.experiment import simulate
from minray.laboratory.figures import percentile, t_interval
from minray.laboratory.page import figure, page
from minray.laboratory.report import to_csv
from minray.laboratory.setup import Setup
from minray.laboratory.workload import CPU, MEMORY, TraceTask, Workload, checked

NODES, CPUS, TASKS = 20, 4, 10
"""Nodes, CPUs of each node, and tasks of each job."""
MEAN_S = 1.0
"""Mean duration of a task in seconds. A raylet's view of other nodes is a tenth of a second old."""
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
FIRST = 0.1
"""Share of the jobs that do not count, because the cluster is empty before the first one."""
TOP = 5.0
"""Highest response time in the plot, in mean durations."""

ONE_TASK_A_LEASE = {"worker_lease_linger_milliseconds": 0, "max_tasks_in_flight_per_worker": 1}
LATE = {"lease_requests_per_task": 2, "max_pending_lease_requests_per_scheduling_category": 2 * TASKS}


@dataclass(frozen=True)
class Scheme:
    """A way to place tasks."""

    name: str
    config: Mapping[str, object]
    shares: bool = False
    """Whether a task of a job may take the place that was asked for another one."""


IDEAL = "omniscient"
SCHEMES = (
    Scheme("random", {"scheduling_policy": "sparrow"}),
    Scheme("per-task sampling", {"scheduling_policy": "power_of_two"}),
    Scheme("per task, late binding", {"scheduling_policy": "sparrow", **LATE}),
    Scheme("batch, late binding", {"scheduling_policy": "sparrow", **LATE}, shares=True),
    Scheme("minray's default", {"scheduling_policy": "hybrid"}),
)


class ResponseRow(msgspec.Struct, frozen=True):
    """The response times of one run, in mean durations of a task."""

    load: float
    scheme: str
    seed: int
    mean: float
    p50: float
    p95: float


def workload(load: float, jobs: int, seed: int, shares: bool) -> Workload:
    """Draw the jobs of one run.

    An owner uses a lease for any task of the same needs. So tasks that must not share a place ask for different numbers of
    bytes of memory, of which each node has enough. All seeds have the same durations, which are quantiles of the
    distribution, in an order of their own: with few jobs, drawn ones would have different means.
    """
    arrivals, order = Draws(seed, "arrivals"), Draws(seed, "order")
    durations = [-MEAN_S * math.log(1 - (job + 0.5) / jobs) for job in sorted(range(jobs), key=lambda job: order.uniform())]
    now_s, tasks = 0.0, []
    for job, duration_s in enumerate(durations):
        now_s += arrivals.exponential(TASKS * MEAN_S / (NODES * CPUS * load))
        for number in range(TASKS):
            needs = {CPU: 1.0, MEMORY: 1.0 + (job if shares else job * TASKS + number)}
            times = {"duration_s": round(duration_s, 6), "arrival_s": round(now_s, 6)}
            tasks.append(TraceTask(f"{job}.{number}", **times, resources=needs, group=str(job)))
    return checked(Workload("sparrow", tuple(tasks)), "sparrow")


def omniscient(tasks: Sequence[TraceTask]) -> dict[str, float]:
    """Return when each task ends if one queue without delays gives the first task to the first free CPU."""
    free_s = [0.0] * (NODES * CPUS)
    ends = {}
    for task in tasks:
        ends[task.id] = max(heapq.heappop(free_s), task.arrival_s) + task.duration_s
        heapq.heappush(free_s, ends[task.id])
    return ends


def measure(load: float, seed: int, scheme: Scheme | None, jobs: int) -> ResponseRow:
    """Run all jobs once; without a scheme, compute the omniscient one."""
    drawn = workload(load, jobs, seed, shares=scheme is not None and scheme.shares)
    if scheme is None:
        ends = omniscient(drawn.tasks)
    else:
        config = {**ONE_TASK_A_LEASE, **scheme.config}
        setup = Setup(nodes=NODES, cpus=CPUS, resources={MEMORY: 1e9}, system_config=config, warm=True)
        ends = {run.task: run.end_s for run in simulate(drawn, setup, seed).executions}
    response_s: dict[str, float] = defaultdict(float)
    for task in drawn.tasks:
        response_s[task.group] = max(response_s[task.group], ends[task.id] - task.arrival_s)
    counted = [response_s[str(job)] / MEAN_S for job in range(int(jobs * FIRST), jobs)]
    p50, p95 = (round(percentile(counted, share), 4) for share in (0.5, 0.95))
    return ResponseRow(load, IDEAL if scheme is None else scheme.name, seed, mean=round(fmean(counted), 4), p50=p50, p95=p95)


def line_of(name: str, rows: Sequence[ResponseRow], by: str | None = None, middle: str = "mean") -> Line:
    """Return the curve of one scheme, or its ratio to another one seed by seed: means and intervals over the seeds.

    ``middle``: ``mean`` or ``p50``, what is taken of the response times of a run.
    """
    middles = {(row.scheme, row.load, row.seed): getattr(row, middle) for row in rows}
    points = []
    for load in dict.fromkeys(row.load for row in rows):
        seeds = dict.fromkeys(row.seed for row in rows)
        values = [middles[name, load, seed] / (middles[by, load, seed] if by else 1.0) for seed in seeds]
        points.append((load, fmean(values), *t_interval(values)))
    return Line(f"{name} / {by}, {middle}" if by else name, points)


def show(curves: Sequence[Line]) -> list[tuple[str, str]]:
    """Return the curves as rows of a table."""
    loads = [point[0] for point in curves[0].points]
    rows = [("load", "   ".join(f"{load:<12g}" for load in loads))]
    for curve in curves:
        told = (f"{mean:.2f} ± {high - mean:.2f}" for _, mean, _, high in curve.points)
        rows.append((curve.name, "   ".join(f"{text:<12}" for text in told)))
    return rows


def main(loads: Sequence[float] = LOADS, seeds: int = 5, jobs: int = 120, processes: int = 1) -> list[ResponseRow]:
    """Run each scheme with each seed and load, and return a row for each run. The rows are printed as they come."""
    runs = [(load, seed, scheme, jobs) for seed, load, scheme in product(range(seeds), loads, (*SCHEMES, None))]
    if processes == 1:
        return [_told(measure(*run)) for run in runs]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return [_told(row) for row in pool.map(measure, *zip(*runs, strict=True))]


def _told(row: ResponseRow) -> ResponseRow:
    print(f"load {row.load:g}, seed {row.seed}, {row.scheme}: {row.mean:.2f}", file=sys.stderr, flush=True)
    return row


def show_all(rows: Sequence[ResponseRow], file: Path | None = None) -> str:
    """Return the tables of the curves and of their ratios, and write a page with the figure."""
    names = [scheme.name for scheme in SCHEMES]
    curves = [line_of(name, rows) for name in (*names, IDEAL)]
    pairs = [*((name, IDEAL) for name in names), ("batch, late binding", "per-task sampling")]
    ratios = [line_of(name, rows, by, middle) for middle in ("mean", "p50") for name, by in pairs]
    told = "\n".join(f"{name:<50}{cells}" for name, cells in [*show(curves), *show(ratios)])
    if file is not None:
        plot = lines(curves, "load: CPU seconds that arrive in a second, by CPUs", "response time of jobs", y_max=TOP)
        seeds = len({row.seed for row in rows})
        caption = (
            f"Mean response time in mean durations of a task, with 95 % intervals over {seeds} seeds. {NODES} nodes of"
            f" {CPUS} CPUs; jobs of {TASKS} tasks. What is above {TOP:g} is cut off."
        )
        parts = [figure("Response time by load", plot, caption), f"<pre>{html.escape(told)}</pre>"]
        file.write_text(page("Sparrow's comparison, by minray", parts), encoding="utf-8")
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="shares of all CPUs that the jobs need")
    parser.add_argument("--seeds", type=int, default=5, help="number of runs of each point, at least 2")
    parser.add_argument("--jobs", type=int, default=120, help="number of jobs of a run")
    parser.add_argument("--processes", type=int, default=1, help="number of runs at a time")
    parser.add_argument("--csv", type=Path, help="write a line for each run to this file")
    parser.add_argument("--html", type=Path, help="write a page with the figure to this file")
    options = parser.parse_args()
    rows = main(options.loads, options.seeds, options.jobs, options.processes)
    if options.csv:
        options.csv.write_text(to_csv(rows), encoding="utf-8")
    print(show_all(rows, options.html))
