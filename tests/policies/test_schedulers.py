"""The scheduling policies beside the default one, asked on plain data."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from minray.policies import ARRIVED, SPILLED, WAITING, PolicyHost, SchedulingQuestion
from minray.policies.schedulers import (
    SCHEDULERS,
    DataLocalityScheduling,
    LeastLoadedScheduling,
    PowerOfTwoScheduling,
    RandomScheduling,
    RoundRobinScheduling,
    SparrowScheduling,
    load,
)
from minray.scheduling.cluster_resource_scheduler import NodeView
from tests.policies.questions import host, node, question
from tests.scheduling.machines import request

ALL = sorted(SCHEDULERS)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("moment", ["ARRIVED", SPILLED, WAITING])
def test_each_answers_a_node_of_the_question(name: str, moment: str) -> None:
    policy = SCHEDULERS[name](host(0.9, 0.5, 0.1))
    for free in ({"a": 0, "b": 2, "c": 4}, {"a": 1, "b": 1}, {"a": 4, "b": 1}):
        chosen = policy.choose_node(question(free, moment))
        assert chosen in (None, *(key.encode() for key in free))


def test_random_draws_among_the_nodes_with_room() -> None:
    policy = RandomScheduling(host(0.0, 0.6, 0.99))
    chosen = [policy.choose_node(question({"a": 1, "b": 0, "c": 4})) for _ in range(3)]
    assert chosen == [b"a", b"c", b"c"]
    assert policy.choose_node(question({"a": 0, "b": 0})) is None


def test_round_robin_takes_nodes_in_turn_though_some_are_full() -> None:
    policy = RoundRobinScheduling(host())
    free = {"a": 1.0, "b": 1.0, "c": 1.0}
    assert [policy.choose_node(question(free)) for _ in range(4)] == [b"a", b"b", b"c", b"a"]
    assert policy.choose_node(question({**free, "b": 0})) == b"c"
    assert policy.choose_node(question({"a": 0})) is None


def test_least_loaded_takes_the_emptiest_and_draws_among_equals() -> None:
    policy = LeastLoadedScheduling(host(0.0, 0.0, 0.9))
    assert policy.choose_node(question({"a": 1, "b": 3, "c": 2})) == b"b"
    drawn = [policy.choose_node(question({"a": 3, "b": 3, "c": 2})) for _ in range(2)]
    assert drawn == [b"a", b"b"]


def test_load_is_about_what_the_request_needs() -> None:
    full = node("a", free=0, total=4)
    assert load(full, request({"CPU": 1})) == 1
    assert load(full, request({"gpu": 1})) == 0


def test_data_stays_where_the_owner_found_it() -> None:
    policy = DataLocalityScheduling(host())
    heavy = request(1, arguments=[b"large"])
    for moment in ("ARRIVED", SPILLED, WAITING):
        assert policy.choose_node(question({"a": 0, "b": 4}, moment, needs=heavy)) == b"a"
    assert policy.choose_node(question({"a": 0, "b": 4})) is None
    assert policy.choose_node(question({"b": 4}, needs=heavy)) is None, "this node could never hold it"


def test_power_of_two_takes_the_better_of_two() -> None:
    free = {"a": 0.0, "b": 2.0, "c": 4.0}
    for chances, chosen in (((0.0, 0.0), b"b"), ((0.0, 0.9), b"c"), ((0.4, 0.9), b"c"), ((0.9, 0.0), b"c")):
        assert PowerOfTwoScheduling(host(*chances)).choose_node(question(free)) == chosen
    assert PowerOfTwoScheduling(host()).choose_node(question({"a": 0})) == b"a"


def test_power_of_two_takes_the_shorter_queue_of_two_full_nodes() -> None:
    full = question({"a": 0, "b": 0})
    (one, other) = full.nodes
    assert isinstance(one, NodeView) and isinstance(other, NodeView)
    one.waiting, other.waiting = 3, 2
    assert {PowerOfTwoScheduling(host(*draws)).choose_node(full) for draws in ((0, 0), (0.9, 0))} == {b"b"}


def test_power_of_two_is_far_more_even_than_one_choice() -> None:
    """Balls into bins, a known result (Mitzenmacher 2001): the fullest bin grows with log log n instead of log n."""

    names = [f"{index:02}" for index in range(100)]

    def fullest(name: str) -> int:
        policy = SCHEDULERS[name](PolicyHost(random=random.Random(1).random, now=float))
        balls: Counter[bytes] = Counter()
        for _ in range(100):
            nodes = [node(name, 200 - balls[name.encode()], 200) for name in names]
            chosen = policy.choose_node(SchedulingQuestion(ARRIVED, request(1), nodes[0], nodes, nodes))
            assert chosen is not None
            balls[chosen] += 1
        return max(balls.values())

    assert fullest("power_of_two") < fullest("random")


def test_sparrow_waits_where_it_was_sent() -> None:
    policy = SparrowScheduling(host(0.6))
    free = {"a": 4.0, "b": 0.0, "c": 4.0}
    assert policy.choose_node(question(free)) == b"b", "full nodes are probed, too"
    assert [policy.choose_node(question(free, moment)) for moment in (SPILLED, WAITING)] == [b"a", b"a"]


@pytest.mark.parametrize(("name", "limit_s"), [("sparrow", 10), ("power_of_two", 10), ("data_locality", 3)])
def test_a_request_does_not_wait_for_ever_while_others_have_room(name: str, limit_s: float) -> None:
    now = 100.0
    policy = SCHEDULERS[name](PolicyHost(random=float, now=lambda: now))
    early, late = (question({"a": 0, "b": 4}, WAITING, needs=request(1, arguments=[b"large"])) for _ in range(2))
    assert policy.choose_node(early) == b"a"
    now += limit_s - 0.1
    assert [policy.choose_node(each) for each in (early, late)] == [b"a", b"a"]
    now += 0.1
    assert [policy.choose_node(each) for each in (early, late)] == [None, b"a"]


@pytest.mark.parametrize("name", ["sparrow", "power_of_two"])
def test_actors_do_not_wait_behind_actors(name: str) -> None:
    actor = request(1)
    actor.for_actor = True
    assert SCHEDULERS[name](host()).choose_node(question({"a": 0, "b": 4}, needs=actor)) is None
