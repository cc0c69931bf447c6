"""Runs a workload on a simulated cluster of the real protocol code, and records what happened.

Ray: has no counterpart

    record = simulate(workload, Setup(nodes=8, system_config={"scheduler_spread_threshold": 0.0}), seed=7)

Rules
  * The workload, the setup and the seed decide the record. It has no time of the machine that simulates.
  * ``system_config`` goes to the cluster as it is, so that whatever a real cluster can be told can be compared.
  * The head has CPUs like every node, and the driver besides.

Left out: several drivers, actors, placement groups. A workload has tasks only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from minray.common.config import SystemConfig
from minray.laboratory import program
from minray.laboratory.cost_model import CostModel
from minray.laboratory.modelled_costs import Link, ModelledCosts
from minray.laboratory.workload import CPU, GPU, MEMORY, NodeFailure, TraceError, TraceTask, Workload
from minray.simulation.cluster import DRIVER, HEAD, SimCluster
from minray.simulation.interpreter import wall_time
from minray.simulation.loop import current_process

LIMIT_S = 1e8
"""Virtual seconds, about three years, after which a run that does not end fails."""
SIZES = ("max_direct_call_object_size", "object_manager_default_chunk_size", "min_spilling_size")
"""The bounds of the system config that are divided with the sizes of values when a run is shrunk."""


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster on which a workload runs."""

    nodes: int = 4
    cpus: float = 4.0
    """CPUs of each node."""
    resources: dict[str, float] = {}
    """Further resources of each node: ``{"GPU": 1, "memory": 1e9, "disk": 1}``."""
    store_bytes: int = 1 << 30
    """Size of each node's object store."""
    costs: CostModel = CostModel()
    system_config: dict[str, Any] = {}
    warm: bool = False
    """Whether a task has run on each CPU before the time begins, so that workers need not be started."""
    shrink: int = 1
    """Factor by which values are smaller in the memory of the simulation than they are meant to be."""

    def node(self) -> dict[str, Any]:
        """Describe a node to the simulation."""
        rest = {name: amount for name, amount in self.resources.items() if name not in (GPU, MEMORY)}
        described: dict[str, Any] = {"num_cpus": self.cpus, "object_store_memory": max(1, self.store_bytes // self.shrink)}
        described |= {"resources": rest} if rest else {}
        described |= {"num_gpus": self.resources[GPU]} if GPU in self.resources else {}
        return described | ({"memory": int(self.resources[MEMORY])} if MEMORY in self.resources else {})

    def shrunk_config(self) -> dict[str, Any]:
        """Return the system config in which the bounds of sizes are shrunk like the values."""
        if self.shrink == 1:
            return self.system_config
        whole = SystemConfig.from_overrides(self.system_config)
        return self.system_config | {name: max(1, getattr(whole, name) // self.shrink) for name in SIZES}


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
    control_bytes: int = 0
    workers: int = 0
    """Number of workers that were started, those before the driver included."""


def simulate(workload: Workload, setup: Setup, seed: int) -> RunRecord:
    """Run a workload. Raises TraceError for one that does not fit the setup, ValueError for a wrong system config."""
    check(workload, setup)
    costs = ModelledCosts(setup.costs, {name: number for number, name in enumerate(node_names(setup))}, setup.shrink)
    record = RunRecord(workload, setup, seed)
    nodes = [setup.node()] * setup.nodes
    with SimCluster(nodes, seed, system_config=setup.shrunk_config(), show_output=False, costs=costs) as cluster:
        cluster.run(lambda: _drive(cluster, costs, record), LIMIT_S)
    record.pairs, record.links, record.disks = dict(costs.pairs), dict(costs.links), dict(costs.disks)
    record.control_bytes, record.workers = costs.control_bytes, costs.workers
    return record


def _drive(cluster: SimCluster, costs: ModelledCosts, record: RunRecord) -> None:
    """Be the simulated driver: begin the failures and the records, and run the program."""
    driver = current_process.get()
    assert driver is not None and driver.name.startswith(DRIVER)
    if record.setup.warm:
        program.warm_up(record.setup.nodes, record.setup.cpus)
    begin_s = wall_time(driver)
    before = Counter(costs.messages)
    costs.forget_bytes()
    for failure in record.workload.failures:
        _schedule(cluster, failure, record.setup)

    def observe(task: str, start_s: float, end_s: float) -> None:
        process = current_process.get()
        assert process is not None
        record.executions.append(TaskRun(task, process.node, start_s - begin_s, end_s - begin_s))

    program.OBSERVERS.append(observe)
    try:
        tasks = record.workload.tasks
        busy_s = busy_times(tasks, record.setup.costs)
        record.makespan_s = program.drive(tasks, busy_s, record.setup.shrink, record.submitted_s.__setitem__)
    finally:
        program.OBSERVERS.remove(observe)
    record.messages = dict(costs.messages - before)


def node_names(setup: Setup) -> list[str]:
    """Return the names of the nodes by their numbers: the head is node 0."""
    return [HEAD, *(f"n{number}" for number in range(1, setup.nodes))]


def busy_times(tasks: tuple[TraceTask, ...], costs: CostModel) -> dict[str, float]:
    """Return for each task how long it keeps its worker busy."""
    outputs = {task.id: task.outputs for task in tasks}
    return {
        task.id: costs.busy_s(task.duration_s, sum(outputs[source][n] for source, n in task.inputs), sum(task.outputs))
        for task in tasks
    }


def _schedule(cluster: SimCluster, failure: NodeFailure, setup: Setup) -> None:
    name, world = f"n{failure.node}", cluster.world
    later = world.loop.world.call_later
    later(failure.down_s, world.lose_node, name)
    if failure.up_s is not None:
        later(failure.up_s, lambda: cluster.add_node(name, **setup.node()))


def check(workload: Workload, setup: Setup) -> None:
    """Raise TraceError if a task needs more than a node has, or a node fails that is not there."""
    has: Mapping[str, float] = {CPU: setup.cpus, **setup.resources}
    for task in workload.tasks:
        for resource, amount in {CPU: 1.0, **task.resources}.items():
            if amount > has.get(resource, 0.0) and (resource != MEMORY or MEMORY in has):
                raise TraceError(
                    f"task {task.id!r} of {workload.name} needs {amount:g} {resource}, and a node has"
                    f" {has.get(resource, 0.0):g}; give nodes more (--cpus, --resources), or the task less"
                )
    for failure in workload.failures:
        if failure.node >= setup.nodes:
            raise TraceError(f"node {failure.node} fails, but the last of {setup.nodes} nodes is {setup.nodes - 1}")
    if setup.nodes < 1 or setup.shrink < 1 or setup.store_bytes < 1:
        raise TraceError(f"nodes={setup.nodes}, shrink={setup.shrink}, store={setup.store_bytes}: give numbers from 1")
