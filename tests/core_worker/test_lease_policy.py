"""Which raylet an owner asks first for a task with large arguments (G103)."""

from __future__ import annotations

from minray.core_worker.submission.lease_policy import LocalityAwareLeasePolicy
from minray.protocol.base import Address
from minray.protocol.object_store import Place
from minray.protocol.raylet import Dependency
from tests.core_worker.parts import OWN, address, object_id

NODES = {name: address(name) for name in ("home", "east", "west")}


def best(
    copies: dict[str, tuple[int, str]], *wanted: str, seen: dict[str, tuple[int, str]] | None = None, is_enabled: bool = True
) -> str:
    """Name the node whose raylet is asked.

    ``copies`` has sizes and, in one word, the nodes of each object that is owned here; ``seen`` has the size and the node of
    each that is borrowed.
    """

    def copies_of(key: bytes) -> tuple[int, list[Address]]:
        size, nodes = copies.get(key.decode().strip("-"), (0, ""))
        return size, [NODES[node] for node in nodes.split()]

    def place_of(key: bytes) -> Place | None:
        size, node = (seen or {}).get(key.decode().strip("-"), (0, ""))
        return Place(0, size, NODES[node]) if node else None

    policy = LocalityAwareLeasePolicy(NODES["home"].node_id, copies_of, place_of, is_enabled)
    raylet = policy.best_raylet([Dependency(object_id(name), OWN, 0) for name in wanted])
    return next((name for name, node in NODES.items() if node is raylet), "home")


def test_g103_the_node_with_most_bytes_is_asked() -> None:
    copies = {"a": (10, "east"), "b": (11, "west"), "c": (2, "east west"), "d": (5, "home")}
    assert best(copies, "a") == "east"
    assert best(copies, "a", "b") == "west"
    assert best(copies, "a", "b", "c") == "west"
    assert best(copies, "d") == "home"
    assert best(copies, "a", "d") == "east"


def test_g103_among_equals_the_own_node_is_best_then_the_least() -> None:
    assert best({"a": (10, "west home east")}, "a") == "home"
    assert best({"a": (10, "west east")}, "a") == "east"


def test_a_borrowed_object_counts_where_it_was_seen() -> None:
    assert best({"a": (10, "east")}, "a", "b", seen={"b": (11, "west")}) == "west"
    assert best({"a": (10, "east")}, "a", seen={"a": (10, "west")}) == "east", "an owner knows better"


def test_what_nobody_has_says_nothing() -> None:
    assert best({}, "a") == "home"
    assert best({"a": (10, "")}, "a") == "home"
    assert best({"a": (10, "")}) == "home"


def test_it_can_be_switched_off() -> None:
    assert best({"a": (10, "east")}, "a", is_enabled=False) == "home"
