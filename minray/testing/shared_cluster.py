"""The cluster that many tests share, one after the other, between the first and the last of them.

Ray: the fixture ray_start_regular_shared in python/ray/tests/conftest.py

A process is connected to one cluster at a time. So the shared one ends when a test comes that starts its own, and starts
again for the next test that shares it. A test whose marks ask for another cluster gets one, and so does the next test.
"""

from __future__ import annotations

from typing import Any

from minray.api.calls import connected_api
from minray.testing.local_cluster import LocalCluster
from minray.testing.ray_world import RayCluster
from minray.testing.worlds import RAY, Described


class SharedCluster:
    """At most one running cluster."""

    def __init__(self) -> None:
        self._described: Described | None = None
        self._cluster: LocalCluster | RayCluster | None = None

    @property
    def context(self) -> Any:
        """Result of ``init`` of the running cluster; None if none runs."""
        return None if self._cluster is None else self._cluster.context

    def ensure(self, described: Described) -> None:
        """Let this cluster run, and be connected. Another one ends first, and so does one that a test has left."""
        is_there = described.world == RAY or connected_api() is not None
        if self._cluster is not None and described == self._described and is_there:
            return
        self.stop()
        cluster = described.make()
        cluster.start()
        self._described, self._cluster = described, cluster

    def stop(self) -> None:
        """End the running cluster, if there is one."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.stop()
