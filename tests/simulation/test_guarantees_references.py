"""G57 to G65: references on their way, under repeated, late and lost messages and the deaths of owners and borrowers.

While no process dies, every value must be there; when owners die, the error must say so; and in both cases nothing may be
left when all references are gone, which ``judged`` checks.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

import minray
from minray.platform.transport.queued_channel import CALL
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation import judge
from tests.simulation.interference import replay_requests, watch_sends
from tests.simulation.judge import judged, outcome_of
from tests.simulation.roles import Cluster

SEEDS = seeds(3)
BORROWING = [
    f"{word}{reply}" for word in ("AddBorrower", "RemoveBorrower", "GetObject", "PushTask") for reply in ("", " reply")
]
LOST = ("OwnerDiedError", "WorkerCrashedError", "RayTaskError(OwnerDiedError)", "RayTaskError(WorkerCrashedError)")


@minray.remote(max_retries=0)
def make(value: Any) -> list[Any]:
    return [minray.put(value), minray.put([minray.put(value)])]


@minray.remote(max_retries=0)
def relay(refs: list[Any], hops: int) -> list[Any]:
    return refs if hops == 0 else minray.get(relay.remote(refs, hops - 1))


@minray.remote(max_retries=0)
def read(refs: list[Any]) -> list[Any]:
    time.sleep(0.05)
    first, second = minray.get(refs)
    return [first, minray.get(second[0])]


@minray.remote(max_retries=0)
def keep(name: str, refs: list[Any]) -> None:
    judge.kept[name] = refs


@minray.remote(max_retries=0)
def read_kept(name: str) -> Any:
    return minray.get(judge.kept[name][0])


def chain() -> list[Any]:
    """References made in one worker, returned through others, read in further ones, dropped everywhere else meanwhile."""
    refs = [relay.remote(minray.get(make.remote(i)), 2) for i in range(3)]
    return [outcome_of(read.remote(outcome_of(ref))) for ref in refs]


def breaking(cluster: Cluster) -> None:
    cluster.when(*BORROWING).break_channels(at_most=8, one_in=4)


@pytest.mark.parametrize("interfere", [breaking, replay_requests])
@pytest.mark.parametrize("seed", SEEDS)
def test_g58_an_object_lives_while_its_references_travel(seed: int, interfere: Any) -> None:
    plan = FaultPlan({"delay": 0.3, "preempt": 0.1, "long_delay": 0.003}, budget=1)
    result, _ = judged(chain, interfere, seed=seed, nodes=3, faults=plan)
    assert result == [[i, i] for i in range(3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_g57_g62_when_an_owner_dies_its_objects_are_lost_and_only_those(seed: int) -> None:
    def body() -> list[Any]:
        mine = minray.put("mine")
        theirs = minray.get(make.remote("theirs"))
        borrowed = relay.remote([theirs[0], mine], 1)
        return [outcome_of(ref) for ref in (theirs[0], theirs[1], mine, relay.remote([mine], 1), borrowed)]

    plan = FaultPlan({"crash": 0.03, "delay": 0.1, "crash_prefix": 0.3}, budget=2)
    theirs, nested, mine, through, borrowed = judged(tolerating(body), seed=seed, faults=plan)[0]
    assert theirs in ("theirs", *LOST) and mine == "mine"
    assert isinstance(nested, list) or nested in LOST
    assert isinstance(through, list) or through in LOST
    assert isinstance(borrowed, list) or borrowed in LOST


def tolerating(body: Any) -> Any:
    """Run the body again if a crash strikes it before it returns; references in results become words."""

    def again() -> list[Any]:
        while True:
            try:
                return [value if isinstance(value, str) else ["references"] for value in body()]
            except minray.exceptions.RayError:
                continue

    return again


@pytest.mark.parametrize("word", ["AddBorrower", "PushTask reply", "GetObject", "RemoveBorrower", "AddBorrower reply"])
@pytest.mark.parametrize("number", range(1, 6))
def test_g62_owners_borrowers_and_lenders_may_die_at_every_message_of_a_borrow(word: str, number: int) -> None:
    """A lender that dies when the owner has noted its ticket, and before the reference has left, is one of these."""

    def body() -> list[Any]:
        return [outcome if isinstance(outcome, str) else "read" for outcome in (steps(i) for i in range(2))]

    nodes: list[dict[str, Any]] = [{"num_cpus": 2, "resources": {"making": 1}}, {"num_cpus": 2, "resources": {"passing": 1}}]
    result, _ = judged(body, lambda cluster: cluster.when(word).of("worker").kill(number), nodes=nodes)
    assert set(result) <= {"read", *LOST} and "read" in result


def steps(number: int) -> Any:
    """Made on one node, passed on by another, read anywhere; the error's name at the first step that fails."""
    made = outcome_of(make.options(resources={"making": 1}).remote(number))
    if isinstance(made, str):
        return made
    passed = outcome_of(relay.options(resources={"passing": 1}).remote(made, 0))
    del made
    return passed if isinstance(passed, str) else outcome_of(read.remote(passed))


@pytest.mark.parametrize("seed", SEEDS)
def test_g58_a_removal_that_overtakes_a_repeated_addition_counts(seed: int) -> None:
    """Ray #18552: AddBorrower is repeated when its ticket is spent already; the object must go all the same."""
    repeated = 0

    def strike(cluster: Cluster) -> None:
        additions: list[Any] = []

        def on_send(end: Any, message: Any, word: str) -> bool:
            nonlocal repeated
            if word == "AddBorrower" and message.kind == CALL:
                additions.append((end, message))
            if word == "RemoveBorrower":
                for channel, addition in additions:
                    if not channel.closed:
                        repeated += 1
                        cluster.world.loop.world.call_later(0.01 * seed, channel.pipe.put, addition)
            return True

        watch_sends(cluster, on_send)

    assert judged(chain, strike, seed=seed)[0] == [[i, i] for i in range(3)]
    assert repeated > 0


@pytest.mark.parametrize("seed", seeds(3))
def test_g58_g59_what_a_worker_keeps_lives_and_then_goes(seed: int) -> None:
    """The references stay in a worker's globals after its task, and the driver has none."""

    def body() -> list[Any]:
        minray.get([keep.remote(f"{i}", [minray.put(i)]) for i in range(3)])
        time.sleep(30)
        values = [outcome_of(read_kept.remote(f"{i}")) for i in range(3)]
        judge.kept.clear()
        return values

    try:
        assert judged(body, breaking, seed=seed, nodes=[{"num_cpus": 1}])[0] == [0, 1, 2]
    finally:
        judge.kept.clear()


@pytest.mark.parametrize("seconds", [50.0, 100.0])
def test_g58_tickets_are_given_back_when_a_partition_is_over(seconds: float) -> None:
    """The borrowers drop their references while they cannot reach the owner, for longer than any channel lives."""

    def body() -> list[Any]:
        refs = [minray.put(i) for i in range(2)]
        spread = read_slowly.options(scheduling_strategy="SPREAD")
        readers = [spread.remote(refs) for _ in range(4)]
        return [outcome_of(reader) for reader in readers]

    def strike(cluster: Cluster) -> None:
        cluster.wait(2)
        for other in ("head", "n2"):
            cluster.partition("n1", other, seconds)

    result, _ = judged(body, strike, nodes=3, settle_s=300)
    assert result == [[0, 1]] * 4


@minray.remote(max_retries=-1)
def read_slowly(refs: list[Any]) -> list[Any]:
    time.sleep(1)
    values: list[Any] = minray.get(refs)
    time.sleep(10)
    return values


@minray.remote(max_retries=0, num_cpus=0)
def make_slowly(value: Any) -> list[Any]:
    time.sleep(0.5)
    return [minray.put(value)] if value is not None else []


@pytest.mark.parametrize("seed", SEEDS)
def test_g63_g64_a_worker_that_owns_what_others_refer_to_outlives_its_task_and_its_idleness(seed: int) -> None:
    """Six workers on a node with one CPU: those that own nothing are ended, which shows that the others were asked."""

    def body() -> list[Any]:
        made = minray.get([make_slowly.remote(value) for value in (0, None, 1, None, 2, None)])
        time.sleep(30)
        return minray.get([refs[0] for refs in made if refs])

    ended: list[int] = []

    def count_deaths(cluster: Cluster) -> None:
        cluster.world.loop.world.call_later(
            25, lambda: ended.extend(1 for event in cluster.trace.events if event.details == ("ends",))
        )

    values, _ = judged(body, count_deaths, nodes=[{"num_cpus": 1}], seed=seed, faults=FaultPlan.quiet())
    assert values == [0, 1, 2] and len(ended) >= 2


@minray.remote(resources={"away": 1})
class Keeper:
    def keep(self, refs: list[Any]) -> None:
        self.refs = refs


def test_g58_what_a_node_had_borrowed_that_died_is_given_back() -> None:
    """No process of the node says that it is dead; the judge sees what is left of the object."""

    def body() -> str:
        keeper = Keeper.remote()
        minray.get(keeper.keep.remote([minray.put("kept")]))
        time.sleep(10)
        return outcome_of(keeper.keep.remote([]))

    result, _ = judged(
        body,
        lambda cluster: cluster.after(5).raylet("n1").kill(),
        nodes=[{"num_cpus": 1}, {"num_cpus": 1, "resources": {"away": 1}}],
    )
    assert result == "ActorDiedError"


def test_a_question_for_what_does_not_exist_yet_is_asked_once() -> None:
    """The question is kept open, and answered when the value exists."""
    asked: list[str] = []

    result, _ = judged(
        lambda: minray.get(read.remote([late.remote(), minray.put([minray.put("b")])])),
        lambda cluster: cluster.when("GetObject").note(asked),
        nodes=1,
    )
    assert result == ["late", "b"] and len(asked) <= 4


@minray.remote
def late() -> str:
    time.sleep(8)
    return "late"
