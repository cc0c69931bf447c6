"""The program that runs a workload: its driver, and the one function that all its tasks are.

Ray: has no counterpart

It uses the public API alone, and so it is the same program on a simulated cluster and on a real one. A task sleeps for as
long as it is busy, and returns arrays of zeros with the sizes of its results.

Rules
  * The driver submits each task when it arrives. It drops a reference after the last task that uses it, and one that no task
    uses when that task has ended.
  * Tasks of one kind are one remote function, as far as minray knows: it learns how long its tasks take.
  * Calls of an actor are methods of one actor. The driver makes it when it arrives, and drops its handle after the last
    call.
  * Tasks with a place run there, and are submitted in the order of the places. A result that another node needs is fetched
    there by a task without a CPU when it is made.
  * Tasks are retried, and actors restarted, for ever when their node or worker is lost.
  * In a simulation ``OBSERVERS`` tell the speed of a node, and hear of each task that has ended. Real nodes have the speed
    that they have, and their timeline tells of the tasks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy

import minray
from minray.laboratory.workload import CPU, GPU, MEMORY, TraceActor, TraceTask, Workload
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class Observer(Protocol):
    """Answers for the simulation what only it knows of the node on which a task runs."""

    def speed(self) -> float:
        """Return the speed of the node of the calling process."""

    def on_end(self, task: str, start_s: float, end_s: float) -> None:
        """Note that a task has ended, with the times of ``time.time``."""


OBSERVERS: list[Observer] = []
"""The observer of the simulation that runs; empty on a real cluster."""

WARM_S = 1.0
"""Duration of a task of the warm-up in seconds: long enough that each CPU must take one."""


def perform(task: str, duration_s: float, values_s: float, sizes: Sequence[int], *inputs: Any) -> Any:
    """Be a task: sleep, and return values of these sizes.

    ``duration_s``: how long the task takes on a node of speed 1. ``values_s``: how long its arguments and results take.
    """
    start_s = time.time()
    time.sleep(_here_s(duration_s) + values_s)
    values = [numpy.zeros(size, numpy.uint8) for size in sizes]
    for observer in OBSERVERS:
        observer.on_end(task, start_s, time.time())
    return values[0] if len(values) == 1 else values


def _here_s(duration_s: float) -> float:
    """Return how long work of this duration takes on the node of this process."""
    return duration_s / OBSERVERS[0].speed() if OBSERVERS else duration_s


class Performer:
    """Be an actor: its constructor sleeps, and its calls are tasks."""

    def __init__(self, start_s: float) -> None:
        time.sleep(_here_s(start_s))

    def perform(self, *arguments: Any) -> Any:
        return perform(*arguments)


def warm_up(cpus: int) -> None:
    """Run a task on each of the cluster's CPUs, so that all workers have started and imported what they need."""
    function = minray.remote(perform).options(scheduling_strategy="SPREAD", max_retries=-1)
    minray.get([function.remote("warm-up", 0.0, WARM_S, [0]) for _ in range(cpus)])
    time.sleep(WARM_S / 2)  # until all nodes have heard that all others are idle again


def _resources(resources: Mapping[str, float], cpus: float) -> dict[str, Any]:
    """Return the options that ask for these resources; ``cpus`` is the number of CPUs if they name none."""
    return {
        "num_cpus": resources.get(CPU, cpus),
        "num_gpus": resources.get(GPU, 0.0),
        "memory": resources.get(MEMORY, 0.0) or None,
        "resources": {name: amount for name, amount in resources.items() if name not in (CPU, GPU, MEMORY)},
    }


def fetch(value: Any) -> None:
    """Be a task that only has its argument brought to its node."""


class Places:
    """The nodes on which tasks must run, for a workload with a plan; empty for one without."""

    def __init__(self, tasks: Sequence[TraceTask], nodes: Mapping[str, str]) -> None:
        """``nodes``: the id of each task's node, in the order in which the tasks are submitted."""
        self._tasks = {task.id: task for task in tasks}
        self._nodes = nodes
        self._fetch = minray.remote(fetch)
        self._others: dict[str, dict[tuple[int, str], None]] = defaultdict(dict)
        """(number of the result, node that needs it) of each task with results that other nodes need."""
        for task in tasks if nodes else ():
            for source, number in task.inputs:
                if nodes[source] != nodes[task.id]:
                    self._others[source][number, nodes[task.id]] = None

    def ordered(self) -> list[TraceTask]:
        return [self._tasks[task] for task in self._nodes or self._tasks]

    def options(self, task: TraceTask) -> dict[str, Any]:
        return {"scheduling_strategy": _on(self._nodes[task.id])} if self._nodes else {}

    def fetch_results(self, task: TraceTask, results: Sequence[Any]) -> None:
        """Have the results of a task brought to the other nodes that need them."""
        for number, node in self._others.get(task.id, ()):
            self._fetch.options(num_cpus=0, scheduling_strategy=_on(node)).remote(results[number])


def _on(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


class _Callables:
    """The remote functions and actors of a workload, as long as tasks need them."""

    def __init__(self, workload: Workload) -> None:
        kinds = dict.fromkeys(task.kind for task in workload.tasks if not task.actor)
        self._functions = {kind: minray.remote(perform) for kind in kinds}
        self._actors: dict[str, Any] = {}
        self._calls = Counter(task.actor for task in workload.tasks if task.actor)
        """Number of calls of each actor that have not been submitted."""

    def make(self, actor: TraceActor) -> None:
        options: dict[str, Any] = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": actor.concurrency}
        made = minray.remote(Performer).options(**_resources(actor.resources, 0.0), **options)
        self._actors[actor.id] = made.remote(actor.start_s)

    def take(self, task: TraceTask, place: Mapping[str, Any]) -> Any:
        """Return what to call ``.remote`` of for a task. The handle of its actor is dropped after the last call."""
        options: dict[str, Any] = {"name": task.id, "num_returns": len(task.outputs), **place}
        if not task.actor:
            return self._functions[task.kind].options(**options, **_resources(task.resources, 1.0), max_retries=-1)
        self._calls[task.actor] -= 1
        handle = self._actors[task.actor] if self._calls[task.actor] else self._actors.pop(task.actor)
        return handle.perform.options(**options)


def drive(
    workload: Workload,
    values_s: Mapping[str, float],
    shrink: int,
    on_submit: Callable[[str, float], None],
    on_end: Callable[[str, Any], None],
    places: Places | None = None,
) -> float:
    """Submit all tasks as they arrive, and wait for them; return when the last one was known to have ended.

    ``values_s``: how long the arguments and results of each task take. ``on_submit`` is called with each task and the
    time, ``on_end`` with each task whose results no other task uses, and its first result. ``places``: where tasks must run.
    Times are in seconds since the call.
    """
    begin_s = time.time()
    places = places or Places(workload.tasks, {})
    tasks, callables = places.ordered(), _Callables(workload)
    uses = Counter(source for task in tasks for source in dict.fromkeys(source for source, _ in task.inputs))
    refs: dict[str, list[Any]] = {}
    last: deque[tuple[str, Any]] = deque()
    actors = deque(workload.actors)
    for task in tasks:
        while actors and actors[0].arrival_s <= task.arrival_s:
            _sleep_until(begin_s + actors[0].arrival_s)
            callables.make(actors.popleft())
        _sleep_until(begin_s + task.arrival_s)
        arguments = [refs[source][number] for source, number in task.inputs]
        on_submit(task.id, time.time() - begin_s)
        sizes = [size // shrink for size in task.outputs]
        take = callables.take(task, places.options(task))
        returned = take.remote(task.id, task.duration_s, values_s[task.id], sizes, *arguments)
        results = returned if len(sizes) > 1 else [returned]
        places.fetch_results(task, results)
        if uses[task.id]:
            refs[task.id] = results
        else:
            last.append((task.id, results[0]))
        for source in dict.fromkeys(source for source, _ in task.inputs):
            uses[source] -= 1
            if not uses[source]:
                del refs[source]
        while last and minray.wait([last[0][1]], timeout=0, fetch_local=False)[0]:
            on_end(*last.popleft())
    while last:
        minray.wait([last[0][1]], fetch_local=False)
        on_end(*last.popleft())
    return time.time() - begin_s


def _sleep_until(when_s: float) -> None:
    wait_s = when_s - time.time()
    if wait_s > 0:
        time.sleep(wait_s)
