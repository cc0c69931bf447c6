"""Counts what a simulated cluster costs: messages, bytes, values told to nodes, steps, processor time and memory.

    python -m tests.simulation.scale 100:2000 1000:100000     # nodes:tasks, each in a process of its own

``make scale`` runs the sizes of docs/scale.md. A program on the head submits all tasks at once. Each sleeps for a second on
one of the two CPUs of a node. All counts are the same on every machine and in every run; seconds and memory are not.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import click

import minray
from minray.platform.transport.queued_channel import CALL, REPLY
from minray.protocol.base import decode
from minray.protocol.gcs import NODES, RESOURCES, Poll, PollReply
from minray.simulation import SimCluster
from minray.simulation.loop import SimProcess
from tests.simulation.interference import watch_sends

SIZES = [*(f"{nodes}:{20 * nodes}" for nodes in (10, 30, 100, 300, 1000)), "1000:100000"]
TASK_S = 1.0
"""Virtual seconds that a task sleeps."""
LIMIT_S = 3600.0
"""Virtual seconds that all tasks may take."""
COLUMNS = (
    "nodes", "tasks", "virtual seconds", "steps", "messages", "a task", "MB", "values of nodes", "of resources",
    "of resources, a node and second", "CPU seconds", "peak MiB",
)  # fmt: skip


@dataclass
class Counts:
    """Numbers of messages, bytes and values sent in a simulated cluster so far."""

    words: Counter[str] = field(default_factory=Counter)
    """Number of messages by word: requests and replies."""
    sent_bytes: int = 0
    values: Counter[str] = field(default_factory=Counter)
    """Number of values that polls were answered with, by channel."""
    _polls: dict[tuple[Any, int], str] = field(default_factory=dict)
    """Channels of polls that have no answer, by the end that answers and the number of the call."""

    def note(self, end: Any, message: Any, word: str) -> bool:
        self.words[word] += 1
        self.sent_bytes += len(message.payload) + sum(buffer.nbytes for buffer in message.buffers)
        if word == "Poll" and message.kind == CALL:
            self._polls[end.other, message.number] = decode(Poll, message.payload).channel
        elif word == "Poll reply" and message.kind == REPLY:
            channel = self._polls.pop((end, message.number))
            self.values[channel] += len(decode(PollReply, message.payload).entries)
        return True


class CountedCluster(SimCluster):
    """A simulated cluster whose messages are counted from its start."""

    def __init__(self, nodes: int, num_cpus: int = 2) -> None:
        super().__init__([{"num_cpus": num_cpus}] * nodes, 1, show_output=False)
        self.counts = Counts()

    def start_gcs(self) -> SimProcess:
        watch_sends(self, self.counts.note)
        return super().start_gcs()


@dataclass
class Cost:
    """The costs of one run, from the start of the cluster to the last result."""

    nodes: int
    tasks: int
    seconds: float
    """Virtual seconds."""
    steps: int
    counts: Counts
    cpu_s: float
    peak_mib: float

    def row(self) -> list[str]:
        values, messages = self.counts.values, self.counts.words.total()
        rate = values[RESOURCES] / self.nodes / self.seconds
        cells = (
            f"{self.nodes:,}", f"{self.tasks:,}", f"{self.seconds:.1f}", f"{self.steps:,}", f"{messages:,}",
            f"{messages / self.tasks:.1f}", f"{self.counts.sent_bytes / 1e6:.0f}", f"{values[NODES]:,}",
            f"{values[RESOURCES]:,}", f"{rate:.1f}", f"{self.cpu_s:.1f}", f"{self.peak_mib:,.0f}",
        )  # fmt: skip
        return list(cells)


@minray.remote(num_cpus=1)
def nap() -> None:
    time.sleep(TASK_S)


def measure(nodes: int, tasks: int) -> Cost:
    """Run a number of tasks on a simulated cluster, and return what that has cost."""
    begun_at = time.process_time()

    def program() -> None:
        minray.get([nap.remote() for _ in range(tasks)])

    with CountedCluster(nodes) as cluster:
        cluster.run(program, LIMIT_S)
        loop = cluster.world.loop
        seconds, steps = loop.time(), loop.steps
    cpu_s = time.process_time() - begun_at
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(nodes, tasks, seconds, steps, cluster.counts, cpu_s, peak_mib)


def show(cells: list[str]) -> None:
    click.echo("| " + " | ".join(cells) + " |")


@click.command(help=__doc__)
@click.argument("sizes", nargs=-1)
def main(sizes: tuple[str, ...]) -> None:
    show(list(COLUMNS))
    show(["---"] * len(COLUMNS))
    for size in sizes or SIZES:
        nodes, _, tasks = size.partition(":")
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as alone:  # Peak memory is that of a whole process.
            show(alone.submit(measured_row, int(nodes), int(tasks)).result())


def measured_row(nodes: int, tasks: int) -> list[str]:
    return measure(nodes, tasks).row()


if __name__ == "__main__":
    main()
