"""A plain queueing model of Sparrow's comparison, at the size of its paper and at that of examples/sparrow_figure.py.

    python -m tests.policies.sparrow_model                         # 10,000 nodes and jobs of 100 tasks: some minutes
    python -m tests.policies.sparrow_model --nodes 20 --tasks 10 --jobs 120 --seeds 5

The model has queues alone, and nothing of minray. It tells how much of a difference between the paper's ratios and those of
minray comes from the size of the cluster and of the jobs, and from means or medians. Jobs arrive as a Poisson process.
All tasks of a job take the same time, which is exponentially distributed over the jobs, with a mean of one. A message takes
``DELAY``, as in the simulator of the paper's authors: half a millisecond for tasks of 100 milliseconds.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median

import click

DELAY = 0.005
"""Time of a message, in mean durations of a task."""
SLOTS = 4
"""Tasks that a node runs at a time."""


@dataclass(slots=True)
class Job:
    """A job, and what is known of its end."""

    arrival: float
    duration: float
    waiting: int
    """Number of its tasks that have no slot yet."""
    end: float = 0.0


@dataclass(slots=True)
class Node:
    """A node: free slots, and a queue of tasks or of reservations."""

    free: int
    queue: deque[Job] = field(default_factory=deque)

    def load(self) -> int:
        return len(self.queue) - self.free


Event = tuple[float, int, Callable[..., None], tuple[object, ...]]


class Model:
    """One run: jobs that arrive, and a way to place their tasks."""

    def __init__(self, nodes: int, slots: int, tasks: int, jobs: int, load: float, seed: int) -> None:
        self.chance = random.Random(seed)
        self.nodes = [Node(slots) for _ in range(nodes)]
        self.tasks = tasks
        self.jobs: list[Job] = []
        now = 0.0
        for _ in range(jobs):
            now += self.chance.expovariate(load * nodes * slots / tasks)
            self.jobs.append(Job(now, self.chance.expovariate(1.0), tasks))
        self.now = 0.0
        self._events: list[Event] = []
        self._count = 0

    def later(self, delay: float, call: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, call, arguments))

    def run(self, place: Callable[[Model, Job], None]) -> list[float]:
        """Return the response times of the jobs, in mean durations; the first third does not count."""
        for job in self.jobs:
            self.later(job.arrival, place, self, job)
        while self._events:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        return [job.end - job.arrival for job in self.jobs[len(self.jobs) // 3 :]]

    # --- A node that gets tasks ----------------------------------------------------------------------------------------

    def add(self, node: Node, job: Job) -> None:
        node.queue.append(job)
        self.start(node)

    def start(self, node: Node) -> None:
        while node.free and node.queue:
            node.free -= 1
            job = node.queue.popleft()
            job.end = max(job.end, self.now + job.duration)
            self.later(job.duration, self.end, node)

    def end(self, node: Node) -> None:
        node.free += 1
        self.start(node)

    # --- A node that gets reservations ---------------------------------------------------------------------------------

    def reserve(self, node: Node, job: Job) -> None:
        node.queue.append(job)
        self.ask(node)

    def ask(self, node: Node) -> None:
        """Ask for the task of the oldest reservation, as long as slots are free; the answer comes after two messages."""
        while node.free and node.queue:
            node.free -= 1
            self.later(DELAY, self.answer, node, node.queue.popleft())

    def answer(self, node: Node, job: Job) -> None:
        busy = DELAY
        if job.waiting:
            job.waiting -= 1
            busy += job.duration
            job.end = max(job.end, self.now + busy)
        self.later(busy, self.give_back, node)

    def give_back(self, node: Node) -> None:
        node.free += 1
        self.ask(node)


def at_random(model: Model, job: Job) -> None:
    for _ in range(model.tasks):
        model.later(DELAY, model.add, model.chance.choice(model.nodes), job)


def per_task(model: Model, job: Job) -> None:
    """Each task takes the shorter of two queues; all tasks of a job see the queues at the same moment."""

    def choose() -> None:
        probed = model.chance.sample(model.nodes, min(2 * model.tasks, len(model.nodes) // 2 * 2))
        for number in range(model.tasks):
            two = probed[2 * number % len(probed) :][:2]
            model.later(2 * DELAY, model.add, min(two, key=Node.load), job)

    model.later(DELAY, choose)


def batch(model: Model, job: Job) -> None:
    """The tasks of a job take the shortest among twice as many queues."""

    def choose() -> None:
        probed = model.chance.sample(model.nodes, min(2 * model.tasks, len(model.nodes)))
        for node in sorted(probed, key=Node.load)[: model.tasks]:
            model.later(2 * DELAY, model.add, node, job)

    model.later(DELAY, choose)


def late_binding(model: Model, job: Job) -> None:
    """A job has two reservations for each task, and the first that come to their turn get the tasks."""
    for node in model.chance.sample(model.nodes, min(2 * model.tasks, len(model.nodes))):
        model.later(DELAY, model.reserve, node, job)


def omniscient(model: Model, job: Job) -> None:
    """One queue without delays, for a model with one node that has all slots."""
    for _ in range(model.tasks):
        model.add(model.nodes[0], job)


WAYS: dict[str, Callable[[Model, Job], None]] = {
    "random": at_random,
    "per-task sampling": per_task,
    "batch sampling": batch,
    "batch, late binding": late_binding,
}
"""The ways to place tasks, by the names of docs/policy_lab.md."""
RATIOS = [
    ("batch sampling", "per-task sampling"), ("batch sampling", "omniscient"), ("batch, late binding", "batch sampling"),
    ("batch, late binding", "omniscient"), ("per-task sampling", "omniscient"),
    ("batch, late binding", "per-task sampling"), ("random", "per-task sampling"), ("random", "omniscient"),
]  # fmt: skip
"""The ratios of docs/policy_lab.md, in the order of its table."""


Middle = Callable[[list[float]], float]
Ratios = dict[tuple[str, str], float]


def ratios(nodes: int, tasks: int, jobs: int, load: float, seeds: int, *middles: Middle) -> list[Ratios]:
    """Return the ratios of the means, medians or other ``middles`` of response times, each as its mean over the seeds."""
    runs = []
    for seed in range(seeds):
        run = {name: Model(nodes, SLOTS, tasks, jobs, load, seed).run(way) for name, way in WAYS.items()}
        runs.append(run | {"omniscient": Model(1, nodes * SLOTS, tasks, jobs, load, seed).run(omniscient)})
    return [
        {(one, other): fmean(middle(run[one]) / middle(run[other]) for run in runs) for one, other in RATIOS}
        for middle in middles
    ]


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(2), default=10_000, show_default=True)
@click.option("--tasks", type=click.IntRange(1), default=100, show_default=True, help="Tasks of a job.")
@click.option("--jobs", type=click.IntRange(3), default=10_000, show_default=True)
@click.option("--load", type=click.FloatRange(0, 1), default=0.8, show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True)
def main(nodes: int, tasks: int, jobs: int, load: float, seeds: int) -> None:
    means, medians = ratios(nodes, tasks, jobs, load, seeds, fmean, median)
    for one, other in RATIOS:
        click.echo(f"{one} by {other}: {means[one, other]:.2f} of means, {medians[one, other]:.2f} of medians")


if __name__ == "__main__":
    main()
