"""``kill -9`` in the middle of a transfer or of spilling: other processes go on, and leak nothing.

Each test compares the resources before a node or a worker comes with those after its death. These are descriptors of the
raylet and the driver, shared memory, and files in the directories of both.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minray
from minray.api.calls import objects_of_cluster
from minray.cluster_utils import Cluster, ClusterNode
from minray.exceptions import RayError
from minray.object_store.object_table import CREATED
from minray.platform.process.session import SPILL
from tests import leaks
from tests.cluster.programs import is_running, read_pid, write_pid
from tests.helpers import wait_for_condition

MEGABYTE = 1 << 20
OBJECT_BYTES = 48 * MEGABYTE
CONFIG = {"object_manager_default_chunk_size": 1 << 15, "min_spilling_size": MEGABYTE}
"""So that a transfer is many steps, and spilling many files."""
LATER = Counter({"socket:[]": 3})
"""Between driver and raylet, connections are opened when they are first needed."""
ATTEMPTS = 5
"""A transfer may be over before it is struck."""


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    arguments = {"num_cpus": 1, "resources": {"head": 1}, "_system_config": CONFIG}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=arguments)
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def clean(head: Cluster) -> Iterator[None]:
    """Check that head and driver hold the same resources after the test as before, and that the head's store is empty."""
    warm_up(head)
    assert head.head_node is not None
    pids = [os.getpid(), head.head_node.pids()["raylet"]]
    before = [open_descriptors(pid) + LATER for pid in pids], leaks.shared_memory()
    yield
    wait_for_condition(lambda: not copies(head.head_node), 30, message="the head's store is empty")
    assert [spilled_files(node) for node in head.list_all_nodes()] == [[]]

    def is_as_before() -> bool:
        return not any(open_descriptors(pid) - them for pid, them in zip(pids, before[0], strict=True))

    wait_for_condition(is_as_before, 30, f"no more is open than {before[0]}")
    assert leaks.shared_memory() == before[1]


def warm_up(head: Cluster) -> None:
    """Open everything once that a process opens at its first use and keeps."""
    node = head.add_node(num_cpus=1, resources={"a": 1})
    refs = [make.options(resources={"a": 1}).remote(MEGABYTE), minray.put(np.ones(MEGABYTE, np.uint8))]
    assert minray.get([total.options(resources={"head": 1}).remote(ref) for ref in refs]) == [MEGABYTE] * 2
    assert [int(array.sum()) for array in minray.get(refs)] == [MEGABYTE] * 2
    del refs
    head.remove_node(node)
    wait_for_condition(lambda: not copies(head.head_node))


def open_descriptors(pid: int) -> Counter[str]:
    """How many lead where; but for those of a raylet's workers, which come and go, each with a log and some sockets."""
    targets: list[str] = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(os.readlink(descriptor))
    found = Counter(re.sub(r"\d+", "", target) for target in targets if "/worker-" not in target)
    found["socket:[]"] -= 3 * sum("/worker-" in target for target in targets)
    return found


def spilled_files(node: ClusterNode) -> list[Path]:
    return leaks.files(Path(node.session_dir, SPILL))


def copies(node: ClusterNode | None) -> list[Any]:
    """Copies in the object store of a node."""
    assert node is not None
    stores = objects_of_cluster(10).stores
    store = stores.get(bytes.fromhex(node.node_id))
    return list(store.copies) if store is not None else []


def is_receiving(node: ClusterNode | None, ref: Any) -> bool:
    return any(copy.object_id == ref.binary() and copy.state == CREATED for copy in copies(node))


def assert_gone(node: ClusterNode, pids: dict[str, int]) -> None:
    wait_for_condition(lambda: not any(map(is_running, pids.values())), 30)
    wait_for_condition(lambda: leaks.files(Path(node.session_dir)) == [], 30)


def outcome_of(ref: Any) -> Any:
    try:
        return minray.get(ref, timeout=60)
    except RayError as error:
        return error


def until_struck(attempt: Callable[[], Any]) -> None:
    """Until one has ended with an error."""
    assert any(isinstance(attempt(), RayError) for _ in range(ATTEMPTS)), "no transfer was caught in the middle"


@minray.remote(max_retries=0)
def make(size: int) -> Any:
    return np.ones(size, np.uint8)


@minray.remote(max_retries=0)
def total(array: Any) -> int:
    return int(array.sum())


@minray.remote(max_retries=0)
def hold(refs: list[Any], path: str) -> int:
    """Write this worker's pid, and fetch."""
    write_pid(path)
    return int(minray.get(refs[0]).sum())


@minray.remote(max_retries=0)
def fill(path: str, size: int, count: int) -> int:
    """Keep more than the store has room for, then stay."""
    write_pid(path)
    refs = [minray.put(np.full(size, number, np.uint8)) for number in range(count)]
    signal.pause()
    return len(refs)


def test_a_sender_that_is_killed_leaves_nothing_at_the_receiver(head: Cluster, clean: None) -> None:
    def attempt() -> Any:
        node = head.add_node(num_cpus=1, resources={"a": 1})
        pids = node.pids()
        ref = make.options(resources={"a": 1}).remote(OBJECT_BYTES)
        minray.wait([ref], fetch_local=False)
        fetching = total.options(resources={"head": 1}).remote(ref)
        wait_for_condition(lambda: is_receiving(head.head_node, ref) or minray.wait([fetching], timeout=0)[0])
        head.remove_node(node, allow_graceful=False)
        assert_gone(node, pids)
        return outcome_of(fetching)

    until_struck(attempt)


def test_a_receiver_that_is_killed_leaves_nothing_at_the_sender(head: Cluster, clean: None, tmp_path: Path) -> None:
    ref = minray.put(np.ones(OBJECT_BYTES, np.uint8))

    def attempt() -> Any:
        node = head.add_node(num_cpus=1, resources={"a": 1})
        pids = node.pids()
        fetching = hold.options(resources={"a": 1}).remote([ref], str(tmp_path / "pid"))
        wait_for_condition(lambda: is_receiving(node, ref) or minray.wait([fetching], timeout=0)[0])
        head.remove_node(node, allow_graceful=False)
        assert_gone(node, pids)
        return outcome_of(fetching)

    until_struck(attempt)
    assert int(minray.get(ref).sum()) == OBJECT_BYTES


def test_a_worker_that_is_killed_while_its_value_comes(head: Cluster, clean: None, tmp_path: Path) -> None:
    """The node goes on; what came for the dead is freed when nobody else wants it."""
    node = head.add_node(num_cpus=2, resources={"a": 2})
    ref = minray.put(np.ones(OBJECT_BYTES, np.uint8))
    fetching = hold.options(resources={"a": 1}).remote([ref], str(tmp_path / "pid"))
    pid = read_pid(tmp_path / "pid")
    wait_for_condition(lambda: bool(copies(node)))
    os.kill(pid, signal.SIGKILL)
    outcome_of(fetching)
    assert minray.get(total.options(resources={"a": 1}).remote(ref), timeout=60) == OBJECT_BYTES
    del ref, fetching
    wait_for_condition(lambda: not copies(node), 30)
    pids = node.pids()
    head.remove_node(node)
    assert_gone(node, pids)


@pytest.mark.parametrize("victim", ["raylet", "worker"])
def test_who_is_killed_while_objects_go_to_disk(head: Cluster, clean: None, tmp_path: Path, victim: str) -> None:
    node = head.add_node(num_cpus=2, resources={"a": 2}, object_store_memory=8 * MEGABYTE)
    filling = fill.options(resources={"a": 1}).remote(str(tmp_path / "pid"), MEGABYTE, 200)
    pids = {**node.pids(), "worker": read_pid(tmp_path / "pid")}
    wait_for_condition(lambda: len(spilled_files(node)) > 2)
    os.kill(pids[victim], signal.SIGKILL)
    assert isinstance(outcome_of(filling), RayError)
    if victim == "worker":
        wait_for_condition(lambda: not copies(node) and not spilled_files(node), 30)
        assert minray.get(total.options(resources={"a": 1}).remote(minray.put(np.ones(MEGABYTE))), timeout=60) == MEGABYTE
    head.remove_node(node, allow_graceful=victim == "worker")
    assert_gone(node, pids)
