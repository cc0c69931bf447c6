"""G19, G40, G43, G47, G48: cancelled tasks end, whatever breaks meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

import minray
from minray.core_worker.service import CoreWorkerService
from minray.protocol.core_worker import CancelTask, CancelTaskReply
from minray.rpc.service import Call
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.interference import replay_requests
from tests.simulation.judge import INTERRUPTED, judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(3)
LEASES = ["RequestWorkerLease", "RequestWorkerLease reply", "CancelWorkerLease", "ReturnWorkerLease"]
CANCELLED = ("TaskCancelledError", INTERRUPTED, "WorkerCrashedError")


@minray.remote
def rest(number: int, seconds: float) -> int:
    print(f"rest {number}")
    time.sleep(seconds)
    return number


@minray.remote
def cancel_for(refs: list[Any]) -> None:
    for _ in range(2):
        minray.cancel(refs[0])


@minray.remote
def family(depth: int) -> Any:
    print(f"family {depth}")
    return minray.get(family.remote(depth - 1)) if depth else time.sleep(1000)


@pytest.mark.parametrize("seed", SEEDS)
def test_g40_a_task_that_is_cancelled_before_it_starts_never_starts(seed: int) -> None:
    def body() -> list[Any]:
        busy = [rest.remote(i, 5) for i in range(4)]
        time.sleep(1)
        queued = [rest.remote(i, 5) for i in range(4, 8)]
        time.sleep(0.1 * seed)
        for ref in queued[::-1]:
            minray.cancel(ref)
        return [outcome_of(ref) for ref in busy + queued]

    result, cluster = judged(body, lambda cluster: cluster.when(*LEASES).break_channels(at_most=4), seed=seed)
    assert result == [0, 1, 2, 3, *["TaskCancelledError"] * 4]
    assert sorted(printed(cluster)) == [f"rest {i}" for i in range(4)]


@pytest.mark.parametrize("force", [False, True])
def test_g43_cancelling_a_finished_task_changes_nothing(force: bool) -> None:
    def body() -> int:
        ref = rest.remote(1, 0)
        minray.wait([ref])
        minray.cancel(ref, force=force)
        time.sleep(5)
        value: int = minray.get(ref)
        return value

    assert judged(body)[0] == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_g47_a_borrower_may_cancel_and_twice(seed: int) -> None:
    def body() -> list[Any]:
        ref = rest.remote(1, 1000)
        time.sleep(0.5)
        canceller = cancel_for.remote([ref])
        return [outcome_of(ref), outcome_of(canceller)]

    words = ["CancelObject", "CancelObject reply", "CancelTask", "CancelTask reply"]
    result, cluster = judged(body, lambda cluster: cluster.when(*words).break_channels(at_most=3), seed=seed)
    assert result == [INTERRUPTED, None]
    assert printed(cluster).count("rest 1") == 1, "a cancelled task is not tried again"


@pytest.mark.parametrize("seed", seeds(5))
def test_g48_every_cancelled_reference_resolves(seed: int) -> None:
    """Cancellations at all times of their tasks' lives, with workers that crash and requests that come twice."""

    def body() -> list[Any]:
        refs = [rest.options(max_retries=i % 3 - 1).remote(i, 0.05 * i) for i in range(8)]
        for i, ref in enumerate(refs):
            time.sleep(0.004 * (seed % 4))
            minray.cancel(ref, force=i % 2 == 0)
        return [outcome_of(ref) for ref in refs]

    plan = FaultPlan({"crash": 0.01, "delay": 0.2, "preempt": 0.1}, budget=2)
    result, _ = judged(body, replay_requests, seed=seed, faults=plan)
    assert all(outcome in (i, *CANCELLED) for i, outcome in enumerate(result))


@pytest.mark.parametrize("seed", SEEDS)
def test_g48_a_pushed_task_resolves_when_its_worker_dies_of_the_cancellation(seed: int) -> None:
    """Ray #24359: the worker is gone before it can say that the task was cancelled."""

    def body() -> Any:
        ref = rest.options(max_retries=-1).remote(1, 1000)
        time.sleep(1)
        minray.cancel(ref)
        return outcome_of(ref)

    result, cluster = judged(body, lambda cluster: cluster.when("CancelTask reply").of("worker").kill(), seed=seed)
    assert result == "TaskCancelledError"
    assert printed(cluster).count("rest 1") == 1


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("seed", seeds(3))
def test_g46_children_are_cancelled_too(seed: int, force: bool) -> None:
    def body() -> Any:
        ref = family.remote(2)
        time.sleep(3)
        minray.cancel(ref, force=force, recursive=True)
        return outcome_of(ref)

    assert (
        judged(body, lambda cluster: cluster.when("CancelTask", "CancelTask reply").break_channels(at_most=2), seed=seed)[0]
        in CANCELLED
    )


def test_g46_a_constructor_goes_on_when_the_task_that_calls_it_is_cancelled() -> None:
    @minray.remote(num_cpus=0)
    class Slow:
        def __init__(self) -> None:
            time.sleep(2)

    @minray.remote
    def parent() -> None:
        minray.get(Slow.options(name="slow", namespace="ours", lifetime="detached").remote().__ray_ready__.remote())

    def body() -> list[Any]:
        ref = parent.remote()
        time.sleep(1)
        minray.cancel(ref)
        cancelled, slow = outcome_of(ref), minray.get_actor("slow", "ours")
        ready = outcome_of(slow.__ray_ready__.remote())
        minray.kill(slow)
        return [cancelled in CANCELLED, ready]

    assert judged(body)[0] == [True, True]


def test_g42_a_worker_that_ends_itself_when_it_is_told_to_is_told_once_and_not_killed() -> None:
    words: list[str] = []

    def body() -> str:
        ref = rest.remote(1, 1000)
        time.sleep(1)
        minray.cancel(ref, force=True)
        return str(outcome_of(ref))

    result, _ = judged(body, lambda cluster: cluster.when().note(words), nodes=1)
    assert result in CANCELLED and words.count("CancelTask") == 1 and words.count("KillWorker") == 0


@minray.remote
class Keeper:
    def __init__(self, wanted: Any = None) -> None:
        pass

    def rest(self) -> None:
        time.sleep(5)


@minray.remote
def employer(stage: str) -> Any:
    if stage == "waits for an argument":
        keeper = Keeper.remote(rest.remote(1, 1000))
    else:
        keeper = Keeper.options(num_gpus=4 if stage == "waits for a node" else 0, max_restarts=1).remote()
    return minray.get(keeper.rest.remote())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stage", ["waits for an argument", "waits for a node", "lives"])
def test_g46_an_actor_that_a_cancelled_task_has_made_is_not_cancelled_but_ends_with_its_handle(
    stage: str, seed: int
) -> None:
    def body() -> Any:
        ref = employer.remote(stage)
        time.sleep(3)
        minray.cancel(ref)
        return outcome_of(ref)

    assert (
        judged(body, lambda cluster: cluster.when("CancelTask", "CancelTask reply").break_channels(at_most=2), seed=seed)[0]
        in CANCELLED
    )


@minray.remote
class Metronome:
    """Counts for ever, with pauses or as fast as it may."""

    def __init__(self) -> None:
        self.is_closed = False

    def count(self, seconds: float) -> Iterator[int]:
        try:
            for number in itertools.count():
                yield number
                time.sleep(seconds)
        finally:
            self.is_closed = True

    def was_closed(self) -> bool:
        return self.is_closed


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("seconds", "most_unread"), [(0.01, -1), (0.0, 1)], ids=["free", "held up"])
def test_g48_a_generator_of_an_actor_ends_when_it_is_cancelled(
    seconds: float, most_unread: int, threads: int, seed: int
) -> None:
    def body() -> list[Any]:
        metronome = Metronome.options(max_concurrency=threads).remote()
        items = metronome.count.options(_generator_backpressure_num_objects=most_unread).remote(seconds)
        assert minray.get(next(items)) == 0
        time.sleep(0.1)
        minray.cancel(items)
        return [outcome_of(items.completed()), minray.get(metronome.was_closed.remote())]

    assert judged(
        body,
        lambda cluster: cluster.when(
            "CancelTask", "CancelTask reply", "ReportGeneratorItem", "WaitForReader"
        ).break_channels(at_most=3),
        seed=seed,
    )[0] == [INTERRUPTED, True]


def test_g41_a_cancellation_that_is_answered_badly_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    cancel = CoreWorkerService.handle_CancelTask

    def refuse_first(service: CoreWorkerService, request: CancelTask, call: Call) -> CancelTaskReply | None:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) > 2:
            return cancel(service, request, call)
        call.fail("busy", "not now")
        return None

    monkeypatch.setattr(CoreWorkerService, "handle_CancelTask", refuse_first)

    def body() -> Any:
        ref = rest.remote(1, 1000)
        time.sleep(1)
        minray.cancel(ref)
        return outcome_of(ref)

    assert judged(body)[0] == INTERRUPTED
    assert len(asked) == 3 and all(later - earlier >= 0.5 for earlier, later in pairwise(asked))


@minray.remote(num_returns=2, max_calls=1)
def begun() -> Iterator[bytes]:
    yield b"large" * 100
    time.sleep(1000)
    yield b"never"


def lose_what_a_worker_says_last(cluster: Cluster) -> None:
    """The worker is used up, so it ends soon after its answer."""
    cluster.when("AbortObject").lose_with_channel(1)


def kill_a_worker_that_has_answered(cluster: Cluster) -> None:
    cluster.when("AbortObject").hold(1, 1, 2)
    cluster.when("PushTask reply").of("worker").then.soon.sender.kill()


@pytest.mark.parametrize("strike", [lose_what_a_worker_says_last, kill_a_worker_that_has_answered])
def test_l2_a_cancelled_task_is_answered_when_the_store_has_dropped_its_results(strike: Callable[[Cluster], None]) -> None:
    """Else nobody would drop them: its owner knows of no result, and its worker may have ended."""

    def body() -> list[Any]:
        refs = begun.remote()
        time.sleep(1)
        minray.cancel(refs[0])
        return [outcome_of(ref) for ref in refs]

    assert judged(body, strike, system_config={"max_direct_call_object_size": 100})[0] == [INTERRUPTED] * 2
