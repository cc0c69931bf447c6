"""Calls that were pushed to the actor in this process: taken in once, put into order, run, answered.

Ray: src/ray/core_worker/task_execution/ordered_actor_task_execution_queue.h, unordered_actor_task_execution_queue.h

A call is known by its caller's stream and its number in that. A stream is what one caller sends to one incarnation as long
as it can reach it: its numbers have no holes, unless something was lost with it, and then the caller begins another.

Rules
  * Calls of one caller begin in the order of their numbers; one whose arguments are late, or lost and made again, holds
    up those behind it (G49).
    Calls marked as not in order (retries, actors that promise none) begin when they can (G51, G52).
  * Different callers do not wait for each other (G50).
  * A number that does not come is waited for; after a while those behind it are given back, for their caller to send them
    again (G56).
  * A reply is kept until its caller says that he has it; a call is never run twice because it comes twice.
  * If a caller begins another stream he says which answers of the old one he has not had: the references in those are
    nobody's (G58). What he says may come after the new stream.
  * What a caller has sent is run although he dies; then he is forgotten. Whether those who say nothing have died is asked
    when another caller comes, so that no more is kept than of the living.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from minray.common.tombstones import remember
from minray.core_worker.actor_process import ActorProcess
from minray.core_worker.sequence_ranges import SequenceRanges
from minray.core_worker.task_executor import Execution, TaskExecutor
from minray.core_worker.task_intake import ReceivedTask, TaskIntake
from minray.exceptions import TaskCancelledError
from minray.platform.base import Platform
from minray.protocol.actor import ExitActor, GiveUpCalls, PushActorTask
from minray.protocol.base import DONE, Address, Done, decode
from minray.protocol.core_worker import (
    CANCELLED,
    CancelTask,
    CancelTaskReply,
    PushTaskReply,
    TaskHeader,
)
from minray.rpc.service import Call

MAX_HEADERS = 10_000
SILENT_S = 30.0
"""A caller from whom so long nothing was heard may be dead."""
OVER_S = 120.0
"""A caller that has not said so long which answers of a stream he has given up has had them all."""


class Surroundings(Protocol):
    """What the receiver needs of its core worker."""

    def cancel_children(self, task_id: bytes, force: bool) -> None: ...

    def end_actor(self, reason: str) -> None:
        """No call begins any more; end when those that run have been answered."""

    def announce_end(self, then: Callable[[], None]) -> None:
        """Have the gcs know that the actor is about to end, and go on."""

    def ask_about(self, caller: Address) -> None:
        """Whether this process is dead; if so, ``on_death`` is called."""


class CallerStream:
    """The calls of one caller."""

    __slots__ = (
        "caller",
        "number",
        "heard_at",
        "is_orphaned",
        "is_settled",
        "tasks",
        "acknowledged",
        "done",
        "next",
        "unbegun",
        "hole_timer",
    )

    def __init__(self, caller: Address, number: int) -> None:
        self.caller = caller
        self.number = number
        self.heard_at = 0.0
        """When its caller last sent something."""
        self.is_orphaned = False
        """Its caller is dead: it is forgotten when everything in it has run."""
        self.is_settled = False
        """Its caller has said which answers will never be heard, or is dead."""
        self.tasks: dict[int, ReceivedTask] = {}
        """By sequence, until their caller has the reply."""
        self.acknowledged = 0
        """The caller has all replies up to this sequence,"""
        self.done = SequenceRanges()
        """and these."""
        self.next = 1
        """The lowest sequence that may still have to be begun in order."""
        self.unbegun: dict[int, ReceivedTask] = {}
        """In order, and not begun."""
        self.hole_timer: asyncio.TimerHandle | None = None

    def is_over(self, sequence: int) -> bool:
        """Whether the caller has the reply."""
        return sequence <= self.acknowledged or sequence in self.done

    def is_busy(self) -> bool:
        """Whether calls in it have not been answered."""
        return any(task.reply is None for task in self.tasks.values())

    def forget(self, acknowledged: int, answered: Sequence[tuple[int, int]]) -> None:
        """These replies have come."""
        while self.acknowledged < acknowledged:
            self.acknowledged += 1
            self.tasks.pop(self.acknowledged, None)
        for first, last in answered:
            self.done.add(first, last)
            for sequence in range(first, last + 1):
                self.tasks.pop(sequence, None)
        if len(self.done):
            self.done.forget_up_to(self.acknowledged)


class ActorTaskReceiver:
    """The loop's side of an actor's calls."""

    def __init__(
        self, platform: Platform, executor: TaskExecutor, intake: TaskIntake, surroundings: Surroundings, max_wait_s: float
    ) -> None:
        self._platform = platform
        self._executor = executor
        self._intake = intake
        self._surroundings = surroundings
        self._max_wait_s = max_wait_s
        """How long a hole in a caller's sequence is waited for."""
        self.actor: ActorProcess | None = None
        """Set when the constructor is about to run."""
        self._streams: dict[bytes, CallerStream] = {}
        """By the caller's worker id."""
        self._over: dict[tuple[bytes, int], CallerStream] = {}
        """By their callers' ids and their numbers: those whose callers have begun others. Kept while calls in them run, and
        if there are references in answers, until it is known which of these have come; but no longer than ``OVER_S``."""
        self._headers: dict[bytes, TaskHeader] = {}
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        """Callers that are dead, and forgotten: what comes late from them is refused."""

    # --- arrival

    def handle_PushActorTask(self, request: PushActorTask, call: Call) -> PushTaskReply | None:
        actor = self.actor
        if actor is None or actor.actor_id != request.actor_id:
            call.fail("no-such-actor", "another actor, or none, lives in this process")
            return None
        header = self._header(request.header)
        stream = self._stream(header.owner, request.stream)
        if stream is None:
            call.fail("stale-stream", "this caller has begun another stream, or is dead")
            return None
        known = stream.tasks.get(request.sequence)
        if known is not None or stream.is_over(request.sequence):
            if known is not None:
                known.repeat(call)
            return None
        stream.forget(request.acknowledged, request.answered)
        if actor.is_ending:
            return None
        task = ReceivedTask.of(request, header, call, 0, actor.gpu_ids)
        stream.tasks[task.sequence] = task
        in_order = request.in_order and request.sequence >= stream.next  # else it fills a hole that was given up
        task.keeps_place = in_order
        if request.args:
            on_ready = partial(self._on_ready, stream, task, in_order)
            self._intake.take(task, request, on_ready, partial(self._on_missing, stream, task))
        if not in_order:
            if task.fetching is None and not task.is_claimed():
                self._begin(task)
            self._pump(stream)
        elif request.sequence == stream.next and task.fetching is None and not stream.unbegun:
            stream.next += 1  # The most frequent case of ``_pump``.
            self._begin(task)
        else:
            stream.unbegun[task.sequence] = task
            self._pump(stream)
        return None

    def _header(self, encoded: bytes) -> TaskHeader:
        header = self._headers.get(encoded)
        if header is None:
            if len(self._headers) >= MAX_HEADERS:
                self._headers.clear()
            header = self._headers[encoded] = decode(TaskHeader, encoded)
        return header

    def _stream(self, caller: Address, number: int) -> CallerStream | None:
        """None for one that is over."""
        stream = self._streams.get(caller.worker_id)
        if stream is None or stream.number < number:
            if caller.worker_id in self._dead:
                return None
            if stream is not None:
                self._drop(stream)
            else:
                self._look_after_silent_callers()
            stream = self._streams[caller.worker_id] = CallerStream(caller, number)
        stream.heard_at = asyncio.get_running_loop().time()
        return stream if stream.number == number else None

    def _look_after_silent_callers(self) -> None:
        long_ago = asyncio.get_running_loop().time() - SILENT_S
        for stream in self._streams.values():
            if stream.heard_at < long_ago:
                self._surroundings.ask_about(stream.caller)

    def on_death(self, worker_or_node_id: bytes) -> None:
        """A process is dead, or a whole node: if calls came from there, no more will, and nobody waits for answers."""
        for stream in list(self._streams.values()):
            if worker_or_node_id in (stream.caller.worker_id, stream.caller.node_id):
                stream.is_orphaned = True
                self._maybe_forget(stream)
        for stream in self._over.values():
            stream.is_settled |= worker_or_node_id in (stream.caller.worker_id, stream.caller.node_id)

    def _maybe_forget(self, stream: CallerStream) -> None:
        """If its caller is dead, and nothing is left to be run."""
        if stream.is_busy():
            return
        if stream.hole_timer is not None:
            stream.hole_timer.cancel()
        if self._streams.get(stream.caller.worker_id) is stream:
            del self._streams[stream.caller.worker_id]
            remember(self._dead, stream.caller.worker_id, None)

    def _drop(self, stream: CallerStream) -> None:
        """Its caller has given up what it had sent: what has not begun never will."""
        if stream.hole_timer is not None:
            stream.hole_timer.cancel()
        for sequence, task in list(stream.tasks.items()):
            if task.claim():
                del stream.tasks[sequence]
                self._intake.release(task)
        stream.tasks = {sequence: task for sequence, task in stream.tasks.items() if task.has_references()}
        if stream.tasks:
            self._over[stream.caller.worker_id, stream.number] = stream
        self._look_after_old_streams()

    def _look_after_old_streams(self) -> None:
        """Two of them, for each that is new."""
        long_ago = asyncio.get_running_loop().time() - OVER_S
        for key, stream in list(islice(self._over.items(), 2)):
            del self._over[key]
            if stream.is_busy() or not (stream.is_settled or stream.heard_at < long_ago):
                self._over[key] = stream

    def handle_GiveUpCalls(self, request: GiveUpCalls) -> None:
        self._stream(request.caller, request.stream + 1)  # whatever of the old one is still on its way is refused
        stream = self._over.get((request.caller.worker_id, request.stream))
        if stream is not None and not stream.is_settled:
            stream.is_settled = True
            for sequence in request.sequences:
                if sequence in stream.tasks:
                    self._intake.give_up(stream.tasks[sequence])
            stream.tasks = {sequence: task for sequence, task in stream.tasks.items() if task.reply is None}

    # --- order

    def _on_ready(self, stream: CallerStream, task: ReceivedTask, in_order: bool) -> None:
        if in_order:
            self._pump(stream)
        elif task.fetching is None and not task.is_claimed():
            self._begin(task)

    def _on_missing(self, stream: CallerStream, task: ReceivedTask) -> None:
        """Arguments of a call without a place in the order are made again: its caller waits for them, and calls again."""
        if task.claim():
            self._intake.answer_unstarted(task, False)
        self._pump(stream)

    def _pump(self, stream: CallerStream) -> None:
        """Begin what can begin, in order; if what comes next has not come itself, wait for it for a while only."""
        while stream.unbegun:
            task = stream.unbegun.get(stream.next)
            if task is not None:
                if task.fetching is not None and not task.is_claimed():
                    break
                del stream.unbegun[stream.next]
                if not task.is_claimed():
                    self._begin(task)
            elif stream.next not in stream.tasks and not stream.is_over(stream.next):
                if stream.hole_timer is None:
                    give_up = partial(self._give_up_hole, stream, stream.next)
                    stream.hole_timer = asyncio.get_running_loop().call_later(self._max_wait_s, give_up)
                return
            stream.next += 1
        if stream.hole_timer is not None:
            stream.hole_timer.cancel()
            stream.hole_timer = None

    def _give_up_hole(self, stream: CallerStream, sequence: int) -> None:
        stream.hole_timer = None
        if stream.next == sequence and sequence not in stream.tasks:
            unbegun, stream.unbegun = list(stream.unbegun.values()), {}
            for task in unbegun:
                stream.next = max(stream.next, task.sequence + 1)
                if task.claim():
                    self._intake.answer_unstarted(task, False)
        self._pump(stream)
        if stream.is_orphaned:
            self._maybe_forget(stream)

    # --- running

    def _begin(self, task: ReceivedTask) -> None:
        actor = self.actor
        assert actor is not None
        failed = self._intake.failed_slot(task)
        if failed is None:
            actor.run(task)
        elif task.claim():
            self._intake.answer_failed_argument(task, failed)

    def on_executed(self, task: ReceivedTask) -> None:
        """It is over, or was passed over."""
        execution, task.execution = task.execution, None
        if execution is not None and execution.ends_actor:
            self._surroundings.announce_end(partial(self._answer, task, execution))
        else:
            self._answer(task, execution)
        if self._executor.wants_exit:
            self._surroundings.end_actor(self._executor.wants_exit)

    def _answer(self, task: ReceivedTask, execution: Execution | None) -> None:
        if execution is not None:
            self._intake.answer_executed(task, execution)
        stream = self._streams.get(task.header.owner.worker_id)
        if stream is not None and stream.is_orphaned:
            self._maybe_forget(stream)

    def stop_beginning(self) -> None:
        """The actor ends: what has not begun never will. Its callers hear from the gcs that it is dead."""
        for stream in self._streams.values():
            if stream.hole_timer is not None:
                stream.hole_timer.cancel()
            for sequence, task in list(stream.tasks.items()):
                if task.claim():
                    del stream.tasks[sequence]
                    self._intake.release(task)

    def is_idle(self) -> bool:
        """No call is here that has not been answered."""
        return not self.unanswered()

    def unanswered(self) -> list[ReceivedTask]:
        """Calls that wait or run, those of a caller in their order."""
        streams = (*self._streams.values(), *self._over.values())
        return [task for stream in streams for task in stream.tasks.values() if task.reply is None]

    # --- cancelling, ending

    def cancel(self, request: CancelTask) -> CancelTaskReply | None:
        """None: the call is not here."""
        for stream in self._streams.values():
            for task in stream.tasks.values():
                if task.task_id == request.task_id and task.attempt == request.attempt and task.reply is None:
                    return self._cancel(stream, task, request)
        return None

    def _cancel(self, stream: CallerStream, task: ReceivedTask, request: CancelTask) -> CancelTaskReply:
        task.cancelled = True
        if task.claim():
            error = TaskCancelledError(task_name=task.header.template.name, task_id_hex=task.task_id.hex())
            self._intake.answer_error(task, CANCELLED, self._intake.pack(task, error))
            self._pump(stream)
            return CancelTaskReply(True, False)
        if request.recursive:
            self._surroundings.cancel_children(task.task_id, False)
        assert self.actor is not None
        self.actor.cancel(task)
        return CancelTaskReply(True, True)

    def handle_ExitActor(self, request: ExitActor, call: Call) -> Done:
        if self.actor is not None and self.actor.actor_id == request.actor_id:
            self._surroundings.end_actor("there is no handle of it any more")
        return DONE
