"""Words that a process must have heard before others go on; a part of the ``Watch`` (see ``invariants``).

| | looked at when | |
|---|---|---|
| G41 | an owner stops asking for a cancellation | the worker has heard of it, if it still has the task |
| G39b | an actor takes a call | its caller has not given up the stream of that call |
| state | a driver says that its job has finished | it has told of all tasks that have failed |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.common.ids import short
from minray.core_worker.records.pending_task import PUSHED


class Told:
    """Looks at what the processes of one cluster have told each other."""

    def __init__(self, on_broken: Callable[[str, str], None]) -> None:
        self._on_broken = on_broken
        self._heard: set[tuple[bytes, int]] = set()
        """Tasks and attempts of whose cancellation their worker, or actor, has heard."""

    def add(self, core: Any) -> None:
        """Look at one core worker, as an owner, as a worker, and as an actor."""
        self._watch_cancellations(core.execution.receiver, core.execution.actor_receiver, core.submission.outcomes)
        self._watch_streams(core.execution.actor_receiver)

    def on_farewell(self, name: str, core: Any) -> None:
        """A driver is about to say that its job has finished."""
        if core is not None and (core.task_events._failed or core.task_events._left_out):
            self._on_broken("state", f"{name} leaves, and has not told of {len(core.task_events._failed)} failed tasks")

    def _watch_cancellations(self, receiver: Any, actor_receiver: Any, outcomes: Any) -> None:
        handle, cancel, ask = receiver.handle_CancelTask, actor_receiver.cancel, outcomes._cancel_pushed

        def watched_handle(request: Any, call: Any) -> Any:
            self._heard.add((request.task_id, request.attempt))
            return handle(request, call)

        def watched_cancel(request: Any) -> Any:
            self._heard.add((request.task_id, request.attempt))
            return cancel(request)

        async def watched_ask(task: Any, force: bool, recursive: bool) -> None:
            attempt, worker = task.attempt, task.worker
            await ask(task, force, recursive)
            is_same = task.state is PUSHED and task.worker is worker and task.attempt == attempt
            if worker is not None and is_same and (task.task_id, attempt) not in self._heard:
                self._on_broken("G41", f"task {short(task.task_id)} was cancelled, and its worker is not told any more")

        receiver.handle_CancelTask, actor_receiver.cancel = watched_handle, watched_cancel
        outcomes._cancel_pushed = watched_ask

    def _watch_streams(self, receiver: Any) -> None:
        give_up, push = receiver.handle_GiveUpCalls, receiver.handle_PushActorTask
        given_up: dict[bytes, int] = {}
        """Caller -> the last stream that it has given up."""

        def watched_give_up(request: Any) -> None:
            give_up(request)
            caller = request.caller.worker_id
            given_up[caller] = max(request.stream, given_up.get(caller, 0))

        def watched_push(request: Any, call: Any) -> Any:
            reply = push(request, call)
            caller = receiver._headers[request.header].owner.worker_id
            stream = receiver._streams.get(caller)
            if stream is not None and stream.number <= request.stream <= given_up.get(caller, 0):
                self._on_broken("G39b", f"an actor takes call {short(request.task_id)}, which its caller has given up")
            return reply

        receiver.handle_GiveUpCalls, receiver.handle_PushActorTask = watched_give_up, watched_push
