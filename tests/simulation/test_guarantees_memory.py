"""G20, G89: nodes that run out of memory, on simulated clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.simulation.cluster import HEAD
from tests.seeds import seeds
from tests.simulation.judge import judged, outcome_of, printed
from tests.simulation.roles import Cluster

WATCHING = {"memory_monitor_refresh_ms": 250}
SEEDS = seeds(2)


@minray.remote
def work(seconds: float) -> str:
    print("works")
    time.sleep(seconds)
    return "done"


def short_of_memory(kills: int) -> Callable[[Cluster], None]:
    """The head has no memory until this number of its leased workers has died of it."""

    def strike(cluster: Cluster) -> None:
        node = cluster.world.nodes[HEAD]
        for _ in range(kills):
            cluster.wait_until(lambda: any(entry.worker for entry in cluster.raylets[HEAD]._broker.entries.values()))
            leased = [entry.worker for entry in cluster.raylets[HEAD]._broker.entries.values() if entry.worker]
            cluster.wait(0.5)
            node.memory_used = node.memory_bytes - 1
            cluster.wait_until(lambda leased=leased: leased[0].worker_id not in cluster.raylets[HEAD]._broker.pool.workers)
            node.memory_used = 0

    return strike


def memory_judged(body: Callable[[], Any], kills: int, seed: int) -> tuple[Any, Cluster]:
    return judged(body, short_of_memory(kills), seed=seed, nodes=1, system_config=WATCHING)


@pytest.mark.parametrize("seed", SEEDS)
def test_g20_a_task_killed_for_memory_is_made_again_without_using_up_its_retries(seed: int) -> None:
    def body() -> Any:
        return outcome_of(work.options(max_retries=1).remote(3))

    result, cluster = memory_judged(body, 3, seed)
    assert result == "done"
    assert printed(cluster).count("works") == 4


def test_g20_each_pause_is_twice_as_long() -> None:
    def body() -> Any:
        @minray.remote(max_retries=1)
        def note() -> None:
            print(f"at {time.time():.1f}")
            time.sleep(3)

        return outcome_of(note.remote())

    _, cluster = memory_judged(body, 3, 0)
    begun = [float(line.split()[1]) for line in printed(cluster)]
    pauses = [later - earlier for earlier, later in zip(begun, begun[1:], strict=False)]
    assert [round(pause - pauses[0]) for pause in pauses] == [0, 1, 3], "1, 2 and 4 seconds, each after the same time"


def test_g40_a_task_that_pauses_after_it_was_killed_is_cancelled_at_once_and_can_say_why_it_waits() -> None:
    """The third pause would take four seconds."""

    def body() -> tuple[str, Any, float]:
        ref = work.remote(3)
        while "after a pause (attempt 3)" not in minray.why(ref):
            time.sleep(0.1)
        said, began = minray.why(ref), time.monotonic()
        minray.cancel(ref)
        return said, outcome_of(ref), time.monotonic() - began

    (said, outcome, took_s), cluster = memory_judged(body, 3, 0)
    assert said.endswith("is retried after a pause (attempt 3)")
    assert outcome == "TaskCancelledError" and took_s < 1
    assert printed(cluster).count("works") == 3


def test_g20_a_task_without_retries_fails_with_what_the_node_had() -> None:
    def body() -> Any:
        with pytest.raises(minray.exceptions.OutOfMemoryError, match="is killed: no worker was left whose task") as caught:
            minray.get(work.options(max_retries=0).remote(3))
        return caught.value.capacity_bytes

    capacity, cluster = memory_judged(body, 1, 0)
    assert capacity == cluster.world.nodes[HEAD].memory_bytes
    assert printed(cluster).count("works") == 1


def test_g89_idle_workers_are_killed_before_tasks() -> None:
    def body() -> Any:
        warm = [work.remote(0.1) for _ in range(2)]
        minray.get(warm)
        return outcome_of(work.remote(2))

    def strike(cluster: Cluster) -> None:
        broker = cluster.raylets[HEAD]._broker
        cluster.wait_until(lambda: len(printed(cluster)) == 3)
        cluster.wait_until(lambda: any(not worker.lease_id for worker in broker.pool.workers.values()))
        node = cluster.world.nodes[HEAD]
        idle = [worker for worker in broker.pool.workers.values() if not worker.lease_id]
        assert idle, "one of the two workers has nothing to do"
        node.memory_used = node.memory_bytes
        cluster.wait_until(lambda: all(worker.worker_id not in broker.pool.workers for worker in idle))
        node.memory_used = 0

    result, cluster = judged(body, strike, seed=0, nodes=1, system_config=WATCHING)
    assert result == "done"
    assert printed(cluster).count("works") == 3, "no task has died"


@minray.remote
class Worker:
    def work(self, seconds: float) -> str:
        time.sleep(seconds)
        return "done"


@pytest.mark.parametrize(("max_restarts", "max_task_retries", "outcome"), [
    (0, 0, "OutOfMemoryError"), (1, 0, "ActorUnavailableError"), (1, 1, "done"),
])
def test_a_call_whose_actor_was_killed_for_memory_says_so(max_restarts: int, max_task_retries: int, outcome: str) -> None:
    def body() -> tuple[Any, Any]:
        worker = Worker.options(max_restarts=max_restarts, max_task_retries=max_task_retries).remote()
        call = worker.work.remote(3)
        first = outcome_of(call)
        if first != "done":
            with pytest.raises(minray.exceptions.RayError, match="of 8.00 GiB in use, more than 95%; .* is killed: "):
                minray.get(call)
        time.sleep(5)
        return first, outcome_of(worker.work.remote(0))

    result, _ = memory_judged(body, 1, 0)
    assert result == (outcome, "done" if max_restarts else outcome)
