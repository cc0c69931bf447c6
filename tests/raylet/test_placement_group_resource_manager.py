"""The bundles of one node, without any gcs: whatever comes late or twice, nothing is lost or left over (G104, G112)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.bundles import group_name, within
from minray.common.resources import UNIT, ResourceSet, resource_set
from minray.protocol.placement_group import GENERATION_SHIFT
from minray.raylet.placement_group_resource_manager import ENDING, PlacementGroupResourceManager
from minray.scheduling.local_resource_manager import LocalResourceManager

A, B = b"a" * 18, b"b" * 18
CPU = {"CPU": UNIT}


class Node:
    """A node with these resources, and the bundles on it."""

    def __init__(self, **total: float) -> None:
        self.own = resource_set(total)
        self.resources = LocalResourceManager(self.own)
        self.bundles = PlacementGroupResourceManager(self.resources, None)

    def free(self, name: str = "CPU") -> float:
        return self.resources.available.get(name, 0) / UNIT

    def is_as_new(self) -> bool:
        if self.bundles._groups or self.bundles._ending:
            return False
        return self.resources.total == self.resources.available == self.own

    def reserve(self, group_id: bytes, attempt: int, *bundles: ResourceSet) -> None:
        assert self.bundles.prepare(group_id, attempt, dict(enumerate(bundles))) == ""
        assert self.bundles.commit(group_id, [(index, attempt) for index in range(len(bundles))]) == []


def test_what_is_put_aside_is_nobody_s_until_it_is_committed() -> None:
    node = Node(CPU=3)
    assert node.bundles.prepare(A, 1, {0: CPU, 1: CPU}) == ""
    assert node.free() == 1 and node.resources.total == node.own
    assert node.bundles.commit(A, [(0, 1), (1, 1)]) == []
    assert node.free(group_name("CPU", A)) == 2 and node.free(group_name("CPU", A, 1)) == 1


def test_g104_all_bundles_of_a_request_are_put_aside_or_none() -> None:
    node = Node(CPU=3)
    refused = node.bundles.prepare(A, 1, dict.fromkeys(range(4), CPU))
    assert "bundle 3 needs {CPU: 1}, and {CPU: 0} is free" in refused and node.is_as_new()


def test_g112_messages_that_come_twice_change_nothing() -> None:
    node = Node(CPU=3)
    for _ in range(2):
        node.reserve(A, 1, CPU)
    assert node.free() == 2 and node.free(group_name("CPU", A)) == 1
    for _ in range(2):
        node.bundles.remove(A)
        node.bundles.settle(lambda group_id: False)
    assert node.is_as_new()


def test_gpus_of_a_bundle_are_the_node_s_again_when_its_group_is_gone() -> None:
    node = Node(GPU=2)
    node.reserve(A, 1, {"GPU": UNIT}, {"GPU": UNIT})
    anywhere = {group_name("GPU", A): UNIT}
    gpus = [node.resources.allocate(anywhere) for _ in range(2)]
    assert sorted(number for each in gpus for number in each.taken) == [0, 1]
    for each in gpus:
        node.resources.free(anywhere, each)
    node.bundles.remove(A)
    node.bundles.settle(lambda group_id: False)
    assert node.is_as_new() and node.resources._gpus.keys() == {"GPU"} and node.resources.has_room({"GPU": 2 * UNIT})


def test_g112_messages_of_an_attempt_that_is_over_find_nothing_and_leave_nothing() -> None:
    node = Node(CPU=3)
    node.bundles.give_back(A, 1)
    assert node.bundles.prepare(A, 1, {0: CPU}) == "this attempt is over"
    assert node.bundles.prepare(A, 2, {0: CPU}) == ""
    node.bundles.give_back(A, 1)
    assert node.bundles.commit(A, [(0, 1)]) == [0] and node.bundles.commit(A, [(0, 2)]) == []
    node.bundles.give_back(A, 2)
    assert node.free() == 2, "what is committed stays"
    node.bundles.remove(A)
    node.bundles.settle(lambda group_id: False)
    assert node.bundles.prepare(A, 3, {0: CPU}) == "this attempt is over" and node.is_as_new()


def test_a_later_attempt_takes_the_place_of_what_was_put_aside_but_not_of_what_is_open() -> None:
    node = Node(CPU=3)
    assert node.bundles.prepare(A, 1, {0: CPU, 1: CPU}) == ""
    assert node.bundles.prepare(A, 2, {0: {"CPU": 2 * UNIT}}) == ""
    assert node.free() == 0
    assert node.bundles.commit(A, [(0, 1), (1, 1)]) == [0]
    assert node.bundles.commit(A, [(0, 2)]) == []
    assert node.bundles.prepare(A, 3, {0: CPU}) == "bundle 0 is here already"
    assert node.free(group_name("CPU", A, 0)) == 2
    node.bundles.remove(A)
    assert node.bundles.settle(lambda _: False) and node.is_as_new()


def test_g106_resources_come_back_when_the_last_work_is_over() -> None:
    node = Node(CPU=3)
    node.reserve(A, 1, CPU)
    needs = within(A, 0, CPU)
    held = node.resources.allocate(needs)
    node.bundles.remove(A)
    assert not node.bundles.settle(lambda group_id: True) and node.free() == 2
    assert node.bundles.commit(A, [(0, 1)]) == [0]
    node.resources.free(needs, held)
    assert node.bundles.settle(lambda group_id: False) and node.is_as_new()


def test_g110_a_new_gcs_releases_what_it_does_not_know_and_ends_the_attempts_of_the_old_one() -> None:
    node = Node(CPU=6)
    old, new = 1 << GENERATION_SHIFT, 2 << GENERATION_SHIFT
    node.reserve(A, old + 1, CPU)
    node.reserve(B, old + 2, CPU, CPU)
    assert node.bundles.prepare(b"c" * 18, old + 3, {0: CPU}) == ""
    for _ in range(2):
        assert node.bundles.release_unused(2, [(B, 0, old + 2), (B, 1, old + 2)]) in ([A], [])
    node.bundles.remove(A)
    node.bundles.settle(lambda group_id: False)
    assert {bundle.group_id for bundle in node.bundles.all()} == {B} and node.free() == 4
    assert node.bundles.prepare(b"d" * 18, old + 9, {0: CPU}) == "this attempt is over"
    assert node.bundles.prepare(b"d" * 18, new + 1, {0: CPU}) == ""
    assert node.bundles.release_unused(2, []) == [], "a late repetition does not know of the new bundles"
    assert {bundle.group_id for bundle in node.bundles.all()} == {B, b"d" * 18}


def test_gpus_of_a_bundle_stay_in_it() -> None:
    node = Node(CPU=4, GPU=3)
    node.reserve(A, 1, {"GPU": UNIT}, {"GPU": 2 * UNIT})
    outside = {"GPU": UNIT}
    assert not node.resources.has_room(outside)
    first, both = within(A, 0, {"GPU": UNIT}), within(A, -1, {"GPU": 2 * UNIT})
    one = node.resources.allocate(first)
    two = node.resources.allocate(both)
    assert sorted([*one.taken, *two.taken]) == [0, 1, 2]
    assert not node.resources.has_room(first) and not node.resources.has_room(both)
    node.resources.free(first, one)
    node.resources.free(both, two)
    node.bundles.remove(A)
    node.bundles.settle(lambda group_id: False)
    assert node.is_as_new() and node.resources.has_room({"GPU": 3 * UNIT})


@pytest.mark.parametrize("share", [UNIT // 2, UNIT // 4])
def test_halves_of_a_gpu_in_two_bundles_are_told_apart(share: int) -> None:
    node = Node(CPU=4, GPU=1)
    node.reserve(A, 1, {"GPU": UNIT // 2}, {"GPU": UNIT // 2})
    anywhere = within(A, -1, {"GPU": share})
    held = [node.resources.allocate(anywhere) for _ in range(UNIT // share)]
    assert not node.resources.has_room(anywhere)
    for gpus in held:
        node.resources.free(anywhere, gpus)
    assert node.resources.has_room(within(A, 1, {"GPU": UNIT // 2}))


messages = st.tuples(
    st.sampled_from(["prepare", "commit", "give back", "remove", "work", "end", "settle", "restart"]),
    st.sampled_from([A, B]),
    st.integers(0, 3),
    st.integers(1, 2),
)


@given(st.lists(messages, max_size=30))
def test_g99_g112_whatever_is_said_in_whichever_order_the_sums_are_right(
    said: list[tuple[str, bytes, int, int]],
) -> None:
    node = Node(CPU=4, GPU=1)
    working: list[tuple[bytes, ResourceSet, object]] = []
    for event, group_id, attempt, size in said:
        if event == "prepare":
            node.bundles.prepare(group_id, attempt, {size: {"CPU": size * UNIT}, 9: {"GPU": UNIT // 2}})
        elif event == "commit":
            node.bundles.commit(group_id, [(size, attempt), (9, attempt)])
        elif event == "give back":
            node.bundles.give_back(group_id, attempt)
        elif event == "remove":
            node.bundles.remove(group_id)
        elif event == "restart":
            for removed in node.bundles.release_unused(attempt, []):
                node.bundles.remove(removed)
        elif event == "work" and node.resources.has_room(needs := within(group_id, size, CPU)):
            working.append((group_id, needs, node.resources.allocate(needs)))
        elif event == "end" and working:
            _, needs, gpus = working.pop()
            node.resources.free(needs, gpus)  # type: ignore[arg-type]
        elif event == "settle":
            node.bundles.settle(lambda group_id: any(group_id == busy for busy, _, _ in working))
        reserved: Counter[str] = Counter()
        for bundle in node.bundles.all():
            reserved.update(bundle.resources)
        assert node.resources.reserved == reserved
        assert all(node.free(name) == (amount - reserved[name]) / UNIT >= 0 for name, amount in node.own.items())
        assert all(amount >= 0 for amount in node.resources.available.values())
    for _, needs, gpus in working:
        node.resources.free(needs, gpus)  # type: ignore[arg-type]
    for group_id in (A, B):
        node.bundles.remove(group_id)
    assert all(state == ENDING for _, state in node.bundles.states.items())
    node.bundles.settle(lambda group_id: False)
    assert node.is_as_new()
