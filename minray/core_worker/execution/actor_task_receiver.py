"""Receives the calls that were pushed to this process's actor, runs each once and in order, and answers them.

Ray: src/ray/core_worker/task_execution/ordered_actor_task_execution_queue.h, unordered_actor_task_execution_queue.h

A call is identified by its caller's stream and its sequence number in that stream. A stream holds the calls that one caller
sends to one incarnation of the actor while the connection lasts. Its sequence numbers have no holes unless messages were
lost, and then the caller begins another stream.

Rules
  * Calls of one caller begin in the order of their sequence numbers. A call whose arguments are late, or lost and made
    again, holds up the calls behind it (G49). Calls marked as not in order begin as soon as they can: retries, and calls
    of actors that promise no order (G51, G52).
  * Different callers do not wait for each other (G50).
  * A missing sequence number is waited for. After ``actor_scheduling_queue_max_reorder_wait_seconds`` the calls behind it
    are given back, so that their caller sends them again (G56).
  * A reply is kept until its caller acknowledges it. A call that arrives twice runs once.
  * A caller that begins another stream says which answers of the old stream it did not receive. The references in those
    answers have no holder and are taken back (G58). This message may arrive after the first call of the new stream.
  * Calls received from a caller run even if the caller dies; its state is then dropped. When a new caller appears, the gcs
    is asked whether silent callers have died. Hence no more state is kept than living callers need.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Protocol

from minray.common.tombstones import remember
from minray.core_worker.execution.actor_process import ActorProcess
from minray.core_worker.execution.pushed_tasks import PushedTasks, TaskHeaders
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.core_worker.execution.task_intake import TaskIntake
from minray.core_worker.records.received_task import Execution, ReceivedTask
from minray.platform.base import Platform
from minray.protocol.actor import ExitActor, GiveUpCalls, PushActorTask
from minray.protocol.base import DONE, Address, Done
from minray.protocol.core_worker import CancelTask, CancelTaskReply, PushTaskReply
from minray.rpc.service import Call

MAX_HEADERS = 10_000
"""Number of decoded task headers kept (see ``TaskHeaders``)."""
SILENT_S = 30.0
"""Seconds of silence after which the gcs is asked whether a caller is dead; long enough for the question to be rare."""
OVER_S = 120.0
"""Seconds of silence after which a replaced stream is dropped: its caller has then received every answer, or never will."""


class ActorSurroundings(Protocol):
    """The calls that the receiver of an actor makes on its process."""

    def cancel_children(self, task_id: bytes, force: bool) -> None: ...

    def end_actor(self, reason: str) -> None:
        """Begin no more calls, and end the process when the running ones have been answered."""

    def refuse(self, task: ReceivedTask) -> None:
        """Fail a call that will never begin, as soon as the gcs knows that the actor exits by itself."""

    def announce_end(self, then: Callable[[], None]) -> None:
        """Tell the gcs that the actor is about to end, then call ``then``."""

    def ask_about(self, caller: Address) -> None:
        """Find out whether a caller's process is dead; if so, call ``on_death``."""


class CallerStream(PushedTasks):
    """The calls that one caller has sent in one stream, and which of them have begun."""

    __slots__ = ("caller", "number", "heard_at", "is_orphaned", "is_settled", "next", "unbegun", "hole_timer")

    def __init__(self, caller: Address, number: int) -> None:
        super().__init__()
        self.caller = caller
        self.number = number
        self.heard_at = 0.0
        """Time, on the event loop's clock, of the caller's latest message."""
        self.is_orphaned = False
        """Whether the caller is dead: the stream is then dropped when everything in it has run."""
        self.is_settled = False
        """Whether the caller has said which answers it will never receive, or is dead."""
        self.next = 1
        """The lowest sequence number that may still have to begin in order."""
        self.unbegun: dict[int, ReceivedTask] = {}
        """Calls marked as in order that have not begun, by sequence number."""
        self.hole_timer: asyncio.TimerHandle | None = None
        """Timer that gives up waiting for the missing sequence number ``next``; None if none is awaited."""


class ActorTaskReceiver:
    """Receives the actor's calls on the core worker's loop, begins them in order and keeps their replies."""

    def __init__(
        self,
        platform: Platform,
        executor: TaskExecutor,
        intake: TaskIntake,
        surroundings: ActorSurroundings,
        max_wait_s: float,
    ) -> None:
        self._platform = platform
        self._executor = executor
        self._intake = intake
        self._surroundings = surroundings
        self._max_wait_s = max_wait_s
        """Seconds that a missing sequence number is waited for."""
        self.actor: ActorProcess | None = None
        """The actor of this process; None until its constructor is about to run."""
        self._streams: dict[bytes, CallerStream] = {}
        """The latest stream of each caller, by its worker id."""
        self._over: dict[tuple[bytes, int], CallerStream] = {}
        """Streams whose callers have begun another, by the caller's worker id and the stream's number.

        A stream stays here while its calls run. If its answers contain references, it stays until the caller has said which
        answers it received, but at most ``OVER_S`` after the caller's last message."""
        self._headers = TaskHeaders(MAX_HEADERS)
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        """Worker ids of callers that died and whose state was dropped: their late calls are refused."""

    @property
    def actor_id(self) -> bytes:
        """Id of the actor of this process; empty if there is none."""
        return b"" if self.actor is None else self.actor.actor_id

    # --- arrival

    def handle_PushActorTask(self, request: PushActorTask, call: Call) -> PushTaskReply | None:
        actor = self.actor
        if actor is None or actor.actor_id != request.actor_id:
            call.fail("no-such-actor", "another actor, or none, lives in this process")
            return None
        header = self._headers[request.header]
        stream = self._stream(header.owner, request.stream)
        if stream is None:
            call.fail("stale-stream", "this caller has begun another stream, or is dead")
            return None
        if not stream.receive(request, call, request.answered):
            return None
        task = ReceivedTask.of(request, header, call, 0, actor.gpu_ids)
        if actor.is_ending:
            self._surroundings.refuse(task)
            return None
        stream.tasks[task.sequence] = task
        # Below ``next`` it fills a hole that was given up.
        in_order = task.keeps_place = request.in_order and request.sequence >= stream.next
        if request.args:
            on_ready = partial(self._on_ready, stream, task, in_order)
            self._intake.take(task, request, on_ready, partial(self._on_missing, stream, task))
        if in_order and request.sequence == stream.next and task.fetching is None and not stream.unbegun:
            stream.next += 1  # The most frequent case of ``_pump``.
            self._begin(task)
        else:
            if in_order:
                stream.unbegun[task.sequence] = task
            elif task.fetching is None and not task.is_claimed():
                self._begin(task)
            self._pump(stream)
        return None

    def _stream(self, caller: Address, number: int) -> CallerStream | None:
        """Return this stream, new if need be; None if its caller has begun a later one or is dead."""
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
        """React to the death of a worker or a node: its callers send no more calls, and wait for no answers."""
        for stream in list(self._streams.values()):
            if worker_or_node_id in (stream.caller.worker_id, stream.caller.node_id):
                stream.is_orphaned = True
                self._maybe_forget(stream)
        for stream in self._over.values():
            stream.is_settled |= worker_or_node_id in (stream.caller.worker_id, stream.caller.node_id)

    def _maybe_forget(self, stream: CallerStream) -> None:
        """Drop the stream of a dead caller unless some of its calls are still unanswered."""
        if stream.unanswered():
            return
        if stream.hole_timer is not None:
            stream.hole_timer.cancel()
        if self._streams.get(stream.caller.worker_id) is stream:
            del self._streams[stream.caller.worker_id]
            remember(self._dead, stream.caller.worker_id, None)

    def _drop(self, stream: CallerStream) -> None:
        """End a stream that its caller has replaced by another; its calls that have not begun never will."""
        if stream.hole_timer is not None:
            stream.hole_timer.cancel()
        for task in stream.remove_unbegun():
            self._intake.release(task)
        stream.tasks = {sequence: task for sequence, task in stream.tasks.items() if task.has_references()}
        if stream.tasks:
            self._over[stream.caller.worker_id, stream.number] = stream
        self._look_after_old_streams()

    def _look_after_old_streams(self) -> None:
        """Drop up to two replaced streams that are no longer needed; called whenever one is replaced."""
        long_ago = asyncio.get_running_loop().time() - OVER_S
        for key, stream in list(islice(self._over.items(), 2)):
            del self._over[key]
            if stream.unanswered() or not (stream.is_settled or stream.heard_at < long_ago):
                self._over[key] = stream

    def handle_GiveUpCalls(self, request: GiveUpCalls) -> None:
        self._stream(request.caller, request.stream + 1)  # late calls of the old stream are refused
        stream = self._over.get((request.caller.worker_id, request.stream))
        if stream is not None and not stream.is_settled:
            stream.is_settled = True
            for sequence in request.sequences:
                if sequence in stream.tasks:
                    self._intake.give_up(stream.tasks[sequence])
            stream.tasks = {sequence: task for sequence, task in stream.tasks.items() if task.reply is None}

    # --- order

    def _on_ready(self, stream: CallerStream, task: ReceivedTask, in_order: bool) -> None:
        if not in_order and task.fetching is None and not task.is_claimed():
            self._begin(task)
        self._pump(stream)

    def _on_missing(self, stream: CallerStream, task: ReceivedTask) -> None:
        """Give back a call that has no place in the order and whose arguments are being made again.

        Its caller waits for the arguments and sends the call again.
        """
        self._intake.give_back(task)
        self._pump(stream)

    def _pump(self, stream: CallerStream) -> None:
        """Begin the calls that can begin, in order; wait a limited time for the next sequence number if it is missing.

        Called whenever a call need not run any more, too: a dead caller's stream is dropped with its last call.
        """
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
        if stream.is_orphaned:
            self._maybe_forget(stream)

    def _give_up_hole(self, stream: CallerStream, sequence: int) -> None:
        stream.hole_timer = None
        if stream.next == sequence and sequence not in stream.tasks:
            unbegun, stream.unbegun = list(stream.unbegun.values()), {}
            for task in unbegun:
                stream.next = max(stream.next, task.sequence + 1)
                self._intake.give_back(task)
        self._pump(stream)

    # --- running

    def _begin(self, task: ReceivedTask) -> None:
        assert self.actor is not None
        if not self._intake.fail_for_argument(task):
            self.actor.run(task)

    def on_executed(self, task: ReceivedTask) -> None:
        """Answer a call that is over; a call that was skipped has no execution and needs no answer."""
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
        self.on_answered(task)

    def on_answered(self, task: ReceivedTask) -> None:
        """Drop the stream of a dead caller if this was its last call; also called when a slow answer has been sent."""
        stream = self._streams.get(task.header.owner.worker_id)
        if stream is not None and stream.is_orphaned:
            self._maybe_forget(stream)

    def stop_beginning(self) -> None:
        """Drop all calls that have not begun, because the actor ends. If it exits by itself they fail."""
        for stream in self._streams.values():
            if stream.hole_timer is not None:
                stream.hole_timer.cancel()
            for task in stream.remove_unbegun():
                self._intake.release(task)
                self._surroundings.refuse(task)

    def is_idle(self) -> bool:
        """Whether every received call has been answered."""
        return not self.unanswered()

    def unanswered(self) -> list[ReceivedTask]:
        """Return the calls that wait or run, stream by stream, in the order of their arrival."""
        streams = (*self._streams.values(), *self._over.values())
        return [task for stream in streams for task in stream.unanswered()]

    # --- cancelling, ending

    def cancel(self, request: CancelTask) -> CancelTaskReply | None:
        """Cancel a call, waiting or running; None if the call is not in this process."""
        for stream in self._streams.values():
            if (task := stream.find(request)) is not None:
                return self._cancel(stream, task, request)
        return None

    def _cancel(self, stream: CallerStream, task: ReceivedTask, request: CancelTask) -> CancelTaskReply:
        if self._intake.cancel_unstarted(task):
            self._pump(stream)
            return CancelTaskReply(True, False)
        if request.recursive:
            self._surroundings.cancel_children(task.task_id, False)
        assert self.actor is not None
        self.actor.cancel_call(task)
        return CancelTaskReply(True, True)

    def handle_ExitActor(self, request: ExitActor, call: Call) -> Done:
        if self.actor is not None and self.actor.actor_id == request.actor_id:
            self._surroundings.end_actor("there is no handle of it any more")
        return DONE
