"""Reads task graphs as DAGBench publishes them (``graph.json``), which is the form of the scheduling library SAGA.

Ray: has no counterpart

A graph has tasks with a cost, and dependencies with a size. The cost of a task is taken as seconds, the size of a dependency
as bytes: DAGBench has no units. Each dependency is a result of its own of the source, since its size is the edge's.
All tasks arrive at 0.

Left out, and said in the notes: the network in the file (speeds of nodes and links). The cost model takes its place, and all
nodes are equal.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from minray.laboratory.traces.objects import JsonPlace
from minray.laboratory.workload import TraceTask, Workload


def is_one(decoded: Any) -> bool:
    return isinstance(decoded, dict) and "task_graph" in decoded


def read(decoded: Any, file: str) -> Workload:
    """Read a decoded file. Raises TraceError."""
    whole = JsonPlace(decoded, file)
    graph = whole.down("task_graph")
    costs = [(task.text("name"), task.number("cost")) for task in graph.items("tasks")]
    names = {name for name, _ in costs}
    inputs: dict[str, list[tuple[str, int]]] = defaultdict(list)
    outputs: dict[str, list[int]] = defaultdict(list)
    for edge in graph.items("dependencies"):
        for end in ("source", "target"):
            if edge.text(end) not in names:
                raise edge.wrong(end, edge.text(end), "the name of a task in task_graph.tasks")
        source, target = edge.text("source"), edge.text("target")
        inputs[target].append((source, len(outputs[source])))
        outputs[source].append(round(edge.number("size", 0.0)))
    tasks = [
        TraceTask(id=name, duration_s=cost, inputs=tuple(inputs[name]), outputs=tuple(outputs[name]) or (0,))
        for name, cost in costs
    ]
    notes = ["costs are taken as seconds and sizes as bytes"]
    notes += ["the network in the file is not used; the cost model takes its place"] if whole.has("network") else []
    return Workload(whole.text("name", file), tuple(tasks), notes=tuple(notes))
