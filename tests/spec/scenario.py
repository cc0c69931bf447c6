"""A scenario: a program, a world with faults, and a seed. ``trial`` runs it.

Rules
  * A scenario always has the same run. With ``overrides`` (the answers of the oracle that were not 0) the plan is not asked.
    Every scenario is written to JSON and read again before it runs. Otherwise pickles would differ: one in which parts are
    the same object is smaller than one in which they are only equal.
  * ``is_feasible`` says whether every program can end: the head alone can run every task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from minray.simulation import FaultPlan
from minray.simulation.cluster import HEAD
from minray.simulation.faults import AIMED, DISK, KINDS, QUIET, SLOW_NODE, SWITCH
from tests.spec.groups import SLOT, Group
from tests.spec.moves import Move
from tests.spec.programs import Call, Program, Submit, has_wishes
from tests.spec.stage import ZONE, Record
from tests.spec.stories import Story
from tests.spec.wishes import RICHES

QUICK_HEALTH_CHECKS = {"health_check_period_ms": 1000, "health_check_timeout_ms": 3000, "health_check_failure_threshold": 2}
"""System configuration with which a silent node is dead after some ten seconds: more than ``PATIENCE_S``."""
HARMLESS = frozenset((*QUIET, *DISK, "crash", "memory", "spawn", SWITCH, SLOW_NODE))
"""Faults that end no node, if only workers crash."""
T = TypeVar("T")
KeyPart = str | int
Answers = tuple[tuple[tuple[KeyPart, ...], int], ...]


class Node(Record, frozen=True):
    """One machine; the first is the head."""

    num_cpus: int = 2
    resources: dict[str, int] = {}
    num_gpus: int = 0
    zone: str = ""
    """Value of its label ``ZONE``, if it has one."""

    def described(self) -> dict[str, Any]:
        """Arguments for ``add_node`` of a cluster."""
        labels = {"labels": {ZONE: self.zone}} if self.zone else {}
        return {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "resources": dict(self.resources), **labels}

    def fits(self, task: Submit) -> bool:
        """Whether it has the resources and the label that a task needs."""
        has_resources = all(n <= self.resources.get(key, 0) for key, n in task.resources.items())
        return task.num_cpus <= self.num_cpus and task.gpus <= self.num_gpus and has_resources and task.may_run_in(self.zone)


class World(Record, frozen=True):
    """The nodes on which a program runs, their configuration, and the faults that may strike."""

    nodes: tuple[Node, ...] = (Node(),)
    rates: dict[str, float] = {}
    """See ``FaultPlan`` for this field and the next six."""
    budget: int = 0
    targets: tuple[str, ...] = ("worker/",)
    aims: tuple[str, ...] = ()
    spared_tasks: tuple[str, ...] = ()
    struck_tasks: tuple[str, ...] = ()
    at_messages: bool = False
    aimed: tuple[str, ...] = ()
    """Kinds of faults, beside ``AIMED``, that strike only the messages of ``aims``."""
    durable: bool = False
    """Whether the gcs has a store, and is started again when it crashes."""
    inline_limit: int = 0
    """Bytes above which a value is in the object store; 0: the default, so that no value of a program is there."""
    store_bytes: int = 0
    """Bytes of each node's object store; 0: enough that nothing is ever spilled."""
    io_workers: int = 0
    """Number of spill files written at once. They are small, and spilling starts when the store is full; 0: the defaults."""
    loses_disk: bool = False
    """Whether a gcs that is started again finds its store empty; then its cluster is over."""
    lineage: bool = True
    """Whether lineage is kept, so that lost objects are made again."""
    lineage_bytes: int = 0
    """Bytes of lineage kept at most; 0: the default, so that no lineage of a program is evicted."""
    homes: tuple[int, ...] = ()
    """Number of the node on which each driver runs. Drivers beyond the end run on the head."""
    arrivals: tuple[float, ...] = ()
    """Virtual seconds after which each driver joins; only if all are on the head. Drivers beyond the end join at once."""
    moves: tuple[Move, ...] = ()
    """Nodes that join, leave or die."""
    keeps: bool = False
    """Whether drivers keep what they have made until the cluster is at rest, so that all copies of it can be compared."""
    retry_pause_ms: int = 0
    """Milliseconds that a task waits before a retry."""
    bounds: dict[str, int] = {}
    """Further entries of the system configuration: bounds on memory and traffic (``knobs.py``)."""
    quick_health_checks: bool = False
    """Whether silent nodes count as dead after some ten seconds, not a minute. They may live, and be told of their death."""

    def plan(self) -> FaultPlan:
        return FaultPlan(
            self.rates,
            self.budget,
            self.targets,
            aims=self.aims,
            aimed=(*AIMED, *self.aimed),
            spared_tasks=self.spared_tasks,
            struck_tasks=self.struck_tasks,
            at_messages=self.at_messages,
        )

    def system_config(self) -> dict[str, Any]:
        system: dict[str, Any] = dict(self.bounds)
        if self.inline_limit:
            system["max_direct_call_object_size"] = self.inline_limit
        if self.io_workers:
            system |= {"max_io_workers": self.io_workers, "min_spilling_size": 1, "object_spilling_threshold": 1.0}
        if not self.lineage:
            system["lineage_pinning_enabled"] = False
        if self.lineage_bytes:
            system["max_lineage_bytes"] = self.lineage_bytes
        if "memory" in self.rates:
            system["memory_monitor_refresh_ms"] = 50
        if self.quick_health_checks:
            system |= QUICK_HEALTH_CHECKS
        if self.retry_pause_ms:
            system["task_retry_delay_ms"] = self.retry_pause_ms
        return system

    def staying_nodes(self, overrides: Answers | None = None) -> list[Node]:
        """Nodes that no fault can take away, also those that join: all, or only the head."""
        head, *others = self.nodes
        kinds = self.rates.keys() | {key[0] for key, _ in overrides or ()}
        crashed = [str(key[1]) for key, _ in overrides or () if key[0] == "crash"]
        crashed += self.targets if "crash" in self.rates else ()
        is_quiet = HARMLESS.issuperset(kinds) and all(place.startswith("worker/") for place in crashed)
        if not is_quiet or any(move.leaves or move.dies for move in self.moves):
            return [head]
        joining = [msgspec.structs.replace(self.nodes[move.node % len(self.nodes)], zone=move.zone) for move in self.moves]
        return [head, *others, *(node for node in joining if node.zone)]

    def home(self, driver: int) -> str:
        """Name of the node on which a driver runs."""
        number = self.homes[driver] if driver < len(self.homes) else 0
        return f"n{number}" if 0 < number < len(self.nodes) else HEAD


class Scenario(Record, frozen=True):
    """All data that decide a run."""

    program: Program
    world: World = World()
    seed: int = 0
    overrides: Answers | None = None

    def __post_init__(self) -> None:
        kinds = self.world.rates.keys() | {key[0] if key else "" for key, _ in self.overrides or ()}
        if unknown := kinds.difference(KINDS):
            raise ValueError(f"there is no kind of fault {min(map(str, unknown))!r}, only {', '.join(sorted(KINDS))}")

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        return msgspec.json.decode(text, type=cls)

    def is_feasible(self) -> bool:
        """Whether every task and actor can run on a node that no fault takes away; and names and groups are sound.

        The head is never taken away. Actors fit there.
        """
        if not self.world.nodes or not self.program.drivers or not self.program.names_actors_well():
            return False
        head, groups = self.world.nodes[0], self._groups()
        staying = self.world.staying_nodes(self.overrides)
        if not self._uses_groups_well(groups):
            return False
        slots = sum(group.bundles for group in groups)
        has_riches = all(key in head.resources for key in RICHES) or not has_wishes(self.program)
        needs = [one.needs() for one in self.program.walk() if isinstance(one, Story)]
        has_riches = has_riches and all(need.get("GPU", 0) <= head.num_gpus for need in needs)
        has_slots = slots + 1 <= head.resources.get(SLOT, 1)
        actors_fit = all(actor.cpus_to_be_placed() <= head.num_cpus for actor in self.program.actors())
        tasks_fit = all(any(node.fits(task) for node in staying) for task in self.program.tasks())
        return has_slots and has_riches and actors_fit and tasks_fit

    def _groups(self) -> list[Group]:
        return [operation for operation in self.program.walk() if isinstance(operation, Group)]

    def _uses_groups_well(self, groups: list[Group]) -> bool:
        """Whether every placement group has slots for its actors and one for tasks, and actors have their calls' groups."""
        names, residents = {group.name for group in groups}, Counter(actor.group for actor in self.program.actors())
        without = {actor.name for actor in self.program.actors() if not actor.has_group}
        calls = [call for call in self.program.performances() if isinstance(call, Call)]
        return (
            all(residents[group.name] < group.bundles for group in groups)
            and not any(task.num_cpus and task.group in names for task in self.program.tasks())
            and not any(call.in_group and call.actor in without for call in calls)
        )


def save(scenario: Scenario, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(scenario.to_json() + "\n")


def read_witness(path: Path, from_json: Callable[[str], T]) -> T:
    """Read a witness from a file. Raises UsageError if the file is none."""
    try:
        return from_json(path.read_text())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} is no witness: {error}") from None
