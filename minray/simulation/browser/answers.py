"""Answers to the playground: a run's events, outcome and digest, and why its tasks have not ended.

    answer_of(script, Stage(script).perform())      all that the page shows, as values that JSON can say
    explanations(cluster)                           [(process, lines)] for each task that has not ended

Rules
  * Nothing here needs a browser, so that tests compare it with what a browser answers.
  * An explanation lets its world go on, because processes must ask each other. That run is thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.records.pending_task import FAILED, FINISHED, PendingTask
from minray.simulation.cluster import SimCluster
from minray.simulation.loop import Deadlock
from minray.simulation.page import headline, page_data
from minray.simulation.script import Aim, Performance, Script, Stage
from minray.simulation.trace import OUTPUT

EXPLAIN_S = 30.0
"""Virtual seconds that processes have to explain what waits."""
DRAWN_EVENTS = 10_000
"""Number of events that the page draws of a run, which takes a browser about a second."""


class PageQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of the page."""

    script: Script
    aim: Aim | None = None
    """A fault that strikes beside those of the script."""
    event: int = 0
    """Number of the event whose moment is explained."""


def answer_of(script: Script, done: Performance) -> dict[str, Any]:
    """Return what the page shows of a run."""
    cluster = done.cluster
    events = cluster.trace.events
    return {
        "outcome": done.outcome,
        "details": done.details,
        "headline": headline(script.seed, script.nodes, done.outcome, cluster.trace),
        "digest": done.digest,
        "seconds": done.seconds,
        "output": [event.details[1] for event in events if event.kind == OUTPUT and event.process.startswith("driver")],
        "answers": list(cluster.oracle.answers.items()),
        "missed": list(cluster.missed.items()),
        "events": len(events),
        "page": page_data(cluster.trace, DRAWN_EVENTS),
    }


def explanations(cluster: SimCluster) -> list[tuple[str, list[str]]]:
    """Ask each process of the cluster why its tasks have not ended; return [process, lines] of each task."""
    alive, found, open_questions = cluster.alive(), [], []
    for process in cluster.world.loop.processes:
        if process.name in cluster.cores and process.name in alive:
            for task in list(cluster.cores[process.name].submission.tasks.tasks.values()):
                if task.state not in (FINISHED, FAILED):
                    question = _explain(cluster.cores[process.name], task)
                    open_questions.append((process.name, process.create_task(question, "explain")))
    with contextlib.suppress(Deadlock):
        cluster.wait_until(lambda: all(asked.done() for _, asked in open_questions), EXPLAIN_S)
    for name, asked in open_questions:
        found.append((name, asked.result() if asked.done() else ["a process that it needs to ask does not answer"]))
    return found


async def _explain(core: CoreWorker, task: PendingTask) -> list[str]:
    try:
        return await core.explainer.explain_task(task, 0)
    except (Exception, asyncio.CancelledError) as error:
        return [f"this cannot be explained: {type(error).__name__}: {error}"]


def explained(question: PageQuestion) -> list[tuple[str, list[str]]]:
    """Run a script until an event, and return the explanations of that moment."""
    found: list[tuple[str, list[str]]] = []

    def on_event(cluster: SimCluster) -> None:
        if len(cluster.trace.events) > question.event:
            cluster.trace.on_event = None
            cluster.world.loop.stop()

    Stage(question.script, None, on_event).perform(lambda cluster: found.extend(explanations(cluster)))
    return found
