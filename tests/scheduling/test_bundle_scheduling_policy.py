"""Which node gets which bundle: the strategies' promises, and against all ways there are (G105)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minray.common.bundles import PACK, SPREAD, STRATEGIES, STRICT_PACK, STRICT_SPREAD
from minray.common.resources import ResourceSet, add, fits
from minray.scheduling.bundle_scheduling_policy import explain, place

amounts = st.fixed_dictionaries({"CPU": st.integers(0, 4)}, optional={"GPU": st.integers(1, 2)})
bundle_lists = st.lists(amounts.filter(lambda bundle: any(bundle.values())), min_size=1, max_size=4)
node_lists = st.lists(amounts, min_size=1, max_size=4)


def named(nodes: list[ResourceSet]) -> dict[bytes, ResourceSet]:
    return {b"node%d" % number: node for number, node in enumerate(nodes)}


def is_possible(places: tuple[bytes, ...], bundles: list[ResourceSet], nodes: dict[bytes, ResourceSet]) -> bool:
    used: dict[bytes, ResourceSet] = {key: {} for key in nodes}
    for bundle, key in zip(bundles, places, strict=True):
        add(used[key], bundle)
    return all(fits(used[key], nodes[key]) for key in nodes)


def all_ways(bundles: list[ResourceSet], nodes: dict[bytes, ResourceSet]) -> list[tuple[bytes, ...]]:
    return [ways for ways in itertools.product(nodes, repeat=len(bundles)) if is_possible(ways, bundles, nodes)]


ONE_HAS_TO_MOVE = (
    [{"CPU": 4}, {"CPU": 0, "GPU": 1}, {"CPU": 0, "GPU": 1}],
    [{"CPU": 4, "GPU": 1}, {"CPU": 4}, {"CPU": 0, "GPU": 1}],
)
"""Bundles and nodes. Each bundle fits on two nodes, and the first must leave its best node to another one."""


@example(*ONE_HAS_TO_MOVE, STRICT_SPREAD)
@example(*ONE_HAS_TO_MOVE, SPREAD)
@given(bundle_lists, node_lists, st.sampled_from(STRATEGIES))
def test_g105_the_strict_strategies_find_a_way_if_there_is_one(
    bundles: list[ResourceSet], nodes: list[ResourceSet], strategy: str
) -> None:
    cluster = named(nodes)
    ways = all_ways(bundles, cluster)
    places = place(strategy, dict(enumerate(bundles)), cluster)
    if places is not None:
        assert tuple(places[index] for index in range(len(bundles))) in ways
    together = [way for way in ways if len(set(way)) == 1]
    apart = [way for way in ways if len(set(way)) == len(way)]
    if strategy == STRICT_PACK:
        assert (places is not None) == bool(together)
        assert places is None or len(set(places.values())) == 1
    elif strategy == STRICT_SPREAD:
        assert (places is not None) == bool(apart)
        assert places is None or len(set(places.values())) == len(bundles)
    elif strategy == SPREAD and apart:
        assert places is not None and len(set(places.values())) == len(bundles)
    elif strategy == PACK and together:
        assert places is not None and len(set(places.values())) == 1
    if places is None:
        assert explain(strategy, dict(enumerate(bundles)), cluster)


def test_pack_takes_few_nodes_and_spread_many() -> None:
    cluster: dict[bytes, ResourceSet] = {b"a": {"CPU": 2}, b"b": {"CPU": 4}, b"c": {"CPU": 3}}
    bundles: dict[int, ResourceSet] = dict.fromkeys(range(6), {"CPU": 1})
    packed, spread = place(PACK, bundles, cluster), place(SPREAD, bundles, cluster)
    assert packed is not None and sorted(packed.values()) == [b"a"] * 2 + [b"b"] * 4
    assert spread is not None and sorted(spread.values()) == [b"a"] * 2 + [b"b"] * 2 + [b"c"] * 2


def test_large_bundles_come_first() -> None:
    bundles: dict[int, ResourceSet] = {0: {"CPU": 1}, 1: {"CPU": 1}, 2: {"CPU": 3}}
    for strategy in (PACK, SPREAD):
        places = place(strategy, bundles, {b"a": {"CPU": 3}, b"b": {"CPU": 2}})
        assert places == {0: b"b", 1: b"b", 2: b"a"}


def test_bundles_that_pack_greedily_on_too_many_nodes_are_fitted_tightly() -> None:
    bundles: dict[int, ResourceSet] = {0: {"CPU": 5}, 1: {"CPU": 3}, 2: {"CPU": 2}, 3: {"CPU": 2}}
    places = place(PACK, bundles, {b"a": {"CPU": 7}, b"b": {"CPU": 5}})
    assert places is not None and is_possible(tuple(places[i] for i in range(4)), list(bundles.values()), {
        b"a": {"CPU": 7}, b"b": {"CPU": 5}
    })  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [(STRICT_PACK, None), (PACK, b"a"), (SPREAD, b"b"), (STRICT_SPREAD, b"b")],
)
def test_g107_a_bundle_that_lost_its_node_is_placed_with_regard_to_the_others(
    strategy: str, expected: bytes | None
) -> None:
    cluster = {b"a": {"CPU": 2 if strategy != STRICT_PACK else 0}, b"b": {"CPU": 2}}
    places = place(strategy, {1: {"CPU": 1}}, cluster, beside=[b"a"])
    assert places == (None if expected is None else {1: expected})


@pytest.mark.parametrize(
    ("strategy", "bundles", "words"),
    [
        (PACK, [{"CPU": 90_000}], "no node has room for bundle 0, {CPU: 9}; the most that one has is {CPU: 2}"),
        (STRICT_PACK, [{"CPU": 20_000}] * 2, "the 2 bundles do not fit on one node together, and STRICT_PACK wants that"),
        (STRICT_SPREAD, [{"CPU": 10_000}] * 3, "3 bundles want a node each (STRICT_SPREAD), and 2 nodes have room"),
        (SPREAD, [{"CPU": 20_000}] * 3, "each of the 3 bundles would fit somewhere, but not all of them at once"),
    ],
)
def test_what_is_missing_is_said(strategy: str, bundles: list[ResourceSet], words: str) -> None:
    cluster: dict[bytes, ResourceSet] = {b"a": {"CPU": 20_000}, b"b": {"CPU": 20_000}}
    assert place(strategy, dict(enumerate(bundles)), cluster) is None
    assert words in explain(strategy, dict(enumerate(bundles)), cluster)
