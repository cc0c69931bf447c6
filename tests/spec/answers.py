"""Ask a settled cluster everything again: names, all tables of the state API, resources, labels, placement groups.

One more driver, the inquirer, asks as any program would. ``Truth`` knows what is right from the tables of the living
processes themselves: which of them live, what they hold, run and offer. The gcs is not asked for the truth, because most
answers come from its tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import minray
from minray.common.labels import labels_of
from minray.common.resources import to_floats
from minray.simulation import SimCluster
from minray.util import list_named_actors
from minray.util.placement_group import placement_group_table
from tests.spec.actors import NAMESPACE
from tests.spec.programs import Program
from tests.spec.stage import Record
from tests.spec.tables import TABLES, rows_of

INQUIRER = "inquirer"
"""Name of the driver that asks."""
Places = Mapping[tuple[str, int], set[str]]
"""Id (hex) and number of an attempt of a task -> names of the processes to which it was sent."""
OVER = ("FINISHED", "FAILED")
"""States of a task that has ended."""


class Answers(Record, frozen=True):
    """All answers that the inquirer was given, as plain data."""

    named: list[tuple[str, str]]
    """Namespace and name of each actor that ``list_named_actors`` shows."""
    found: dict[str, str]
    """Name of an actor of the program -> the id of the actor that ``get_actor`` finds by it; empty: none."""
    tables: dict[str, list[dict[str, Any]]]
    """Table of the state API -> its rows."""
    nodes: list[dict[str, Any]]
    groups: dict[str, str]
    """Id of a placement group -> its state, from ``placement_group_table``."""
    total: dict[str, float]
    available: dict[str, float]
    own_job: str
    own_worker: str


def ask_everything(names: Collection[str]) -> Answers:
    """Ask, in a driver, for everything that a program can ask for; ``names``: those of its actors."""
    context = minray.get_runtime_context()
    return Answers(
        named=[(one["namespace"], one["name"]) for one in list_named_actors(all_namespaces=True)],
        found={name: _found(name) for name in names},
        tables={table: rows_of(table) for table in TABLES},
        nodes=minray.nodes(),
        groups={group_id: row["state"] for group_id, row in placement_group_table().items()},
        total=minray.cluster_resources(),
        available=minray.available_resources(),
        own_job=context.get_job_id(),
        own_worker=context.get_worker_id(),
    )


def _found(name: str) -> str:
    try:
        return str(minray.get_actor(name, namespace=NAMESPACE)._actor_id.hex())
    except ValueError:
        return ""


@dataclass(frozen=True)
class Truth:
    """Knowledge that the living processes of a settled cluster have of themselves."""

    nodes: dict[str, Any]
    """Id of a living node -> its raylet."""
    cores: dict[str, Any]
    """Id of a living worker or driver -> its core worker."""
    actors: dict[str, Any]
    """Id of an actor that lives -> the core worker that it lives in."""
    groups: set[str]
    """Ids of the placement groups of which a raylet has bundles."""
    sizes: dict[str, set[int]]
    """Id of an object -> sizes of its copies in the stores of the nodes."""

    @classmethod
    def of(cls, cluster: SimCluster, lost: Collection[str]) -> Truth:
        """``lost``: names of processes that have lost their cluster."""
        alive = cluster.alive()
        raylets = [raylet for name, raylet in cluster.raylets.items() if f"raylet/{name}" in alive]
        living = [core for name, core in cluster.cores.items() if name in alive and name not in lost]
        hosts = [core for core in living if core.execution.actor_receiver.actor is not None]
        return cls(
            nodes={raylet._config.node_id.hex(): raylet for raylet in raylets},
            cores={core.config.worker_id.hex(): core for core in living},
            actors={core.execution.actor_receiver.actor.actor_id.hex(): core for core in hosts},
            groups={bundle.group_id.hex() for raylet in raylets for bundle in raylet.groups.bundles.all()},
            sizes=_sizes(raylets),
        )

    def resources(self, which: str) -> dict[str, float]:
        """Sum over all nodes of their ``total`` or ``available`` resources, without those that are used up."""
        amounts: Counter[str] = Counter()
        for raylet in self.nodes.values():
            amounts.update(getattr(raylet._broker.local, which))
        return {key: amount for key, amount in to_floats(dict(amounts)).items() if amount > 0}


def _sizes(raylets: Sequence[Any]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for raylet in raylets:
        for copy in raylet.store.table.entries():
            found.setdefault(copy.object_id.hex(), set()).add(copy.size)
    return found


def ask_again(cluster: SimCluster, program: Program, lost: Collection[str], places: Places) -> list[str]:
    """Ask everything again, and list the answers that are not true; one line each."""
    names = sorted({create.called for create in program.actors() if create.called} | {"nobody"})
    answers = cluster.wait_for(cluster.start_driver(lambda: ask_everything(names), INQUIRER))
    truth = Truth.of(cluster, lost)
    wrong = [*_wrong_names(answers, truth), *_wrong_actors(answers, truth), *_wrong_nodes(answers, truth)]
    wrong += [*_wrong_processes(answers, truth), *_wrong_work(answers, truth, places), *_wrong_groups(answers, truth)]
    return [f"state: {problem}" for problem in wrong]


def _wrong_names(answers: Answers, truth: Truth) -> Iterator[str]:
    rows = {row["actor_id"]: row for row in answers.tables["actors"]}
    living = [rows[actor_id] for actor_id in truth.actors if actor_id in rows]
    named = sorted((row["ray_namespace"], row["name"]) for row in living if row["name"])
    if sorted(answers.named) != named:
        yield f"list_named_actors says {answers.named}, and there are {named}"
    ids = {row["name"]: row["actor_id"] for row in living if row["ray_namespace"] == NAMESPACE}
    for name, actor_id in answers.found.items():
        if actor_id != ids.get(name, ""):
            yield f"get_actor({name!r}) finds {actor_id or 'none'}, and it is {ids.get(name, 'none')}"


def _wrong_actors(answers: Answers, truth: Truth) -> Iterator[str]:
    rows = {row["actor_id"]: row for row in answers.tables["actors"]}
    if missing := truth.actors.keys() - rows.keys():
        yield f"list_actors does not know of {sorted(missing)}, which live"
    for actor_id, row in rows.items():
        core = truth.actors.get(actor_id)
        if row["state"] != ("DEAD" if core is None else "ALIVE"):
            yield f"list_actors says that {actor_id} is {row['state']}, and it is {'dead' if core is None else 'alive'}"
        elif core is None and row["death_cause"] is None:
            yield f"list_actors does not say why {actor_id} is dead"
        elif core is not None and (row["node_id"], row["pid"]) != _place(core):
            yield f"list_actors says that {actor_id} is at {row['node_id']}, {row['pid']}, and it is at {_place(core)}"
        elif core is not None and row["num_restarts"] != (restarts := _restarts(core)):
            yield f"list_actors says that {actor_id} has had {row['num_restarts']} restarts, and it is {restarts}"


def _place(core: Any) -> tuple[str, int]:
    return core.config.node_id.hex(), core.platform.processes.pid


def _restarts(core: Any) -> int:
    restarts: int = core.execution.actor_receiver.actor.constructor.attempt
    return restarts


def _wrong_nodes(answers: Answers, truth: Truth) -> Iterator[str]:
    rows = answers.tables["nodes"]
    listed = {row["node_id"]: (row["state"] == "ALIVE", row["resources_total"], row["labels"]) for row in rows}
    shown = {row["NodeID"]: (row["Alive"], row["Resources"], row["Labels"]) for row in answers.nodes}
    for word, told in (("list_nodes", listed), ("nodes", shown)):
        alive = {node_id for node_id, (is_alive, *_) in told.items() if is_alive}
        if alive != truth.nodes.keys():
            yield f"{word} says that {sorted(alive)} live, and it is {sorted(truth.nodes)}"
        for node_id in alive & truth.nodes.keys():
            config = truth.nodes[node_id]._config
            right = to_floats(config.resources), labels_of(config.node_id, config.labels)
            if told[node_id][1:] != right:
                yield f"{word} says of {config.node_name} {told[node_id][1:]}, and it is {right}"
    for which, amounts in (("total", answers.total), ("available", answers.available)):
        if amounts != truth.resources(which):
            yield f"{which} resources are said to be {amounts}, and are {truth.resources(which)}"


def _wrong_processes(answers: Answers, truth: Truth) -> Iterator[str]:
    workers = {row["worker_id"]: row["is_alive"] for row in answers.tables["workers"]}
    alive = {worker_id for worker_id, is_alive in workers.items() if is_alive} - {answers.own_worker}
    if alive != truth.cores.keys():
        wrong = sorted(alive ^ truth.cores.keys())
        yield f"list_workers is wrong about {wrong}, of which {sorted(alive.intersection(wrong))} are said to live"
    for row in answers.tables["workers"]:
        core = truth.cores.get(row["worker_id"])
        right = None if core is None else ("DRIVER" if core.config.is_driver else "WORKER", *_place(core))
        if right is not None and (row["worker_type"], row["node_id"], row["pid"]) != right:
            yield f"list_workers shows {row}, and it is {right}"
        elif row["is_alive"] != (row["exit_type"] is None):
            yield f"list_workers shows an impossible process: {row}"
    running = {row["job_id"] for row in answers.tables["jobs"] if row["status"] == "RUNNING"} - {answers.own_job}
    pids = {core.context.job_id.hex(): _place(core)[1] for core in truth.cores.values() if core.config.is_driver}
    if running != pids.keys():
        yield f"list_jobs says that {sorted(running)} run, and it is {sorted(pids)}"
    for row in answers.tables["jobs"]:
        if row["job_id"] in pids and row["driver_info"]["pid"] != str(pids[row["job_id"]]):
            yield f"list_jobs shows {row['driver_info']}, and its pid is {pids[row['job_id']]}"
        elif (row["status"] == "RUNNING") != (row["end_time"] is None):
            yield f"list_jobs shows an impossible job: {row}"


def _wrong_work(answers: Answers, truth: Truth, places: Places) -> Iterator[str]:
    unfinished = {row["task_id"] for row in answers.tables["tasks"] if row["state"] not in OVER}
    tasks = [task for core in truth.cores.values() for task in core.tasks.tasks.values()]
    pending = {task.task_id.hex() for task in tasks if task.prepared.template.actor is None}  # a constructor may run again
    if unfinished != pending:
        yield f"list_tasks says that {sorted(unfinished)} are unfinished, and it is {sorted(pending)}"
    yield from _wrong_ends(answers.tables["tasks"], places)
    pid = {core: _place(core)[1] for core in truth.cores.values()}
    listed = {(row["object_id"], row["pid"], row["type"] == "DRIVER") for row in answers.tables["objects"]}
    held = {
        (object_id.hex(), pid[core], core.config.is_driver)
        for core in truth.cores.values()
        for object_id in core.references._references
    }
    if listed != held:
        yield f"list_objects is wrong about {sorted(listed ^ held)}, of which it shows {sorted(listed - held)}"
    for row in answers.tables["objects"]:
        if (sizes := truth.sizes.get(row["object_id"])) and row["object_size"] not in sizes:
            yield f"list_objects says that {row['object_id']} has {row['object_size']} bytes, and it has {sizes}"


def _wrong_ends(rows: Sequence[dict[str, Any]], places: Places) -> Iterator[str]:
    for row in rows:
        hosts = places.get((row["task_id"], row["attempt_number"]), set())
        if row["type"] == "ACTOR_CREATION_TASK":
            continue  # the gcs sends these
        if row["state"] == "FINISHED" and (row["error_type"] or not hosts):
            yield f"list_tasks says that a task has finished that was sent to {hosts}: {row}"
        elif row["worker_id"] is not None and f"worker/{row['worker_id'][:8]}" not in hosts:
            yield f"list_tasks says that a task was in a worker, and it was sent to {hosts}: {row}"


def _wrong_groups(answers: Answers, truth: Truth) -> Iterator[str]:
    listed = {row["placement_group_id"]: row["state"] for row in answers.tables["placement groups"]}
    for word, rows in (("list_placement_groups", listed), ("placement_group_table", answers.groups)):
        there = {group_id for group_id, state in rows.items() if state != "REMOVED"}
        if there != truth.groups:
            yield f"{word} says that {sorted(there)} exist, and there are {sorted(truth.groups)}"
