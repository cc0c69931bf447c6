"""Labels of bundles as resources: what the placement then does, in all its strategies."""

from __future__ import annotations

import pytest

from minray.common.bundles import PACK, SPREAD, STRATEGIES, STRICT_PACK
from minray.common.labels import parse_selector
from minray.common.resources import UNIT, ResourceSet
from minray.scheduling.bundle_labels import needs_with_labels, offers_with_labels
from minray.scheduling.bundle_scheduling_policy import Places, explain, place

LABELS = {b"plain": {}, b"red": {"colour": "red", "size": "large"}, b"blue": {"colour": "blue"}}


def given(selectors: list[dict[str, str]], cpus: int) -> tuple[dict[int, ResourceSet], dict[bytes, ResourceSet]]:
    terms = {index: parse_selector(selector) for index, selector in enumerate(selectors) if selector}
    bundles = {index: {"CPU": UNIT} for index in range(len(selectors))}
    nodes = {node_id: {"CPU": cpus * UNIT} for node_id in LABELS}
    return needs_with_labels(bundles, terms), offers_with_labels(nodes, LABELS, terms)


def placed(strategy: str, selectors: list[dict[str, str]], cpus: int = 8) -> Places | None:
    return place(strategy, *given(selectors, cpus))


@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if each != STRICT_PACK])
def test_each_bundle_gets_a_node_with_its_labels(strategy: str) -> None:
    assert placed(strategy, [{"colour": "blue"}, {"colour": "red"}]) == {0: b"blue", 1: b"red"}
    assert placed(strategy, [{"colour": "green"}, {}]) is None


def test_labels_never_run_short_though_resources_do() -> None:
    assert placed(PACK, [{"colour": "red"}] * 8) == dict.fromkeys(range(8), b"red")
    assert placed(STRICT_PACK, [{"colour": "red"}, {"size": "large"}, {}]) == dict.fromkeys(range(3), b"red")
    assert placed(PACK, [{"colour": "red"}] * 9) is None
    spread = placed(SPREAD, [{"colour": "in(red,blue)"}] * 4)
    assert spread is not None and sorted(spread.values()) == [b"blue", b"blue", b"red", b"red"]


def test_a_bundle_without_a_node_is_explained_by_its_labels() -> None:
    told = explain(PACK, *given([{}, {"colour": "green"}], 1))
    assert told == (
        "no node has room for bundle 1, {CPU: 1, node with labels {colour: in(green)}: 1}; "
        "the most that one has is {CPU: 1, node with labels {colour: in(green)}: 0}"
    )
