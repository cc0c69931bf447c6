"""G69, G70, G74, G94, G95: items of generators that are lost with their node are made again, on simulated clusters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import minray
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation import judge
from tests.simulation.interference import replay_requests
from tests.simulation.judge import judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(4)
LARGE = 200_000
NODES: list[dict[str, Any]] = [{"num_cpus": 2}, *({"num_cpus": 1, "resources": {"there": 1}} for _ in range(2))]
FAULTY = FaultPlan({"delay": 0.2, "preempt": 0.1, "duplicate": 0.05})


@minray.remote(resources={"there": 1}, max_retries=2)
def large(most: int, pause_s: float = 0.0) -> Iterator[bytes]:
    for number in range(1, most + 1):
        print(f"yield {number}")
        yield bytes([number]) * LARGE
        time.sleep(pause_s)


@minray.remote(resources={"there": 1}, max_retries=2)
def fewer_each_time(most: int) -> Iterator[bytes]:
    attempt = judge.kept["attempts"] = judge.kept.get("attempts", 0) + 1
    for number in range(1, most + 2 - attempt):
        yield bytes([number]) * LARGE


@minray.remote(num_cpus=0, resources={"there": 1}, max_restarts=-1)
class Maker:
    def large(self, most: int) -> Iterator[bytes]:
        for number in range(1, most + 1):
            yield bytes([number]) * LARGE

    def wrap(self, refs: list[Any]) -> tuple[Any, bytes]:
        return refs[0], bytes(LARGE)


@minray.remote(resources={"there": 1})
def late() -> bytes:
    time.sleep(2)
    return bytes(LARGE)


@pytest.fixture(autouse=True)
def nothing_kept() -> Any:
    yield
    judge.kept.clear()


def first_of(ref: Any) -> Any:
    value = outcome_of(ref)
    return value if isinstance(value, str) else value[0]


def ask_for_a_strike() -> None:
    """From a body that is about to read what will be lost."""
    judge.kept["due"] = True
    while "struck" not in judge.kept:
        time.sleep(0.1)


def lose_copies(cluster: Cluster, count: Callable[[], bool] = lambda: "due" in judge.kept) -> None:
    """The node with the items dies."""
    cluster.wait_until(count)
    (node,) = [name for name, raylet in cluster.raylets.items() if raylet.store.table.primaries()]
    cluster.node(node).lose()
    cluster.wait_until(lambda: not known_copies(cluster, node))
    judge.kept["struck"] = True


def known_copies(cluster: Cluster, node: str) -> bool:
    """Whether a driver believes that copies are there."""
    node_id = cluster.raylets[node].address.node_id
    drivers = [core for name, core in cluster.cores.items() if name.startswith("driver")]
    return any(node_id in copies.raylets for core in drivers for copies in core.directory._objects.values())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("disturb", [lambda cluster: None, replay_requests], ids=["quiet", "replayed"])
def test_g94_g74_lost_items_are_made_again_once_and_no_others(seed: int, disturb: Callable[[Cluster], None]) -> None:
    def body() -> tuple[bool, list[Any], list[Any], Any]:
        generator = large.remote(6)
        minray.get(generator.completed())
        refs = [next(generator) for _ in range(4)]
        ids = [ref.hex() for ref in refs]
        del refs[1]
        ask_for_a_strike()
        again = [*refs, *generator]
        values = [first_of(ref) for ref in again + again]
        return [ref.hex() for ref in refs] == [ids[0], *ids[2:]], values[:5], values[5:], next(generator, None)

    def strike(cluster: Cluster) -> None:
        disturb(cluster)
        lose_copies(cluster)

    result, cluster = judged(body, strike, nodes=NODES, seed=seed, faults=FAULTY)
    assert result == (True, [1, 3, 4, 5, 6], [1, 3, 4, 5, 6], None)
    assert set(Counter(printed(cluster)).values()) == {2}


@pytest.mark.parametrize("seed", SEEDS)
def test_g93_g94_items_that_are_lost_while_their_task_runs_come_again(seed: int) -> None:
    """Items lost before the retry begins come with it; items lost later, or known to be, cost another one."""

    def body() -> list[Any]:
        generator = large.options(max_retries=-1).remote(8, 0.5)
        refs = [next(generator)]
        return [first_of(ref) for ref in [*refs, *generator]]

    def strike(cluster: Cluster) -> None:
        lose_copies(cluster, lambda: len(printed(cluster)) == 4)

    values, _ = judged(body, strike, nodes=NODES, seed=seed, faults=FAULTY)
    assert values == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.filterwarnings("ignore:.*dynamic:DeprecationWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_g74_g94_lost_items_that_came_in_one_value_are_made_again(seed: int) -> None:
    def body() -> list[Any]:
        generator = minray.get(large.options(num_returns="dynamic").remote(3))
        refs = list(generator)
        ask_for_a_strike()
        return [first_of(ref) for ref in (refs[2], refs[0], refs[1])]

    values, _ = judged(body, lose_copies, nodes=NODES, seed=seed, faults=FAULTY)
    assert values == [3, 1, 2]


def test_g70_lost_items_without_retries_say_why() -> None:
    def body() -> tuple[list[Any], str]:
        generator = large.options(max_retries=0).remote(3)
        minray.get(generator.completed())
        ask_for_a_strike()
        refs = list(generator)
        try:
            minray.get(refs[0])
        except minray.exceptions.ObjectReconstructionFailedError as error:
            return [first_of(ref) for ref in refs], str(error.reason)
        return [], ""

    result, _ = judged(body, lose_copies, nodes=NODES)
    assert result[0] == ["ObjectReconstructionFailedError"] * 3 and "RETRIES_DISABLED" in result[1]


def test_g95_an_item_that_the_replay_does_not_yield_is_an_error() -> None:
    def body() -> list[Any]:
        generator = fewer_each_time.remote(3)
        minray.get(generator.completed())
        ask_for_a_strike()
        return [first_of(ref) for ref in generator]

    values, _ = judged(body, lose_copies, nodes=NODES)
    assert values == [1, 2, "StreamingGeneratorReplayInconsistentError"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("retries", [0, 2])
def test_g69_items_of_an_actors_method_are_made_again_if_it_has_retries(seed: int, retries: int) -> None:
    def body() -> list[Any]:
        maker = Maker.options(max_task_retries=retries).remote()
        generator = maker.large.options(num_returns="streaming").remote(3)
        minray.get(generator.completed())
        ask_for_a_strike()
        return [first_of(ref) for ref in generator]

    values, _ = judged(body, lose_copies, nodes=NODES, seed=seed, faults=FAULTY)
    assert values == ([1, 2, 3] if retries else ["ObjectReconstructionFailedError"] * 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_g70_what_was_only_inside_of_something_that_is_lost_with_it_takes_nobody_along(seed: int) -> None:
    def body() -> Any:
        inner = late.remote()
        outer = Maker.remote().wrap.remote([inner])
        for ref in (outer, inner):
            minray.wait([ref], fetch_local=False)
        del inner, ref
        ask_for_a_strike()
        return outcome_of(outer)

    nodes = [{"num_cpus": 2}, {"num_cpus": 2, "resources": {"there": 2}}]
    assert judged(body, lose_copies, nodes=nodes, seed=seed)[0] == "ObjectReconstructionFailedError"


@pytest.mark.parametrize("seed", SEEDS)
def test_g91_g97_nobody_holds_up_what_is_made_again(seed: int) -> None:
    """Back-pressure waits for a reader, who has gone, or has read long ago."""

    def body() -> list[Any]:
        generator = large.options(_generator_backpressure_num_objects=2).remote(6)
        refs = [next(generator) for _ in range(5)]
        del generator
        ask_for_a_strike()
        return [first_of(ref) for ref in refs]

    values, _ = judged(body, lose_copies, nodes=NODES, seed=seed, faults=FAULTY)
    assert values == [1, 2, 3, 4, 5]
