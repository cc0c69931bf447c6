"""The program that runs a workload: its driver, and the one function that all its tasks are.

Ray: has no counterpart

It uses the public API alone, and so it is the same program on a simulated cluster and on a real one. A task sleeps for as
long as it is busy, and returns arrays of zeros with the sizes of its results.

Rules
  * The driver submits each task when it arrives. It drops a reference after the last task that uses it, and one that no task
    uses when that task has ended.
  * Tasks of one kind are one remote function, as far as minray knows: it learns how long its tasks take.
  * Tasks are retried for ever when their node or worker is lost.
  * In a simulation ``OBSERVERS`` hear of each task that has ended. On a real cluster the timeline tells the same.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

import minray
from minray.laboratory.workload import CPU, GPU, MEMORY, TraceTask

Observer = Callable[[str, float, float], None]
OBSERVERS: list[Observer] = []
"""Called as (task, start, end) at the end of each task, with the times of ``time.time``."""

WARM_S = 1.0
"""Duration of a task of the warm-up in seconds: long enough that each CPU must take one."""


def perform(task: str, busy_s: float, sizes: Sequence[int], *inputs: Any) -> Any:
    """Be a task: sleep, and return values of these sizes."""
    start_s = time.time()
    time.sleep(busy_s)
    values = [numpy.zeros(size, numpy.uint8) for size in sizes]
    for observe in OBSERVERS:
        observe(task, start_s, time.time())
    return values[0] if len(values) == 1 else values


def warm_up(nodes: int, cpus: float) -> None:
    """Run a task on each CPU of each node, so that all workers have started and imported what they need."""
    function = minray.remote(perform).options(scheduling_strategy="SPREAD", max_retries=-1)
    minray.get([function.remote("warm-up", WARM_S, [0]) for _ in range(nodes * int(cpus))])
    time.sleep(WARM_S / 2)  # until all nodes have heard that all others are idle again


def options_of(task: TraceTask) -> dict[str, Any]:
    """Return a task's options of ``.remote``."""
    rest = {name: amount for name, amount in task.resources.items() if name not in (CPU, GPU, MEMORY)}
    return {
        "name": task.id,
        "num_cpus": task.resources.get(CPU, 1.0),
        "num_gpus": task.resources.get(GPU, 0.0),
        "memory": task.resources.get(MEMORY, 0.0) or None,
        "resources": rest,
        "num_returns": len(task.outputs),
        "max_retries": -1,
    }


def drive(
    tasks: Sequence[TraceTask], busy_s: Mapping[str, float], shrink: int, on_submit: Callable[[str, float], None]
) -> float:
    """Submit all tasks as they arrive, and wait for them; return when the last one was known to have ended.

    ``busy_s``: how long each task sleeps. ``on_submit`` is called with each task and the time. Times are in seconds
    since the call.
    """
    begin_s = time.time()
    functions = {kind: minray.remote(perform) for kind in dict.fromkeys(task.kind for task in tasks)}
    uses = Counter(source for task in tasks for source in dict.fromkeys(source for source, _ in task.inputs))
    refs: dict[str, list[Any]] = {}
    last: deque[Any] = deque()
    for task in tasks:
        wait_s = begin_s + task.arrival_s - time.time()
        if wait_s > 0:
            time.sleep(wait_s)
        arguments = [refs[source][number] for source, number in task.inputs]
        on_submit(task.id, time.time() - begin_s)
        sizes = [size // shrink for size in task.outputs]
        returned = functions[task.kind].options(**options_of(task)).remote(task.id, busy_s[task.id], sizes, *arguments)
        results = returned if len(sizes) > 1 else [returned]
        if uses[task.id]:
            refs[task.id] = results
        else:
            last.append(results[0])
        for source in dict.fromkeys(source for source, _ in task.inputs):
            uses[source] -= 1
            if not uses[source]:
                del refs[source]
        while last and minray.wait([last[0]], timeout=0, fetch_local=False)[0]:
            last.popleft()
    while last:
        minray.wait([last[0]], fetch_local=False)
        last.popleft()
    return time.time() - begin_s
