"""One test of the pytest plugin: its clusters start, and all that it leaves is found, ended and reported.

Ray: python/ray/tests/conftest.py starts clusters; it looks for nothing that is left

A ``Watch`` is made before the test's function-scoped fixtures and ends after them. The order of its end: the test's own
fixtures end; its cluster is looked at, and ends; threads, processes, files and shared memory are looked at; then the test
fails if anything was left.

A test that has failed keeps its variables in its traceback, so what it leaves is ended, and not reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from minray.api.actor_handle import ActorHandle
from minray.api.calls import connected_api
from minray.node import init as driver
from minray.testing import cluster_leaks, process_leaks
from minray.testing.cluster_leaks import ClusterState, Leak
from minray.testing.local_cluster import CHECKS, LOCAL, OFF, PROCESSES, LeakError, report
from minray.testing.process_leaks import ProcessState
from minray.testing.ray_world import RayCluster
from minray.testing.shared_cluster import SharedCluster
from minray.testing.simulated_test import NoNodes, refusing_outside
from minray.testing.worlds import (
    RAY,
    SIMULATION,
    Described,
    arguments_of,
    check_arguments_of_nodes,
    check_of,
    nodes_of,
    transport_of,
    world_of,
)
from minray.values.object_ref import ObjectRef

SHARED = {"minray_processes": {}, "ray_start_regular_shared": {"num_cpus": 1}}
"""Fixtures whose cluster serves many tests -> their arguments of ``init``."""
FAILED = pytest.StashKey[bool]()
"""Whether a phase of a test has failed."""
NOTHING = ClusterState({}, {}, {}, {})
FAILED_PATIENCE_S = 0.1
"""Seconds that a failed test's actors get to end before they are ended."""


class SimulatedCluster:
    """Stands for a cluster that starts with the test function; has the attributes of ``LocalCluster``."""

    def __init__(self) -> None:
        self.context = driver.RayContext({"address": SIMULATION})
        self.cluster = NoNodes()


class Watch:
    """One test with a cluster, from before its fixtures until after them."""

    def __init__(
        self,
        item: pytest.Item,
        shared: SharedCluster,
        chosen: tuple[str | None, str],
        allowed: list[re.Pattern[str]],
    ) -> None:
        """``chosen``: world (None: its fixture's) and check of the run. ``allowed``: patterns of leaks that may be."""
        names: list[str] = getattr(item, "fixturenames", [])
        self.item = item
        self.uses_shared = next((name for name in SHARED if name in names), None)
        self.world = world_of(item, chosen[0], PROCESSES if self.uses_shared else LOCAL)
        self.described = Described(self.world, arguments_of(item))
        """The cluster of the test; the fixture that starts it may add to it."""
        self._check = check_of(item, chosen[1], CHECKS) if self.world in (LOCAL, PROCESSES) else OFF
        self._shared = shared
        self._allowed = allowed
        self._lines: list[str] = []
        self._directories: list[str] = []
        """Directories of the sessions of clusters that the test has had."""

    @property
    def has_failed(self) -> bool:
        return self.item.stash.get(FAILED, False)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the test until the block ends. Raises ``pytest.fail.Exception`` if it leaves something."""
        with ExitStack() as stack:
            if self.world == SIMULATION:
                self._shared.stop()
                stack.enter_context(refusing_outside())
            elif self.world != RAY:
                stack.enter_context(transport_of(self.world))
            if self.uses_shared and self.world != SIMULATION:
                self._shared.ensure(shared_description(self.item, self.uses_shared, self.world))
            else:
                self._shared.stop()
            before = ProcessState.now() if self._check != OFF else None
            cluster_before = self._state()
            yield
            self._end_shared(cluster_before)
            if before is not None and not self.has_failed:
                ended = connected_api() is None
                self._lines += process_leaks.left_since(before, self._directories, counts_workers=ended)
        self._report()

    def _state(self) -> ClusterState:
        api = connected_api()
        return ClusterState.of(api) if self._looks() and api is not None else NOTHING

    def _looks(self) -> bool:
        return self.world in (LOCAL, PROCESSES)

    def _end_shared(self, before: ClusterState) -> None:
        """End what the test has left in a cluster that goes on."""
        if self.uses_shared and self._looks() and connected_api() is not None:
            for leak in self._left(before):
                leak.end()

    @contextmanager
    def own_cluster(self, arguments: Mapping[str, Any] | None = None, with_nodes: bool = False) -> Iterator[Any]:
        """Run a cluster of this test alone until the block ends. ``arguments`` of ``init`` give way to those of marks."""
        merged = {**(arguments or {}), **self.described.arguments}
        if with_nodes:
            check_arguments_of_nodes(merged)
        self.described = Described(self.world, merged, nodes_of(self.item) if with_nodes else None)
        if self.world == SIMULATION:
            yield SimulatedCluster()
            return
        cluster = self.described.make()
        cluster.start()
        try:
            before = self._state()
            yield cluster
            if self._looks():
                self._left(before)
        finally:
            self._directories += cluster.stop()

    @contextmanager
    def any_cluster(self) -> Iterator[None]:
        """Let the test start clusters itself until the block ends; then disconnect it."""
        if self.world == SIMULATION:
            pytest.skip("this test starts its cluster itself, which the world simulation does for it")
        yield
        if self.world == RAY:
            RayCluster([], True, {}).stop()
            return
        api = connected_api()
        if api is not None:
            self._directories.append(api.config.session_dir)
            self._left(NOTHING, of_job=api.job_id)
        driver.shutdown()

    def _left(self, before: ClusterState, of_job: bytes | None = None) -> list[Leak]:
        """Return what the test has left in its cluster, and note it for the report."""
        api = connected_api()
        if api is None or (self._check == OFF and not self.uses_shared):
            return []
        self._let_go()
        patience_s = FAILED_PATIENCE_S if self.has_failed or self._check == OFF else cluster_leaks.PATIENCE_S
        leaks = cluster_leaks.left_since(before, api, patience_s, of_job)
        if not self.has_failed and self._check != OFF:
            self._lines += [leak.line for leak in leaks]
        return leaks

    def _let_go(self) -> None:
        """Drop handles and references that pytest keeps for this test, though nothing uses them any more.

        They are values of fixtures that have ended, and attributes of the instance of a test class.
        """
        definitions: dict[str, Any] = getattr(getattr(self.item, "_request", None), "_fixture_defs", {})
        values: dict[str, Any] = getattr(self.item, "funcargs", {})
        for name, definition in definitions.items():
            if getattr(definition, "cached_result", None) is None:
                values.pop(name, None)
        attributes: dict[str, Any] = getattr(getattr(self.item, "instance", None), "__dict__", {})
        for name in [name for name, value in attributes.items() if _refers(value)]:
            del attributes[name]

    def _report(self) -> None:
        lines = [line for line in self._lines if not any(pattern.search(line) for pattern in self._allowed)]
        try:
            report(lines, self._check)
        except LeakError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None


def shared_description(item: pytest.Item, fixture: str, world: str) -> Described:
    """Return the shared cluster that a test asks for, by its marks or its parameter."""
    callspec = getattr(item, "callspec", None)
    parameter = callspec.params.get(fixture) if callspec is not None else None
    return Described(world, {**SHARED[fixture], **(parameter or {}), **arguments_of(item)})


def _refers(value: object) -> bool:
    """Whether a value is a handle or a reference, or a plain container of some."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else (value,)
    return any(type(one) in (ActorHandle, ObjectRef) for one in items)
