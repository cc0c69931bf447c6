"""Runs a workload on a simulated cluster of the real protocol code, and records what happened.

Ray: has no counterpart

    record = simulate(workload, Setup(nodes=8, system_config={"scheduler_spread_threshold": 0.0}), seed=7)

Rules
  * The workload, the setup and the seed decide the record. It has no time of the machine that simulates.
  * ``system_config`` goes to the cluster as it is, so that whatever a real cluster can be told can be compared.

Left out: several drivers and placement groups. All actors belong to the one driver.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import minray
from minray.common.shown import cut
from minray.laboratory import program
from minray.laboratory.cost_model import value_times
from minray.laboratory.modelled_costs import Link, ModelledCosts
from minray.laboratory.plan import planned
from minray.laboratory.setup import HEFT, Machine, Setup, node_names
from minray.laboratory.workload import CPU, NodeFailure, TraceError, Workload
from minray.policies import guards
from minray.simulation.cluster import DRIVER, SimCluster, SimulationFailed
from minray.simulation.interpreter import wall_time
from minray.simulation.loop import current_process

LIMIT_S = 1e8
"""Virtual seconds, about three years, after which a run that does not end fails."""


class PolicyFailed(ValueError):
    """A policy has raised an exception, or given an impossible answer. The figures would be those of the default policy."""


class TaskRun(msgspec.Struct, frozen=True):
    """One run of a task to its end; a task whose results were lost may have several."""

    task: str
    node: str
    start_s: float
    end_s: float


class RunRecord(msgspec.Struct):
    """All that a run leaves for its report. Times are in seconds since the driver began."""

    workload: Workload
    setup: Setup
    seed: int
    planned_s: float = 0.0
    """The makespan of the plan; 0 without one."""
    makespan_s: float = 0.0
    """When the driver knew that the last task had ended."""
    submitted_s: dict[str, float] = {}
    executions: list[TaskRun] = []
    """In the order of their ends."""
    messages: dict[str, int] = {}
    """Number of messages by their words, while the driver ran."""
    pairs: dict[tuple[str, str], int] = {}
    """Bytes of values by (from node, to node)."""
    links: dict[Link, int] = {}
    disks: dict[tuple[str, str], int] = {}
    """Bytes by (node, operation)."""
    disk_busy_s: dict[str, float] = {}
    """Time in which a node's disk served accesses, by the node."""
    control_bytes: int = 0
    workers: int = 0
    """Number of workers that were started, those before the driver included."""


def simulate(workload: Workload, setup: Setup, seed: int) -> RunRecord:
    """Run a workload.

    Raises TraceError for a workload that does not fit the setup or whose tasks fail, ValueError for a wrong system config,
    and PolicyFailed for a policy that has failed.
    """
    check(workload, setup)
    plan = planned(workload, setup) if setup.plan else None
    costs = ModelledCosts(setup.costs, {name: number for number, name in enumerate(node_names(setup))}, setup.shrink)
    record = RunRecord(workload, setup, seed, planned_s=plan.makespan_s if plan else 0.0)
    config = setup.shrunk_config()
    try:
        with SimCluster(setup.described(), seed, system_config=config, show_output=False, costs=costs) as cluster:
            cluster.run(lambda: _drive(cluster, costs, record, plan.nodes if plan else {}), LIMIT_S)
    except SimulationFailed as error:
        if all(guards.FAILED in failure.message for failure in error.failures):
            raise PolicyFailed(_told(error)) from error.failures[0].exception
        raise
    record.pairs, record.links, record.disks = dict(costs.pairs), dict(costs.links), dict(costs.disks)
    record.disk_busy_s = dict(costs.disk_busy_s)
    record.control_bytes, record.workers = costs.control_bytes, costs.workers
    return record


def _told(failed: SimulationFailed) -> str:
    """Describe the first failure of a policy, with the line of the policy that has raised it."""
    first, *others = dict.fromkeys(failure.message for failure in failed.failures)
    error = failed.failures[0].exception
    frame = traceback.extract_tb(error.__traceback__)[-1] if error is not None else None
    place = f" ({frame.filename}:{frame.lineno})" if frame is not None and frame.filename != guards.__file__ else ""
    more = f", and {len(others)} further failures" if others else ""
    return f"{first}{place}{more}. The run has no figures, since they would not be the policy's"


def _drive(cluster: SimCluster, costs: ModelledCosts, record: RunRecord, plan: Mapping[str, int]) -> None:
    """Be the simulated driver: begin the failures and the records, and run the program."""
    driver = current_process.get()
    assert driver is not None and driver.name.startswith(DRIVER)
    if record.setup.warm:
        program.warm_up(record.setup.whole_cpus())
    begin_s = wall_time(driver)
    before = Counter(costs.messages)
    costs.forget_bytes()
    for failure in record.workload.failures:
        _schedule(cluster, failure, record.setup)
    observer = _Observer(record, begin_s)
    program.OBSERVERS.append(observer)
    try:
        values_s = value_times(record.workload.tasks, record.setup.costs)
        places = program.Places(record.workload.tasks, _node_ids(plan, record.setup))
        submitted, shrink = record.submitted_s.__setitem__, record.setup.shrink
        record.makespan_s = program.drive(record.workload, values_s, shrink, submitted, observer.check_end, places)
    finally:
        program.OBSERVERS.remove(observer)
    record.messages = dict(costs.messages - before)


def _node_ids(plan: Mapping[str, int], setup: Setup) -> dict[str, str]:
    """Return for each task of a plan the id of its node."""
    ids = {node["NodeName"]: node["NodeID"] for node in minray.nodes()}
    names = node_names(setup)
    return {task: ids[names[number]] for task, number in plan.items()}


class _Observer:
    """Implements ``program.Observer``: it tells the speeds of the setup, and records the tasks that have ended."""

    def __init__(self, record: RunRecord, begin_s: float) -> None:
        self._record = record
        self._begin_s = begin_s
        machines = zip(node_names(record.setup), record.setup.each(), strict=True)
        self._speeds = {name: machine.speed for name, machine in machines}
        self._ended: set[str] = set()
        """Ids of the tasks that have run to their end."""

    def speed(self) -> float:
        return self._speeds[_node_here()]

    def on_end(self, task: str, start_s: float, end_s: float) -> None:
        self._ended.add(task)
        self._record.executions.append(TaskRun(task, _node_here(), start_s - self._begin_s, end_s - self._begin_s))

    def check_end(self, task: str, result: Any) -> None:
        """Raise TraceError if the result of a task is known, though it has not run to its end."""
        if task not in self._ended:
            try:
                minray.get(result)
            except Exception as error:
                # The error of a task ends with the exception that was raised in it.
                why = cut((str(error).strip() or repr(error)).splitlines()[-1])
                raise TraceError(f"task {task!r} of {self._record.workload.name} has failed: {why}") from error


def _node_here() -> str:
    process = current_process.get()
    assert process is not None
    return process.node


def _schedule(cluster: SimCluster, failure: NodeFailure, setup: Setup) -> None:
    name, world = f"n{failure.node}", cluster.world
    later = world.loop.world.call_later
    later(failure.down_s, world.lose_node, name)
    if failure.up_s is not None:
        later(failure.up_s, lambda: cluster.add_node(name, **setup.described()[failure.node]))


def check(workload: Workload, setup: Setup) -> None:
    """Raise TraceError if a task needs more than any node has, or a node fails that is not there."""
    if setup.nodes < 1 or setup.shrink < 1 or setup.store_bytes < 1:
        raise TraceError(f"nodes={setup.nodes}, shrink={setup.shrink}, store={setup.store_bytes}: give numbers from 1")
    if setup.plan not in ("", HEFT):
        raise TraceError(f"there is no plan {setup.plan!r}; write {HEFT!r}, or leave it out")
    machines = setup.each()
    needs = {f"task {task.id!r}": {CPU: 1.0, **task.resources} for task in workload.tasks if not task.actor}
    needs |= {f"actor {actor.id!r}": actor.resources for actor in workload.actors}
    kinds = setup.machines or machines[:1]
    for who, resources in needs.items():
        if not any(all(amount <= kind.has(name) for name, amount in resources.items()) for kind in kinds):
            raise TraceError(_too_large(f"{who} of {workload.name}", resources, kinds))
    for failure in workload.failures:
        if failure.node >= len(machines):
            raise TraceError(f"node {failure.node} fails, but the last of {len(machines)} nodes is {len(machines) - 1}")


def _too_large(who: str, resources: Mapping[str, float], kinds: Sequence[Machine]) -> str:
    """Return the error of a need that no node has."""
    hint = "give nodes more (--cpus, --resources, --machines), or the task less"
    for name, amount in resources.items():
        most = max(kind.has(name) for kind in kinds)
        if amount > most:
            return f"{who} needs {amount:g} {name}, and a node has {most:g}; {hint}"
    needs = " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
    return f"{who} needs {needs} on one node, and no kind of node has all of that; {hint}"
