"""The network of a remote client as a transport under test: its session loses its connection again and again.

Both sides of the session are in one process. Each frame passes through ``_Way``, where every third connection loses what is
under way, so that the contract is also one of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from minray.platform.base import Incoming, Network
from minray.protocol.client import AnyRelayed, Relayed
from minray.remote_client.network import RelayedNetwork
from minray.remote_client.relay import Relay
from minray.remote_client.session import ClientSession

FRAME_BYTES, WINDOW_BYTES = 100_000, 400_000
LOST = 3
"""Number of frames of which one is lost with its connection."""


class _Way:
    """One side's session, and the way from it to the other side."""

    def __init__(self) -> None:
        self.session = ClientSession(FRAME_BYTES, WINDOW_BYTES)
        self.on_record: Callable[[Any], None] = lambda record: None
        """Receives the records that come from the other side."""
        self.other: _Way
        self._count = 0

    def send(self, record: Relayed, size: int) -> None:
        self.session.add(record, size)
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        while (frame := self.session.take()) is not None:
            self._count += 1
            is_lost = self._count % LOST == 0
            records: list[AnyRelayed] = self.other.session.receive(frame) if not is_lost else []
            for record in records:
                self.other.on_record(record)
            if is_lost:
                self.session.rewind()
            else:
                self.session.acknowledge(self.other.session.received)


def refuse(incoming: Incoming) -> None:
    raise AssertionError(f"{incoming.method} was sent to the driver process itself")


def relayed_network(below: Network) -> RelayedNetwork:
    """Return a client's network whose channels and listeners are those of ``below``."""
    client, driver = _Way(), _Way()
    client.other, driver.other = driver, client
    network = RelayedNetwork()
    network.send = client.send
    client.on_record = network.on_record
    driver.on_record = Relay(below, b"client", driver.send, refuse).on_record
    return network
