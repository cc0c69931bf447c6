"""Which worker serves a lease, when one is started, and when one may go: the pool by itself."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.state_table import InvalidTransition, StateMachine
from minray.common.task_spec import RuntimeEnvInfo
from minray.protocol.base import Address
from minray.raylet.start_failures import BACKOFF_FIRST_S, MAX_FAILED_IN_A_ROW
from minray.raylet.worker_pool import (
    ASK_AGAIN_S,
    IDLE,
    WORKER_STATES,
    Actions,
    Binding,
    Worker,
    WorkerPool,
)

PLAIN = Binding(b"job1", RuntimeEnvInfo(), for_actor=False)
OTHER_JOB = PLAIN._replace(job_id=b"job2")
OTHER_ENV = PLAIN._replace(runtime_env=RuntimeEnvInfo(working_dir="/x"))
AN_ACTOR = PLAIN._replace(for_actor=True)
FIRST_GPU, BOTH_GPUS = PLAIN._replace(gpus=(0,)), PLAIN._replace(gpus=(0, 1))


class Pool:
    """A pool, with starts that succeed when the test says so."""

    def __init__(self, cpus: int = 2, prestart: int = 0) -> None:
        numbers = count(1)
        self.states = StateMachine("worker", WORKER_STATES, None)
        self.machine = WorkerPool(
            self.states,
            cpus=cpus,
            prestart=prestart,
            register_timeout_s=60,
            patience_s=180,
            is_kept=lambda worker: worker.lease_id in self.kept,
            new_id=lambda: next(numbers).to_bytes(16, "big"),
        )
        self.started: list[Worker] = []
        """Told to start, and not yet registered or dead."""
        self.serving: dict[bytes, Worker] = {}
        self.kept: set[bytes] = set()
        """Leases of actors and of tasks that wait for others."""
        self.now = 0.0

    def assign(self) -> Actions:
        actions = self.machine.assign(self.now)
        self.started = [worker for worker in self.started if worker not in actions.kills] + actions.starts
        self.serving |= dict(actions.matches)
        return actions

    def request(self, lease_id: bytes, binding: Binding = PLAIN) -> None:
        self.machine.request(lease_id, binding)
        self.assign()

    def register(self, worker: Worker | None = None) -> Worker:
        worker = worker or self.started[0]
        self.started.remove(worker)
        assert self.machine.on_registered(Address(worker.worker_id, b"", ""), 1, self.now)
        self.assign()
        return worker

    def lease(self, lease_id: bytes, binding: Binding = PLAIN) -> Worker:
        """A lease that is served at once, if need be by a new worker."""
        self.request(lease_id, binding)
        if lease_id not in self.serving:
            self.register()
        return self.serving[lease_id]

    def release(self, worker: Worker) -> None:
        del self.serving[worker.lease_id]
        self.machine.release_worker(worker, self.now)
        self.assign()

    def die(self, worker: Worker, cause: str = "exit code 1", is_excused: bool = True) -> None:
        self.started = [each for each in self.started if each is not worker]
        self.machine.on_exit(worker.worker_id, cause, is_excused, self.now)

    def reap(self, free_cpus: int) -> list[tuple[Worker, bool]]:
        return self.machine.reap(self.now, free_cpus, 1.0)


# --- Which worker ------------------------------------------------------------------------------------------------------


def test_a_worker_serves_one_job_and_environment_for_good() -> None:
    pool = Pool()
    worker = pool.lease(b"1")
    assert worker.binding == PLAIN
    pool.release(worker)
    assert pool.lease(b"2", OTHER_ENV) is not worker
    assert pool.lease(b"3", OTHER_JOB) is not worker
    assert pool.lease(b"4") is worker


def test_a_worker_serves_the_same_gpus_for_good() -> None:
    """A library that it has imported has seen them, and cannot be shown others."""
    pool = Pool()
    worker = pool.lease(b"1", FIRST_GPU)
    pool.release(worker)
    assert pool.lease(b"2", BOTH_GPUS) is not worker
    assert pool.lease(b"3") is not worker
    assert pool.lease(b"4", FIRST_GPU) is worker


def test_an_actor_does_not_take_over_a_worker_that_has_run_tasks() -> None:
    pool = Pool()
    worker = pool.lease(b"1")
    pool.release(worker)
    assert pool.lease(b"2", AN_ACTOR) is not worker
    assert pool.lease(b"3") is worker


def test_the_newest_idle_worker_is_taken_first() -> None:
    pool = Pool()
    first, second = pool.lease(b"1"), pool.lease(b"2")
    pool.release(second)
    pool.now = 1
    pool.release(first)
    assert pool.lease(b"3") is first


def test_an_own_worker_is_preferred_to_an_unspecialised_one() -> None:
    pool = Pool()
    mine = pool.lease(b"1")
    pool.release(mine)
    pool.machine.expect(2, PLAIN)
    pool.assign()
    fresh = pool.register()
    assert pool.lease(b"2") is mine
    assert pool.lease(b"3", OTHER_JOB) is fresh


def test_a_lease_that_is_cancelled_takes_no_worker() -> None:
    pool = Pool()
    pool.request(b"1")
    pool.machine.cancel(b"1")
    assert pool.register().lease_id == b""


# --- Starting ----------------------------------------------------------------------------------------------------------


def test_an_idle_worker_that_is_killed_or_dies_serves_nobody() -> None:
    pool = Pool()
    doomed, dead = pool.lease(b"1"), pool.lease(b"2")
    pool.release(doomed)
    pool.release(dead)
    pool.machine.doom(doomed, "it has used too much memory")
    pool.die(dead)
    pool.request(b"3")
    assert pool.serving == {} and len(pool.started) == 1
    assert pool.register().lease_id == b"3"


def test_workers_are_started_before_anybody_asks() -> None:
    pool = Pool(cpus=4, prestart=3)
    pool.assign()
    assert len(pool.started) == 3
    pool.request(b"1")
    assert len(pool.started) == 3  # one of them will do


def test_at_most_one_per_cpu_is_starting_at_once() -> None:
    pool = Pool(cpus=3)
    for number in range(10):
        pool.request(bytes([number]))
    assert len(pool.started) == 3
    pool.register()
    assert len(pool.started) == 3


def test_expected_leases_find_workers_ready() -> None:
    pool = Pool(cpus=4)
    pool.machine.expect(2, PLAIN)
    pool.assign()
    pool.machine.expect(2, PLAIN)
    pool.assign()
    assert len(pool.started) == 2


def test_a_failed_start_slows_down_the_next() -> None:
    pool = Pool()
    pool.request(b"1")
    pool.die(pool.started[0])
    actions = pool.assign()
    assert (pool.started, actions.wake_at) == ([], BACKOFF_FIRST_S)
    pool.now = BACKOFF_FIRST_S
    pool.assign()
    assert len(pool.started) == 1


def fail_starts(pool: Pool, times: int) -> list[tuple[bytes, str]]:
    """Let every start fail so often; returns the leases that were given up."""
    failures: list[tuple[bytes, str]] = []
    for _ in range(times):
        actions = pool.assign()
        if not pool.started:
            assert actions.wake_at is not None
            pool.now = actions.wake_at
            pool.assign()
        for worker in list(pool.started):
            pool.die(worker, "no processes left")
    failures += pool.assign().failures
    return failures


@pytest.mark.parametrize("is_kept", [True, False])
def test_while_nothing_can_be_started_only_workers_that_become_free_are_worth_waiting_for(is_kept: bool) -> None:
    """Ray 2.60 waits for ever. An actor keeps its worker, and so does a task that waits for the lease in question."""
    pool = Pool()
    pool.kept = {b"actor"} if is_kept else set()
    pool.lease(b"actor")
    pool.request(b"1")
    while pool.now < 170:
        assert fail_starts(pool, 1) == []
    pool.now += 20
    failures = pool.assign().failures
    assert [lease_id for lease_id, _ in failures] == ([b"1"] if is_kept else [])
    assert not is_kept or "no worker could be started" in failures[0][1]
    if not is_kept:
        pool.release(pool.serving[b"actor"])
        assert b"1" in pool.serving


def test_after_a_few_failed_starts_the_waiting_leases_fail_with_the_reason() -> None:
    pool = Pool()
    pool.request(b"1")
    assert fail_starts(pool, MAX_FAILED_IN_A_ROW - 1) == []
    reason = f"no worker could be started, {MAX_FAILED_IN_A_ROW} times in a row: no processes left"
    assert fail_starts(pool, 1) == [(b"1", reason)]
    assert pool.now < 5
    assert pool.assign().failures == [], "it is told once"
    pool.request(b"2")
    pool.now += 5
    pool.assign()
    pool.register()
    assert pool.serving.keys() == {b"2"} and pool.machine._failures_before == {}


def test_leases_that_a_living_worker_can_serve_go_on_waiting() -> None:
    pool = Pool()
    worker = pool.lease(b"1")
    pool.request(b"2")
    pool.request(b"3", OTHER_JOB)
    failed = fail_starts(pool, MAX_FAILED_IN_A_ROW)
    assert [lease_id for lease_id, _ in failed] == [b"3"]
    pool.release(worker)
    assert pool.serving[b"2"] is worker


def test_a_start_that_succeeds_makes_up_for_those_that_failed() -> None:
    pool = Pool()
    pool.request(b"1")
    assert fail_starts(pool, MAX_FAILED_IN_A_ROW - 1) == []
    pool.now += 10
    pool.assign()
    pool.die(pool.register())
    pool.request(b"2")
    assert fail_starts(pool, MAX_FAILED_IN_A_ROW - 1) == []


def die_before_first_tasks(pool: Pool, times: int, binding: Binding = PLAIN) -> list[tuple[bytes, str]]:
    """Grant leases one after the other to workers that die before their first task. Return the leases that got none."""
    failures = []
    for number in range(times):
        lease_id = b"doomed %d" % number
        pool.machine.request(lease_id, binding)
        actions = pool.assign()
        if actions.failures:
            failures += actions.failures
            continue
        if not pool.started and lease_id not in pool.serving:
            assert actions.wake_at is not None
            pool.now = actions.wake_at
            pool.assign()
        if lease_id not in pool.serving:
            pool.register()
        pool.die(pool.serving.pop(lease_id), "exit code 3", is_excused=False)
    return failures


def test_a_worker_that_dies_before_its_first_task_slows_down_the_next_one_of_its_environment() -> None:
    pool = Pool(cpus=2, prestart=2)
    pool.assign()
    pool.register()
    pool.register()
    assert die_before_first_tasks(pool, 1) == []
    pool.request(b"1")
    actions = pool.assign()
    assert (dict(pool.serving), actions.wake_at) == ({}, BACKOFF_FIRST_S), "there is an idle one"
    assert pool.started == []
    said = "waits for a worker on node x: workers die before they begin a task: exit code 3"
    assert pool.machine.describe_wait(b"1", "x") == said
    pool.request(b"2", OTHER_ENV)
    assert b"2" in pool.serving
    pool.now = BACKOFF_FIRST_S
    pool.assign()
    pool.register()
    assert b"1" in pool.serving


def test_after_a_few_such_deaths_in_a_row_leases_fail_with_the_reason_until_one_more_is_tried() -> None:
    pool = Pool()
    assert die_before_first_tasks(pool, MAX_FAILED_IN_A_ROW) == []
    reason = "workers die before they begin a task, 5 times in a row: exit code 3"
    assert [why for _, why in die_before_first_tasks(pool, 3)] == [reason] * 3
    assert pool.now < 5
    pool.now += 5
    assert die_before_first_tasks(pool, 1) == []
    assert len(die_before_first_tasks(pool, 1)) == 1
    pool.now += 5
    pool.release(pool.lease(b"good"))
    assert die_before_first_tasks(pool, MAX_FAILED_IN_A_ROW) == []


def test_a_task_that_has_begun_makes_up_for_workers_that_died_before_one() -> None:
    pool = Pool()
    assert die_before_first_tasks(pool, MAX_FAILED_IN_A_ROW - 1) == []
    pool.now += 5
    pool.die(pool.lease(b"1"), is_excused=True)
    del pool.serving[b"1"]
    assert die_before_first_tasks(pool, MAX_FAILED_IN_A_ROW) == []


def test_leases_whose_environment_has_a_living_worker_wait_for_the_next_try() -> None:
    pool = Pool()
    worker = pool.lease(b"1")
    assert die_before_first_tasks(pool, MAX_FAILED_IN_A_ROW + 3) == []
    pool.request(b"2")
    pool.release(worker)
    assert pool.serving[b"2"] is worker, "what it has run shows that the environment is good"


def test_what_is_remembered_of_such_deaths_ends_with_the_job() -> None:
    pool = Pool()
    die_before_first_tasks(pool, 1, OTHER_JOB)
    pool.machine.on_job_finished(OTHER_JOB.job_id)
    assert pool.machine._first_tasks == {}


def test_starts_that_fail_together_count_once() -> None:
    pool = Pool(cpus=8, prestart=8)
    pool.request(b"1")
    for worker in list(pool.started):
        pool.die(worker)
    assert pool.assign().failures == []


def test_a_worker_that_does_not_register_in_time_is_killed() -> None:
    pool = Pool()
    pool.request(b"1")
    (silent,) = pool.started
    pool.now = 59.9
    actions = pool.assign()
    assert (actions.kills, actions.wake_at) == ([], 60)
    pool.now = 60
    assert pool.assign().kills == [silent]
    assert len(pool.started) == 1  # another one is on its way
    assert not pool.machine.on_registered(Address(silent.worker_id, b"", ""), 1, pool.now)
    pool.die(silent)
    said = "waits for a worker on node x: none could be started: it did not register in time"
    assert pool.machine.describe_wait(b"1", "x") == said


def test_registering_twice_changes_nothing() -> None:
    pool = Pool()
    worker = pool.lease(b"1")
    assert pool.machine.on_registered(Address(worker.worker_id, b"", ""), 1, 0)
    assert pool.machine.state(worker.worker_id) == "LEASED"
    assert not pool.machine.on_registered(Address(b"stranger", b"", ""), 1, 0)


# --- Letting go --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle", "idle_for_s", "free_cpus", "asked"),
    [
        (2, 5, 2, 0),  # every idle worker could run something
        (3, 5, 2, 1),
        (3, 5, 0, 3),
        (3, 0.5, 0, 0),  # not idle for long enough
        (0, 5, 0, 0),
    ],
)
def test_idle_workers_beyond_the_free_cpus_are_asked_to_end(
    idle: int, idle_for_s: float, free_cpus: int, asked: int
) -> None:
    pool = Pool()
    for worker in [pool.lease(bytes([number])) for number in range(idle)]:
        pool.release(worker)
    assert pool.machine.has_to_reap(free_cpus) == (idle > free_cpus)
    pool.now += idle_for_s
    assert [force for _, force in pool.reap(free_cpus)] == [False] * asked


def test_the_longest_idle_is_asked_first_and_one_that_refuses_last() -> None:
    pool = Pool()
    first, second = pool.lease(b"1"), pool.lease(b"2")
    pool.release(first)
    pool.now = 1
    pool.release(second)
    pool.now = 5
    assert pool.reap(1) == [(first, False)]
    assert pool.reap(1) == []  # it is gone, or will answer
    pool.machine.on_exit_refused(first, pool.now)
    pool.now = 10
    assert pool.reap(1) == [(second, False)]


def test_a_worker_that_was_asked_is_not_leased_until_it_refuses() -> None:
    pool = Pool()
    worker = pool.lease(b"1")
    pool.release(worker)
    pool.now = 5
    pool.reap(0)
    pool.request(b"2")
    assert b"2" not in pool.serving
    pool.machine.on_exit_refused(worker, pool.now)
    pool.assign()
    assert pool.serving[b"2"] is worker


def test_g64_workers_of_a_finished_job_have_no_choice() -> None:
    pool = Pool()
    mine, theirs = pool.lease(b"1"), pool.lease(b"2", OTHER_JOB)
    pool.release(mine)
    pool.release(theirs)
    pool.machine.on_job_finished(b"job2")
    assert pool.machine.has_to_reap(5)
    assert pool.reap(5) == [(theirs, True)]


def test_a_retired_worker_is_asked_again_and_never_leased() -> None:
    pool = Pool()
    worker = pool.lease(b"1")
    pool.machine.retire(worker, pool.now)
    pool.machine.on_exit_refused(worker, pool.now)
    assert pool.lease(b"2") is not worker
    assert pool.reap(5) == []
    pool.now += ASK_AGAIN_S + 0.1
    assert pool.reap(5) == [(worker, False)]
    assert pool.reap(5) == []


# --- Any history -------------------------------------------------------------------------------------------------------


def test_the_table_of_states_refuses_what_cannot_be() -> None:
    pool = Pool()
    worker = pool.lease(b"1")
    pool.machine.doom(worker, "why not")
    with pytest.raises(InvalidTransition):
        pool.machine.release_worker(worker, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["request", "register", "release", "die", "cancel", "doom", "reap", "refuse", "wait"]),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_worker_has_at_most_one_lease_and_no_lease_is_forgotten(steps: list[tuple[str, int]]) -> None:
    pool, waiting, numbers, asked = Pool(), {}, count(1), list[Worker]()
    bindings = [PLAIN, OTHER_ENV, OTHER_JOB, AN_ACTOR]
    for step, number in steps:
        workers = list(pool.machine.workers.values())
        worker = workers[number % len(workers)] if workers else None
        if step == "request":
            lease_id = next(numbers).to_bytes(4, "big")
            waiting[lease_id] = bindings[number % 4]
            pool.machine.request(lease_id, waiting[lease_id])
        elif step == "register" and pool.started:
            pool.register(pool.started[number % len(pool.started)])
        elif step == "release" and pool.serving:
            served = list(pool.serving.values())[number % len(pool.serving)]
            if pool.machine.state(served.worker_id) == "LEASED":
                pool.release(served)
        elif step == "die" and worker:
            pool.serving.pop(worker.lease_id, None)
            asked = [each for each in asked if each is not worker]
            pool.die(worker, is_excused=number % 2 == 0)
        elif step == "cancel" and waiting:
            pool.machine.cancel(waiting.popitem()[0])
        elif step == "doom" and worker:
            pool.machine.doom(worker, "doomed")
            pool.started = [each for each in pool.started if each is not worker]
        elif step == "reap":
            asked += [each for each, _ in pool.reap(number % 3)]
        elif step == "refuse" and asked:
            pool.machine.on_exit_refused(asked.pop(), pool.now)
        elif step == "wait":
            pool.now += number
        actions = pool.assign()
        for lease_id in [*dict(actions.failures), *pool.serving]:
            waiting.pop(lease_id, None)
        assert len({each.worker_id for each in pool.serving.values()}) == len(pool.serving)
        assert all(each.lease_id == lease_id for lease_id, each in pool.serving.items())
        assert len(pool.started) <= 2
        assert len(pool.states) == len(pool.machine.workers)
    for _ in range(100):  # once starts succeed, every lease is served
        pool.now += 10
        actions = pool.assign()
        while pool.started:
            pool.register()
        for lease_id in [*dict(actions.failures), *pool.serving]:
            waiting.pop(lease_id, None)
    assert not waiting
    assert all(pool.machine.state(each.worker_id) != IDLE for each in pool.serving.values())
