"""Collects all metrics of a cluster: those of programs, and those of the system under Ray's names.

Ray: python/ray/_private/metrics_agent.py, and the dashboard agents that Prometheus asks one by one

``collect`` asks every process once and returns metric families, which ``prometheus_text`` and ``prometheus_exposition``
write out. A process that does not answer in time is left out; ``minray_silent_processes`` counts these. Turning answers
into families is pure.

Several nodes may have one address, as all nodes of a test on one machine. So values of a node also have the label
``NodeId``, which Ray does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from minray._version import __version__
from minray.common.bundles import is_reserved
from minray.common.resources import OBJECT_STORE_MEMORY, to_floats
from minray.observability.metric_definitions import (
    COMPONENT,
    DEFINITIONS,
    NODE,
    OWN_DEFINITIONS,
    PREFIX,
    RAYLET,
    MetricMeaning,
    full_names,
)
from minray.observability.metric_families import Family, Labels, Sample, families_of_programs, joined, labels_of
from minray.observability.state_reader import ClusterFigures, StateReader
from minray.protocol.actor import ALIVE, DEAD, DEPENDENCIES_UNREADY, PENDING_CREATION, RESTARTING
from minray.protocol.gcs import UNEXPECTED_TERMINATION, NodeInfo
from minray.protocol.state import SystemValue

TIMEOUT_S = 3.0
"""Seconds that each process has to answer: a collection asks up to three times in a row, and Prometheus waits 10 s."""
MOST_JOBS = 100
"""Number of finished jobs whose duration is told."""
MOST_CLASSES = 1000
"""Most names of actor classes of one state; others count without their name."""
ACTORS = {
    DEPENDENCIES_UNREADY: "Unresolved",
    PENDING_CREATION: "Pending",
    ALIVE: "Created",
    RESTARTING: "Created",
    DEAD: "Destroyed",
}
"""Ray's name in ``gcs_actors_count`` for each state of an actor."""
GROUPS = ("PENDING", "PREPARED", "CREATED", "RESCHEDULING", "REMOVED")
"""States of a placement group."""

Values = Iterator[tuple[str, Sample]]
"""Names of metrics, without the prefix, each with a value."""


async def collect(reader: StateReader, timeout_s: float = TIMEOUT_S) -> list[Family]:
    """Ask all processes of a cluster, and return all metrics.

    Raises PlatformError if the gcs cannot be reached, TimeoutError if it does not answer.
    """
    return families_of(await reader.figures(timeout_s))


def families_of(figures: ClusterFigures) -> list[Family]:
    """Return all metrics of a cluster, by name."""
    head = next((node for node in figures.nodes if node.is_head), None)
    common = {"SessionName": PurePath(head.session_dir).name if head is not None else "", "Version": __version__}
    gcs = {"Component": "gcs_server", "NodeAddress": head.ip if head is not None else "", **common}
    samples: dict[str, list[Sample]] = {}
    for name, sample in [
        *_of_nodes(figures, common),
        *_of_processes(figures, common),
        *_of_tables(figures, gcs),
        *_of_gcs(figures, head, common, gcs),
    ]:
        samples.setdefault(name, []).append(sample)
    system = [_family(PREFIX + name, DEFINITIONS[name], samples[name]) for name in samples if name in DEFINITIONS]
    left_out = figures.metrics.left_out + sum(process.left_out for process in figures.metrics.processes)
    own = {"minray_silent_processes": len(figures.silent), "minray_values_left_out": left_out}
    system += [_family(name, OWN_DEFINITIONS[name], [Sample("", gcs, float(value))]) for name, value in own.items()]
    programs = joined(families_of_programs(figures.metrics, common), full_names())
    return sorted([*joined(system), *programs], key=lambda family: family.name)


def _family(name: str, definition: MetricMeaning, samples: list[Sample]) -> Family:
    return Family(name, definition.kind, f"{definition.meaning}.", samples=samples, notes=[])


def _of_nodes(figures: ClusterFigures, common: Labels) -> Values:
    nodes = {node.node_id: node for node in figures.nodes}
    used: dict[bytes, float] = {}
    for of_node in figures.of_nodes:
        node = nodes.get(of_node.node_id)
        if node is not None:
            for value in of_node.values:
                if value.name == "object_store_used_memory":
                    used[node.node_id] = value.value
                yield value.name, _sample(value, _labels_of_node(value.name, node, common))
    for report in figures.resources:
        node = nodes.get(report.node_id)
        if node is None or not node.alive:
            continue
        labels = _labels_of_node("resources", node, common)
        available = to_floats(report.available)
        for name, total in to_floats(report.total).items():
            free = available.get(name, 0.0)
            if name == OBJECT_STORE_MEMORY:
                if node.node_id not in used:
                    continue
                free = max(0.0, total - used[node.node_id])
            if not name.startswith("node:") and not is_reserved(name):
                yield "resources", Sample("", labels | {"Name": name, "State": "AVAILABLE"}, free)
                yield "resources", Sample("", labels | {"Name": name, "State": "USED"}, total - free)


def _labels_of_node(name: str, node: NodeInfo, common: Labels) -> Labels:
    labels = {"NodeAddress": node.ip, "NodeId": node.node_id.hex(), **common}
    about = DEFINITIONS[name].about if name in DEFINITIONS else RAYLET
    if about == NODE:
        head = {"IsHeadNode": "true", "RayNodeType": "head"} if node.is_head else _WORKER_NODE
        return {"ip": node.ip, **head, **labels}
    return {"ip": node.ip, **labels} if about == COMPONENT else {"Component": "raylet", **labels}


_WORKER_NODE = {"IsHeadNode": "false", "RayNodeType": "worker"}


def _sample(value: SystemValue, labels: Labels) -> Sample:
    return Sample(value.suffix, labels | value.labels, value.value)


def _of_processes(figures: ClusterFigures, common: Labels) -> Values:
    for process in figures.metrics.processes:
        labels = labels_of(process, common)
        for value in process.system:
            yield value.name, _sample(value, labels)


def _of_gcs(figures: ClusterFigures, head: NodeInfo | None, common: Labels, gcs: Labels) -> Values:
    for value in figures.gcs.values if figures.gcs is not None else ():
        is_component = value.name in DEFINITIONS and DEFINITIONS[value.name].about == COMPONENT
        if not is_component:
            yield value.name, _sample(value, gcs)
        elif head is not None:
            yield value.name, _sample(value, _labels_of_node(value.name, head, common))


def _of_tables(figures: ClusterFigures, gcs: Labels) -> Values:
    yield from _of_actors(figures, gcs)
    states = Counter(group.state for group in figures.groups)
    for state in GROUPS:
        yield "placement_groups", Sample("", gcs | {"State": state}, float(states[state]))
    registered = sum(states.values()) - states["REMOVED"]
    for name, count in {"Registered": registered, "Pending": registered - states["CREATED"]}.items():
        yield "gcs_placement_group_count", Sample("", gcs | {"State": name}, float(count))
    yield "running_jobs", Sample("", gcs, float(sum(not job.end_time for job in figures.jobs)))
    ended = sorted((job for job in figures.jobs if job.end_time), key=lambda job: job.end_time)
    for job in ended[-MOST_JOBS:]:
        yield "job_duration_s", Sample("", gcs | {"JobId": job.job_id.hex()}, max(0.0, job.end_time - job.start_time))
    kinds = {"head": True, "worker": False}
    for kind, is_head in kinds.items():
        nodes = [node for node in figures.nodes if node.is_head == is_head]
        lost = sum(not node.alive and node.death_reason == UNEXPECTED_TERMINATION for node in nodes)
        yield "cluster_active_nodes", Sample("", gcs | {"node_type": kind}, float(sum(node.alive for node in nodes)))
        yield "cluster_failed_nodes", Sample("", gcs | {"node_type": kind}, float(lost))


def _of_actors(figures: ClusterFigures, gcs: Labels) -> Values:
    counts = Counter((actor.state, actor.class_name, actor.actor_id[-4:].hex()) for actor in figures.actors)
    for (state, name, job_id), count in _bounded(counts).items():
        labels = gcs | {"State": state, "Name": name, "Source": "gcs", "JobId": job_id}
        yield "actors", Sample("", labels, float(count))
    kinds = Counter(ACTORS[actor.state] for actor in figures.actors)
    for kind in dict.fromkeys(ACTORS.values()):
        yield "gcs_actors_count", Sample("", gcs | {"State": kind}, float(kinds[kind]))


def _bounded(counts: Counter[tuple[str, str, str]]) -> Counter[tuple[str, str, str]]:
    """Add up the rarest counts without their names, if there are more than ``MOST_CLASSES``."""
    kept = Counter[tuple[str, str, str]]()
    ranked: Iterable[tuple[tuple[str, str, str], int]] = counts.most_common()
    for index, ((state, name, job_id), count) in enumerate(ranked):
        kept[(state, name, job_id) if index < MOST_CLASSES else (state, "", "")] += count
    return kept
