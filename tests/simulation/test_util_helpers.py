"""``as_completed``, ``map_unordered`` and the small questions of ``minray.util``, in the simulation."""

from __future__ import annotations

import time
from typing import Any

import pytest

import minray
from minray.simulation import run
from minray.util import as_completed, get_node_instance_id, get_node_ip_address, list_named_actors, log_once, map_unordered


@minray.remote(num_cpus=0.01)
def rest(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@minray.remote
class Named:
    def ready(self) -> None:
        return


def sleeps(*seconds: float) -> list[Any]:
    return [rest.remote(one) for one in seconds]


def test_what_is_ready_first_comes_first_in_portions() -> None:
    def body() -> Any:
        return list(as_completed(sleeps(5, 1, 3), chunk_size=1)), list(as_completed(sleeps(5, 1, 3, 4), chunk_size=2))

    assert run(body) == ([1, 3, 5], [1, 3, 5, 4])


def test_references_instead_of_values() -> None:
    def body() -> Any:
        refs = sleeps(2, 1)
        return [refs.index(ref) for ref in as_completed(refs, chunk_size=1, yield_obj_refs=True)]

    assert run(body) == [1, 0]


def test_a_time_out_makes_portions_smaller_and_loses_nothing() -> None:
    def body() -> Any:
        portions = list(as_completed(sleeps(4, 1, 2), chunk_size=3, timeout=1.5))
        return portions, list(as_completed([], chunk_size=3))

    assert run(body) == ([1, 2, 4], [])


def test_items_are_taken_as_late_as_the_limit_allows() -> None:
    def body() -> Any:
        asked: list[int] = []

        def items() -> Any:
            for number in range(10):
                asked.append(number)
                yield number

        results = map_unordered(rest, items(), backpressure_size=4, chunk_size=1)
        before = len(asked)
        first = next(results)
        return before, first, len(asked), sorted(results)

    assert run(body) == (0, 0, 4, list(range(1, 10)))


@pytest.mark.parametrize("limit", [1, 3])
def test_a_limit_may_be_smaller_than_a_portion(limit: int) -> None:
    def body() -> Any:
        before = time.monotonic()
        return list(map_unordered(rest, [1, 1, 1], backpressure_size=limit)), round(time.monotonic() - before)

    assert run(body) == ([1, 1, 1], 3 // limit)


def test_without_a_limit_all_items_are_taken_at_once() -> None:
    def body() -> Any:
        before = time.monotonic()
        results = list(map_unordered(rest, [3] * 20, backpressure_size=None, chunk_size=5))
        return len(results), round(time.monotonic() - before)

    assert run(body) == (20, 3)


@pytest.mark.parametrize(
    ("use", "complaint"),
    [
        (lambda: as_completed([], chunk_size=0), "chunk_size must be at least 1"),
        (lambda: as_completed([], num_returns=2), "does not go together with chunk_size"),
        (lambda: map_unordered(rest, [], backpressure_size=0), "backpressure_size must be at least 1, not 0"),
    ],
)
def test_arguments_that_make_no_sense(use: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        use()


def test_living_actors_are_listed_by_their_names() -> None:
    def body() -> Any:
        named = {"b": None, "a": None, "c": "x"}
        actors = [Named.options(name=name, namespace=space).remote() for name, space in named.items()]
        listed = list_named_actors(), list_named_actors(all_namespaces=True)
        minray.kill(actors[0])
        return *listed, list_named_actors()

    own, everywhere, later = run(body, nodes=1)
    assert own == ["a", "b"] and later == ["a"]
    assert [one["name"] for one in everywhere if one["namespace"] == "x"] == ["c"] and len(everywhere) == 3


def test_the_address_of_the_own_node() -> None:
    @minray.remote
    def ask() -> str:
        return get_node_ip_address()

    def body() -> Any:
        addresses = [node["NodeManagerAddress"] for node in minray.nodes()]
        return get_node_ip_address() in addresses and minray.get(ask.remote()) in addresses

    assert run(body)
    with pytest.raises(RuntimeError, match="not connected"):
        get_node_ip_address()


def test_the_name_that_a_cloud_has_given_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_CLOUD_INSTANCE_ID", raising=False)
    assert get_node_instance_id() == ""
    monkeypatch.setenv("RAY_CLOUD_INSTANCE_ID", "i-7")
    assert get_node_instance_id() == "i-7"


def test_what_is_said_once() -> None:
    assert [log_once(key) for key in ("here", "there", "here", "there")] == [True, True, False, False]
