"""The submitter under any order of events: no task is lost or doubled, and every waiting task is on its way to a worker.

The world here is a few raylets and workers that answer when hypothesis says so. After every event, these must hold:
  * Each task is in one place. A shape with waiting tasks has an open request.
  * No task waits while a worker of its shape is idle, or is queued behind work that was not measured to be short.
  * A lease is returned once, and an idle one has a timer.
In the end everything is over.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minray.core_worker.records.leased_worker import LeasedWorker, WorkerRequest
from minray.core_worker.records.pending_task import FAILED, FINISHED, PUSHED, QUEUED, PendingTask
from minray.core_worker.submission.normal_task_submitter import NormalTaskSubmitter
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.raylet import GRANTED, LeaseReply
from tests.core_worker.parts import Asked, address, config, lease_ids, pending, prepare, shape

WHICH = st.integers(0, 11)
DURATIONS_US = st.sampled_from([5, 100, 900, 3000, 50_000])
MAX_REQUESTS = 3
MAX_SHORT_US = 5000.0


class Watched(Asked):
    """Checks every single push and return."""

    def push(self, worker: LeasedWorker, task: PendingTask) -> None:
        assert worker not in [returned for returned, _, _ in self.returned], "pushed to a lease that was returned"
        assert not worker.stalled and not worker.closing
        if len(worker.in_flight) > 1:
            mean_us = task.prepared.mean_us
            assert mean_us is not None and mean_us < MAX_SHORT_US, "queued behind another task, but not measured"
            assert worker.queued_us <= 10_000
        super().push(worker, task)

    def return_lease(self, worker: LeasedWorker, kill_worker: bool, reason: str) -> None:
        assert worker not in [returned for returned, _, _ in self.returned], "returned twice"
        assert kill_worker or not worker.in_flight
        super().return_lease(worker, kill_worker, reason)


class AnyOrder(RuleBasedStateMachine):
    """See the head of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tasks = TaskManager(None)
        self.asked = Watched(lambda: self.now)
        limit = {"max_pending_lease_requests_per_scheduling_category": MAX_REQUESTS}
        self.submitter = NormalTaskSubmitter(config(**limit), lease_ids(), self.tasks, self.asked)
        self.functions = [prepare("f"), prepare("g"), prepare("h", shape=shape(2))]
        self.submitted: list[PendingTask] = []
        self.limbo: list[PendingTask] = []
        """Tasks that no worker has any more and that were not put back yet."""

    # --- looking

    def requests(self) -> list[WorkerRequest]:
        return [request for key in self.submitter._keys.values() for request in key.requests.values()]

    def busy(self) -> list[LeasedWorker]:
        return [worker for worker in self.submitter.leased_workers() if worker.in_flight]

    def queued(self) -> list[PendingTask]:
        return [task for key in self.submitter._keys.values() for task in key.queue]

    # --- what may happen

    @rule(which=WHICH, count=st.integers(1, 8))
    def submit(self, which: int, count: int) -> None:
        for _ in range(count):
            task = pending(self.functions[which % 3])
            self.submitted.append(task)
            self.tasks.add_task(task)
            self.submitter.on_task_ready(task, self.now)

    @precondition(lambda self: self.requests())
    @rule(which=WHICH, contended=st.sampled_from([False, False, True]))
    def grant(self, which: int, contended: bool) -> None:
        request = self.requests()[which % len(self.requests())]
        reply = LeaseReply(GRANTED, address(request.lease_id.hex()[:16]), contended=contended)
        self.submitter.on_granted(request, reply, self.now)

    @precondition(lambda self: self.requests())
    @rule(which=WHICH, how=st.sampled_from(["elsewhere", "home", "ended"]))
    def do_not_grant(self, which: int, how: str) -> None:
        request = self.requests()[which % len(self.requests())]
        if how == "ended":
            self.submitter.on_request_ended(request, self.now)
        elif request.grant_or_reject:
            self.submitter.on_redirected(request, None, False, self.now)
        else:
            self.submitter.on_redirected(request, address("raylet-2"), True, self.now)

    @precondition(lambda self: self.busy())
    @rule(which=WHICH, count=st.integers(1, 20), duration_us=DURATIONS_US, fails=st.booleans())
    def finish(self, which: int, count: int, duration_us: int, fails: bool) -> None:
        worker = self.busy()[which % len(self.busy())]
        for _ in range(min(count, len(worker.in_flight))):
            task = next(iter(worker.in_flight.values()))
            self.now += duration_us / 1e6
            task.prepared.on_duration(duration_us)
            self.submitter.on_task_answered(worker, task, self.now)
            if fails and self.tasks.begin_retry(task):
                self.submitter.on_task_ready(task, self.now)
            else:
                self.tasks.move(task, FAILED if fails else FINISHED)
            self.submitter.refill(worker, self.now)

    @precondition(lambda self: self.busy())
    @rule(which=WHICH, exiting=st.sampled_from([False, False, True]))
    def give_back(self, which: int, exiting: bool) -> None:
        """All but the first; they come back to the queue a moment later, as they were answered in one turn."""
        worker = self.busy()[which % len(self.busy())]
        for task in list(worker.in_flight.values())[1:]:
            if exiting:
                self.submitter.on_worker_used_up(worker)
            self.submitter.on_task_given_back(worker, task, self.now)
            self.limbo.append(task)
            self.submitter.refill(worker, self.now)

    @precondition(lambda self: self.busy())
    @rule(which=WHICH, started=st.integers(0, 3))
    def lose_worker(self, which: int, started: int) -> None:
        worker = self.busy()[which % len(self.busy())]
        lost = self.submitter.on_worker_lost(worker)
        for task in lost[:started]:
            if self.tasks.begin_retry(task):
                self.submitter.on_task_ready(task, self.now)
            else:
                self.tasks.move(task, FAILED)
        self.limbo += lost[started:]

    @precondition(lambda self: self.limbo)
    @rule()
    def put_back(self) -> None:
        limbo, self.limbo = self.limbo, []
        waited = self.queued()
        self.submitter.on_tasks_unstarted(limbo, self.now)
        now_waiting = [task for task in self.queued() if task in limbo]
        assert [task for task in limbo if task in now_waiting] == now_waiting or len(self.submitter._keys) > 1
        assert all(task in limbo or task in waited for task in self.queued())

    @precondition(lambda self: self.queued())
    @rule(which=WHICH)
    def cancel_queued(self, which: int) -> None:
        task = self.queued()[which % len(self.queued())]
        self.submitter.remove_queued(task, self.now)
        self.tasks.move(task, FAILED)

    @rule()
    def revoke(self) -> None:
        self.submitter.on_revoke(self.now)

    @rule(duration_s=st.sampled_from([0.001, 0.011, 0.6]))
    def let_time_pass(self, duration_s: float) -> None:
        while self.asked.turns:
            self.end_turn()
        end = self.now + duration_s
        while self.asked.timers and min(self.asked.timers) <= end:
            self.now = max(self.now, self.asked.timers.pop())
            self.submitter.on_timer(self.now)
        self.now = max(self.now, end)

    @precondition(lambda self: self.asked.turns)
    @rule()
    def end_turn(self) -> None:
        """End a turn of the loop: the submitter has heard all that was at hand."""
        self.asked.turns -= 1
        self.submitter.on_turn(self.now)

    # --- what must be true

    @invariant()
    def every_task_is_in_one_place(self) -> None:
        queued, limbo = [id(task) for task in self.queued()], [id(task) for task in self.limbo]
        in_flight = [id(task) for worker in self.busy() for task in worker.in_flight.values()]
        places = queued + limbo + in_flight
        alive = {id(task): task for task in self.tasks.tasks.values()}
        assert len(places) == len(set(places)) and set(places) == set(alive)
        assert all(alive[key].state is QUEUED and alive[key].worker is None for key in queued)
        assert all(alive[key].state is PUSHED for key in in_flight)

    @invariant()
    def whoever_waits_has_asked(self) -> None:
        for key in self.submitter._keys.values():
            assert len(key.requests) <= MAX_REQUESTS
            if key.is_due:
                assert self.asked.turns == 1, "nobody will come back to it"
            elif key.queue:
                assert key.requests, "tasks wait, and nobody was asked for a worker"
                idle = [worker for worker in key.workers.values() if not worker.in_flight]
                assert not idle, "tasks wait although a worker is idle"
            else:
                assert all(request.cancelled for request in key.requests.values())

    @invariant()
    def workers_with_little_to_do_are_known(self) -> None:
        for key in self.submitter._keys.values():
            assert key.low == {
                lease_id: worker for lease_id, worker in key.workers.items() if self.submitter._pipelining.is_low(worker)
            }

    @invariant()
    def idle_leases_do_not_stay(self) -> None:
        idle = [worker for worker in self.submitter.leased_workers() if not worker.in_flight]
        assert not any(worker.closing for worker in idle)
        assert not idle or self.asked.timers

    def teardown(self) -> None:
        if self.limbo:
            self.put_back()
        while self.tasks.tasks:
            while self.busy() or self.asked.turns:
                if self.busy():
                    self.finish(which=0, count=1000, duration_us=100, fails=False)
                if self.asked.turns:
                    self.end_turn()
            if self.requests():
                self.grant(which=0, contended=False)
        while self.requests():
            self.submitter.on_request_ended(self.requests()[0], self.now)
        self.let_time_pass(1.0)
        assert self.submitter.leased_workers() == []
        assert {task.state for task in self.submitted} <= {FINISHED, FAILED}


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
pytestmark = pytest.mark.slow
TestAnyOrder = AnyOrder.TestCase
