"""Gives tests every transport, each with an endpoint of its own; parametrize indirectly to choose some."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.platform.transports import TRANSPORTS, Transport


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    with tempfile.TemporaryDirectory(prefix="minray-") as directory, TRANSPORTS[request.param](Path(directory)) as made:
        yield made
