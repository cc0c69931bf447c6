"""Fixtures with the names that Ray's own tests, and tests of programs for Ray, use: ``minray_ray_fixtures = true``.

Ray: python/ray/tests/conftest.py

They start in the world of the test, as minray's own fixtures do. Parametrize them indirectly with arguments of ``init``, or,
for ``ray_start_cluster``, with ``num_nodes`` and arguments of ``add_node``. A fixture of the same name in a ``conftest.py``
comes before these.

Left out: what configures parts of Ray that minray does not have, such as its dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

ACTIVE = "minray-testing"


@pytest.fixture
def ray_start_regular(request: pytest.FixtureRequest, _minray_watch: Any) -> Iterator[Any]:
    """A cluster with one CPU; gives what ``init`` returns."""
    with _minray_watch.own_cluster({"num_cpus": 1, **getattr(request, "param", {})}) as cluster:
        yield cluster.context


@pytest.fixture
def ray_start_2_cpus(request: pytest.FixtureRequest, _minray_watch: Any) -> Iterator[Any]:
    """A cluster with two CPUs; gives what ``init`` returns."""
    with _minray_watch.own_cluster({"num_cpus": 2, **getattr(request, "param", {})}) as cluster:
        yield cluster.context


@pytest.fixture(scope="module")
def ray_start_regular_shared(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A cluster with one CPU for a module of tests; gives what ``init`` returns. Each test ends what it has left."""
    with request.config.pluginmanager.get_plugin(ACTIVE).shared_cluster() as cluster:  # type: ignore[union-attr]
        yield cluster.context


@pytest.fixture
def ray_start_cluster(request: pytest.FixtureRequest, _minray_watch: Any) -> Iterator[Any]:
    """A ``Cluster`` without nodes, or with ``num_nodes``; the test adds nodes and connects itself."""
    yield from _cluster(request, _minray_watch, 0)


@pytest.fixture
def ray_start_cluster_head(request: pytest.FixtureRequest, _minray_watch: Any) -> Iterator[Any]:
    """A ``Cluster`` with a head, to which the test is connected."""
    yield from _cluster(request, _minray_watch, 1)


def _cluster(request: pytest.FixtureRequest, watch: Any, num_nodes: int) -> Iterator[Any]:
    arguments = dict(getattr(request, "param", {}))
    num_nodes = arguments.pop("num_nodes", num_nodes)
    connects = arguments.pop("do_init", num_nodes > 0)
    module = "ray" if watch.world == "ray" else "minray"
    cluster: Any = None
    try:
        with watch.any_cluster():
            cluster = import_module(f"{module}.cluster_utils").Cluster()
            for _ in range(num_nodes):
                cluster.add_node(**{"num_cpus": 1, **arguments})
            if connects:
                import_module(module).init(address=cluster.address)
            yield cluster
    finally:
        if cluster is not None:
            cluster.shutdown()


@pytest.fixture
def shutdown_only(_minray_watch: Any) -> Iterator[None]:
    """Shuts down what the test has started with ``init``."""
    with _minray_watch.any_cluster():
        yield
