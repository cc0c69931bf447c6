"""Reads workflows in the JSON format of WfCommons (WfFormat 1.4 to 1.6), as they are published by wfcommons.org.

Ray: has no counterpart

A workflow has a specification (tasks with parents, input and output files) and an execution (run times, cores). Both are
needed: a task's run time is only in the execution. A file that one task writes and others read becomes a result of that
task. A parent without a common file becomes an input of 0 bytes. All tasks arrive at 0, as one submission of the workflow.

Left out, and said in the notes: input files that no task writes, times of the start and of the machine, memory (unless it is
asked for with ``MEMORY`` in the resources of the nodes), energy, priorities.
"""

from __future__ import annotations

from typing import Any

from minray.laboratory.traces.objects import JsonPlace
from minray.laboratory.workload import CPU, TraceError, TraceTask, Workload


def is_one(decoded: Any) -> bool:
    return isinstance(decoded, dict) and "workflow" in decoded


def read(decoded: Any, file: str) -> Workload:
    """Read a decoded file. Raises TraceError."""
    whole = JsonPlace(decoded, file)
    workflow = whole.down("workflow")
    if not workflow.has("specification"):
        raise TraceError(
            f"{file}: workflow has no specification, as in versions of WfFormat below 1.4; migrate it with the tool of"
            " github.com/wfcommons/WfFormat"
        )
    if not workflow.has("execution"):
        raise TraceError(f"{file}: the workflow has no execution, and so no run times; take an instance that was executed")
    specification = workflow.down("specification")
    sizes = {each.text("id"): int(each.number("sizeInBytes")) for each in _items(specification, "files")}
    runs = {each.text("id"): each for each in workflow.down("execution").items("tasks")}
    writers: dict[str, tuple[str, int]] = {}
    outputs: dict[str, tuple[int, ...]] = {}
    tasks = specification.items("tasks")
    for task in tasks:
        id = task.text("id")
        names = task.texts("outputFiles")
        writers |= {name: (id, number) for number, name in enumerate(names)}
        # The last one is for children that read no file of it.
        outputs[id] = (*(_size(name, sizes, task) for name in names), 0)
    read = [_task(task, runs, writers, outputs) for task in tasks]
    outside = {name for task in tasks for name in task.texts("inputFiles")} - writers.keys()
    total = sum(sizes.get(name, 0) for name in outside)
    notes = [f"{len(outside)} input files of {total} bytes, which no task writes, are not read"]
    return Workload(whole.text("name", file), tuple(read), notes=tuple(notes if outside else []))


def _items(place: JsonPlace, name: str) -> list[JsonPlace]:
    return place.items(name) if place.has(name) else []


def _size(name: str, sizes: dict[str, int], task: JsonPlace) -> int:
    if name not in sizes:
        raise task.wrong("outputFiles", name, "the id of a file in workflow.specification.files")
    return sizes[name]


def _task(
    task: JsonPlace, runs: dict[str, JsonPlace], writers: dict[str, tuple[str, int]], outputs: dict[str, tuple[int, ...]]
) -> TraceTask:
    id = task.text("id")
    if id not in runs:
        raise task.wrong("id", id, "that of a task in workflow.execution.tasks, which has its run time")
    inputs = [writers[name] for name in task.texts("inputFiles") if name in writers and writers[name][0] != id]
    sources = {source for source, _ in inputs}
    for parent in task.texts("parents"):
        if parent not in outputs:
            raise task.wrong("parents", parent, "the id of a task")
        if parent not in sources:
            inputs.append((parent, len(outputs[parent]) - 1))
    cores = runs[id].number("coreCount", 1.0)
    return TraceTask(
        id=id,
        duration_s=runs[id].number("runtimeInSeconds"),
        inputs=tuple(inputs),
        outputs=outputs[id],
        resources={} if cores == 1 else {CPU: cores},
        kind=task.text("name", ""),
    )
