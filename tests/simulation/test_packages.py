"""The directories of a job under faults: a package comes whole or with an error, and nothing of it is left behind.

The driver uploads the package as ``init`` does. A simulated node keeps what it has unpacked in ``SimNode.directories``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.api.calls import current_api
from minray.common.package_uri import package_name, uri_of
from minray.node import packages
from minray.node.packages import Package, PackedEnvironment
from minray.simulation import FaultPlan
from minray.simulation.cluster import DriverDied
from tests.seeds import seeds
from tests.simulation.judge import judged, outcome_of
from tests.simulation.roles import Cluster

CONFIG = {"max_direct_call_object_size": 100, "object_manager_default_chunk_size": 1000}
ARCHIVE = bytes(range(250)) * 40
NAME = package_name(ARCHIVE)
PLACE = os.path.join("runtime_resources", NAME)
NODES = [{"num_cpus": 2, "resources": {name: 8}} for name in ("head", "n1", "n2")]


@pytest.fixture(params=["gcs", "object"])
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the package is kept."""
    if request.param == "object":
        monkeypatch.setattr(packages, "MOST_IN_GCS_BYTES", len(ARCHIVE) - 1)
    return str(request.param)


def upload() -> Any:
    return PackedEnvironment({}, [Package(uri_of(NAME), ARCHIVE)]).upload(current_api())


@minray.remote(runtime_env={"working_dir": uri_of(NAME)}, max_retries=5)
def where() -> str:
    return os.getcwd()


def body(count: int = 4) -> list[Any]:
    held = upload()
    tasks = [where.options(resources={name: 1}) for name in ("head", "n1", "n2") for _ in range(count)]
    found = [outcome_of(ref) for ref in [task.remote() for task in tasks]]
    del held
    return found


def run(strike: Callable[[Cluster], Any] | None = None, **options: Any) -> tuple[list[Any], Cluster]:
    return judged(body, strike, nodes=NODES, system_config=CONFIG, **options)


@pytest.mark.parametrize("seed", seeds(3))
def test_every_node_gets_a_package_and_keeps_it(home: str, seed: int) -> None:
    reads: list[str] = []
    found, cluster = run(lambda cluster: cluster.when("ReadChunk").note(reads), seed=seed)
    assert found == [PLACE] * 12
    assert [node.directories for node in cluster.world.nodes.values()] == [{PLACE: ARCHIVE}] * 3
    assert bool(reads) is (home == "object"), "a small package needs no transfer between object stores"


@pytest.mark.parametrize("seed", seeds(6))
def test_faults_that_nobody_may_notice(home: str, seed: int) -> None:
    assert run(seed=seed, faults=FaultPlan.named("quiet", seed))[0] == [PLACE] * 12


@pytest.mark.parametrize("seed", seeds(9))
def test_processes_that_die_while_they_fetch_or_serve_a_package(home: str, seed: int) -> None:
    """A worker that dies is replaced; a task whose retries run out has an error of its own."""
    plan = FaultPlan({"crash": 0.02}, budget=2, at_messages=True)
    try:
        found, _ = run(seed=seed, faults=plan)
    except DriverDied:
        return
    assert set(found) <= {PLACE, "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "TaskUnschedulableError"}


def lose_reader(cluster: Cluster) -> None:
    """Lose a node that fetches the package; another machine with its resource takes its place."""
    then = cluster.when("ReadChunk").of("raylet/n1").then
    then.node("n1").lose()
    then.later(1).node("n3").join(num_cpus=2, resources={"n1": 8})


STRIKES: dict[str, Callable[[Cluster], Any]] = {
    "a worker that asks the gcs": lambda cluster: cluster.when("KvGet").of("worker").kill(1),
    "a worker that has asked the owner": lambda cluster: cluster.when("GetObject").of("worker").kill(1),
    "the node that reads it": lose_reader,
    "messages to the gcs": lambda cluster: cluster.when("KvPut", "KvGet", "KvPut reply").break_channels(at_most=4),
    "repeated messages": lambda cluster: cluster.when("KvPut", "KvGet").replay(),
}


@pytest.mark.parametrize("strike", STRIKES)
def test_the_loss_of(home: str, strike: str) -> None:
    assert run(STRIKES[strike], seed=5)[0] == [PLACE] * 12


@pytest.mark.parametrize("moment", ["KvPut", "KvPut reply", "CreateObject", "KvGet", "GetObject reply"])
def test_an_uploader_that_dies_leaves_nothing_and_the_next_one_uploads_again(home: str, moment: str) -> None:
    with Cluster(NODES, seed=11, system_config=CONFIG, show_output=False) as cluster:
        first = cluster.start_driver(body, "driver/first")
        messages = cluster.when(moment)
        messages.then.process("driver/first").kill()
        cluster.wait_until(first.done)
        if first.exception() is None:
            assert home == "gcs", "only a large package makes these messages"
        cluster.settle()
        assert cluster.wait_for(cluster.start_driver(body, "driver/second")) == [PLACE] * 12
        cluster.settle()
        assert all(set(node.directories) <= {PLACE} for node in cluster.world.nodes.values())
