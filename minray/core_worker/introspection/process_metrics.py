"""Figures of one driver or worker for the system metrics: its tasks by state, its actor, and the values that it holds.

Ray: src/ray/core_worker/core_worker.cc (TaskCounter), src/ray/core_worker/metrics.h

Only ended tasks are counted (``EndedTasks``); the rest is read from tables that exist anyway. A question costs a pass over
the unfinished tasks and the stored values: an estimated 0.1 s for a million of them.

The owner of a task counts it until it has sent the task. From then on both the owner and the executor know it. As in Ray,
the executor counts it under its own state and subtracts it from SUBMITTED_TO_WORKER, so that sums by state are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from minray.core_worker.execution.actor_task_receiver import ActorTaskReceiver
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.introspection.metric_registry import registry
from minray.core_worker.introspection.task_account import SENT, state_of
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.records.ended_tasks import MOST_NAMES, OTHERS
from minray.core_worker.records.pending_task import FAILED, FINISHED, PUSHED, PendingTask
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.state import ProcessMetrics, SystemValue

MOST_REPORTED = 1000
"""Most series that a worker's raylet keeps of it; a bound on the report."""
OWNER, EXECUTOR = "owner", "executor"
"""Ray's names for the part that reports a task or an actor."""

Key = tuple[str, str, bool]
"""State of a task, its name, and whether it is a retry."""


class ProcessFigures:
    """Answers the question for metrics from the tables of one core worker."""

    def __init__(
        self,
        *,
        process: Process,
        context: JobContext,
        tasks: TaskManager,
        store: MemoryStore,
        actor_receiver: ActorTaskReceiver,
        unanswered: Callable[[], list[ReceivedTask]],
    ) -> None:
        """``unanswered`` returns the tasks that were pushed to this process and have no answer yet."""
        self._process = process
        self._context = context
        self._tasks = tasks
        self._store = store
        self._actor_receiver = actor_receiver
        self._unanswered = unanswered

    def metrics(self) -> ProcessMetrics:
        """Return all values that programs have recorded here, and the figures of this process."""
        families, left_out = registry().families()
        received = self._unanswered()
        owned = self._ended()
        for task in list(self._tasks.tasks.values()):
            owned[_owners_state(task), task.prepared.template.name, task.attempt > 0] += 1
        system = [*_values(owned, OWNER), *_values(_executed(received), EXECUTOR), *self._actor(received)]
        values = sum(stored.size() for stored in list(self._store.objects.values()) if stored.place is None)
        system.append(SystemValue("object_store_memory", float(values), {"Location": "WORKER_HEAP", "ObjectState": ""}))
        config = self._process.config
        return ProcessMetrics(
            node_ip=config.node_ip,
            worker_id=config.worker_id,
            job_id=self._context.job_id,
            families=families,
            left_out=left_out,
            system=system,
        )

    def lasting(self) -> ProcessMetrics:
        """Return what its node keeps when this process has ended: counters, histograms and counts of ended tasks."""
        families, left_out = registry().families(MOST_REPORTED, with_gauges=False)
        config = self._process.config
        return ProcessMetrics(
            node_ip=config.node_ip,
            worker_id=config.worker_id,
            job_id=self._context.job_id,
            families=[family for family in families if family.samples],
            left_out=left_out,
            system=list(_values(self._ended(), OWNER)),
        )

    def _ended(self) -> Counter[Key]:
        ended, counts = self._tasks.ended, Counter[Key]()
        for state, is_retry, table in (
            (FINISHED, False, ended.finished),
            (FINISHED, True, ended.finished_again),
            (FAILED, False, ended.failed),
            (FAILED, True, ended.failed_again),
        ):
            counts.update({(state, name, is_retry): count for name, count in table.items()})
        return counts

    def _actor(self, received: list[ReceivedTask]) -> Iterator[SystemValue]:
        actor = self._actor_receiver.actor
        if actor is None:
            return
        name = actor.constructor.header.template.name.partition(".")[0]
        state = "ALIVE_RUNNING_TASKS" if any(task.is_claimed() for task in received) else "ALIVE_IDLE"
        yield SystemValue("actors", 1.0, {"State": state, "Name": name, "Source": EXECUTOR})


def _owners_state(task: PendingTask) -> str:
    """Return the state of an unfinished task for its owner, which has finished with a constructor once the gcs has it."""
    return FINISHED if task.state is PUSHED and task.prepared.template.actor is not None else task.state


def _executed(received: list[ReceivedTask]) -> Counter[Key]:
    counts = Counter[Key]()
    for task in received:
        state, template, is_retry = state_of(task), task.header.template, task.attempt > 0
        counts[state, template.name, is_retry] += 1
        counts[SENT if template.actor is None else FINISHED, template.name, is_retry] -= 1
    return counts


def _values(counts: Counter[Key], source: str) -> Iterator[SystemValue]:
    """Yield the counts; beyond ``MOST_NAMES`` the rarest are added up without their names."""
    others = Counter[tuple[str, bool]]()
    for index, ((state, name, is_retry), count) in enumerate(sorted(counts.items(), key=lambda item: -abs(item[1]))):
        if index < MOST_NAMES and name != OTHERS and count:
            yield _tasks(state, name, is_retry, source, count)
        else:
            others[state, is_retry] += count
    for (state, is_retry), count in others.items():
        yield _tasks(state, OTHERS, is_retry, source, count)


def _tasks(state: str, name: str, is_retry: bool, source: str, count: int) -> SystemValue:
    labels = {"State": state, "Name": name, "Source": source, "IsRetry": str(int(is_retry))}
    return SystemValue("tasks", float(count), labels)
