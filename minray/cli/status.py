"""``minray status``: nodes, resources in use, requests that wait, and workers, as tables or for programs.

Ray: python/ray/autoscaler/_private/util.py (format_info_string), which formats what `ray status` shows

The functions are pure: they are given what the gcs and the raylets have answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minray.common.resources import OBJECT_STORE_MEMORY, to_floats
from minray.common.text_table import fitted
from minray.protocol.gcs import NodeInfo, NodeResources
from minray.protocol.raylet import NodeStats

NODE_COLUMNS = ("NODE", "NAME", "ADDRESS", "STATE", "WORKERS", "CPU IN USE", "REMARK")
RESOURCE_COLUMNS = ("RESOURCE", "IN USE", "TOTAL")
WAITING_COLUMNS = ("WAITING TASKS NEED", "COUNT", "AT NODE")
WORKER_COLUMNS = ("WORKER", "NODE", "PID", "STATE", "JOB")


def cluster_facts(
    address: str, nodes: Sequence[NodeInfo], reports: dict[bytes, NodeResources], stats: dict[bytes, NodeStats]
) -> dict[str, Any]:
    """Return what ``describe_cluster`` tells, for programs: ids whole and in hexadecimal, memory in bytes."""
    known = {info.node_id for info in nodes}
    return {
        "address": address,
        "nodes": [_node_facts(info, reports.get(info.node_id), info.node_id in stats) for info in nodes],
        "waiting": [
            {"node_id": report.node_id.hex(), "resources": to_floats(need), "count": count}
            for report in reports.values()
            if report.node_id in known
            for need, count in report.pending
        ],
        "workers": [
            {
                "worker_id": worker.worker_id.hex(),
                "node_id": node_id.hex(),
                "pid": worker.pid,
                "state": worker.state,
                "is_blocked": worker.blocked,
                "job_id": worker.job_id.hex(),
            }
            for node_id, node in stats.items()
            for worker in node.workers
        ],
    }


def _node_facts(info: NodeInfo, report: NodeResources | None, answers: bool) -> dict[str, Any]:
    return {
        "node_id": info.node_id.hex(),
        "node_name": info.name,
        "node_ip": info.ip,
        "state": "ALIVE" if info.alive else "DEAD",
        "death_cause": info.death_cause,
        "is_head": info.is_head,
        "is_draining": info.drain is not None,
        "answers": answers,
        "resources_total": to_floats(info.resources_total),
        "resources_available": to_floats(report.available) if report is not None else {},
        "labels": info.labels,
    }


def describe_cluster(
    address: str, nodes: Sequence[NodeInfo], reports: dict[bytes, NodeResources], stats: dict[bytes, NodeStats]
) -> str:
    """Return the text of ``minray status``. Reports of nodes that are not in ``nodes`` are left out."""
    alive = [info for info in nodes if info.alive]
    names = {info.node_id: info.name for info in nodes}
    parts = [f"Cluster {address}; nodes alive: {len(alive)}, dead: {len(nodes) - len(alive)}"]
    parts += fitted(
        NODE_COLUMNS,
        [
            (
                info.node_id.hex()[:8],
                info.name,
                info.ip,
                "alive" if info.alive else "dead",
                str(len(stats[info.node_id].workers)) if info.node_id in stats else "",
                _cpu_in_use(info, reports.get(info.node_id)),
                _remark(info, info.node_id in stats),
            )
            for info in nodes
        ],
        NODE_COLUMNS,
    )
    parts += fitted(RESOURCE_COLUMNS, _resource_rows(alive, reports), RESOURCE_COLUMNS)
    known = [report for report in reports.values() if report.node_id in names]
    pending = [(need, count, names[report.node_id]) for report in known for need, count in report.pending]
    waiting = [(_describe_need(need), str(count), at) for need, count, at in pending]
    parts += fitted(WAITING_COLUMNS, waiting, WAITING_COLUMNS)
    parts += fitted(
        WORKER_COLUMNS,
        [
            (
                worker.worker_id.hex()[:8],
                names[node_id],
                str(worker.pid),
                f"{worker.state.lower()}{', blocked' if worker.blocked else ''}",
                worker.job_id.hex(),
            )
            for node_id, node in stats.items()
            for worker in node.workers
        ],
        WORKER_COLUMNS,
    )
    return "\n".join(parts)


def _cpu_in_use(info: NodeInfo, report: NodeResources | None) -> str:
    if report is None:
        return ""
    total, available = to_floats(report.total), to_floats(report.available)
    return f"{total.get('CPU', 0) - available.get('CPU', 0):g} of {total.get('CPU', 0):g}"


def _remark(info: NodeInfo, answers: bool) -> str:
    if not info.alive:
        return info.death_cause
    leaving = f"draining: {info.drain.message}" if info.drain is not None else ""
    return ", ".join(filter(None, ["head" if info.is_head else "", leaving, "" if answers else "does not answer"]))


def _resource_rows(alive: Sequence[NodeInfo], reports: dict[bytes, NodeResources]) -> list[tuple[str, str, str]]:
    total: dict[str, float] = {}
    used: dict[str, float] = {}
    for info in alive:
        report = reports.get(info.node_id)
        available = to_floats(report.available if report is not None else info.resources_total)
        for name, amount in to_floats(info.resources_total).items():
            if amount and not name.startswith("node:"):
                total[name] = total.get(name, 0) + amount
                used[name] = used.get(name, 0) + amount - available.get(name, 0)
    in_use = {name: _amount(name, amount) for name, amount in used.items()} | {OBJECT_STORE_MEMORY: "see: minray memory"}
    return [(name, in_use[name], _amount(name, total[name])) for name in sorted(total)]


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name.endswith("memory") else f"{amount:g}"


def _describe_need(need: dict[str, int]) -> str:
    return ", ".join(f"{name}: {_amount(name, amount)}" for name, amount in to_floats(need).items()) or "nothing"
