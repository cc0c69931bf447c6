"""G112: lease messages that come late, twice, or are answered into the void."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

import minray
from minray.platform.transport.queued_channel import CALL
from minray.simulation import FaultPlan
from minray.simulation.trace import SEND, STATE, first_difference
from tests.seeds import seeds
from tests.simulation.interference import replay_requests, watch_sends
from tests.simulation.judge import Account, judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(3)


@minray.remote(max_retries=0)
def work(number: int, seconds: float = 0.02) -> int:
    print(f"work {number}")
    time.sleep(seconds)
    return number


@minray.remote(max_retries=0)
def nest(number: int) -> int:
    return sum(minray.get([work.remote(100 * number + i) for i in range(1, 3)]))


def bursts() -> list[Any]:
    """Leases are asked for, used, left idle, given back and asked for again."""
    values: list[Any] = []
    for burst in range(3):
        values += [outcome_of(ref) for ref in [work.remote(10 * burst + i) for i in range(6)]]
        time.sleep(0.3)
    return values


EXPECTED = [10 * burst + i for burst in range(3) for i in range(6)]


def once(cluster: Cluster) -> bool:
    return set(Counter(printed(cluster)).values()) == {1}


@pytest.mark.parametrize("word", ["RequestWorkerLease", "ReturnWorkerLease", "PushTask"])
@pytest.mark.parametrize("seed", seeds(4))
def test_g112_a_request_answered_into_the_void_is_made_again_and_does_nothing_twice(seed: int, word: str) -> None:
    results, cluster = judged(
        bursts, lambda cluster: cluster.when(word, f"{word} reply").break_channels(at_most=6), seed=seed, nodes=1 + seed
    )
    assert results == EXPECTED and once(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_g112_every_request_may_come_twice(seed: int) -> None:
    """No worker is killed by a repetition, no task runs twice, and the sums are right all the time."""
    accounts = []

    def strike(cluster: Cluster) -> None:
        cluster.when().replay(one_in=1)
        accounts.append(Account(cluster))

    plan = FaultPlan({"delay": 0.2, "preempt": 0.1})
    results, cluster = judged(
        lambda: [*bursts(), minray.get([nest.remote(i) for i in range(1, 4)])], strike, seed=seed, nodes=2, faults=plan
    )
    assert results == [*EXPECTED, [203, 403, 603]] and once(cluster)
    assert all(account.problems == [] for account in accounts)


@pytest.mark.parametrize("seed", SEEDS)
def test_g112_a_repeated_return_does_not_end_somebody_else_s_lease(seed: int) -> None:
    """Ray PR #55469: a ReturnWorkerLease comes again when its worker serves the next lease."""
    returns = 0

    def strike(cluster: Cluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            nonlocal returns
            if word == "ReturnWorkerLease" and message.kind == CALL:
                returns += 1
                for delay_s in (0.05, 0.2 + 0.1 * seed, 1.0):
                    cluster.world.loop.world.call_later(delay_s, again, end, message)
            return True

        def again(end: Any, message: Any) -> None:
            if not end.closed:
                end.pipe.put(message)

        watch_sends(cluster, on_send)

    def body() -> list[Any]:
        short = bursts()
        return [*short, *[outcome_of(ref) for ref in [work.remote(50 + i, 2.0) for i in range(2)]]]

    results, cluster = judged(body, strike, seed=seed, nodes=1)
    assert results == [*EXPECTED, 50, 51] and once(cluster) and returns >= 6


@pytest.mark.parametrize("seed", SEEDS)
def test_g112_a_cancellation_that_overtakes_its_request_cancels_it(seed: int) -> None:
    """The request comes again, after its cancellation: nothing is granted, and nothing waits."""
    requests: list[Any] = []

    def strike(cluster: Cluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            if word == "RequestWorkerLease":
                requests.append((end, message))
                return len(requests) <= 2 or len(requests) % 2 == 0  # every other one is held back
            if word == "CancelWorkerLease":
                cluster.world.loop.world.call_later(0.1 * seed, late)
            return True

        def late() -> None:
            for end, message in requests[2:]:
                if not end.closed:
                    end.pipe.put(message)

        watch_sends(cluster, on_send)

    def body() -> list[Any]:
        busy = [work.remote(i, 1.0) for i in range(2)]
        time.sleep(0.5)
        queued = [work.remote(i, 1.0) for i in range(2, 8)]
        time.sleep(0.1)
        for ref in queued:
            minray.cancel(ref)
        return [outcome_of(ref) for ref in [*busy, *queued]]

    results, cluster = judged(body, strike, seed=seed, nodes=1)
    assert results == [0, 1, *["TaskCancelledError"] * 6]
    held_back = len(requests[2::2])
    lives = [e for e in cluster.trace.events if e.kind == STATE and e.details[0] == "lease" and e.details[2] == ""]
    assert held_back > 0 and len(lives) == len(requests) - held_back, "a cancelled request began to wait"
    assert sorted(printed(cluster)) == ["work 0", "work 1"]


@pytest.mark.parametrize("seed", seeds(4))
def test_l1_a_spillback_to_a_node_that_dies_comes_home(seed: int) -> None:
    """Ray #63405: the raylet that was named is lost before it is asked, and says nothing at all."""

    def strike(cluster: Cluster) -> None:
        requests = cluster.when("RequestWorkerLease").to("raylet/n1")
        if seed % 2:
            requests.lose_all()
        requests.always.soon.node("n1").lose()

    results, cluster = judged(
        lambda: [outcome_of(ref) for ref in [work.remote(i, 1.0) for i in range(6)]], strike, seed=seed
    )
    assert results == list(range(6))
    assert (
        any(event.kind == SEND and event.details == ("RequestWorkerLease", "raylet/n1") for event in cluster.trace.events)
        or seed % 2
    )


@pytest.mark.parametrize("seconds", [20.0, 50.0, 120.0])
@pytest.mark.parametrize("others", [("head", "n2"), ("n2",), ("head",)])
def test_l3_no_lease_is_lost_in_a_partition(seconds: float, others: tuple[str, ...]) -> None:
    """The driver is on n2. Also where the gcs sees both sides, and nobody is declared dead however long it takes."""

    def body() -> list[Any]:
        spread = work.options(scheduling_strategy="SPREAD", max_retries=-1)
        return [outcome_of(ref) for ref in [spread.remote(i, 15.0) for i in range(6)]]

    def strike(cluster: Cluster) -> None:
        cluster.wait(5)
        for other in others:
            cluster.partition("n1", other, seconds)

    assert judged(body, strike, nodes=3, settle_s=300, driver_node="n2")[0] == list(range(6))


@pytest.mark.parametrize("seed", seeds(3))
def test_the_same_seed_gives_the_same_run_with_interference_too(seed: int) -> None:
    plan = FaultPlan({"crash": 0.01, "delay": 0.2, "preempt": 0.1, "long_delay": 0.005}, budget=2)

    def story() -> tuple[list[Any], Cluster]:
        return judged(bursts, replay_requests, seed=seed, faults=plan)

    (one, first), (other, second) = story(), story()
    assert one == other and first_difference(first.trace, second.trace) == ""
    assert first.trace.digest() == second.trace.digest()
