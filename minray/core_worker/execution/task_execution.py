"""The executor's side of tasks: the parts through which a pushed task, or an actor's call, runs in this process.

Ray: CoreWorker::ExecuteTask in src/ray/core_worker/core_worker.cc, and its task_execution/

``receiver`` gets the tasks of the worker's leases, and ``host.receiver`` the calls of the actor that lives here. Both bring
arguments and send answers through ``intake``, and run user code in ``executor``. This class makes these parts and is the
receiver's way to the rest of the process. A driver has these parts too, although nothing is pushed to it.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.core_worker.execution.actor_host import ActorHost
from minray.core_worker.execution.examined_errors import ExaminedErrors
from minray.core_worker.execution.function_manager import FunctionManager
from minray.core_worker.execution.generator_executor import GeneratorExecutor
from minray.core_worker.execution.job_environment import take_on
from minray.core_worker.execution.return_values import ReturnValues
from minray.core_worker.execution.task_intake import TaskIntake
from minray.core_worker.execution.task_profile import TaskProfile
from minray.core_worker.execution.task_receiver import TaskReceiver
from minray.core_worker.execution.timed_executor import executor_class
from minray.core_worker.fetching.blocked_tasks import BlockedTasks
from minray.core_worker.fetching.results import ResultKeeper
from minray.core_worker.fetching.store_provider import LargeValues
from minray.core_worker.fetching.value_fetcher import ValueFetcher
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.received_task import ReceivedTask


class TaskExecution:
    """Runs the tasks that are pushed to one process; implements ``WorkerSurroundings``."""

    def __init__(
        self,
        process: Process,
        context: JobContext,
        references: ReferenceCounter,
        store: MemoryStore,
        borrowing: Borrowing,
        objects: Objects,
        provider: LargeValues,
        fetcher: ValueFetcher,
        blocked: BlockedTasks,
        *,
        cancel_children: Callable[[bytes, bool], None],
        is_through: Callable[[], bool],
        report_last: Callable[[], None],
    ) -> None:
        """Serve one process.

        ``cancel_children(task_id, force)`` cancels the tasks that a task has submitted. ``is_through`` says whether nothing
        depends on this process except actors that it has created. ``report_last`` tells the gcs and the
        raylet what they keep when this process has ended.
        """
        platform, config = process.platform, process.config
        self._process = process
        self._context = context
        self._blocked = blocked
        self.cancel_children = cancel_children
        self.functions = FunctionManager(process.gcs)
        self.profile = TaskProfile(platform)
        system = config.system_config
        results = ResultKeeper(provider, system.max_direct_call_object_size, system.max_references_per_answer)
        self.generator_executor = GeneratorExecutor(process, borrowing, results, blocked.lend_soon)
        returns = ReturnValues(results, platform.user_code, system.max_references_per_answer)
        self.errors = ExaminedErrors(platform, returns, config.node_id.hex(), config.node_ip)
        self.executor = executor_class(config)(
            platform, self.functions, objects.make_refs, returns, self.errors, self.generator_executor, self.profile
        )
        self.intake = TaskIntake(
            platform, process.address, references, store, borrowing, fetcher, config.node_ip,
            lambda task: self.actor_receiver.on_answered(task), lambda: self.receiver.begin_exit(),
        )  # fmt: skip
        self.receiver = TaskReceiver(platform, self.executor, self.functions, self.intake, self)
        self.host = ActorHost(process, self.executor, self.intake, blocked, cancel_children, is_through, report_last)
        self.actor_receiver = self.host.receiver

    def is_idle(self) -> bool:
        """Whether every task and call that was pushed to this process has been answered."""
        return self.receiver.is_idle() and self.actor_receiver.is_idle() and self.intake.is_idle()

    # --- surroundings of the task receiver

    async def prepare_environment(self, task: ReceivedTask) -> None:
        """Take on the job, the runtime environment and the GPUs of this worker's first task, for good."""
        await take_on(self._process, self._context, task.header.template, task.gpu_ids)

    def run_constructor(self, task: ReceivedTask, then: Callable[[ReceivedTask], None]) -> None:
        self.host.run_constructor(task, then)

    def on_over(self, task: ReceivedTask) -> None:
        self._blocked.on_task_over(task)
