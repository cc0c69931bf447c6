"""The tables of the dashboard: how the answers of a cluster's processes become rows.

Ray: python/ray/dashboard/modules/ (node, actor, state), python/ray/dashboard/state_aggregator.py

The functions are pure. Columns have Ray's names, as in ``minray list``, and a few more that only a page shows: the copies of
an object, the use of a node. All values are texts, numbers, lists and dicts, so that they become JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from minray.common.bundles import is_reserved
from minray.common.ids import short
from minray.common.resources import CPU, GPU, MEMORY, to_floats
from minray.dashboard.listing import Row
from minray.observability.state_reader import ClusterCensus, ClusterObjects, ClusterTasks, ClusterWorkers
from minray.protocol.actor import ActorInfo
from minray.protocol.gcs import NodeInfo, WorkerDeath
from minray.protocol.object_store import CopyInfo
from minray.protocol.placement_group import PlacementGroupInfo
from minray.util.state import rows as of_state
from minray.util.state.common import (
    ActorState,
    JobState,
    PlacementGroupState,
    TaskState,
    TaskSummaries,
    WorkerState,
)

MOST_ROWS = 100_000
"""Most rows of a table that the dashboard keeps: about 100 MB. The others are counted, and the answer says so."""


class Table(NamedTuple):
    """The rows of a table, and what is missing."""

    rows: list[Row]
    silent: Sequence[str] = ()
    left_out: int = 0
    """Number of rows of which only the number is known."""
    notes: tuple[str, ...] = ()
    """Sentences that say why rows are missing."""


USAGE = {
    "cpu_percent": "node_cpu_utilization",
    "ram_used": "node_mem_used",
    "ram_total": "node_mem_total",
    "disk_used": "node_disk_usage",
    "disk_free": "node_disk_free",
    "network_sent_speed": "node_network_send_speed",
    "network_received_speed": "node_network_receive_speed",
}
"""Columns about a node's machine, and Ray's names of the metrics that they show."""
LOG_COLUMNS = ("file", "node_id", "node_name", "group", "size", "modified")
Usage = dict[bytes, dict[str, float]]
"""Metrics of each node's machine by their names, by node id."""

NODE_COLUMNS = (
    "node_id", "node_name", "node_ip", "hostname", "is_head_node", "state", "state_message", "health", "num_workers",
    "num_drivers", "num_waiting", "cpu_used", "cpu_total", "gpu_used", "gpu_total", "memory_used", "memory_total",
    "store_used", "store_total", "num_objects", "spilled_bytes", "fallback_bytes", "resources_total",
    "resources_available", "labels", "pid", *USAGE, "disk_total",
)  # fmt: skip
OBJECT_COLUMNS = (
    "object_id", "object_size", "reference_type", "task_status", "attempt_number", "owner", "owner_id", "holder",
    "worker_id", "node_id", "type", "pid", "ip", "borrowers", "copies", "is_spilled", "call_site",
)  # fmt: skip
WORKER_EXTRA = ("state", "job_id", "actor_id")


def columns_of(state: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(state))


COLUMNS: dict[str, tuple[str, ...]] = {
    "nodes": NODE_COLUMNS,
    "workers": (*columns_of(WorkerState), *WORKER_EXTRA),
    "jobs": columns_of(JobState),
    "actors": (*columns_of(ActorState), "max_restarts", "owner_id", "start_time", "end_time"),
    "tasks": columns_of(TaskState),
    "objects": OBJECT_COLUMNS,
    "placement_groups": (*columns_of(PlacementGroupState), "strategy"),
    "logs": LOG_COLUMNS,
}
"""Columns of each table, in the order of the page. The first one is the row's id."""


def nodes(census: ClusterCensus, usage: Usage) -> Table:
    """Make the rows of the nodes: what they have, what is in use, and whether they answer."""
    drivers: dict[bytes, int] = {}
    for address, _ in census.drivers:
        drivers[address.node_id] = drivers.get(address.node_id, 0) + 1
    rows = [_node(info, census, drivers.get(info.node_id, 0)) for info in census.nodes]
    for info, row in zip(census.nodes, rows, strict=True):
        measured = usage.get(info.node_id, {})
        row |= {column: measured.get(name) for column, name in USAGE.items()}
        row["disk_total"] = (
            measured["node_disk_usage"] + measured["node_disk_free"] if "node_disk_free" in measured else None
        )
    return Table(rows, census.silent)


def _node(info: NodeInfo, census: ClusterCensus, drivers: int) -> Row:
    state = of_state.node_state(info)
    stats, store = census.stats.get(info.node_id), census.stores.get(info.node_id)
    report = census.reports.get(info.node_id)
    total = to_floats(report.total if report is not None else info.resources_total)
    available = to_floats(report.available) if report is not None and info.alive else {}
    waiting = sum(count for _, count in report.pending) if report is not None and info.alive else 0

    def used(name: str) -> float | None:
        return total.get(name, 0.0) - available.get(name, 0.0) if available else None

    return {
        **vars(state),
        "hostname": info.hostname,
        "health": _health(info, stats is not None and store is not None),
        "num_workers": len(stats.workers) if stats is not None else None,
        "num_drivers": drivers,
        "num_waiting": waiting,
        "cpu_used": used(CPU),
        "cpu_total": total.get(CPU, 0.0),
        "gpu_used": used(GPU),
        "gpu_total": total.get(GPU, 0.0),
        "memory_used": used(MEMORY),
        "memory_total": total.get(MEMORY, 0.0),
        "store_used": store.used if store is not None else None,
        "store_total": store.capacity if store is not None else None,
        "num_objects": store.total if store is not None else None,
        "spilled_bytes": store.spill.spilled_bytes if store is not None else None,
        "fallback_bytes": store.fallback_used if store is not None else None,
        "resources_available": available,
        "pid": info.pid,
    }


def _health(info: NodeInfo, answers: bool) -> str:
    """Return one word for a node: dead, draining, silent (it does not answer) or healthy."""
    if not info.alive:
        return "dead"
    if not answers:
        return "silent"
    return "draining" if info.drain is not None else "healthy"


def workers(census: ClusterCensus, deaths: list[WorkerDeath], actors: Iterable[ActorInfo]) -> Table:
    """Make the rows of the processes, with the job and the actor of each worker."""
    drivers = {address.worker_id for address, _ in census.drivers}
    living = [
        ("DRIVER" if worker_id in drivers else "WORKER", worker_id, address.node_id, pid)
        for worker_id, (address, pid) in census.processes().items()
    ]
    listing = of_state.worker_listing(
        ClusterWorkers(nodes=census.nodes, jobs=census.jobs, living=living, deaths=deaths, silent=census.silent)
    )
    status = {worker.worker_id.hex(): worker for stats in census.stats.values() for worker in stats.workers}
    homes = {info.address.worker_id.hex(): info.actor_id.hex() for info in actors if info.address is not None}
    jobs = {job.driver.worker_id.hex(): job.job_id.hex() for job in census.jobs}
    rows = []
    for one in listing.rows:
        known = status.get(one.worker_id) if one.is_alive else None
        state = known.state if known is not None else None
        rows.append(
            {
                **vars(one),
                "state": f"{state}, blocked" if known is not None and known.blocked else state,
                "job_id": jobs.get(one.worker_id) or (known.job_id.hex() if known is not None else "") or None,
                "actor_id": homes.get(one.worker_id) if one.is_alive else None,
            }
        )
    return Table(rows, census.silent)


def jobs(census: ClusterCensus) -> Table:
    ips = {node.node_id: node.ip for node in census.nodes}
    return Table([vars(of_state.job_state(info, ips.get(info.driver.node_id, ""))) for info in census.jobs])


def actors(infos: Iterable[ActorInfo]) -> Table:
    """Make the rows of the actors, newest first; the dead ones carry their death certificate."""
    return Table(
        [
            {
                **vars(of_state.actor_state(info)),
                "max_restarts": info.max_restarts,
                "owner_id": info.owner.worker_id.hex(),
                "start_time": int(info.start_time * of_state.MS) or None,
                "end_time": int(info.end_time * of_state.MS) or None,
            }
            for info in sorted(infos, key=lambda info: -info.start_time)
        ]
    )


def tasks(found: ClusterTasks) -> Table:
    """Make the rows of the tasks. Of a process with very many only the newest are known one by one."""
    listing = of_state.task_listing(found)
    rows = [vars(row) for row in listing.rows[:MOST_ROWS]]
    left_out = listing.left_out + len(listing.rows) - len(rows)
    notes = [listing.dropped] if listing.dropped else []
    if left_out:
        notes.append(f"{left_out} older tasks are counted but not shown, because their processes have so many")
    return Table(rows, listing.silent, left_out, tuple(notes))


def task_summary(table: Table) -> dict[str, Any]:
    """Count the tasks of a table by their names and states."""
    sums = TaskSummaries.to_summary(tasks=[TaskState(**row) for row in table.rows])
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "type": one.type,
            "states": one.state_counts,
            "total": sum(one.state_counts.values()),
        }
        for name, one in sums.summary.items()
    ]
    rows.sort(key=lambda row: -row["total"])
    return {
        "rows": rows,
        "total": len(table.rows) + table.left_out,
        "left_out": table.left_out,
        "notes": table.notes,
        "silent": list(table.silent),
    }


def placement_groups(infos: Iterable[PlacementGroupInfo]) -> Table:
    return Table([{**vars(of_state.placement_group_state(one)), "strategy": one.strategy} for one in infos])


def objects(found: ClusterObjects) -> Table:
    """Make the rows of the objects, largest first: a row for each process and object that it refers to."""
    copies: dict[bytes, list[tuple[bytes, CopyInfo]]] = {}
    for node_id, store in found.stores.items():
        for copy in store.copies:
            copies.setdefault(copy.object_id, []).append((node_id, copy))
    names = {process.worker_id: _process_name(process.pid, process.is_driver) for process in found.processes}
    uses = sorted(found.uses(), key=lambda use: -use.size)
    rows = [
        {
            "object_id": use.object_id.hex(),
            "object_size": use.size if use.size >= 0 else None,
            "reference_type": use.reference_type,
            "task_status": use.task_status,
            "attempt_number": use.attempt + 1,
            "owner": names.get(use.owner_id, short(use.owner_id)),
            "owner_id": use.owner_id.hex(),
            "holder": names.get(use.worker_id, ""),
            "worker_id": use.worker_id.hex(),
            "node_id": use.node_id.hex(),
            "type": "DRIVER" if use.is_driver else "WORKER",
            "pid": use.pid,
            "ip": found.nodes[use.node_id].ip,
            "borrowers": use.borrowers,
            "copies": [_copy(node_id, copy) for node_id, copy in copies.get(use.object_id, ())],
            "is_spilled": any(copy.is_on_disk for _, copy in copies.get(use.object_id, ())),
            "call_site": use.call_site,
        }
        for use in uses[:MOST_ROWS]
    ]
    left_out = found.left_out() + len(uses) - len(rows)
    note = f"{left_out} smaller references or copies are counted but not shown, because their processes have so many"
    return Table(rows, found.silent, left_out, (note,) if left_out else ())


def _copy(node_id: bytes, copy: CopyInfo) -> Row:
    return {
        "node_id": node_id.hex(),
        "state": copy.state,
        "is_primary": copy.is_primary,
        "is_on_disk": copy.is_on_disk,
        "pins": copy.use_count,
    }


def _process_name(pid: int, is_driver: bool) -> str:
    return f"{'driver' if is_driver else 'worker'} {pid}"


def summary(census: ClusterCensus) -> dict[str, Any]:
    """Count nodes, processes and resources of the cluster."""
    alive = [node for node in census.nodes if node.alive]
    total: dict[str, float] = {}
    available: dict[str, float] = {}
    for node in alive:
        report = census.reports.get(node.node_id)
        _add(total, to_floats(report.total if report is not None else node.resources_total))
        _add(available, to_floats(report.available if report is not None else node.resources_total))
    running = [job for job in census.jobs if not job.end_time]
    return {
        "nodes_alive": len(alive),
        "nodes_dead": len(census.nodes) - len(alive),
        "resources_total": total,
        "resources_available": {name: available.get(name, 0.0) for name in total},
        "store_used": sum(store.used for store in census.stores.values()),
        "store_total": sum(store.capacity for store in census.stores.values()),
        "spilled_bytes": sum(store.spill.spilled_bytes for store in census.stores.values()),
        "workers": sum(len(stats.workers) for stats in census.stats.values()),
        "waiting": sum(count for one in census.reports.values() for _, count in one.pending),
        "jobs_running": len(running),
        "jobs_total": len(census.jobs),
    }


def _add(sums: dict[str, float], amounts: dict[str, float]) -> None:
    for name, amount in amounts.items():
        if not name.startswith("node:") and not is_reserved(name):
            sums[name] = sums.get(name, 0.0) + amount
