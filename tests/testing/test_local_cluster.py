"""``LocalCluster`` and its mixin for ``unittest``.

Ray: python/ray/tests/test_multi_node.py tests Ray's Cluster
"""

from __future__ import annotations

import re
import sys
import threading
import unittest
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

import minray
from minray.api.calls import current_api
from minray.protocol.actor import RegisterActor
from minray.testing import LocalCluster, LocalClusterTestCase
from minray.testing.cluster_leaks import ClusterState, left_since
from minray.testing.local_cluster import LeakError, LeakWarning
from minray.util.placement_group import placement_group, remove_placement_group


@minray.remote
def double(number: int) -> int:
    return 2 * number


@minray.remote
class Counter:
    def __init__(self) -> None:
        self.number = 0

    def add(self) -> int:
        self.number += 1
        return self.number


@minray.remote
class Starter:
    """Starts a thread, which waits for an event of the test's process.

    A decorated class travels by value, with a copy of the globals that it names. So the event is looked up in its module.
    """

    def start(self, module: str) -> None:
        threading.Thread(target=sys.modules[module].EVENT.wait, name="starter").start()


EVENT = threading.Event()
KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    KEPT.clear()
    EVENT.set()


def test_a_cluster_lives_in_its_block() -> None:
    with LocalCluster(num_cpus=2) as cluster:
        assert minray.get(double.remote(2)) == 4
        assert cluster.context["address"].startswith("local:")
        assert cluster.cluster is None
    assert not minray.is_initialized()


def test_a_cluster_has_several_nodes() -> None:
    with LocalCluster(nodes=2, num_cpus=3) as cluster:
        assert [node["Resources"]["CPU"] for node in minray.nodes()] == [3, 3]
        assert cluster.cluster is not None
        cluster.cluster.add_node(resources={"disk": 1})
        assert minray.cluster_resources()["disk"] == 1
    with LocalCluster(nodes=[{"num_cpus": 1}, {"resources": {"disk": 1}}], namespace="mine"):
        assert minray.get_runtime_context().namespace == "mine"
        assert len(minray.nodes()) == 2


@pytest.mark.slow
def test_a_cluster_may_have_processes() -> None:
    with LocalCluster(world="processes", num_cpus=1) as cluster:
        assert minray.get(double.remote(2)) == 4
        assert not cluster.context["address"].startswith("local:")


def test_a_leak_is_an_error_a_warning_or_nothing() -> None:
    line = "detached actor Counter 'x'"
    with pytest.raises(LeakError, match=line):
        with LocalCluster():
            Counter.options(name="x", lifetime="detached").remote()
    with pytest.warns(LeakWarning, match=line):
        with LocalCluster(leaks="warn"):
            Counter.options(name="x", lifetime="detached").remote()
    with LocalCluster(leaks="off"):
        Counter.options(name="x", lifetime="detached").remote()
    assert not minray.is_initialized()


def test_an_error_in_the_block_is_not_hidden_by_its_leaks() -> None:
    with pytest.raises(ZeroDivisionError):
        with LocalCluster():
            KEPT.append(Counter.remote())
            KEPT.append(1 / 0)


def test_a_thread_that_an_actor_started_ends_with_the_cluster() -> None:
    with LocalCluster():
        starter = Starter.remote()
        minray.get(starter.start.remote(__name__))
        del starter
    assert not [thread for thread in threading.enumerate() if thread.name == "starter"]


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"world": "mars"}, ValueError, "world must be one of local, processes, not 'mars'"),
        ({"leaks": "loud"}, ValueError, "leaks must be one of error, warn, off, not 'loud'"),
        ({"nodes": 0}, ValueError, "at least one node"),
        ({"nodes": [1]}, TypeError, "a node is a dict of arguments"),
        ({"nodes": "two"}, TypeError, "nodes are a number, or a list"),
        ({"num_cpu": 1}, RuntimeError, "Unknown keyword argument.*num_cpu"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        with LocalCluster(**arguments):
            pass
    assert not minray.is_initialized()


def test_a_connected_process_gets_no_second_cluster() -> None:
    with LocalCluster():
        with pytest.raises(RuntimeError, match=re.escape("connected to a cluster already; call minray.shutdown() first")):
            LocalCluster().start()
        assert minray.get(double.remote(1)) == 2


class Tests(LocalClusterTestCase):
    __test__ = False
    cluster_arguments: ClassVar[Mapping[str, Any]] = {"num_cpus": 2}

    def test_passes(self) -> None:
        self.assertEqual(minray.get(double.remote(2)), 4)
        self.assertEqual(minray.cluster_resources()["CPU"], 2)
        self.assertTrue(self.cluster.context["address"].startswith("local:"))

    def test_leaks(self) -> None:
        Counter.options(name="x", lifetime="detached").remote()


class AsyncTests(LocalClusterTestCase, unittest.IsolatedAsyncioTestCase):
    __test__ = False

    async def test_passes(self) -> None:
        self.assertEqual(await double.remote(2), 4)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [(Tests, "test_passes", ""), (Tests, "test_leaks", "detached actor Counter 'x'"), (AsyncTests, "test_passes", "")],
)
def test_unittest(kind: type[unittest.TestCase], name: str, words: str) -> None:
    result = unittest.TestResult()
    kind(name).run(result)
    problems = [text for _, text in [*result.failures, *result.errors]]
    assert len(problems) == bool(words)
    assert all(words in text for text in problems)
    assert not minray.is_initialized()


def test_what_was_asked_for_before_is_not_new(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(num_cpus=2):
        api = current_api()
        patient, held = api.port.process.patient, list[tuple[Any, ...]]()
        monkeypatch.setattr(patient, "ask_gcs", lambda *request: held.append(request))
        early = Counter.remote()
        group = placement_group([{"CPU": 1}])
        before = ClusterState.of(api)
        monkeypatch.undo()
        assert [type(request) for request, _ in held] == [RegisterActor]
        api.post(patient.ask_gcs, *held[0])
        late = Counter.remote()
        assert minray.get([early.add.remote(), late.add.remote()]) == [1, 1]
        assert len(ClusterState.of(api).without(before, None).actors) == 1
        del late
        assert left_since(before, api) == []
        assert minray.get(early.add.remote()) == 2
        remove_placement_group(group)
        del early
