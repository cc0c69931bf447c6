"""Plans a workload with HEFT for the nodes of a setup: the only place where the speeds of nodes decide where a task runs.

Ray: has no counterpart

    plan = planned(workload, setup)          # Setup(machines=..., plan="heft") has ``simulate`` do it

The planner knows what no policy of a raylet knows: the whole graph, the duration of each task, and the speed of each node.
``program.Places`` carries the plan out: it sends each task to its node, in the order of the planned starts.

Rules
  * Each CPU of a node is a processor of HEFT's. A task takes its duration by the speed of the node, and the costs of its
    values. A value takes the latency and its bytes by the bandwidth of a node's link, and nothing within a node.
  * A task needs one CPU and nothing else, and arrives at 0. HEFT knows no more.

Left out, as in HEFT: transfers that share a link, and starts of workers. Also the links between racks. So a run may take
longer than its plan.
"""

from __future__ import annotations

from typing import NamedTuple

from minray.laboratory.cost_model import value_times
from minray.laboratory.setup import Setup
from minray.laboratory.workload import CPU, TraceError, TraceTask, Workload
from minray.policies.heft import heft, times_on


class Plan(NamedTuple):
    """Where each task of a workload runs, and how long all of it should take."""

    nodes: dict[str, int]
    """Number of the node of each task, by the task's id, in the order of the planned starts."""
    makespan_s: float


def planned(workload: Workload, setup: Setup) -> Plan:
    """Plan a workload. Raises TraceError for one that HEFT cannot plan."""
    if workload.actors or workload.failures:
        raise TraceError(f"{workload.name} has actors or failures of nodes, and HEFT plans tasks alone; leave out the plan")
    for task in workload.tasks:
        if task.arrival_s or task.resources not in ({}, {CPU: 1.0}):
            given = f"arrival_s={task.arrival_s:g} and resources={task.resources}"
            raise TraceError(f"task {task.id!r} has {given}, and HEFT plans one CPU and arrival 0; leave out the plan")
    costs, values_s = setup.costs, value_times(workload.tasks, setup.costs)
    homes = [number for number, machine in enumerate(setup.each()) for _ in range(int(machine.cpus))]
    speeds = [setup.each()[number].speed for number in homes]
    times = times_on({task.id: task.duration_s for task in workload.tasks}, speeds)
    with_values = {task: [each_s + values_s[task] for each_s in each] for task, each in times.items()}
    transfers = {
        arrow: costs.rack_latency_s + size_bytes / costs.node_bytes_per_s
        for arrow, size_bytes in _arrows(workload.tasks).items()
    }
    schedule = heft(with_values, transfers, homes)
    by_start = sorted(schedule, key=lambda task: schedule[task].start)
    nodes = {task: homes[schedule[task].processor] for task in by_start}
    return Plan(nodes, max(slot.finish for slot in schedule.values()))


def _arrows(tasks: tuple[TraceTask, ...]) -> dict[tuple[str, str], int]:
    """Return the bytes that each task needs of each other one; a result that is an argument twice travels once."""
    outputs = {task.id: task.outputs for task in tasks}
    arrows: dict[tuple[str, str], int] = {}
    for task in tasks:
        for source, number in dict.fromkeys(task.inputs):
            arrows[source, task.id] = arrows.get((source, task.id), 0) + outputs[source][number]
    return arrows
