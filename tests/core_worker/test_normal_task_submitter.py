"""Which worker runs which task: leases and their reuse, pipelining, fairness, and what goes wrong.

``Scene`` is a submitter, a clock, and an owner's view of raylets and workers: the test says what they answer.
"""

from __future__ import annotations

import msgspec
import pytest

from minray.common.task_spec import (
    STRATEGY_AFFINITY,
    STRATEGY_DEFAULT,
    STRATEGY_PLACEMENT_GROUP,
    STRATEGY_SPREAD,
    SchedulingStrategy,
)
from minray.core_worker.records.leased_worker import LeasedWorker
from minray.core_worker.records.pending_task import FINISHED, PUSHED, QUEUED, PendingTask, PreparedTemplate
from minray.core_worker.submission.normal_task_submitter import STALL_S, NormalTaskSubmitter
from minray.core_worker.submission.pipelining import TINY_US
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.raylet import GRANTED, MAX_CALLS, Dependency, LeaseReply
from tests.core_worker.parts import (
    OWN,
    Asked,
    address,
    config,
    id_of,
    lease_ids,
    object_id,
    pending,
    prepare,
    shape,
)

LINGER_S = 0.0101
TIME_IS_UP_S = 0.501
SHORT_US = 100.0
LONG_US = 50_000.0


def with_arguments(*names: str) -> PendingTask:
    task = pending(prepare())
    task.dependencies = tuple(Dependency(object_id(name), OWN, 1) for name in names)
    return task


class Scene:
    """See the head of this file."""

    def __init__(self, **overrides: object) -> None:
        self.now = 100.0
        self.tasks = TaskManager(None)
        self.asked = Asked(lambda: self.now)
        self.submitter = NormalTaskSubmitter(config(**overrides), lease_ids(), self.tasks, self.asked)

    def submit(self, prepared: PreparedTemplate, count: int = 1, depth: int = 0) -> list[PendingTask]:
        made = [pending(prepared, depth=depth) for _ in range(count)]
        for task in made:
            self.tasks.add_task(task)
            self.submitter.on_task_ready(task, self.now)
        self.end_turn()
        return made

    def ready(self, task: PendingTask) -> None:
        self.tasks.add_task(task)
        self.submitter.on_task_ready(task, self.now)
        self.end_turn()

    def end_turn(self) -> None:
        while self.asked.turns:
            self.asked.turns -= 1
            self.submitter.on_turn(self.now)

    def grant(self, contended: bool = False, number: int = 0) -> LeasedWorker:
        """The oldest open request is granted."""
        request = self.open_requests()[number]
        name = f"worker-{len(self.asked.requests)}"
        reply = LeaseReply(GRANTED, address(name), pid=1, contended=contended)
        self.submitter.on_granted(request, reply, self.now)
        return next(worker for worker in self.leased() if worker.lease_id == request.lease_id)

    def open_requests(self) -> list:  # type: ignore[type-arg]
        return [request for key in self.submitter._keys.values() for request in key.requests.values()]

    def leased(self) -> list[LeasedWorker]:
        return self.submitter.leased_workers()

    def finish(self, worker: LeasedWorker, count: int = 1) -> list[PendingTask]:
        """The oldest tasks of a worker end, one by one."""
        ended = []
        for _ in range(count):
            task = next(iter(worker.in_flight.values()))
            self.submitter.on_task_answered(worker, task, self.now)
            self.tasks.move(task, FINISHED)
            self.submitter.refill(worker, self.now)
            ended.append(task)
        self.end_turn()
        return ended

    def give_back(self, worker: LeasedWorker) -> list[PendingTask]:
        """The worker answers NOT_STARTED for all but the first."""
        tasks = list(worker.in_flight.values())[1:]
        for task in tasks:
            self.submitter.on_task_given_back(worker, task, self.now)
            self.submitter.refill(worker, self.now)
        self.submitter.on_tasks_unstarted(tasks, self.now)
        self.end_turn()
        return tasks

    def wait(self, duration_s: float) -> None:
        """Time passes; timers that were asked for go off."""
        end = self.now + duration_s
        while self.asked.timers and self.asked.timers[0] <= end:
            self.now = self.asked.timers.pop()
            self.submitter.on_timer(self.now)
        self.now = end

    def returned(self) -> list[LeasedWorker]:
        return [worker for worker, _, _ in self.asked.returned]

    def tasks_of(self, worker: LeasedWorker) -> list[PendingTask]:
        return [task for each, task in self.asked.pushed if each is worker]


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- leases


def test_a_task_asks_for_a_worker_and_is_pushed_to_it(scene: Scene) -> None:
    (task,) = scene.submit(prepare(), depth=3)
    (request,) = scene.asked.requests
    assert (request.key.shape, request.raylet, request.grant_or_reject, request.depth) == (shape(), None, False, 3)
    assert task.state is QUEUED
    worker = scene.grant()
    assert scene.asked.pushed == [(worker, task)] and (task.state, task.worker, task.sequence) == (PUSHED, worker, 1)


def test_a_worker_is_reused_for_any_function_of_the_same_shape(scene: Scene) -> None:
    scene.submit(prepare("f"))
    worker = scene.grant()
    scene.finish(worker)
    scene.submit(prepare("g"))
    assert len(scene.tasks_of(worker)) == 2 and len(scene.asked.requests) == 1


def test_shapes_do_not_share_workers(scene: Scene) -> None:
    scene.submit(prepare("f"))
    scene.finish(scene.grant())
    for other in (prepare("g", shape=shape(2)), prepare("h", shape=shape(1, COLOR="red"))):
        scene.submit(other)
    assert len(scene.asked.pushed) == 1 and len(scene.asked.requests) == 3


@pytest.mark.parametrize("kind", [STRATEGY_DEFAULT, STRATEGY_SPREAD, STRATEGY_AFFINITY, STRATEGY_PLACEMENT_GROUP])
def test_g103_a_worker_is_asked_for_where_most_of_the_arguments_are_unless_somebody_says_where(kind: int) -> None:
    scene = Scene()
    scene.submitter._best_raylet = lambda dependencies: address(f"raylet-with-{len(dependencies)}")
    task = pending(prepare(shape=msgspec.structs.replace(shape(), strategy=SchedulingStrategy(kind))))
    task.dependencies = (Dependency(object_id("a"), OWN, 1),)
    scene.ready(task)
    scene.submit(prepare())
    expected = address("raylet-with-1") if kind == STRATEGY_DEFAULT else None
    assert [request.raylet for request in scene.asked.requests] == [expected, None]


def test_open_requests_are_bounded(scene: Scene) -> None:
    scene.submit(prepare(), count=1000)
    assert len(scene.asked.requests) == 10
    scene.submitter.node_count = 14
    scene.submitter.on_request_ended(scene.asked.requests[0], scene.now)
    assert len(scene.open_requests()) == 14


def test_the_bound_of_open_requests_is_configurable() -> None:
    scene = Scene(max_pending_lease_requests_per_scheduling_category=3)
    scene.submit(prepare(), count=10)
    assert len(scene.open_requests()) == 3


def test_late_binding_makes_several_requests_for_a_task_and_takes_the_late_ones_back() -> None:
    scene = Scene(lease_requests_per_task=2)
    first, second = scene.submit(prepare(), count=2)
    assert len(scene.open_requests()) == 4
    assert scene.tasks_of(scene.grant(number=3)) == [first] and len(scene.open_requests()) == 3
    assert not scene.asked.cancelled, "a task still waits"
    assert scene.tasks_of(scene.grant(number=1)) == [second], "the task that was not needed elsewhere"
    assert scene.asked.cancelled == scene.open_requests() and len(scene.asked.cancelled) == 2


def test_requests_that_are_not_needed_any_more_are_taken_back_once(scene: Scene) -> None:
    prepared = prepare(mean_us=SHORT_US)
    scene.submit(prepared, count=3)
    worker = scene.grant()
    assert len(scene.tasks_of(worker)) == 3 and scene.asked.cancelled == scene.open_requests()
    scene.finish(worker, 3)
    assert len(scene.asked.cancelled) == 2


def test_a_worker_granted_against_a_cancelled_request_is_used_or_given_back(scene: Scene) -> None:
    prepared = prepare()
    busy, first, second = scene.submit(prepared, count=3)
    scene.grant()
    for task in (first, second):
        scene.submitter.remove_queued(task, scene.now)
    unwanted = scene.grant()
    assert unwanted.in_flight == {} and scene.returned() == []
    scene.wait(LINGER_S)
    assert scene.returned() == [unwanted]
    wanted = scene.grant()
    scene.submit(prepared)
    assert scene.asked.pushed[-1][0] is wanted


def test_a_cancelled_request_that_ends_makes_room_for_a_new_one(scene: Scene) -> None:
    """While it is open it counts as a request; when it ends, what has come since asks again."""
    scene.submit(prepare(mean_us=SHORT_US), count=2)
    worker = scene.grant()
    (cancelled,) = scene.asked.cancelled
    (late,) = scene.submit(prepare(mean_us=LONG_US))
    assert scene.open_requests() == [cancelled] and late.state is QUEUED
    scene.submitter.on_request_ended(cancelled, scene.now)
    assert len(scene.open_requests()) == 1 and scene.open_requests() != [cancelled]
    assert worker.in_flight


def test_spillback_asks_the_other_raylet_once_and_finally(scene: Scene) -> None:
    scene.submit(prepare())
    elsewhere = address("raylet-2")
    (first,) = scene.asked.requests
    scene.submitter.on_redirected(first, elsewhere, True, scene.now)
    second = scene.asked.requests[-1]
    assert scene.open_requests() == [second] and second.lease_id != first.lease_id
    assert (second.raylet, second.grant_or_reject) == (elsewhere, True)
    scene.submitter.on_redirected(second, None, False, scene.now)
    third = scene.asked.requests[-1]
    assert scene.open_requests() == [third] and (third.raylet, third.grant_or_reject) == (None, False)
    assert scene.grant().raylet is None


def test_a_cancelled_request_is_not_redirected(scene: Scene) -> None:
    scene.submit(prepare(mean_us=SHORT_US), count=2)
    scene.grant()
    (cancelled,) = scene.asked.cancelled
    scene.submitter.on_redirected(cancelled, address("raylet-2"), True, scene.now)
    assert scene.open_requests() == []


def test_take_queue_empties_it(scene: Scene) -> None:
    tasks = scene.submit(prepare(), count=3)
    assert scene.submitter.take_queue(scene.asked.requests[0]) == tasks
    scene.submitter.on_request_ended(scene.asked.requests[0], scene.now)
    assert len(scene.asked.requests) == 3


# --- pipelining


def test_nothing_is_queued_behind_a_function_that_was_never_measured(scene: Scene) -> None:
    scene.submit(prepare(), count=2)
    assert len(scene.grant().in_flight) == 1


def test_nothing_long_is_queued_and_nothing_behind_it(scene: Scene) -> None:
    scene.submit(prepare(mean_us=LONG_US), count=2)
    worker = scene.grant()
    assert len(worker.in_flight) == 1
    scene.submit(prepare("g", mean_us=SHORT_US))
    assert len(worker.in_flight) == 1


def test_short_functions_are_pipelined_up_to_the_target(scene: Scene) -> None:
    scene.submit(prepare(mean_us=900.0), count=30)
    assert len(scene.grant().in_flight) == 11  # 10 ms of work


def test_the_pipeline_is_refilled_when_half_of_it_has_drained(scene: Scene) -> None:
    scene.submit(prepare(mean_us=900.0), count=30)
    worker = scene.grant()
    scene.finish(worker, 5)
    assert len(worker.in_flight) == 6
    scene.finish(worker)
    assert len(worker.in_flight) == 11


def test_a_function_of_some_milliseconds_is_pipelined_while_more_tasks_wait_than_workers_can_come(scene: Scene) -> None:
    tasks = scene.submit(prepare(mean_us=3_000.0), count=14)
    worker = scene.grant()
    assert list(worker.in_flight.values()) == tasks[:3] and len(scene.open_requests()) == 10  # 9 ms of work
    scene.finish(worker, 2)
    assert list(worker.in_flight.values()) == tasks[2:4], "the last ten wait for workers of their own"


def test_tiny_tasks_do_not_wake_a_worker_each(scene: Scene) -> None:
    scene.submit(prepare("slow"), count=4)
    workers = [scene.grant() for _ in range(4)]
    for worker in workers:
        scene.finish(worker)
    scene.submit(prepare(mean_us=5.0), count=30)
    assert sorted(len(worker.in_flight) for worker in workers) == [0, 1, 9, 20]


def test_idle_workers_come_first(scene: Scene) -> None:
    scene.submit(prepare("slow"), count=2)
    busy, idle = scene.grant(), scene.grant()
    scene.finish(idle)
    prepared = prepare(mean_us=SHORT_US)
    scene.submit(prepared)
    assert len(idle.in_flight) == 1
    scene.finish(idle)
    scene.finish(busy)
    scene.submit(prepared, count=2)
    assert [len(busy.in_flight), len(idle.in_flight)] == [1, 1]


def test_pipelining_has_a_hard_limit() -> None:
    scene = Scene(max_tasks_in_flight_per_worker=4)
    scene.submit(prepare(mean_us=1.0), count=30)
    assert len(scene.grant().in_flight) == 4


def test_work_is_shared_among_idle_workers(scene: Scene) -> None:
    scene.submit(prepare("slow"), count=2)
    workers = [scene.grant(), scene.grant()]
    scene.submit(prepare("fast", mean_us=SHORT_US), count=9)
    for worker in workers:
        scene.finish(worker)
    assert sorted(len(worker.in_flight) for worker in workers) == [0, 9], "the first to ask takes what is there"
    scene.wait(LINGER_S)
    assert scene.asked.reclaimed == [worker for worker in workers if worker.in_flight]


def test_acknowledged_is_everything_before_the_oldest_unanswered(scene: Scene) -> None:
    scene.submit(prepare(mean_us=SHORT_US), count=3)
    worker = scene.grant()
    assert worker.acknowledged() == 0
    second = worker.in_flight[2]
    scene.submitter.on_task_answered(worker, second, scene.now)
    assert worker.acknowledged() == 0
    scene.finish(worker)
    assert worker.acknowledged() == 2
    scene.finish(worker)
    assert worker.acknowledged() == 3


def test_unstarted_tasks_come_back_to_the_front_in_their_order(scene: Scene) -> None:
    prepared = prepare(mean_us=900.0)
    tasks = scene.submit(prepared, count=20)
    worker = scene.grant()
    assert scene.give_back(worker) == tasks[1:11]
    other = scene.grant()
    assert scene.tasks_of(other) == tasks[1:12]


def test_g101_nothing_is_queued_behind_a_task_that_blocks(scene: Scene) -> None:
    """The worker has given tasks back. It may be waiting for one of them, so they go elsewhere."""
    tasks = scene.submit(prepare(mean_us=SHORT_US), count=5)
    worker = scene.grant()
    scene.give_back(worker)
    assert list(worker.in_flight.values()) == tasks[:1] and len(scene.open_requests()) == 4
    other = scene.grant()
    assert list(other.in_flight.values()) == tasks[1:]
    scene.finish(worker)
    scene.submit(prepare(mean_us=SHORT_US), count=2)
    assert len(worker.in_flight) == 2, "it has ended, and all is well again"


def test_tasks_behind_a_surprisingly_long_one_are_fetched_for_an_idle_worker(scene: Scene) -> None:
    prepared = prepare(mean_us=SHORT_US)
    scene.submit(prepare("slow"), count=2)
    stuck, idle = scene.grant(), scene.grant()
    scene.submit(prepared, count=4)
    scene.finish(stuck)
    assert len(stuck.in_flight) == 4
    scene.finish(idle)
    assert scene.asked.reclaimed == []
    scene.wait(LINGER_S)
    assert scene.asked.reclaimed == [stuck] and scene.returned() == []
    tasks = scene.give_back(stuck)
    assert list(idle.in_flight.values()) == tasks
    scene.wait(LINGER_S)
    assert scene.asked.reclaimed == [stuck]


def test_tiny_tasks_are_not_fetched_from_a_worker_that_is_only_late(scene: Scene) -> None:
    scene.submit(prepare("slow"), count=2)
    late, idle = scene.grant(), scene.grant()
    scene.submit(prepare(mean_us=5.0), count=4)
    scene.finish(late)
    scene.finish(idle)
    scene.wait(STALL_S * 0.9)
    assert len(late.in_flight) == 4 and scene.asked.reclaimed == []
    scene.wait(STALL_S)
    assert scene.asked.reclaimed == [late]


def test_what_is_queued_on_a_node_that_leaves_is_asked_back_once(scene: Scene) -> None:
    scene.submit(prepare("slow"), count=2)
    crowded, busy = scene.grant(), scene.grant()
    scene.submit(prepare(mean_us=SHORT_US), count=4)
    scene.finish(crowded)
    assert (len(crowded.in_flight), len(busy.in_flight)) == (4, 1)
    for worker in (crowded, busy, crowded):
        scene.submitter.on_node_leaving(worker.address.node_id, scene.now)
    assert scene.asked.reclaimed == [crowded], "what runs is left to run"


def test_a_worker_that_is_granted_on_a_node_that_leaves_goes_back_at_once(scene: Scene) -> None:
    scene.submit(prepare())
    there = address("leaving")
    scene.submitter.on_node_leaving(there.node_id, scene.now)
    scene.submitter.on_granted(scene.open_requests()[0], LeaseReply(GRANTED, there, pid=1), scene.now)
    assert scene.asked.pushed == [] and scene.leased() == []
    assert [reason for _, _, reason in scene.asked.returned] == ["its node is to leave"]


def test_an_idle_worker_of_a_node_that_leaves_goes_back_and_is_not_killed(scene: Scene) -> None:
    scene.submit(prepare())
    worker = scene.grant()
    scene.finish(worker)
    scene.submitter.on_node_leaving(worker.address.node_id, scene.now)
    assert scene.asked.returned == [(worker, False, "its node is to leave")] and scene.leased() == []


def test_tasks_that_did_not_start_are_spread_over_all_that_are_idle(scene: Scene) -> None:
    prepared = prepare()
    scene.submit(prepared, count=2)
    workers = [scene.grant(), scene.grant()]
    for worker in workers:
        scene.finish(worker)
    unstarted = [pending(prepared), pending(prepared)]
    for task in unstarted:
        scene.tasks.add_task(task)
        scene.tasks.move(task, QUEUED)
        scene.tasks.move(task, PUSHED)
    scene.submitter.on_tasks_unstarted(unstarted, scene.now)
    assert scene.asked.pushed[2:] == list(zip(workers, unstarted, strict=True))


# --- the cluster is gone


def test_when_the_cluster_is_gone_its_workers_and_all_that_was_to_run_are_forgotten(scene: Scene) -> None:
    prepared = prepare()
    scene.submit(prepared, count=3)
    worker, idle = scene.grant(), scene.grant()
    scene.finish(idle)
    scene.submit(prepared, count=1)
    assert len(worker.in_flight) == len(idle.in_flight) == 1
    scene.submit(prepared)
    pushed = list(scene.asked.pushed)
    scene.submitter.forget_all()
    assert all(task.worker is None for _, task in pushed) and scene.leased() == []
    scene.submitter.on_timer(scene.now)
    scene.submitter.on_node_leaving(worker.address.node_id, scene.now)
    assert scene.submitter.on_worker_lost(worker) == scene.submitter.on_worker_lost(idle) == []
    scene.grant()
    assert scene.asked.pushed == pushed and scene.asked.returned == []


def test_when_the_cluster_is_gone_a_worker_that_was_idle_gets_nothing_more(scene: Scene) -> None:
    prepared = prepare()
    scene.submit(prepared)
    worker = scene.grant()
    scene.finish(worker)
    scene.submitter.forget_all()
    scene.submit(prepared)
    assert len(scene.tasks_of(worker)) == 1


# --- giving back, fairness


def test_an_idle_lease_lingers_and_then_goes_back(scene: Scene) -> None:
    scene.submit(prepare())
    worker = scene.grant()
    scene.finish(worker)
    scene.wait(LINGER_S / 2)
    assert scene.asked.returned == []
    scene.wait(LINGER_S / 2)
    assert scene.asked.returned == [(worker, False, "idle")] and scene.leased() == []


def test_a_loop_of_single_tasks_keeps_its_lease_for_ever(scene: Scene) -> None:
    prepared = prepare()
    scene.submit(prepared)
    worker = scene.grant()
    for _ in range(100):
        scene.finish(worker)
        scene.wait(LINGER_S * 0.9)
        scene.submit(prepared)
    assert scene.asked.returned == [] and len(scene.asked.requests) == 1


def test_without_lingering_a_lease_goes_back_at_once() -> None:
    scene = Scene(worker_lease_linger_milliseconds=0)
    scene.submit(prepare())
    worker = scene.grant()
    scene.finish(worker)
    assert scene.returned() == [worker]


def test_a_lingering_lease_goes_back_when_others_wait(scene: Scene) -> None:
    scene.submit(prepare())
    worker = scene.grant()
    scene.finish(worker)
    scene.submitter.on_revoke(scene.now)
    assert scene.returned() == [worker]


def test_where_others_wait_leases_do_not_linger(scene: Scene) -> None:
    scene.submit(prepare())
    worker = scene.grant(contended=True)
    scene.finish(worker)
    assert scene.returned() == [worker]


def test_an_old_lease_goes_back_between_two_tasks_when_others_wait(scene: Scene) -> None:
    """The submitter asks for another worker at the same time, so that the queue gets its turn again."""
    scene.submit(prepare(mean_us=LONG_US), count=50)
    worker = scene.grant()
    scene.wait(TIME_IS_UP_S)
    scene.submitter.on_revoke(scene.now)
    assert scene.asked.returned == [], "it is busy"
    scene.finish(worker)
    assert scene.asked.returned == [(worker, False, "lease time is up")] and len(scene.open_requests()) == 10


def test_an_old_lease_is_kept_when_nobody_waits(scene: Scene) -> None:
    scene.submit(prepare(mean_us=LONG_US), count=50)
    worker = scene.grant()
    scene.wait(10 * TIME_IS_UP_S)
    scene.finish(worker)
    assert scene.asked.returned == [] and len(worker.in_flight) == 1


def test_a_revocation_is_forgotten_after_a_while(scene: Scene) -> None:
    scene.submit(prepare(mean_us=LONG_US), count=50)
    worker = scene.grant(contended=True)
    scene.wait(2 * TIME_IS_UP_S)
    scene.finish(worker)
    assert scene.asked.returned == []


def test_an_overdue_lease_drains_before_it_goes_back(scene: Scene) -> None:
    scene.submit(prepare(mean_us=900.0), count=50)
    worker = scene.grant()
    scene.wait(TIME_IS_UP_S)
    scene.submitter.on_revoke(scene.now)
    scene.finish(worker, 10)
    assert len(worker.in_flight) == 1 and scene.asked.returned == []
    scene.finish(worker)
    assert scene.returned() == [worker]


def test_a_lease_that_goes_back_while_its_last_reply_is_looked_at_takes_no_more(scene: Scene) -> None:
    (task,) = scene.submit(prepare())
    worker = scene.grant()
    scene.submitter.on_task_answered(worker, task, scene.now)
    scene.submitter.on_revoke(scene.now)
    scene.submit(prepare())
    scene.submitter.refill(worker, scene.now)
    assert scene.returned() == [worker] and len(scene.asked.pushed) == 1 and len(scene.open_requests()) == 1


# --- trouble


def test_a_lost_worker_is_given_up_with_all_that_it_had(scene: Scene) -> None:
    tasks = scene.submit(prepare(mean_us=SHORT_US), count=3)
    worker = scene.grant()
    assert scene.submitter.on_worker_lost(worker) == tasks
    assert scene.asked.returned == [(worker, True, "its channel broke")]
    assert scene.submitter.on_worker_lost(worker) == [] and len(scene.asked.returned) == 1
    assert all(task.worker is None for task in tasks)


def test_tasks_of_a_lost_worker_that_had_not_started_ask_for_another(scene: Scene) -> None:
    scene.submit(prepare(mean_us=SHORT_US), count=3)
    lost = scene.submitter.on_worker_lost(scene.grant())
    for request in list(scene.asked.cancelled):
        scene.submitter.on_request_ended(request, scene.now)
    scene.submitter.on_tasks_unstarted(lost[1:], scene.now)
    assert list(scene.grant().in_flight.values()) == lost[1:]


def test_g23_a_worker_that_exits_takes_no_more_tasks_and_goes_back(scene: Scene) -> None:
    scene.submit(prepare(max_calls=1), count=3)
    worker = scene.grant()
    scene.submitter.on_worker_used_up(worker)
    scene.finish(worker)
    assert scene.asked.returned == [(worker, True, MAX_CALLS)] and len(scene.tasks_of(worker)) == 1
    assert len(scene.open_requests()) == 2


def test_g23_a_used_up_worker_is_retired_also_where_its_node_is_to_leave(scene: Scene) -> None:
    scene.submit(prepare(max_calls=1))
    worker = scene.grant()
    scene.submitter.on_node_leaving(worker.address.node_id, scene.now)
    scene.submitter.on_worker_used_up(worker)
    scene.finish(worker)
    assert scene.asked.returned == [(worker, True, MAX_CALLS)]


def test_a_queued_task_that_is_cancelled_takes_its_request_along(scene: Scene) -> None:
    (task,) = scene.submit(prepare())
    scene.submitter.remove_queued(task, scene.now)
    assert scene.asked.cancelled == scene.asked.requests
    scene.submitter.on_request_ended(scene.asked.requests[0], scene.now)
    assert scene.open_requests() == []


def test_gpu_ids_of_the_lease_are_the_workers(scene: Scene) -> None:
    scene.submit(prepare())
    reply = LeaseReply(GRANTED, address("w"), pid=5, gpu_ids=(1, 3))
    scene.submitter.on_granted(scene.asked.requests[0], reply, scene.now)
    (worker,) = scene.leased()
    assert (worker.gpu_ids, worker.pid, worker.address.worker_id) == ((1, 3), 5, id_of("w"))


def test_why_can_name_an_open_request(scene: Scene) -> None:
    (task,) = scene.submit(prepare())
    assert scene.submitter.request_of(task) is scene.asked.requests[0]
    scene.grant()
    assert scene.submitter.request_of(task) is None


# --- large arguments


def test_workers_are_reused_for_the_same_large_arguments_only(scene: Scene) -> None:
    first, second = with_arguments("a"), with_arguments("b")
    for task in (first, second):
        scene.ready(task)
    assert [request.key.dependencies for request in scene.asked.requests] == [first.dependencies, second.dependencies]
    scene.grant()
    assert [task for _, task in scene.asked.pushed] == [first]
    scene.ready(again := with_arguments("a"))
    scene.finish(scene.leased()[0])
    assert [task for _, task in scene.asked.pushed] == [first, again]


def test_each_new_request_for_large_arguments_goes_where_they_are_until_it_is_redirected(scene: Scene) -> None:
    best, other = address("best"), address("other")
    scene.submitter._best_raylet = lambda dependencies: best
    for _ in range(2):
        task = with_arguments("a")
        scene.tasks.add_task(task)
        scene.submitter.on_task_ready(task, scene.now)
    scene.end_turn()
    assert [request.raylet for request in scene.open_requests()] == [best, best]
    scene.submitter.on_redirected(scene.open_requests()[0], other, True, scene.now)
    assert [request.raylet for request in scene.open_requests()] == [best, other]
    scene.submitter.on_request_ended(scene.open_requests()[1], scene.now)
    assert [request.raylet for request in scene.open_requests()] == [best, best]


def test_a_request_says_how_many_tasks_wait_for_further_workers_and_whether_its_own_may_be_retried(scene: Scene) -> None:
    scene.submit(prepare(max_retries=0), count=3)
    assert [(request.backlog, request.retriable) for request in scene.asked.requests] == [(2, False), (1, False), (0, False)]
    scene.submit(prepare(shape=shape(2), max_retries=-1))
    assert scene.asked.requests[-1].retriable


def test_a_key_of_large_arguments_is_forgotten_when_it_is_at_rest(scene: Scene) -> None:
    scene.ready(with_arguments("a"))
    worker = scene.grant()
    scene.finish(worker)
    assert len(scene.submitter._keys) == 1
    scene.submitter.on_revoke(scene.now)
    assert not scene.submitter._keys and not scene.leased()


def test_so_is_one_of_a_placement_group_and_its_next_task_makes_another(scene: Scene) -> None:
    in_group = prepare(shape=msgspec.structs.replace(shape(), strategy=SchedulingStrategy(group_id=b"group")))
    for _ in range(2):
        scene.submit(in_group)
        scene.finish(scene.grant())
        scene.submitter.on_revoke(scene.now)
        assert not scene.submitter._keys and not scene.leased()


def test_idle_workers_go_back_before_others_are_asked_for_in_their_place(scene: Scene) -> None:
    scene.submit(prepare())
    worker = scene.grant()
    scene.finish(worker)
    assert not scene.asked.returned
    scene.ready(with_arguments("a"))
    assert [returned for returned, *_ in scene.asked.returned] == [worker]


# --- cost


@pytest.mark.parametrize(
    ("mean_us", "workers", "most"), [(5, 1, 20), (5, 16, 70), (1_000, 1, 250), (1_000, 16, 250), (3_000, 16, 510)]
)
def test_a_message_brings_several_of_a_thousand_tasks_also_to_many_workers(mean_us: int, workers: int, most: int) -> None:
    """A worker gets what it is given in one turn in one message. Tiny tasks are answered together, others one by one."""
    scene = Scene()
    scene.submit(prepare("slow"), count=workers)
    leased = [scene.grant() for _ in range(workers)]
    for worker in leased:
        scene.finish(worker)
    prepared, messages, begin = prepare(mean_us=mean_us), 0, len(scene.asked.pushed)
    for _ in range(10):  # a turn submits at most 100
        scene.submit(prepared, count=100)
        messages += len({id(worker) for worker, _ in scene.asked.pushed[begin:]})
        begin = len(scene.asked.pushed)
        for worker in leased if mean_us < TINY_US else ():
            scene.finish(worker, len(worker.in_flight))
    while busy := [worker for worker in leased if worker.in_flight]:
        for worker in busy:
            scene.finish(worker)
            messages += len({id(worker) for worker, _ in scene.asked.pushed[begin:]})
            begin = len(scene.asked.pushed)
    assert len(scene.asked.pushed) == 1_000 + workers and messages <= most


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("mean_us", [20.0, 200.0, 2_000.0])
def test_a_thousand_tasks_cost_at_most_1_1_records_each(scene: Scene, workers: int, mean_us: float) -> None:
    """Pushes, lease requests, cancellations, returns and reclaims, from the first submission to the last lease returned."""
    prepared = prepare()
    scene.submit(prepared, count=1000)
    leased = [scene.grant() for _ in range(workers)]
    while any(worker.in_flight for worker in leased):
        for worker in leased:
            if worker.in_flight:
                prepared.on_duration(int(mean_us))
                scene.now += mean_us / 1e6 / workers
                scene.finish(worker)
    for request in list(scene.asked.cancelled):
        scene.submitter.on_request_ended(request, scene.now)
    scene.wait(1)
    asked = scene.asked
    records = [asked.pushed, asked.requests, asked.cancelled, asked.returned, asked.reclaimed]
    assert len(asked.pushed) == 1000 and scene.leased() == scene.open_requests() == []
    assert sum(map(len, records)) <= 1100
