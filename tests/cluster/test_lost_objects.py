"""Large values whose node is killed: they are made again, with all that it takes (G67 to G74)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minray
from minray.cluster_utils import Cluster
from minray.exceptions import ObjectReconstructionFailedError

WORDS = 100_000


@minray.remote(resources={"a": 1})
def make(number: int, log: str) -> Any:
    note(log, f"make {number}")
    return np.full(WORDS, number)


@minray.remote(resources={"a": 1})
def add(one: Any, other: Any, log: str) -> Any:
    note(log, f"add {int(one[0])} {int(other[0])}")
    return one + other


@minray.remote
def total(array: Any) -> int:
    return int(array.sum())


def note(log: str, line: str) -> None:
    with open(log, "a") as file:
        file.write(line + "\n")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """File to which tasks write a line for each run."""
    (tmp_path / "log").touch()
    return tmp_path / "log"


def replace(cluster: Cluster, node: Any) -> Any:
    """Switch a node off, and add another one."""
    cluster.remove_node(node, allow_graceful=False)
    return cluster.add_node(num_cpus=1, resources={"a": 1})


def exist(*refs: Any) -> None:
    """Wait until all objects exist, on whichever node."""
    assert minray.wait(list(refs), num_returns=len(refs), timeout=20, fetch_local=False)[1] == []


def test_g67_g74_a_lost_object_is_made_again_once_for_all_who_want_it(cluster: Cluster, log: Path) -> None:
    node = cluster.add_node(num_cpus=1, resources={"a": 1})
    ref = make.remote(3, str(log))
    exist(ref)
    replace(cluster, node)
    sums = [total.remote(ref) for _ in range(3)]
    assert (minray.get(ref, timeout=30) == 3).all()
    assert minray.get(sums, timeout=30) == [3 * WORDS] * 3
    assert log.read_text().splitlines() == ["make 3"] * 2


def test_g67_so_is_a_chain_of_which_only_the_end_is_held(head: Cluster, log: Path) -> None:
    node = head.add_node(num_cpus=1, resources={"a": 1})
    ref, put = make.remote(0, str(log)), minray.put(np.full(WORDS, 1))
    for _ in range(4):
        ref = add.remote(ref, put, str(log))
    del put
    exist(ref)
    for _ in range(2):
        node = replace(head, node)
        exist(ref)
    assert minray.get(total.remote(ref), timeout=30) == 4 * WORDS
    once = ["make 0", *(f"add {number} 1" for number in range(4))]
    assert log.read_text().splitlines() == once * 3


@minray.remote(resources={"owner": 1})
def own(log: str) -> list[Any]:
    ref = make.remote(5, log)
    exist(ref)
    return [ref]


def test_g71_a_borrower_gets_it_from_its_owner(head: Cluster, log: Path) -> None:
    """The owner is a worker on a node that lives."""
    node = head.add_node(num_cpus=1, resources={"a": 1})
    head.add_node(num_cpus=1, resources={"owner": 1})
    (ref,) = minray.get(own.remote(str(log)), timeout=30)
    replace(head, node)
    assert minray.get([total.remote(ref), total.remote(ref)], timeout=30) == [5 * WORDS] * 2
    assert (minray.get(ref, timeout=30) == 5).all()
    assert log.read_text().splitlines() == ["make 5"] * 2


def test_g70_c7_without_retries_it_stays_lost_and_says_why(head: Cluster, log: Path) -> None:
    node = head.add_node(num_cpus=1, resources={"a": 1})
    ref = make.options(max_retries=0).remote(1, str(log))
    exist(ref)
    head.remove_node(node, allow_graceful=False)
    with pytest.raises(ObjectReconstructionFailedError, match="max_retries=0") as caught:
        minray.get(ref, timeout=30)
    assert caught.value.reason == "RETRIES_DISABLED"
    with pytest.raises(ObjectReconstructionFailedError):
        minray.get(total.remote(ref), timeout=30)
