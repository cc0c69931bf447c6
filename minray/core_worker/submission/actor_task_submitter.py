"""Decides when a call is pushed to its actor: for each actor, in the order in which this process made the calls.

Ray: src/ray/core_worker/task_submission/actor_task_submitter.h, sequential_actor_submit_queue.h

Pure: this class decides, and acts only through its ``CallActions`` port. Calls do not go through raylets. As soon as the gcs
has said where the actor lives, calls are pushed to its process, each with a sequence number of this caller's *stream*. Each
incarnation gets a stream of its own (``CallStream``), whose numbers begin with 1.

Rules
  * Calls are pushed in the order in which they were made (G49). A call whose arguments do not exist yet holds up the calls
    behind it, unless the actor promises no order (G51).
  * While the actor is being created, its calls wait. A call that becomes ready during a restart fails at once if it has no
    retries, and otherwise uses one up (G37).
  * Calls that were pushed to an incarnation that is gone are *lost*: they may have run. When the gcs has said what became of
    the actor, lost calls with retries are pushed again (out of order, G52), and the others fail (G36). Calls that were not
    pushed stay in the queue.
  * Objects that a lost call has put into the store of the actor's node are discarded (L2). It may still put some there: an
    actor that is dead for the gcs may still run.
  * If the gcs has no news, the actor may only be out of reach. After a while lost calls fail as unavailable (G39b). The next
    push begins a new stream, since this process cannot know which calls of the old one have arrived. The actor is told which
    answers its caller no longer waits for, because these may contain references.
  * Once the gcs says that the actor is dead, all its calls fail, now and later, with the cause that the gcs gives.
"""

from __future__ import annotations

from typing import Protocol

from minray.core_worker.records.pending_task import FAILED, FINISHED, PUSHED, QUEUED, ActorClient, CallStream, PendingTask
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.actor import ALIVE, DEAD, RESTARTING, ActorInfo


class CallActions(Protocol):
    """The messages, timers and endings that the submitter decides on."""

    def push(self, stream: CallStream, task: PendingTask, in_order: bool) -> None: ...

    def fail_dead(self, task: PendingTask, client: ActorClient) -> None:
        """Fail a call because its actor is dead."""

    def fail_restarted(self, task: PendingTask, client: ActorClient, reason: str) -> None:
        """Fail a call because the incarnation that it was, or would have been, pushed to has died; another one follows."""

    def fail_unavailable(self, task: PendingTask, client: ActorClient, reason: str) -> None: ...

    def discard_attempt(self, task: PendingTask, stream: CallStream) -> None:
        """Discard the objects that an attempt has put into the store of the actor's node, or will put there."""

    def give_up(self, stream: CallStream, sequences: list[int]) -> None:
        """Tell a living actor that this process will never receive the answers to these calls."""

    def retry(self, task: PendingTask) -> None:
        """Begin the next attempt of a call; ``on_task_ready`` follows."""

    def wait_for_verdict(self, client: ActorClient, stream: CallStream) -> None:
        """Call ``on_no_verdict`` a while after a stream of calls to an actor was lost."""


class ActorTaskSubmitter:
    """Queues and pushes the actor calls of one process."""

    def __init__(self, tasks: TaskManager, actions: CallActions) -> None:
        self._tasks = tasks
        self._actions = actions
        self._stream_count = 0
        """Number of streams that this process has begun: a client that is dropped and made again repeats no number."""

    # --- calls

    def on_submitted(self, client: ActorClient, task: PendingTask) -> None:
        """Give a new call its place in the order; its arguments may not exist yet."""
        if client.in_order:
            client.queue.append(task)

    def on_task_ready(self, client: ActorClient, task: PendingTask) -> None:
        """Queue a call whose arguments exist, for its first attempt or another, and push what can be pushed."""
        self._tasks.move(task, QUEUED)
        state = client.state
        if state == DEAD:
            self._actions.fail_dead(task, client)
            self._flush(client)
            return
        if state == RESTARTING and not task.sequence and not self._tasks.begin_retry(task):
            self._actions.fail_restarted(task, client, "it is being restarted")
        elif task.sequence:
            client.retries.append(task)
        elif not client.in_order:
            client.queue.append(task)
        self._flush(client)

    def on_task_ended(self, client: ActorClient) -> None:
        """Push the calls behind one that has ended before it was pushed (cancelled, or an argument failed)."""
        self._flush(client)

    def on_task_answered(self, stream: CallStream, task: PendingTask) -> None:
        """Take a pushed call off its stream, because it was answered or was too large to be sent."""
        in_flight = stream.in_flight
        if next(iter(in_flight)) != task.sequence:
            stream.answered.add(task.sequence, task.sequence)
        del in_flight[task.sequence]
        task.worker = None
        client = task.prepared.client
        assert client is not None
        client.failures = 0

    # --- actors

    def on_info(self, client: ActorClient, info: ActorInfo) -> None:
        """React to the gcs's news of an actor: where it lives, that it is being restarted, or that it is dead."""
        known = client.info
        if known is not None and (known.state == DEAD or info == known):
            return
        if known is not None and info.restarts < known.restarts and info.state != DEAD:
            return
        client.info = info
        stream = client.stream
        if stream is not None and (info.state != ALIVE or stream.restarts != info.restarts):
            self._lose(client, stream)
        if info.state == DEAD:
            self._fail_all(client)
            return
        self._decide_lost(client, info.restarts)
        if info.state == ALIVE:
            self._connect(client)
            self._flush(client)

    def on_unreachable(self, client: ActorClient, stream: CallStream) -> None:
        """React to the loss of a stream: its calls wait for the gcs to say what became of the actor."""
        if client.stream is stream:
            self._lose(client, stream)
            self._actions.wait_for_verdict(client, stream)

    def on_no_verdict(self, client: ActorClient, stream: CallStream) -> None:
        """Begin a new stream to an actor that the gcs still reports alive a while after the old one was lost.

        Lost calls are pushed again if they have retries, and fail as unavailable otherwise. Do nothing if the gcs has
        reported a death or another incarnation meanwhile.
        """
        info = client.info
        if client.stream is not None or info is None or info.state != ALIVE or info.restarts != stream.restarts:
            return
        client.failures += 1
        lost, client.lost = client.lost, {}
        for lost_stream in dict.fromkeys(lost.values()):
            self._actions.give_up(lost_stream, list(lost_stream.in_flight))
        self._connect(client)
        for task, pushed_to in lost.items():
            if not self._retry_lost(task, pushed_to):
                self._actions.fail_unavailable(task, client, "it cannot be reached")
        self._flush(client)

    def _connect(self, client: ActorClient) -> None:
        info = client.info
        if client.stream is None and info is not None and info.address is not None:
            self._stream_count += 1
            client.stream = CallStream(info.address, info.raylet, info.restarts, self._stream_count)

    def _lose(self, client: ActorClient, stream: CallStream) -> None:
        client.stream = None
        for task in stream.in_flight.values():
            task.worker = None
            client.lost[task] = stream

    def _decide_lost(self, client: ActorClient, restarts: int) -> None:
        """Retry or fail the lost calls that were pushed to an incarnation older than ``restarts``."""
        decided = {task: pushed_to for task, pushed_to in client.lost.items() if pushed_to.restarts < restarts}
        for task in decided:
            del client.lost[task]
        for task, pushed_to in decided.items():
            if not self._retry_lost(task, pushed_to):
                self._actions.fail_restarted(task, client, "it died and is restarted")

    def _retry_lost(self, task: PendingTask, pushed_to: CallStream) -> bool:
        """Begin another attempt of a lost call, unless it is not PUSHED any more; False if it has no retry left."""
        if task.state is not PUSHED:
            return True
        self._actions.discard_attempt(task, pushed_to)
        if not self._tasks.begin_retry(task):
            return False
        self._actions.retry(task)
        return True

    def _fail_all(self, client: ActorClient) -> None:
        lost, client.lost = client.lost, {}
        for task, pushed_to in lost.items():
            if task.state is PUSHED:
                self._actions.discard_attempt(task, pushed_to)
        tasks = [*lost, *client.retries, *client.queue]
        client.retries.clear()
        client.queue.clear()
        for task in tasks:
            if task.state in (PUSHED, QUEUED):
                self._actions.fail_dead(task, client)

    # --- pushing

    def _flush(self, client: ActorClient) -> None:
        """Push all calls whose turn it is."""
        stream, queue = client.stream, client.queue
        if stream is not None and stream.is_lost:
            stream = None
        while client.retries and stream is not None:
            self._push(client, stream, client.retries.popleft())
        while queue:
            task = queue[0]
            if task.state is FINISHED or task.state is FAILED:
                queue.popleft()
            elif task.state is QUEUED and stream is not None:
                self._push(client, stream, queue.popleft())
            else:
                return

    def _push(self, client: ActorClient, stream: CallStream, task: PendingTask) -> None:
        if task.state is not QUEUED:
            return
        in_order = client.in_order and not task.sequence
        task.worker = stream
        task.sequence = stream.next_sequence
        stream.next_sequence += 1
        stream.in_flight[task.sequence] = task
        self._tasks.move(task, PUSHED)
        self._actions.push(stream, task, in_order)
