"""Reads workflows in the JSON format of WfCommons (WfFormat 1.4 to 1.6), as they are published by wfcommons.org.

Ray: has no counterpart

Since version 1.5 a workflow has a specification (tasks with parents, input and output files) and an execution (run times,
cores). Both are needed: a task's run time is only in the execution. Version 1.4, which most published instances have, says
all of it in one list of tasks, whose parents are named by their names.

A file that one task writes and others read becomes a result of that task. A parent without a common file becomes an input of
0 bytes. All tasks arrive at 0, as one submission of the workflow.

Left out: input files that no task writes (said in the notes), times of the start and machines, memory, energy, priorities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minray.laboratory.traces.objects import JsonPlace
from minray.laboratory.workload import CPU, TraceError, TraceTask, Workload


@dataclass(frozen=True)
class _Step:
    """One task as all versions have it."""

    place: JsonPlace
    id: str
    kind: str
    parents: Sequence[str]
    reads: Sequence[str]
    writes: Sequence[tuple[str, int]]
    """Names and sizes of its output files."""
    duration_s: float
    cores: float


def is_one(decoded: Any) -> bool:
    return isinstance(decoded, dict) and "workflow" in decoded


def read(decoded: Any, file: str) -> Workload:
    """Read a decoded file. Raises TraceError."""
    whole = JsonPlace(decoded, file)
    workflow = whole.down("workflow")
    sizes: dict[str, int] = {}
    if workflow.has("specification"):
        steps = _steps_in_two_parts(workflow, file, sizes)
    elif workflow.has("tasks"):
        steps = [_flat_step(task, sizes) for task in workflow.items("tasks")]
    else:
        raise TraceError(
            f"{file}: workflow has neither specification nor tasks, as in versions of WfFormat below 1.4; migrate it with"
            " the tool of github.com/wfcommons/WfFormat"
        )
    writers = {name: (step.id, number) for step in steps for number, (name, _) in enumerate(step.writes)}
    # The last output is for children that read no file of it.
    outputs = {step.id: (*(size for _, size in step.writes), 0) for step in steps}
    tasks = tuple(_task(step, writers, outputs) for step in steps)
    outside = {name for step in steps for name in step.reads} - writers.keys()
    total = sum(sizes.get(name, 0) for name in outside)
    notes = (f"{len(outside)} input files of {total} bytes, which no task writes, are not read",) if outside else ()
    return Workload(whole.text("name", file), tasks, notes=notes)


def _steps_in_two_parts(workflow: JsonPlace, file: str, sizes: dict[str, int]) -> list[_Step]:
    """Read version 1.5 and later; add the sizes of all files to ``sizes``."""
    if not workflow.has("execution"):
        raise TraceError(f"{file}: the workflow has no execution, and so no run times; take an instance that was executed")
    specification = workflow.down("specification")
    for each in specification.items("files") if specification.has("files") else []:
        sizes[each.text("id")] = int(each.number("sizeInBytes"))
    runs = {each.text("id"): each for each in workflow.down("execution").items("tasks")}
    return [_step(task, runs, sizes) for task in specification.items("tasks")]


def _step(task: JsonPlace, runs: dict[str, JsonPlace], sizes: dict[str, int]) -> _Step:
    id = task.text("id")
    if id not in runs:
        raise task.wrong("id", id, "that of a task in workflow.execution.tasks, which has its run time")
    written = task.texts("outputFiles")
    for name in written:
        if name not in sizes:
            raise task.wrong("outputFiles", name, "the id of a file in workflow.specification.files")
    return _Step(
        place=task,
        id=id,
        kind=task.text("name", ""),
        parents=task.texts("parents"),
        reads=task.texts("inputFiles"),
        writes=[(name, sizes[name]) for name in written],
        duration_s=runs[id].number("runtimeInSeconds"),
        cores=runs[id].number("coreCount", 1.0),
    )


def _flat_step(task: JsonPlace, sizes: dict[str, int]) -> _Step:
    """Read a task of version 1.4; add the sizes of its files to ``sizes``."""
    files: dict[str, list[str]] = {"input": [], "output": []}
    for each in task.items("files") if task.has("files") else []:
        name, link = each.text("name"), each.text("link")
        if link not in files:
            raise each.wrong("link", link, "input or output")
        files[link].append(name)
        sizes[name] = int(each.number("sizeInBytes"))
    return _Step(
        place=task,
        id=task.text("name"),
        kind=task.text("category", ""),
        parents=task.texts("parents"),
        reads=files["input"],
        writes=[(name, sizes[name]) for name in files["output"]],
        duration_s=task.number("runtimeInSeconds"),
        cores=task.number("cores", 1.0),
    )


def _task(step: _Step, writers: dict[str, tuple[str, int]], outputs: dict[str, tuple[int, ...]]) -> TraceTask:
    inputs = [writers[name] for name in step.reads if name in writers and writers[name][0] != step.id]
    sources = {source for source, _ in inputs}
    for parent in step.parents:
        if parent not in outputs:
            raise step.place.wrong("parents", parent, "the id of a task")
        if parent not in sources:
            inputs.append((parent, len(outputs[parent]) - 1))
    return TraceTask(
        id=step.id,
        duration_s=step.duration_s,
        inputs=tuple(inputs),
        outputs=outputs[step.id],
        resources={} if step.cores == 1 else {CPU: step.cores},
        kind=step.kind,
    )
