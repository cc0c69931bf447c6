"""Runs a workload on a simulated cluster of the real protocol code, and records what happened.

Ray: has no counterpart

    record = simulate(workload, Setup(nodes=8, system_config={"scheduler_spread_threshold": 0.0}), seed=7)

Rules
  * The workload, the setup and the seed decide the record. It has no time of the machine that simulates.
  * ``system_config`` goes to the cluster as it is, so that whatever a real cluster can be told can be compared.
  * The head has CPUs like every node, and the driver besides.

Left out: several drivers and placement groups. All actors belong to the one driver.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
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


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of node."""

    count: int = 1
    """Number of nodes of this kind."""
    cpus: float = 4.0
    """CPUs of each node."""
    resources: dict[str, float] = {}
    """Further resources of each node: ``{"GPU": 1, "memory": 1e9, "disk": 1}``."""
    store_bytes: int = 1 << 30
    """Size of each node's object store."""
    speed: float = 1.0
    """How fast it is: a task of 10 seconds takes 5 on a node of speed 2."""

    def has(self, resource: str) -> float:
        """Return how much of a resource a node has. Memory has no bound where it is not given."""
        unknown = math.inf if resource == MEMORY else 0.0
        return self.cpus if resource == CPU else self.resources.get(resource, unknown)

    def described(self, shrink: int) -> dict[str, Any]:
        """Describe a node to ``SimCluster`` or ``Cluster``."""
        rest = {name: amount for name, amount in self.resources.items() if name not in (GPU, MEMORY)}
        described: dict[str, Any] = {"num_cpus": self.cpus, "object_store_memory": max(1, self.store_bytes // shrink)}
        described |= {"resources": rest} if rest else {}
        described |= {"num_gpus": self.resources[GPU]} if GPU in self.resources else {}
        return described | ({"memory": int(self.resources[MEMORY])} if MEMORY in self.resources else {})


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster on which a workload runs."""

    nodes: int = 4
    cpus: float = 4.0
    resources: dict[str, float] = {}
    store_bytes: int = 1 << 30
    """Number of equal nodes, and what each of them has (see ``Machine``)."""
    machines: tuple[Machine, ...] = ()
    """Kinds of unequal nodes, in the order of their numbers. If given, they take the place of the four fields above."""
    costs: CostModel = CostModel()
    system_config: dict[str, Any] = {}
    warm: bool = False
    """Whether a task has run on each CPU before the time begins, so that workers need not be started."""
    shrink: int = 1
    """Factor by which values are smaller in the memory of the simulation than they are meant to be."""

    def each(self) -> list[Machine]:
        """Return the machine of each node, by the numbers of the nodes."""
        equal = Machine(self.nodes, self.cpus, self.resources, self.store_bytes)
        return list(chain.from_iterable(repeat(machine, machine.count) for machine in self.machines or (equal,)))

    def described(self) -> list[dict[str, Any]]:
        """Describe all nodes to ``SimCluster`` or ``Cluster``."""
        return [machine.described(self.shrink) for machine in self.each()]

    def total_cpus(self) -> float:
        return math.fsum(machine.cpus for machine in self.each())

    def whole_cpus(self) -> int:
        """Return on how many CPUs a task of one CPU can run at a time."""
        return sum(int(machine.cpus) for machine in self.each())

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
    with SimCluster(setup.described(), seed, system_config=setup.shrunk_config(), show_output=False, costs=costs) as cluster:
        cluster.run(lambda: _drive(cluster, costs, record), LIMIT_S)
    record.pairs, record.links, record.disks = dict(costs.pairs), dict(costs.links), dict(costs.disks)
    record.control_bytes, record.workers = costs.control_bytes, costs.workers
    return record


def _drive(cluster: SimCluster, costs: ModelledCosts, record: RunRecord) -> None:
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
        record.makespan_s = program.drive(record.workload, values_s, record.setup.shrink, record.submitted_s.__setitem__)
    finally:
        program.OBSERVERS.remove(observer)
    record.messages = dict(costs.messages - before)


class _Observer:
    """Implements ``program.Observer``: it tells the speeds of the setup, and records the tasks that have ended."""

    def __init__(self, record: RunRecord, begin_s: float) -> None:
        self._record = record
        self._begin_s = begin_s
        machines = zip(node_names(record.setup), record.setup.each(), strict=True)
        self._speeds = {name: machine.speed for name, machine in machines}

    def speed(self) -> float:
        return self._speeds[_node_here()]

    def on_end(self, task: str, start_s: float, end_s: float) -> None:
        self._record.executions.append(TaskRun(task, _node_here(), start_s - self._begin_s, end_s - self._begin_s))


def _node_here() -> str:
    process = current_process.get()
    assert process is not None
    return process.node


def node_names(setup: Setup) -> list[str]:
    """Return the names of the nodes by their numbers: the head is node 0."""
    return [HEAD, *(f"n{number}" for number in range(1, len(setup.each())))]


def value_times(tasks: tuple[TraceTask, ...], costs: CostModel) -> dict[str, float]:
    """Return for each task how long its arguments and results keep its worker busy."""
    outputs = {task.id: task.outputs for task in tasks}
    return {
        task.id: costs.values_s(sum(outputs[source][number] for source, number in task.inputs), sum(task.outputs))
        for task in tasks
    }


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


def machines_in(path: Path) -> tuple[Machine, ...]:
    """Read kinds of nodes: a JSON list of objects with the fields of ``Machine``. Raises TraceError."""
    example = '[{"count": 2, "cpus": 8, "speed": 1.5}, {"count": 6}]'
    try:
        machines = msgspec.json.decode(path.read_bytes(), type=tuple[Machine, ...])
    except OSError as error:
        raise TraceError(f"cannot read the machines in {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is no list of machines: {error}. Write one such as {example}") from None
    if not machines:
        raise TraceError(f"{path} has no machines; write a list such as {example}")
    for index, machine in enumerate(machines):
        numbers = {"cpus": machine.cpus, **{f"resources.{name}": amount for name, amount in machine.resources.items()}}
        for name, value in numbers.items():
            if not 0 <= value < math.inf:
                raise TraceError(f"{path}: [{index}].{name} is {value}; it must be a finite number from 0")
        if machine.count < 1 or machine.store_bytes < 1 or not 0 < machine.speed < math.inf:
            given = f"count={machine.count}, store_bytes={machine.store_bytes}, speed={machine.speed:g}"
            raise TraceError(f"{path}: [{index}] has {given}; give whole numbers from 1, and a finite speed above 0")
    return machines
