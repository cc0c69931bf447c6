"""Fixtures for tests that run core workers in simulated clusters (``cores``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.core_worker.cores import Core, Cores, cores
from tests.helpers import without_garbage_collection


@pytest.fixture
def cluster() -> Iterator[Cores]:
    """One node with two CPUs."""
    with cores() as made:
        yield made


@pytest.fixture
def driver(cluster: Cores) -> Core:
    """One that has joined."""
    return cluster.driver()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off: objects that are gone then have been released without it."""
    with without_garbage_collection():
        yield
