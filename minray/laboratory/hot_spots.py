"""The hot spots of a run: its busiest nodes, links and disks, beside the mean of all of them.

Ray: has no counterpart

    spots = hot_spots(record, busy_s)       # busy_s: CPU seconds of each node
    spots["links"][0], spots["mean_utilisation"]["links"]

Definitions
  * The use of a node is CPU seconds of tasks that ended, by its CPUs and the makespan. A node without CPUs has none.
  * The use of a link is bytes of values in one direction, by its bandwidth and the makespan.
  * The use of a disk is the time in which it served accesses, by the makespan.
  * The mean is over all nodes, all directions of links and all disks of the setup, the idle ones included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from minray.laboratory.experiment import RunRecord
from minray.laboratory.setup import Setup, node_names

HOTTEST = 5
"""Number of nodes, links, disks, kinds of messages and tasks that are named as hot spots."""
KINDS = {"nodes": "node", "links": "link", "disks": "disk"}
"""The entry that names each thing, by the list that it is in."""

Spots = list[dict[str, Any]]


def most(counts: Mapping[Any, float]) -> list[list[Any]]:
    """Return the ``HOTTEST`` keys with the largest counts, the largest first."""
    return [[key, count] for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:HOTTEST]]


def hot_spots(record: RunRecord, busy_s: Mapping[str, float]) -> dict[str, Any]:
    """Return the busiest of each kind, and the mean use of all of that kind. ``busy_s`` has the CPU seconds of each node."""
    spots = {"nodes": _nodes(record, busy_s), "links": _links(record), "disks": _disks(record)}
    means = {
        kind: math.fsum(spot["utilisation"] for spot in spots[kind]) / count if count else 0.0
        for kind, count in _counts(record.setup).items()
    }
    return {**{kind: _hottest(listed, KINDS[kind]) for kind, listed in spots.items()}, "mean_utilisation": means}


def _hottest(spots: Spots, name: str) -> Spots:
    return sorted(spots, key=lambda spot: (-spot["utilisation"], spot[name]))[:HOTTEST]


def _counts(setup: Setup) -> dict[str, int]:
    """Return the number of nodes with CPUs, of directions of links, and of disks."""
    machines = setup.each()
    racks = setup.costs.rack_of(len(machines) - 1) + 1
    return {
        "nodes": sum(machine.cpus > 0 for machine in machines),
        "links": 2 * (len(machines) + (racks if racks > 1 else 0)),
        "disks": len(machines),
    }


def _nodes(record: RunRecord, busy_s: Mapping[str, float]) -> Spots:
    machines = zip(node_names(record.setup), record.setup.each(), strict=True)
    return [
        {"node": name, "utilisation": busy_s[name] / (machine.cpus * record.makespan_s)}
        for name, machine in machines
        if machine.cpus
    ]


def _links(record: RunRecord) -> Spots:
    costs = record.setup.costs
    bytes_per_s = {"node": costs.node_bytes_per_s, "rack": costs.rack_bytes_per_s}
    return [
        {
            "link": f"{level} {number} {direction}",
            "bytes": size,
            "utilisation": size / record.makespan_s / bytes_per_s[level],
        }
        for (level, number, direction), size in record.links.items()
    ]


def _disks(record: RunRecord) -> Spots:
    sizes: dict[str, int] = {}
    for (node, _), size in record.disks.items():
        sizes[node] = sizes.get(node, 0) + size
    return [
        {"disk": node, "bytes": size, "utilisation": record.disk_busy_s[node] / record.makespan_s}
        for node, size in sizes.items()
    ]
