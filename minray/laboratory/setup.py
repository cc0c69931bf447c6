"""The cluster on which a workload runs: its nodes, equal or not, and how it is told to decide.

Ray: has no counterpart

    Setup(nodes=8, cpus=4.0)
    Setup(machines=(Machine(count=2, cpus=8.0, speed=2.0), Machine(count=6)))

Rules
  * The head has CPUs like every node, and the driver besides. It is node 0.
  * A node with a speed other than 1 has it as its label ``minray.io/speed``, where policies see it.
"""

from __future__ import annotations

import math
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec

from minray.common.config import SystemConfig
from minray.common.labels import SPEED_LABEL
from minray.laboratory.cost_model import CostModel
from minray.laboratory.workload import CPU, GPU, MEMORY, TraceError
from minray.simulation.cluster import HEAD

SIZES = ("max_direct_call_object_size", "object_manager_default_chunk_size", "min_spilling_size")
"""The bounds of the system config that are divided with the sizes of values when a run is shrunk."""
HEFT = "heft"
"""The plan that a setup can have (``plan``)."""


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
        described |= {"labels": {SPEED_LABEL: str(self.speed).replace("+", "")}} if self.speed != 1 else {}
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
    plan: str = ""
    """``heft``: each task runs on the node that HEFT has planned for it (``plan``). Empty: the cluster's policies decide."""
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


def node_names(setup: Setup) -> list[str]:
    """Return the names of the nodes by their numbers: the head is node 0."""
    return [HEAD, *(f"n{number}" for number in range(1, len(setup.each())))]


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
