"""Gives tests every transport, each with an endpoint of its own; parametrize indirectly to choose some.

`make test-seeds` takes all of them. `make test` leaves out those that run the code of another one over other sockets or on
another event loop.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.platform.transports import TRANSPORTS, Transport
from tests.seeds import long

LIKE_OTHERS = {"stream-tcp", "stream-unix-asyncio", "stream-tcp-asyncio", "lane-tcp", "lane-tls", "grpc-unix", "grpc-tls"}


@pytest.fixture(params=[pytest.param(name, marks=long if name in LIKE_OTHERS else ()) for name in TRANSPORTS])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    with tempfile.TemporaryDirectory(prefix="minray-") as directory, TRANSPORTS[request.param](Path(directory)) as made:
        yield made
