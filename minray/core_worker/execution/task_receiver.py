"""Receives the tasks that were pushed to this worker, prepares them, runs each once and in order, and answers them.

Ray: src/ray/core_worker/task_execution/task_receiver.h, normal_task_execution_queue.h

A push is identified by its lease and its sequence number within the lease. A repeated push is answered from the kept reply,
which is kept until the owner acknowledges it. A push of a lease that is over is refused. A task begins when three things are
here: the job's environment, the function's definition, and the values of large arguments. The queue is strictly first in,
first out, so that "started up to this sequence number" says everything about a lease's tasks.

A task may be the constructor of an actor. Then it is the last task that this receiver gets: the actor's calls go to
``actor_task_receiver``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from minray.common.ids import lease_tag, short
from minray.core_worker.execution.function_manager import FunctionManager
from minray.core_worker.execution.omp_threads import OmpThreads
from minray.core_worker.execution.pushed_tasks import PushedTasks, TaskHeaders
from minray.core_worker.execution.task_executor import TaskExecutor
from minray.core_worker.execution.task_intake import TaskIntake
from minray.core_worker.records.received_task import ReceivedTask
from minray.exceptions import RuntimeEnvSetupError
from minray.platform.base import Platform
from minray.protocol.base import DONE, Done
from minray.protocol.core_worker import (
    ENVIRONMENT_FAILED,
    CancelTask,
    CancelTaskReply,
    PushTask,
    PushTaskReply,
    ReclaimTasks,
)
from minray.rpc.service import Call

MAX_PAST_LEASES = 10_000
"""Number of ended leases remembered, to refuse their late pushes; a bound on memory."""
MAX_HEADERS = 1_000
"""Number of decoded task headers kept (see ``TaskHeaders``)."""


class WorkerSurroundings(Protocol):
    """The calls that the receiver of a worker makes on its process."""

    async def prepare_environment(self, task: ReceivedTask) -> None:
        """Enter the job and the runtime environment of the first task, with its GPUs. Raises RuntimeEnvSetupError."""

    def run_constructor(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        """Dedicate this process to an actor, and run its constructor."""

    def cancel_children(self, task_id: bytes, force: bool) -> None: ...

    def on_over(self, task: ReceivedTask) -> None:
        """React to the end of a task whose own threads still wait for objects."""


class TaskReceiver:
    """Receives the tasks of one worker on the core worker's loop, starts them in order and answers them."""

    def __init__(
        self,
        platform: Platform,
        executor: TaskExecutor,
        functions: FunctionManager,
        intake: TaskIntake,
        surroundings: WorkerSurroundings,
    ) -> None:
        self._platform = platform
        self._executor = executor
        self._execute = executor.execute
        self._then = self._on_executed
        """Bound method; like ``_execute`` it is made once, and not for each task that waits."""
        self._functions = functions
        self._intake = intake
        self._surroundings = surroundings
        self._omp_threads = OmpThreads(platform.user_code)
        self.lease_id = b""
        """Id of the current lease; empty before the first."""
        self.lease = PushedTasks()
        """The tasks of the current lease."""
        self._past_leases: OrderedDict[bytes, None] = OrderedDict()
        """Ids of leases that are over, oldest first."""
        self._headers = TaskHeaders(MAX_HEADERS)
        self._waiting: deque[ReceivedTask] = deque()
        """Tasks not yet handed to the user thread, oldest first: the first of them lacks something."""
        self._environment_ready = False
        self._preparing: asyncio.Task[None] | None = None
        self._exiting = False
        self._blocked = False
        """Whether the running task waits for objects. No task is queued behind it then: it may wait for just that task."""

    # --- arrival

    def handle_PushTask(self, request: PushTask, call: Call) -> PushTaskReply | None:
        if request.lease_id != self.lease_id:
            if request.lease_id in self._past_leases:
                call.fail("stale-lease", f"lease {short(request.lease_id)} of this worker is over")
                return None
            self._begin_lease(request.lease_id)
            self._omp_threads.on_lease(self._headers[request.header].template.shape)
        if not self.lease.receive(request, call):
            return None
        task = ReceivedTask.of(request, self._headers[request.header], call, lease_tag(request.lease_id), request.gpu_ids)
        self.lease.tasks[task.sequence] = task
        if self._exiting or self._blocked:
            self._intake.give_back(task, self._exiting)
            return None
        if request.args:
            self._intake.take(task, request, self._pump, partial(self._on_missing, task))
        if self._waiting or not self._is_ready(task):
            self._waiting.append(task)
            self._pump()
        else:
            self._start(task)
        return None

    def _begin_lease(self, lease_id: bytes) -> None:
        if self.lease_id:
            self._past_leases[self.lease_id] = None
            if len(self._past_leases) > MAX_PAST_LEASES:
                self._past_leases.popitem(last=False)
        for task in self.lease.remove_unbegun():
            self._intake.release(task)
        self.lease_id, self.lease = lease_id, PushedTasks()

    def _on_missing(self, task: ReceivedTask) -> None:
        """Give back a task whose arguments are being made again: that may need this worker, so the task does not wait."""
        self._intake.give_back(task, self._exiting)
        self._pump()

    # --- preparation

    def _is_ready(self, task: ReceivedTask) -> bool:
        function_id = task.header.template.function_id
        return self._environment_ready and task.fetching is None and self._functions.is_here(function_id)

    def _pump(self) -> None:
        """Hand the tasks that can begin to the user thread, in order."""
        while self._waiting:
            task = self._waiting[0]
            if not task.is_claimed():
                template = task.header.template
                if not self._environment_ready:
                    if self._preparing is None:
                        preparing = self._prepare(task)
                        self._preparing = asyncio.get_running_loop().create_task(preparing, name="prepare_environment")
                    return
                if not self._functions.is_here(template.function_id):
                    self._functions.fetch_function(template.shape.job_id, template.function_id, self._pump)
                    return
                if task.fetching is not None:
                    return
                self._start(task)
            self._waiting.popleft()

    def _start(self, task: ReceivedTask) -> None:
        """Hand a task that lacks nothing to the user thread; fail it if an argument was lost after its owner had seen it."""
        if self._intake.fail_for_argument(task):
            return
        if task.actor_id:
            self._surroundings.run_constructor(task, self._then)
        else:
            self._platform.user_code.run(self._execute, self._then, task)

    async def _prepare(self, first: ReceivedTask) -> None:
        try:
            await self._surroundings.prepare_environment(first)
            self._omp_threads.on_environment(first.header.template.shape.runtime_env)
        except Exception as problem:
            error = problem if isinstance(problem, RuntimeEnvSetupError) else RuntimeEnvSetupError(reason=repr(problem))
            for task in list(self._waiting):
                if task.claim():
                    self._intake.answer_error(task, ENVIRONMENT_FAILED, self._intake.pack(task, error))
            self._waiting.clear()
            self._preparing = None
            return
        self._environment_ready = True
        self._pump()

    # --- answers

    def _on_executed(self, task: ReceivedTask) -> None:
        """Answer a task that the user thread has run; a task that it skipped was answered before."""
        task.is_over = True
        if self._blocked:
            self._surroundings.on_over(task)
        execution, task.execution = task.execution, None
        if execution is not None:
            self._intake.answer_executed(task, execution, self._executor.used_up)

    # --- taking back, cancelling, ending

    def give_back_unstarted(self) -> None:
        """Answer NOT_STARTED for all tasks that have not begun."""
        for task in list(self.lease.tasks.values()):
            self._intake.give_back(task, self._exiting)
        self._pump()

    def on_blocked(self, blocked: bool) -> None:
        """Take note that the running task begins to wait for objects, or goes on; give the tasks behind it back."""
        self._blocked = blocked
        if blocked:
            self.give_back_unstarted()

    def handle_ReclaimTasks(self, request: ReclaimTasks, call: Call) -> Done:
        if request.lease_id == self.lease_id:
            self.give_back_unstarted()
        return DONE

    def handle_CancelTask(self, request: CancelTask, call: Call) -> CancelTaskReply:
        task = self.lease.find(request)
        if task is None:
            return CancelTaskReply(False, False)
        if self._intake.cancel_unstarted(task):
            self._pump()
            return CancelTaskReply(True, False)
        if request.force:
            asyncio.get_running_loop().call_later(0.02, self._exit_if_running, task)
        else:  # interrupt the task before its children's cancellation can reach it as an error
            self._platform.user_code.interrupt(lambda: self._executor.current is task)
        if request.recursive:
            self._surroundings.cancel_children(task.task_id, request.force)
        return CancelTaskReply(True, True)

    def _exit_if_running(self, task: ReceivedTask) -> None:
        """End the process for a forced cancel if the task still runs.

        It is called a moment after the request, so that the children's cancellations and other replies have been sent.
        """
        if self._executor.current is task:
            self._platform.processes.exit(1)

    def begin_exit(self) -> None:
        """Take no more tasks, because an answer has said that this process takes none."""
        if not self._exiting:
            self._exiting = True
            self.give_back_unstarted()

    def is_idle(self) -> bool:
        """Whether every received task has been answered."""
        return not self.unanswered()

    def unanswered(self) -> list[ReceivedTask]:
        """Return the tasks that wait or run, in the order of their arrival."""
        return self.lease.unanswered()
