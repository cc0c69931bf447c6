"""Invariants of actors at every moment of a simulated run: the part of a ``Watch`` that looks at their calls.

| | looked at when | |
|---|---|---|
| S2 | a method begins | a plain actor runs one at a time |
| S3, S10 | a method begins | the gcs knows no other incarnation, unless that is dead too, or its own node was given up |
| S3 | an answer is accepted | its caller knows of no later incarnation, nor of the actor's end |
| S8 | a call is pushed | those that keep an order are pushed in the order in which they were made |
| S8 | a method begins | of one caller and incarnation, in the order in which they were pushed |
| G36 | a method begins | a call runs once per attempt |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.common.ids import short, short_actor
from minray.protocol.actor import DEAD

OnBroken = Callable[[str, str], None]


class ActorWatch:
    """Looks at the callers and the actors of one cluster."""

    def __init__(
        self, on_broken: OnBroken, rows: Callable[[], dict[bytes, Any]], is_declared_dead: Callable[[bytes], bool]
    ) -> None:
        self._on_broken = on_broken
        self._rows = rows
        """State of each actor at the living gcs."""
        self._is_declared_dead = is_declared_dead
        """Whether that gcs has given up a node. If the node only stood still, it goes on until it hears of that."""
        self._begun: set[tuple[bytes, int]] = set()
        """Calls and their attempts."""
        self._running: dict[bytes, bytes] = {}
        """Worker -> the call that it runs; of plain actors."""
        self._last_begun: dict[tuple[bytes, bytes, int], int] = {}
        """Worker, caller and stream -> the number of the last call in order that began."""
        self._last_pushed: dict[tuple[bytes, bytes], bytes] = {}
        """Caller and actor -> the last call that was pushed in order."""
        self._in_order: set[bytes] = set()
        """Calls whose last push promised their order."""

    def add(self, core: Any) -> None:
        """Look at one core worker, as a caller and as an actor."""
        push = core.submission.actors.push

        def watched_push(connection: Any, task: Any, in_order: bool) -> None:
            self._on_push(core, connection, task, in_order)
            push(connection, task, in_order)

        core.submission.actors.push = watched_push
        on_task_answered = core.submission.actors.submitter.on_task_answered

        def watched_answer(connection: Any, task: Any) -> None:
            self._expect_newest_known(connection, task)
            on_task_answered(connection, task)

        core.submission.actors.submitter.on_task_answered = watched_answer
        executor = core.execution.executor
        execute, beside, eventually = executor.execute, executor.execute_beside, executor.execute_async

        def watched_execute(task: Any) -> None:
            if not task.header.template.method or task.is_claimed() or executor.wants_exit:
                execute(task)
                return
            self._on_begin(core, task)
            worker_id = core.config.worker_id
            if worker_id in self._running:
                self._on_broken("S2", f"{_name(task)} begins while {short(self._running[worker_id])} runs")
            self._running[worker_id] = task.task_id
            execute(task)
            del self._running[worker_id]

        def watched_beside(task: Any) -> None:
            if not task.is_claimed() and not executor.wants_exit:
                self._on_begin(core, task)
            beside(task)

        async def watched_eventually(task: Any) -> None:
            if task.header.template.method:
                self._on_begin(core, task)
            await eventually(task)

        executor.execute = watched_execute
        executor.execute_beside = watched_beside
        executor.execute_async = watched_eventually

    def _on_push(self, core: Any, connection: Any, task: Any, in_order: bool) -> None:
        if not in_order:
            self._in_order.discard(task.task_id)
            return
        key = core.config.worker_id, task.prepared.client.actor_id
        if task.task_id < self._last_pushed.get(key, b""):
            self._on_broken("S8", f"call {short(task.task_id)} is pushed after {short(self._last_pushed[key])}")
        self._last_pushed[key] = task.task_id
        self._in_order.add(task.task_id)

    def _expect_newest_known(self, connection: Any, task: Any) -> None:
        info = task.prepared.client.info
        if info.state == DEAD or info.restarts > connection.restarts:
            since = "end" if info.state == DEAD else f"restart number {info.restarts}"
            self._on_broken("S3", f"incarnation {connection.restarts} answers {_call(task)}, accepted after its {since}")

    def _on_begin(self, core: Any, task: Any) -> None:
        if (task.task_id, task.attempt) in self._begun:
            self._on_broken("G36", f"{_name(task)} runs twice")
        self._begun.add((task.task_id, task.attempt))
        self._expect_present_incarnation(core, task)
        actor = core.execution.actor_receiver.actor
        if task.task_id in self._in_order and actor.is_plain:
            caller = task.header.owner.worker_id
            streams = core.execution.actor_receiver._streams
            key = core.config.worker_id, caller, streams[caller].number
            if task.sequence < self._last_begun.get(key, 0):
                self._on_broken("S8", f"{_name(task)} begins as number {task.sequence} after {self._last_begun[key]}")
            self._last_begun[key] = task.sequence

    def _expect_present_incarnation(self, core: Any, task: Any) -> None:
        row = self._rows().get(task.actor_id)
        if row is None:
            return  # its gcs is away
        address = row.info.address
        is_other = address is not None and address.worker_id != core.config.worker_id
        if is_other and row.info.state != DEAD and not self._is_declared_dead(core.config.node_id):
            self._on_broken("S10", f"{_name(task)} begins in {short(core.config.worker_id)}, but the actor lives elsewhere")


def _name(task: Any) -> str:
    return f"{_call(task)} of actor {short_actor(task.actor_id)}"


def _call(task: Any) -> str:
    return f"attempt {task.attempt} of call {short(task.task_id)}"
