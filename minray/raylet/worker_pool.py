"""The worker pool: which worker processes of a node exist, which lease each serves, and when one is started or ended.

Ray: src/ray/raylet/worker_pool.h

Pure: events in, effects out; ``assign`` is called after every change. ``worker_processes`` starts, asks and kills.

Rules
  * A worker is unspecialised until its first lease. That binds it for good to a job, a runtime environment, GPUs, and either
    tasks or one actor: an actor never finds what tasks have left in a process. There is no second actor, since the gcs has
    an actor's worker killed with its lease (``ActorScheduler.end_lease``). Among the suitable idle workers, the one that
    became idle last is taken: it is warm, and the others can be reaped.
  * At most one worker per CPU (at least two) is starting at once. A failed start (no process, no registration, death
    before it) delays the next one. After five in a row, leases that no living worker can serve fail with the reason.
    After ``patience_s`` of failures, workers of actors and blocked workers do not count as living: they may never be free.
  * A leased worker that dies before it has begun any task uses up no retries, so the pool must limit this. The same rule
    as for failed starts holds per job and environment, since a setup hook or a path may be what kills the workers.
  * Reaping is a request: a worker that owns objects refuses, and then counts as newly idle (G64). Workers of a finished
    job cannot refuse.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from minray.common.state_table import NEW, StateMachine
from minray.common.task_spec import RuntimeEnvInfo
from minray.common.tombstones import remember
from minray.protocol.base import Address
from minray.raylet.start_failures import NOT_REGISTERED, StartFailures

STARTING, IDLE, LEASED, EXITING, DYING, DEAD = "STARTING", "IDLE", "LEASED", "EXITING", "DYING", "DEAD"
"""States of a worker. EXITING: it was asked to end and may refuse. DYING: it is being killed. DEAD: its end was seen."""

WORKER_STATES: Mapping[str, tuple[str, ...]] = {
    NEW: (STARTING,),
    STARTING: (IDLE, DYING, DEAD),
    IDLE: (LEASED, EXITING, DYING, DEAD),
    LEASED: (IDLE, EXITING, DYING, DEAD),
    EXITING: (IDLE, DYING, DEAD),
    DYING: (DEAD,),
    DEAD: (NEW,),
}

ASK_AGAIN_S = 1.0
"""Seconds before a retired worker that refused to end is asked again."""


Start = tuple[bytes, RuntimeEnvInfo]
"""The job and the runtime environment that a worker prepares for before its first task."""


class Binding(NamedTuple):
    """The work that a worker may serve, decided by its first lease."""

    job_id: bytes
    runtime_env: RuntimeEnvInfo
    for_actor: bool
    """Whether the worker serves an actor; else it serves tasks."""
    gpus: tuple[int, ...] = ()
    """Indices of the GPUs of its leases: a library that has seen some GPUs cannot be shown others."""

    def start(self) -> Start:
        """Return what decides how such a worker starts."""
        return self.job_id, self.runtime_env


class Worker(msgspec.Struct, eq=False):
    """One worker process."""

    worker_id: bytes
    started_at: float
    pid: int = 0
    """Process id; 0 until the worker has registered."""
    address: Address | None = None
    """Address of the worker; None until it has registered."""
    binding: Binding | None = None
    """The work that it may serve; None: unspecialised. It never changes once it is set."""
    lease_id: bytes = b""
    """Lease that the worker serves, or served when it was doomed."""
    leased_at: float = 0.0
    """Time at which its lease began."""
    idle_since: float = 0.0
    block_sequence: int = 0
    """Sequence number of the last NotifyWorkerBlocked that was not outdated."""
    retired: bool = False
    """Whether the worker has used up ``max_calls``: it ends when it agrees to, and is never leased again."""
    doom: str = ""
    """Reason why the worker is being killed."""
    memory_usage: tuple[int, int] = (0, 0)
    """Bytes of the node's memory, used and total, if the worker was killed because memory ran short; else zeros."""


class Actions(msgspec.Struct):
    """The work to do after a change of the pool."""

    matches: list[tuple[bytes, Worker]] = msgspec.field(default_factory=list)
    """Lease ids, each with the worker that now serves it."""
    starts: list[Worker] = msgspec.field(default_factory=list)
    kills: list[Worker] = msgspec.field(default_factory=list)
    failures: list[tuple[bytes, str]] = msgspec.field(default_factory=list)
    """Lease ids that get no worker, each with the reason."""
    wake_at: float | None = None
    """Time at which ``assign`` must be called again even if nothing changes."""

    def wake_no_later_than(self, when: float) -> None:
        self.wake_at = when if self.wake_at is None else min(self.wake_at, when)


class WorkerPool:
    """Holds all workers of a node, and matches them with the leases that wait for one."""

    def __init__(
        self,
        states: StateMachine,
        *,
        cpus: int,
        prestart: int,
        register_timeout_s: float,
        patience_s: float,
        is_kept: Callable[[Worker], bool],
        new_id: Callable[[], bytes],
    ) -> None:
        """``is_kept``: tell whether a leased worker may stay leased for ever. ``patience_s``: see the rules."""
        self.workers: dict[bytes, Worker] = {}
        """Workers by worker id; DEAD ones are dropped at once."""
        self._states = states
        self._max_starting = max(2, cpus)
        self._register_timeout_s = register_timeout_s
        self._patience_s = patience_s
        self._is_kept = is_kept
        self._new_id = new_id
        self._waiting: dict[bytes, Binding] = {}
        """Leases without a worker, oldest first."""
        self._failures_before: dict[bytes, int] = {}
        """Number of failed starts at the time when a lease began to wait, by lease id."""
        self._idle: dict[bytes, Worker] = {}
        """Idle workers, the longest idle first."""
        self._starting: dict[bytes, Worker] = {}
        """Starting workers, oldest first."""
        self._prestart = prestart
        """Number of workers to start although no lease waits for them yet."""
        self.starts = StartFailures()
        """Failed starts; no worker is started before ``again_at``."""
        self._first_tasks: dict[Start, StartFailures] = {}
        """Deaths before a first task, by start; only of starts whose last worker died so."""
        self._finished_jobs: OrderedDict[bytes, None] = OrderedDict()

    # --- Leases --------------------------------------------------------------------------------------------------------

    def request(self, lease_id: bytes, binding: Binding) -> None:
        """Note that a lease needs a worker."""
        self._waiting[lease_id] = binding
        self._failures_before[lease_id] = self.starts.in_all

    def cancel(self, lease_id: bytes) -> None:
        self._waiting.pop(lease_id, None)
        self._failures_before.pop(lease_id, None)

    def expect(self, count: int, binding: Binding) -> None:
        """Have workers ready for ``count`` further leases that are likely soon, beside those that wait."""
        ready = sum(1 for worker in self._idle.values() if worker.binding in (None, binding))
        self._prestart = max(self._prestart, count + len(self._waiting) - ready - len(self._starting))

    def stop_expecting(self) -> None:
        """Start no more workers ahead of need."""
        self._prestart = 0

    def release_worker(self, worker: Worker, now: float) -> None:
        """Make a worker idle whose lease is over, so that it can serve another."""
        if worker.binding is not None:
            self._first_tasks.pop(worker.binding.start(), None)
        self._make_idle(worker, now)

    def retire(self, worker: Worker, now: float) -> None:
        """Retire a worker that must not serve another lease: the caller asks it to end, and ``reap`` asks again."""
        worker.lease_id, worker.idle_since, worker.retired = b"", now, True
        self._states.set(worker.worker_id, EXITING)

    def doom(self, worker: Worker, reason: str) -> None:
        """Set a worker to DYING; the caller kills it. Nothing happens if it is DYING already."""
        if self._states.get(worker.worker_id) != DYING:
            self._states.set(worker.worker_id, DYING)
            worker.doom = reason
            self._idle.pop(worker.worker_id, None)
            self._starting.pop(worker.worker_id, None)

    # --- Events of workers ---------------------------------------------------------------------------------------------

    def state(self, worker_id: bytes) -> str:
        return self._states.get(worker_id)

    def on_registered(self, address: Address, pid: int, now: float) -> bool:
        """Enter a worker that has registered; return False if it is unknown here and must end. A repetition is harmless."""
        state = self._states.get(address.worker_id)
        if state == STARTING:
            worker = self._starting.pop(address.worker_id)
            worker.address, worker.pid = address, pid
            self.starts.end()
            self._make_idle(worker, now)
        return state in (STARTING, IDLE, LEASED, EXITING)

    def on_exit(self, worker_id: bytes, cause: str, is_excused: bool, now: float) -> Worker:
        """Remove a worker that is dead, or could not be started, and return it.

        ``is_excused``: it had begun a task, or was killed.
        """
        worker = self.workers.pop(worker_id)
        state = self._states.get(worker_id)
        if state == STARTING or worker.doom == NOT_REGISTERED:
            self.starts.add_failure(worker.started_at, worker.doom or cause, now)
        elif worker.binding is not None:
            if is_excused:
                self._first_tasks.pop(worker.binding.start(), None)
            elif state == LEASED and not self.is_over(worker.binding.job_id):
                self._first_tasks.setdefault(worker.binding.start(), StartFailures()).add_failure(
                    worker.leased_at, cause, now
                )
        self._idle.pop(worker_id, None)
        self._starting.pop(worker_id, None)
        self._states.set(worker_id, DEAD)
        self._states.set(worker_id, NEW)
        return worker

    def on_exit_refused(self, worker: Worker, now: float) -> None:
        """Make a worker idle again that refused to end; a retired one stays EXITING, and ``reap`` asks it again."""
        if self._states.get(worker.worker_id) == EXITING and not worker.retired:
            self._make_idle(worker, now)

    def on_job_finished(self, job_id: bytes) -> None:
        """Note that a job has finished: the next ``reap`` ends its workers, and it gets no new leases."""
        remember(self._finished_jobs, job_id, None)
        for start in [start for start in self._first_tasks if start[0] == job_id]:
            del self._first_tasks[start]

    def is_over(self, job_id: bytes) -> bool:
        """Tell whether a job has finished."""
        return job_id in self._finished_jobs

    def _make_idle(self, worker: Worker, now: float) -> None:
        self._states.set(worker.worker_id, IDLE)
        worker.lease_id, worker.idle_since = b"", now
        self._idle[worker.worker_id] = worker

    # --- Assignment ----------------------------------------------------------------------------------------------------

    def assign(self, now: float) -> Actions:
        """Match leases with idle workers, start missing workers, and give up starts that take too long."""
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
        self._fail_hopeless(held_back, now, actions)
        self._give_up_silent(now, actions)
        self._start_missing(len(self._waiting.keys() - held_back), now, actions)
        return actions

    def _is_held_back(self, binding: Binding, now: float, actions: Actions) -> bool:
        """Tell whether a binding gets no worker for a while, because its last one died before it began a task."""
        failures = self._first_tasks.get(binding.start())
        if failures is None or now >= failures.again_at:
            return False
        actions.wake_no_later_than(failures.again_at)
        return True

    def _newest_idle(self, binding: Binding) -> Worker | None:
        """Return the newest idle worker of this binding, else the newest unspecialised one."""
        unspecialised = None
        for worker in reversed(self._idle.values()):
            if worker.binding == binding:
                return worker
            if worker.binding is None and unspecialised is None:
                unspecialised = worker
        return unspecialised

    def _fail_hopeless(self, held_back: set[bytes], now: float, actions: Actions) -> None:
        if not self.starts.is_hopeless and not held_back:
            return
        ready = [worker for worker in self.workers.values() if self._states.get(worker.worker_id) in (IDLE, LEASED)]
        is_late = self.starts.has_lasted(self._patience_s, now)
        alive = {worker.binding for worker in ready if not (is_late and self._is_kept(worker))}
        for lease_id, binding in list(self._waiting.items()):
            deaths = self._first_tasks.get(binding.start())
            if lease_id in held_back and deaths is not None and deaths.is_hopeless and binding not in alive:
                reason = _DEATHS + deaths.describe()
            elif self.starts.is_hopeless and self._was_tried(lease_id) and not alive & {None, binding}:
                reason = f"no worker could be started{self.starts.describe()}"
            else:
                continue
            self.cancel(lease_id)
            actions.failures.append((lease_id, reason))

    def _was_tried(self, lease_id: bytes) -> bool:
        return self._failures_before[lease_id] < self.starts.in_all

    def _give_up_silent(self, now: float, actions: Actions) -> None:
        for worker in list(self._starting.values()):
            deadline = worker.started_at + self._register_timeout_s
            if now >= deadline:
                self.doom(worker, NOT_REGISTERED)
                actions.kills.append(worker)
            else:
                actions.wake_no_later_than(deadline)
                return

    def _start_missing(self, needed: int, now: float, actions: Actions) -> None:
        missing = max(needed - len(self._starting), self._prestart)
        room = self._max_starting - len(self._starting)
        if missing > 0 and room > 0 and now < self.starts.again_at:
            actions.wake_no_later_than(self.starts.again_at)
            return
        for _ in range(min(missing, room)):
            worker = Worker(self._new_id(), now)
            self.workers[worker.worker_id] = self._starting[worker.worker_id] = worker
            self._states.set(worker.worker_id, STARTING)
            self._prestart = max(0, self._prestart - 1)
            actions.starts.append(worker)
            actions.wake_no_later_than(now + self._register_timeout_s)

    # --- Reaping -------------------------------------------------------------------------------------------------------

    def has_to_reap(self, free_cpus: int) -> bool:
        """Tell whether ``reap`` may find workers, now or when they have been idle for longer."""
        return len(self._idle) > free_cpus or any(
            worker.retired or self._is_orphan(worker) for worker in self.workers.values()
        )

    def reap(self, now: float, free_cpus: int, idle_threshold_s: float) -> list[tuple[Worker, bool]]:
        """Return the workers to ask to end, each with whether it must end (its job has finished).

        Workers are asked, the longest idle first, when more are idle than there are free CPUs.
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
            if worker.retired and self._states.get(worker.worker_id) == EXITING and now - worker.idle_since > ASK_AGAIN_S
        ]
        for worker in retired:
            worker.idle_since = now
        return [(worker, self._is_orphan(worker)) for worker in orphans + asked + retired]

    def _is_orphan(self, worker: Worker) -> bool:
        return worker.binding is not None and self.is_over(worker.binding.job_id)

    def describe_wait(self, lease_id: bytes, node: str) -> str:
        """Explain for users what a lease without a worker waits for."""
        deaths = self._first_tasks.get(self._waiting[lease_id].start())
        if deaths is not None:
            return f"waits for a worker on node {node}: {_DEATHS + deaths.describe()}"
        if self.starts.in_a_row:
            return f"waits for a worker on node {node}: none could be started{self.starts.describe()}"
        return f"waits for a worker, which is starting on node {node}"


_DEATHS = "workers die before they begin a task"
