"""The cost model of a simulated cluster's machines and links: one small record, read from JSON or TOML.

Ray: has no counterpart

    CostModel(node_bytes_per_s=1.25e9, rack_nodes=16, rack_bytes_per_s=5e9)

Each node has one link to its rack's switch and each rack one link to the core, both with as much bandwidth in either
direction. The core is never full. ``minray lab calibrate`` measures those entries that one machine can show, and writes the
record.

Left out: processor time of the runtime itself (scheduling, packing messages, Python), contention for memory bandwidth
between tasks, and lost packets. docs/laboratory.md says what follows from it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from minray.laboratory.workload import TraceError, TraceTask


class CostModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bandwidths in bytes per second, times in seconds. The defaults are an ordinary cluster with 10 Gb/s links."""

    node_bytes_per_s: float = 1.25e9
    """Bandwidth of the link between a node and its rack's switch, in each direction."""
    rack_nodes: int = 0
    """Nodes in a rack; 0: all nodes are in one."""
    rack_bytes_per_s: float = 5e9
    """Bandwidth of the link between a rack's switch and the core, in each direction."""
    write_s: float = 0.000_01
    """Time that a process takes to write to a connection. All that it sends over one at one moment is one write."""
    local_latency_s: float = 0.000_05
    """Time of a message between two processes of one node."""
    rack_latency_s: float = 0.000_1
    """Time of a message between two nodes of one rack."""
    core_latency_s: float = 0.000_3
    """Time of a message between two racks."""
    memory_bytes_per_s: float = 5e9
    """Speed at which a result is copied into the object store, and buffers go from process to process in one node."""
    serialise_s_per_mb: float = 0.0
    """Time to pickle 10**6 bytes of a result, beside the copy. Arrays need none."""
    deserialise_s_per_mb: float = 0.0
    """Time to unpickle 10**6 bytes of an argument. Arrays need none, since they are used where they lie."""
    disk_seek_s: float = 0.000_1
    """Time until the first byte of an access to a node's disk."""
    disk_read_bytes_per_s: float = 1e9
    disk_write_bytes_per_s: float = 1e9
    worker_start_s: float = 0.3
    """Time from the decision to start a worker until its process runs."""

    def rack_of(self, node: int) -> int:
        return node // self.rack_nodes if self.rack_nodes else 0

    def values_s(self, input_bytes: int, output_bytes: int) -> float:
        """Return how long a worker is busy with a task's arguments and results, beside its duration."""
        pickling_s = input_bytes / 1e6 * self.deserialise_s_per_mb + output_bytes / 1e6 * self.serialise_s_per_mb
        return pickling_s + output_bytes / self.memory_bytes_per_s


def value_times(tasks: Sequence[TraceTask], costs: CostModel) -> dict[str, float]:
    """Return for each task how long its arguments and results keep its worker busy."""
    outputs = {task.id: task.outputs for task in tasks}
    return {
        task.id: costs.values_s(sum(outputs[source][number] for source, number in task.inputs), sum(task.outputs))
        for task in tasks
    }


def read_costs(path: Path) -> CostModel:
    """Read a cost model, whose missing entries have their defaults. Raises TraceError."""
    hint = "`minray lab calibrate -o costs.json` writes a whole one"
    try:
        text = path.read_text(encoding="utf-8")
        entries = tomllib.loads(text) if path.suffix == ".toml" else msgspec.json.decode(text)
        costs = msgspec.convert(entries, CostModel)
    except OSError as error:
        raise TraceError(f"cannot read the costs in {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is no cost model: {error}; write an object of numbers, or see: {hint}") from None
    for name in CostModel.__struct_fields__:
        value = getattr(costs, name)
        if not 0 <= value < math.inf or (name.endswith("bytes_per_s") and value == 0):
            raise TraceError(f"{path}: {name} is {value}; give a finite number above 0 (0 only for times and rack_nodes)")
    return costs
