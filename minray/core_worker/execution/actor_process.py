"""Runs the calls of the actor of this process, in the threads or event loops of its concurrency groups.

Ray: src/ray/core_worker/task_execution/concurrency_group_manager.h, fiber.h; the actor half of python/ray/_raylet.pyx

An actor is of one of three kinds, which its class and options decide:

  * plain: calls run one after the other in the main thread, like tasks;
  * threaded (``max_concurrency`` above 1, or concurrency groups): calls run in threads. Each group has its own threads, at
    most as many as calls may run at once;
  * async (any coroutine method): calls are coroutines on an event loop in the main thread (G54). Each named group has an
    event loop in a thread of its own. Plain methods run on these loops too, and block them, as anywhere in asyncio.

Calls of a group begin in the order in which the group received them, as soon as fewer than its limit are running. A call
can be cancelled until it begins. A call that blocks its own group holds up no other group (G53).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from minray.common.task_spec import ActorOptions
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.core_worker.records.received_task import ReceivedTask
from minray.platform.base import Platform, Threads

logger = logging.getLogger(__name__)

DEFAULT_GROUP = ""
WORKS_PER_TURN = 20
"""Number of pieces of work taken from the inbox of a user's event loop in one turn. The first calls of a burst run, and are
answered, before the last ones begin."""


class GroupPlace(Protocol):
    """Threads or an event loop in which a group's calls run."""

    def run(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        """Run a call; ``then(task)`` is called on the core worker's loop when it is over, or was skipped."""

    def cancel_call(self, task: ReceivedTask) -> None:
        """Cancel a running call (G45)."""


class ConcurrencyGroup:
    """Runs the calls that share a concurrency limit and a place; the calls above the limit wait in order."""

    __slots__ = ("limit", "place", "running", "waiting", "_on_over")

    def __init__(self, limit: int, place: GroupPlace, on_over: Callable[[ReceivedTask], None]) -> None:
        """Make an empty group; ``on_over`` is described at ``ActorProcess``."""
        self.limit = limit
        self.place = place
        self.running = 0
        self.waiting: deque[ReceivedTask] = deque()
        self._on_over = on_over

    def run(self, task: ReceivedTask) -> None:
        if self.running < self.limit:
            self.running += 1
            self.place.run(task, self._end)
        else:
            self.waiting.append(task)

    def _end(self, task: ReceivedTask) -> None:
        self.running -= 1
        self._on_over(task)
        while self.waiting and self.running < self.limit:
            self.run(self.waiting.popleft())


class ActorProcess:
    """Distributes the actor's calls to its groups; used on the core worker's loop."""

    def __init__(
        self,
        platform: Platform,
        executor: TaskExecutor,
        constructor: ReceivedTask,
        on_over: Callable[[ReceivedTask], None],
    ) -> None:
        """Prepare for the actor that ``constructor`` creates.

        ``on_over`` is called on the core worker's loop with each call that is over, or was skipped because it was claimed
        before or the actor ends.
        """
        options = constructor.header.template.actor
        assert options is not None
        self.actor_id = constructor.actor_id
        self.options: ActorOptions = options
        self.constructor = constructor
        """The task that creates the actor: its header tells the class, the resources and the owner."""
        self.gpu_ids = constructor.gpu_ids
        self.is_ending = False
        """Whether the actor ends, so that no more calls begin."""
        self._user_code = platform.user_code
        self._executor = executor
        self._execute = executor.execute
        self._on_over = on_over
        self._user_loop = UserLoop(platform, executor) if options.is_async else None
        self.is_plain = self._user_loop is None and options.max_concurrency == 1 and not options.groups
        self._groups: dict[str, ConcurrencyGroup] = {}
        if not self.is_plain:
            self._add_groups(platform)

    def _add_groups(self, platform: Platform) -> None:
        for name, limit in [(DEFAULT_GROUP, self.options.max_concurrency), *self.options.groups]:
            place: GroupPlace
            if self._user_loop is None:
                place = CallThreads(platform.user_code.threads_beside(limit), self._executor)
            elif name == DEFAULT_GROUP:
                place = self._user_loop
            else:
                place = UserLoop(platform, self._executor)
                place.start_beside()
            self._groups[name] = ConcurrencyGroup(limit, place, self._on_over)

    @property
    def class_name(self) -> str:
        return self.constructor.header.template.name.partition(".")[0]

    def construct(self, then: Callable[[ReceivedTask], None]) -> None:
        """Run the constructor; ``then`` is called with its task when it is over."""
        if self._user_loop is None:
            self._user_code.run(self._execute, then, self.constructor)
        else:
            self._executor.mark(self.constructor)
            self._user_loop.start()
            self._user_loop.run(self.constructor, then)

    def run(self, task: ReceivedTask) -> None:
        """Run a call as soon as its group has room."""
        if self.is_plain:
            self._user_code.run(self._execute, self._on_over, task)
        else:
            self._group(task).run(task)

    def _group(self, task: ReceivedTask) -> ConcurrencyGroup:
        return self._groups.get(task.header.template.concurrency_group) or self._groups[DEFAULT_GROUP]

    def coroutines(self) -> list[asyncio.Task[Any]]:
        """Return all asyncio tasks on the event loops of this actor's groups, including those that user code has made."""
        places = [group.place for group in self._groups.values()]
        return [task for place in places if isinstance(place, UserLoop) for task in place.coroutines()]

    def cancel_call(self, task: ReceivedTask) -> None:
        """Cancel a running call, see ``GroupPlace``."""
        self._executor.on_cancelled(task)
        if not self.is_plain:
            self._group(task).place.cancel_call(task)

    def shut_down(self, then: Callable[[], None]) -> None:
        """Run the user's own clean-up in the thread in which calls run."""
        if self._user_loop is None:
            self._user_code.run(self._executor.shut_down_actor, then)
        else:
            self._user_loop.shut_down(then)


class CallThreads:
    """The threads in which the calls of one group of a threaded actor run."""

    def __init__(self, threads: Threads, executor: TaskExecutor) -> None:
        self._threads = threads
        self._execute = executor.execute_beside

    def run(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        self._threads.run(self._execute, then, task)

    def cancel_call(self, task: ReceivedTask) -> None:
        """Do nothing: user code asks ``is_canceled``, and a generator ends after its next yield."""


class UserLoop:
    """An event loop of an async actor, in the main thread or in a thread of its own, and the core worker's work for it."""

    def __init__(self, platform: Platform, executor: TaskExecutor) -> None:
        self._user_code = platform.user_code
        self._executor = executor
        self._follow: Callable[..., None] = platform.user_code.follow
        """Function by which the user's loop calls back on the core worker's loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The user's event loop, made in its own thread; None until then, while calls wait in ``_inbox``."""
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Work for the user's loop; filled by the core worker's loop, emptied by the user's."""
        self._waking = False
        """Whether ``_drain`` is already scheduled on the user's loop; written by both loops."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """Running calls by the ``id()`` of their ``ReceivedTask``; touched by the user's loop only."""

    def start(self) -> None:
        self._user_code.run_event_loop(self._open)

    def start_beside(self) -> None:
        self._follow = self._user_code.post
        self._user_code.run_event_loop_beside(self._open)

    def run(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        self._post(self._begin, task, then)

    def cancel_call(self, task: ReceivedTask) -> None:
        self._post(self._cancel, task)

    def shut_down(self, then: Callable[[], None]) -> None:
        self._post(self._shut_down, then)

    def coroutines(self) -> list[asyncio.Task[Any]]:
        return [] if self._loop is None else list(asyncio.all_tasks(self._loop))

    def _post(self, work: Callable[..., None], *args: Any) -> None:
        """Queue work for the user's loop, from the core worker's loop; many pieces of work cost one wake-up."""
        self._inbox.append((work, args))
        if not self._waking and self._loop is not None:
            self._waking = True
            self._loop.call_soon_threadsafe(self._drain)

    # --- in its thread

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waking = True
        self._drain()

    def _drain(self) -> None:
        self._waking = False
        for _ in range(min(len(self._inbox), WORKS_PER_TURN)):
            work, args = self._inbox.popleft()
            work(*args)
        if self._inbox and not self._waking:
            self._waking = True
            assert self._loop is not None
            self._loop.call_soon(self._drain)

    def _begin(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        if not task.claim():
            self._follow(then, task)
            return
        assert self._loop is not None
        name = task.header.template.name
        running = self._loop.create_task(self._executor.execute_async(task), name=name)
        self._tasks[id(task)] = running
        running.add_done_callback(partial(self._on_done, task, then))

    def _on_done(self, task: ReceivedTask, then: Callable[[ReceivedTask], None], running: asyncio.Task[Any]) -> None:
        del self._tasks[id(task)]
        if running.cancelled():
            self._executor.end_unstarted(task)
        elif running.exception() is not None:
            logger.error("running a call failed", exc_info=running.exception())
        self._follow(then, task)

    def _cancel(self, task: ReceivedTask) -> None:
        running = self._tasks.get(id(task))
        if running is not None:
            running.cancel()

    def _shut_down(self, then: Callable[[], None]) -> None:
        self._executor.shut_down_actor()
        self._follow(then)
