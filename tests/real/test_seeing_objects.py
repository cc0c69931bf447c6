"""Objects as programs see them on a real cluster: the state functions, locations, freeing by hand."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import minray as ray
from minray.exceptions import ObjectFreedError
from minray.util.state import get_objects, list_objects, summarize_objects
from tests.helpers import wait_for_condition
from tests.real.support import Files, Signal

pytestmark = pytest.mark.usefixtures("cluster")
STORE_BYTES = 64 << 20
INIT = {"object_store_memory": STORE_BYTES}
MEGABYTE = 1 << 20


@ray.remote
def pid_while_reading(refs: list[Any], started: Signal, go: Signal) -> int:
    array = ray.get(refs[0])
    started.set()
    go.wait()
    assert not array.any()
    return os.getpid()


@ray.remote
def free_there(refs: list[Any]) -> None:
    ray.internal.free(refs)


def zeros(megabytes: int) -> Any:
    return ray.put(np.zeros(megabytes * MEGABYTE, np.uint8))


def test_a_driver_and_a_worker_are_seen_with_what_they_refer_to(files: Files) -> None:
    ref, started, go = zeros(1), files.signal("started"), files.signal("go")
    reading = pid_while_reading.remote([ref], started, go)
    started.wait()
    states = {state.type: state for state in get_objects(ref.hex())}
    assert {kind: state.reference_type for kind, state in states.items()} == {
        "DRIVER": "USED_BY_PENDING_TASK",
        "WORKER": "PINNED_IN_MEMORY",
    }
    assert {state.object_size for state in states.values()} == {ref_size(ref)}
    assert {state.call_site for state in list_objects()} == {"disabled"}
    assert summarize_objects()["cluster"]["callsite_enabled"] is False
    go.set()
    assert states["DRIVER"].pid == os.getpid() and states["WORKER"].pid == ray.get(reading)


def ref_size(ref: Any) -> int:
    size: int = ray.experimental.get_object_locations([ref])[ref]["object_size"]
    return size


def test_an_object_is_on_the_node_that_has_it() -> None:
    large, small = zeros(1), ray.put(b"x" * 1000)
    found = ray.experimental.get_object_locations([large, small])
    assert found[large]["node_ids"] == [ray.get_runtime_context().get_node_id()]
    assert MEGABYTE < found[large]["object_size"] < MEGABYTE + 1000 and not found[large]["did_spill"]
    assert found[small]["node_ids"] == [] and 1000 < found[small]["object_size"] < 1100


@pytest.mark.parametrize("who", ["owner", "borrower"])
def test_memory_that_is_freed_by_hand_can_be_used_at_once(who: str) -> None:
    """The store has room for one of these only; each is put although there is a reference to the one before."""
    refs = []
    for _ in range(4):
        refs.append(zeros(40))
        if who == "owner":
            ray.internal.free(refs[-1])
        else:
            ray.get(free_there.remote(refs[-1:]))
    for ref in refs:
        with pytest.raises(ObjectFreedError):
            ray.get(ref)
    assert ray.wait(refs, num_returns=4, timeout=0) == (refs, [])


def test_what_was_read_before_it_was_freed_stays_valid() -> None:
    ref = ray.put(np.ones(MEGABYTE, np.uint8))
    array = ray.get(ref)
    ray.internal.free([ref])
    others = [zeros(4) for _ in range(10)]
    assert array.sum() == MEGABYTE and len(others) == 10
    (state,) = [state for state in list_objects() if state.object_id == ref.hex()]
    assert state.reference_type == "PINNED_IN_MEMORY"
    del array, others
    wait_for_condition(lambda: get_objects(ref.hex())[0].reference_type == "LOCAL_REFERENCE")
