"""What the tests of the simulation share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from minray.simulation.cluster import frozen_heap


@pytest.fixture(scope="module", autouse=True)
def heap_of_others() -> Generator[None, None, None]:
    """Each of the many worlds of a file collects what it has left, and need not look at what all of pytest has made."""
    with frozen_heap():
        yield
