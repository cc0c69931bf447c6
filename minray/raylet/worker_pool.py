"""The worker processes of a node: which exist, which lease each serves, when to start one and when to let one go.

Ray: src/ray/raylet/worker_pool.h

A pure machine: events in, effects out; ``assign`` is called after every change. ``worker_processes`` does the starting,
asking and killing.

Rules
  * A worker is unspecialised until its first lease, which binds it to a job and a runtime environment for good; no other
    pair ever sees it. Among fitting idle workers the newest idle is taken: it is warm, and the others can be reaped.
  * At most one worker per CPU (at least two) is starting at once. A failed start (no process, no registration, death
    before it) slows down the next one; after a few in a row, leases that no living worker can serve fail with the reason.
  * A leased worker that dies before it has begun any task takes nobody's retries, so the pool sees to it that this does not
    go on for ever: the same rule for its pair, as a setup hook or a path may be what kills them.
  * Reaping is a request: a worker that owns objects refuses and goes to the young end of the list (G64). Workers of a
    finished job have no choice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minray.common.state_table import NEW, StateMachine
from minray.common.task_spec import RuntimeEnv
from minray.common.tombstones import remember
from minray.protocol.base import Address

STARTING, IDLE, LEASED, EXITING, DYING, DEAD = "STARTING", "IDLE", "LEASED", "EXITING", "DYING", "DEAD"
"""EXITING: it was asked to end and may refuse. DYING: it is being killed. DEAD: its end was seen."""

WORKER_STATES: Mapping[str, tuple[str, ...]] = {
    NEW: (STARTING,),
    STARTING: (IDLE, DYING, DEAD),
    IDLE: (LEASED, EXITING, DYING, DEAD),
    LEASED: (IDLE, EXITING, DYING, DEAD),
    EXITING: (IDLE, DYING, DEAD),
    DYING: (DEAD,),
    DEAD: (NEW,),
}

MAX_FAILED_IN_A_ROW = 5
BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 5.0
ASK_AGAIN_S = 1.0
"""How long a worker that may not be used again, but refuses to go, is left alone."""

Binding = tuple[bytes, RuntimeEnv]
"""A job and a runtime environment."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process."""

    worker_id: bytes
    started_at: float
    pid: int = 0
    """0 until it has registered."""
    address: Address | None = None
    """None until it has registered."""
    binding: Binding | None = None
    """None: unspecialised. Never changes once it is set."""
    lease_id: bytes = b""
    """The lease that it serves, or served when it was doomed."""
    leased_at: float = 0.0
    """When its lease began."""
    idle_since: float = 0.0
    block_sequence: int = 0
    """Of the last NotifyWorkerBlocked that counted."""
    retired: bool = False
    """It has used up its calls: it ends when it agrees to, and is never leased again."""
    doom: str = ""
    """Why it is being killed."""
    memory_usage: tuple[int, int] = (0, 0)
    """Of the node, used and in all, when this worker was killed for it; else zeros."""


@dataclass(slots=True)
class Failures:
    """Attempts of one kind that have failed in a row, and when to try again."""

    in_a_row: int = 0
    in_all: int = 0
    reason: str = ""
    again_at: float = 0.0
    _failed_at: float = -1.0

    def add(self, begun_at: float, reason: str, now: float) -> None:
        self.reason = reason
        if begun_at <= self._failed_at:
            return  # it began beside one that has failed: the same trouble, not one more
        self.in_a_row += 1
        self.in_all += 1
        self._failed_at = now
        self.again_at = now + min(BACKOFF_FIRST_S * 2 ** (self.in_a_row - 1), BACKOFF_MAX_S)

    @property
    def is_hopeless(self) -> bool:
        return self.in_a_row >= MAX_FAILED_IN_A_ROW

    def end(self) -> None:
        """One has succeeded."""
        self.in_a_row, self.again_at = 0, 0.0


@dataclass(slots=True)
class Actions:
    """What is to be done after a change."""

    matches: list[tuple[bytes, Worker]] = field(default_factory=list)
    """Lease id and the worker that now serves it."""
    starts: list[Worker] = field(default_factory=list)
    kills: list[Worker] = field(default_factory=list)
    failures: list[tuple[bytes, str]] = field(default_factory=list)
    """Lease ids that get no worker, and why."""
    wake_at: float | None = None
    """Call ``assign`` again at this time, even if nothing changes."""

    def wake_no_later_than(self, when: float) -> None:
        self.wake_at = when if self.wake_at is None else min(self.wake_at, when)


class WorkerPool:
    """All workers of a node, and the leases that wait for one."""

    def __init__(
        self,
        states: StateMachine,
        *,
        cpus: int,
        prestart: int,
        register_timeout_s: float,
        new_id: Callable[[], bytes],
    ) -> None:
        self.workers: dict[bytes, Worker] = {}
        """Those not yet forgotten; DEAD ones are forgotten at once."""
        self._states = states
        self._max_starting = max(2, cpus)
        self._register_timeout_s = register_timeout_s
        self._new_id = new_id
        self._waiting: dict[bytes, Binding] = {}
        """Leases without a worker, oldest first."""
        self._failures_before: dict[bytes, int] = {}
        """How many starts had failed when a lease began to wait."""
        self._idle: dict[bytes, Worker] = {}
        """Oldest idle first."""
        self._starting: dict[bytes, Worker] = {}
        """Oldest first."""
        self._prestart = prestart
        """How many more workers to start although nobody waits for them yet."""
        self._starts = Failures()
        """No worker is started before the time to try again."""
        self._first_tasks: dict[Binding, Failures] = {}
        """Of pairs whose last worker died before it began a task."""
        self._finished_jobs: OrderedDict[bytes, None] = OrderedDict()

    # --- Leases --------------------------------------------------------------------------------------------------------

    def request(self, lease_id: bytes, binding: Binding) -> None:
        """A lease needs a worker."""
        self._waiting[lease_id] = binding
        self._failures_before[lease_id] = self._starts.in_all

    def cancel(self, lease_id: bytes) -> None:
        self._waiting.pop(lease_id, None)
        self._failures_before.pop(lease_id, None)

    def expect(self, count: int, binding: Binding) -> None:
        """Beside those that wait, so many more leases are likely soon: have workers ready for them."""
        ready = sum(1 for worker in self._idle.values() if worker.binding in (None, binding))
        self._prestart = max(self._prestart, count + len(self._waiting) - ready - len(self._starting))

    def stop_expecting(self) -> None:
        """No worker is started but for a lease that waits."""
        self._prestart = 0

    def release(self, worker: Worker, now: float) -> None:
        """Its lease is over, and it can serve another."""
        if worker.binding is not None:
            self._first_tasks.pop(worker.binding, None)
        self._make_idle(worker, now)

    def retire(self, worker: Worker, now: float) -> None:
        """Its lease is over, and it may not serve another: the caller asks it to end, and ``reap`` asks again."""
        worker.lease_id, worker.idle_since, worker.retired = b"", now, True
        self._states.set(worker.worker_id, EXITING)

    def doom(self, worker: Worker, reason: str) -> None:
        """It must be killed, whatever it does. The caller kills it; harmless when that was already done."""
        if self._states.get(worker.worker_id) != DYING:
            self._states.set(worker.worker_id, DYING)
            worker.doom = reason
            self._idle.pop(worker.worker_id, None)
            self._starting.pop(worker.worker_id, None)

    # --- What becomes of workers ---------------------------------------------------------------------------------------

    def state(self, worker_id: bytes) -> str:
        return self._states.get(worker_id)

    def on_registered(self, address: Address, pid: int, now: float) -> bool:
        """False: nobody waits for this worker, and it should go. A repetition changes nothing."""
        state = self._states.get(address.worker_id)
        if state == STARTING:
            worker = self._starting.pop(address.worker_id)
            worker.address, worker.pid = address, pid
            self._starts.end()
            self._make_idle(worker, now)
        return state in (STARTING, IDLE, LEASED, EXITING)

    def on_exit(self, worker_id: bytes, cause: str, is_excused: bool, now: float) -> Worker:
        """It is dead, or could not be started; returns what it was. It is forgotten here.

        ``is_excused``: it had begun a task, or somebody has killed it.
        """
        worker = self.workers.pop(worker_id)
        state = self._states.get(worker_id)
        if state == STARTING or worker.doom == _NOT_REGISTERED:
            self._starts.add(worker.started_at, worker.doom or cause, now)
        elif worker.binding is not None:
            if is_excused:
                self._first_tasks.pop(worker.binding, None)
            elif state == LEASED and not self.is_over(worker.binding[0]):
                self._first_tasks.setdefault(worker.binding, Failures()).add(worker.leased_at, cause, now)
        self._idle.pop(worker_id, None)
        self._starting.pop(worker_id, None)
        self._states.set(worker_id, DEAD)
        self._states.set(worker_id, NEW)
        return worker

    def on_exit_refused(self, worker: Worker, now: float) -> None:
        """It was asked to end and stays; one that is retired is asked again by ``reap``."""
        if self._states.get(worker.worker_id) == EXITING and not worker.retired:
            self._make_idle(worker, now)

    def on_job_finished(self, job_id: bytes) -> None:
        """The next ``reap`` ends its workers; new leases of it do not come any more."""
        remember(self._finished_jobs, job_id, None)
        for binding in [binding for binding in self._first_tasks if binding[0] == job_id]:
            del self._first_tasks[binding]

    def is_over(self, job_id: bytes) -> bool:
        """Whether a job has finished."""
        return job_id in self._finished_jobs

    def _make_idle(self, worker: Worker, now: float) -> None:
        self._states.set(worker.worker_id, IDLE)
        worker.lease_id, worker.idle_since = b"", now
        self._idle[worker.worker_id] = worker

    # --- Assignment ----------------------------------------------------------------------------------------------------

    def assign(self, now: float) -> Actions:
        """Match leases with idle workers, start what is missing, give up what takes too long."""
        actions = Actions()
        held_back = set()
        for lease_id, binding in list(self._waiting.items()):
            if self._is_held_back(binding, now, actions):
                held_back.add(lease_id)
                continue
            worker = self._newest_idle(binding)
            if worker is not None:
                self.cancel(lease_id)
                del self._idle[worker.worker_id]
                self._states.set(worker.worker_id, LEASED)
                worker.binding, worker.lease_id, worker.leased_at = binding, lease_id, now
                actions.matches.append((lease_id, worker))
        self._fail_hopeless(held_back, actions)
        self._give_up_silent(now, actions)
        self._start_missing(len(self._waiting.keys() - held_back), now, actions)
        return actions

    def _is_held_back(self, binding: Binding, now: float, actions: Actions) -> bool:
        """Its last worker has died before it began a task: no other one for a while."""
        failures = self._first_tasks.get(binding)
        if failures is None or now >= failures.again_at:
            return False
        actions.wake_no_later_than(failures.again_at)
        return True

    def _newest_idle(self, binding: Binding) -> Worker | None:
        """A worker of this binding, else an unspecialised one."""
        unspecialised = None
        for worker in reversed(self._idle.values()):
            if worker.binding == binding:
                return worker
            if worker.binding is None and unspecialised is None:
                unspecialised = worker
        return unspecialised

    def _fail_hopeless(self, held_back: set[bytes], actions: Actions) -> None:
        if not self._starts.is_hopeless and not held_back:
            return
        alive = {worker.binding for worker in self.workers.values() if self._states.get(worker.worker_id) in (IDLE, LEASED)}
        for lease_id, binding in list(self._waiting.items()):
            if lease_id in held_back and self._first_tasks[binding].is_hopeless and binding not in alive:
                reason = _describe_deaths(self._first_tasks[binding])
            elif self._starts.is_hopeless and self._was_tried(lease_id) and not alive & {None, binding}:
                reason = f"no worker could be started{_times(self._starts)}"
            else:
                continue
            self.cancel(lease_id)
            actions.failures.append((lease_id, reason))

    def _was_tried(self, lease_id: bytes) -> bool:
        return self._failures_before[lease_id] < self._starts.in_all

    def _give_up_silent(self, now: float, actions: Actions) -> None:
        for worker in list(self._starting.values()):
            deadline = worker.started_at + self._register_timeout_s
            if now >= deadline:
                self.doom(worker, _NOT_REGISTERED)
                actions.kills.append(worker)
            else:
                actions.wake_no_later_than(deadline)
                return

    def _start_missing(self, needed: int, now: float, actions: Actions) -> None:
        missing = max(needed - len(self._starting), self._prestart)
        room = self._max_starting - len(self._starting)
        if missing > 0 and room > 0 and now < self._starts.again_at:
            actions.wake_no_later_than(self._starts.again_at)
            return
        for _ in range(min(missing, room)):
            worker = Worker(self._new_id(), now)
            self.workers[worker.worker_id] = self._starting[worker.worker_id] = worker
            self._states.set(worker.worker_id, STARTING)
            self._prestart = max(0, self._prestart - 1)
            actions.starts.append(worker)
            actions.wake_no_later_than(now + self._register_timeout_s)

    # --- Letting go ----------------------------------------------------------------------------------------------------

    def has_to_reap(self, free_cpus: int) -> bool:
        """Whether ``reap`` may find something, now or when workers have been idle for longer."""
        return len(self._idle) > free_cpus or any(
            worker.retired or self._is_orphan(worker) for worker in self.workers.values()
        )

    def reap(self, now: float, free_cpus: int, idle_threshold_s: float) -> list[tuple[Worker, bool]]:
        """Workers to ask whether they would end, and whether they must (their job has finished).

        A worker may go when more are idle than could run something, the oldest idle first.
        """
        orphans = [worker for worker in self._idle.values() if self._is_orphan(worker)]
        excess = len(self._idle) - len(orphans) - free_cpus
        due = [
            worker
            for worker in self._idle.values()
            if now - worker.idle_since > idle_threshold_s and not self._is_orphan(worker)
        ]
        asked = due[: max(0, excess)]
        for worker in orphans + asked:
            del self._idle[worker.worker_id]
            self._states.set(worker.worker_id, EXITING)
        retired = [
            worker
            for worker in self.workers.values()
            if worker.retired
            and self._states.get(worker.worker_id) == EXITING
            and now - worker.idle_since > ASK_AGAIN_S
        ]
        for worker in retired:
            worker.idle_since = now
        return [(worker, self._is_orphan(worker)) for worker in orphans + asked + retired]

    def _is_orphan(self, worker: Worker) -> bool:
        return worker.binding is not None and self.is_over(worker.binding[0])

    def describe_wait(self, lease_id: bytes, node: str) -> str:
        """For people: what a lease without a worker waits for."""
        deaths = self._first_tasks.get(self._waiting[lease_id])
        if deaths is not None:
            return f"waits for a worker on node {node}: {_describe_deaths(deaths)}"
        if self._starts.in_a_row:
            return f"waits for a worker on node {node}: none could be started{_times(self._starts)}"
        return f"waits for a worker, which is starting on node {node}"


def _times(failures: Failures) -> str:
    """How often, and why."""
    in_a_row = f", {failures.in_a_row} times in a row" if failures.in_a_row > 1 else ""
    return f"{in_a_row}: {failures.reason}"


def _describe_deaths(failures: Failures) -> str:
    return f"workers die before they begin a task{_times(failures)}"


_NOT_REGISTERED = "it did not register in time"
