"""Policies about objects and bundles, asked on plain data, and the parts that ask them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from minray.common.resources import resource_set
from minray.core_worker.submission.lease_policy import LocalityAwareLeasePolicy
from minray.object_store.allocator import ALIGNMENT, Allocator
from minray.object_store.object_table import ObjectTable
from minray.policies import BundleQuestion, LargeArgument, LocalityQuestion
from minray.policies.asking import sorted_sources
from minray.policies.guards import GuardedEviction, GuardedLocality, GuardedSpill, GuardedTransfer
from minray.policies.orders import (
    HoldersTransfer,
    LargestArgumentLocality,
    LargestEviction,
    LargestSpill,
    MostRecentlyUsedEviction,
    OwnNodeLocality,
    SmallestSpill,
)
from minray.policies.placements import EmptiestFirstPlacement
from minray.protocol.base import Address
from minray.protocol.raylet import Dependency
from minray.raylet.local_object_manager import LocalObjectManager
from tests.core_worker.parts import OWN, address, object_id
from tests.policies.questions import Broken, Lost, Undecided, copies, guarded, host
from tests.raylet.test_local_object_manager import CONFIG, OWNER

UNDECIDED = [None, Broken, Lost, Undecided]


# --- Where an owner asks first -----------------------------------------------------------------------------------------

EAST, HOME_TOO = LargeArgument(b"x", 5, [b"east"]), LargeArgument(b"y", 6, [b"west", b"home"])
ARGUMENTS = [EAST, HOME_TOO, LargeArgument(b"z", 2, [b"east"])]


def test_localities() -> None:
    question = LocalityQuestion(b"home", ARGUMENTS)
    assert OwnNodeLocality(host()).choose_first_node(question) == b"home"
    assert LargestArgumentLocality(host()).choose_first_node(question) == b"home"
    assert LargestArgumentLocality(host()).choose_first_node(question._replace(own_node=b"far")) == b"home", "the least id"


def first_asked(policy: Any) -> str:
    """Name the node that is asked for a task with three arguments; the default is east, which has most bytes."""
    nodes = {name: address(name) for name in ("home", "east", "west")}
    places = {object_id("a"): (5, ["east"]), object_id("b"): (6, ["west"]), object_id("c"): (2, ["east"])}

    def copies_of(key: bytes) -> tuple[int, Sequence[Address]]:
        size, names = places[key]
        return size, [nodes[name] for name in names]

    own = policy and guarded(GuardedLocality, policy)
    chooser = LocalityAwareLeasePolicy(nodes["home"].node_id, copies_of, lambda key: None, policy=own)
    raylet = chooser.best_raylet([Dependency(key, OWN, 0) for key in places])
    return next((name for name, node in nodes.items() if node is raylet), "home")


def test_an_owner_asks_where_its_policy_says() -> None:
    assert first_asked(LargestArgumentLocality) == "west"
    assert first_asked(OwnNodeLocality) == "home"
    assert [first_asked(policy) for policy in UNDECIDED] == ["east"] * 4


# --- What is evicted and spilled ---------------------------------------------------------------------------------------


def test_evictions() -> None:
    first, second, third = (copy.object_id for copy in copies(1, 3, 3))
    assert MostRecentlyUsedEviction(host()).choose_copy(copies(1, 3, 3)) == third
    assert LargestEviction(host()).choose_copy(copies(1, 3, 3)) == second
    assert LargestEviction(host()).choose_copy(copies(4, 3, 3)) == first


def evicted(policy: Any, wanted_blocks: int) -> list[str]:
    """Name the copies that are evicted from a full table, whose copies a, b and c have 1, 2 and 1 blocks."""
    gone: list[str] = []
    own = policy and guarded(GuardedEviction, policy)
    table = ObjectTable(Allocator(4 * ALIGNMENT), None, lambda entry: gone.append(chr(entry.object_id[0])), own)
    for name, blocks in (("a", 1), ("b", 2), ("c", 1), ("new", wanted_blocks)):
        entry = table.create(object_id(name), 0, blocks * ALIGNMENT, OWNER, b"", is_primary=name == "new")
        assert entry is not None
        table.seal(entry)
    return gone


def test_a_store_evicts_what_its_policy_says() -> None:
    assert evicted(LargestEviction, 1) == ["b"]
    assert evicted(MostRecentlyUsedEviction, 1) == ["c"]
    assert evicted(MostRecentlyUsedEviction, 4) == ["c", "b", "a"]
    assert [evicted(policy, 1) for policy in UNDECIDED] == [["a"]] * 4
    assert [evicted(policy, 4) for policy in UNDECIDED] == [["a", "b", "c"]] * 4, "no copy is evicted twice, or left"


def spilled(policy: Any) -> list[int]:
    """Return the sizes, in blocks, of objects in the order in which they are spilled until none is left."""
    table = ObjectTable(Allocator(10 * ALIGNMENT), None, lambda entry: None)
    manager = LocalObjectManager(table, 1, CONFIG, policy and guarded(GuardedSpill, policy))
    for number, blocks in enumerate((2, 1, 4, 3)):
        entry = table.create(object_id(str(number)), 0, blocks * ALIGNMENT, OWNER, b"", is_primary=True)
        assert entry is not None
        table.seal(entry)
    written = []
    while batches := manager.assign(10 * ALIGNMENT, 0.0):
        for batch in batches:
            written += [entry.size // ALIGNMENT for entry in batch.entries]
            manager.on_written(batch, [[0]] * len(batch.entries), False, 0.0)
    return written


def test_a_raylet_spills_in_the_order_of_its_policy() -> None:
    assert spilled(LargestSpill) == [4, 3, 2, 1]
    assert spilled(SmallestSpill) == [1, 2, 3, 4]
    assert [spilled(policy) for policy in UNDECIDED] == [[2, 1, 4, 3]] * 4


# --- From where an object comes ----------------------------------------------------------------------------------------


def asked_in_turn(policy: Any, holders: str, receivers: str) -> str:
    nodes = {name: address(name) for name in holders + receivers}
    sources = sorted_sources(
        policy and guarded(GuardedTransfer, policy),
        address("h").node_id,
        object_id("x"),
        [nodes[name] for name in holders],
        [nodes[name] for name in receivers],
    )
    names = {node.node_id: name for name, node in nodes.items()}
    return "".join(names[raylet.node_id] for raylet in reversed(sources))


def test_a_pull_asks_in_the_order_of_its_policy() -> None:
    assert [asked_in_turn(policy, "abh", "rs") for policy in UNDECIDED] == ["srba"] * 4, "the own node is never asked"
    assert asked_in_turn(HoldersTransfer, "abh", "rs") == "absr"
    assert asked_in_turn(HoldersTransfer, "h", "") == asked_in_turn(None, "h", "") == ""
    assert asked_in_turn(HoldersTransfer, "", "rs") == "sr"


def test_holders_are_drawn() -> None:
    class Drawing(HoldersTransfer):
        def __init__(self, _: object) -> None:
            super().__init__(host(0.5))

    assert asked_in_turn(Drawing, "abc", "") == "bca"


# --- Where bundles go --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "places"),
    [("PACK", {0: b"b", 1: b"b", 2: b"a"}), ("SPREAD", {0: b"b", 1: b"b", 2: b"a"}), ("STRICT_PACK", None)],
)
def test_bundles_go_to_the_emptiest_node_first(strategy: str, places: dict[int, bytes] | None) -> None:
    nodes = {b"a": resource_set({"CPU": 2}), b"b": resource_set({"CPU": 4})}
    bundles = {index: resource_set({"CPU": 1.5}) for index in range(3)}
    question = BundleQuestion(strategy, bundles, nodes, [])
    assert EmptiestFirstPlacement(host()).place_bundles(question) == places
    assert EmptiestFirstPlacement(host()).place_bundles(question._replace(nodes={b"a": nodes[b"a"]})) is None
