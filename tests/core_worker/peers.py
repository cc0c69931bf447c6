"""Peers that write down what is asked of them; the test answers, when and what it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.rpc.connection import PeerUnreachable


class Asked:
    """One request that waits for its answer."""

    def __init__(
        self, address: Address | None, request: Any, on_answer: Callable[..., None], buffers: Sequence[Any]
    ) -> None:
        self.address = address
        self.request = request
        self.buffers = buffers
        self._on_answer = on_answer

    def answer(self, reply: Any, buffers: Sequence[Any] = ()) -> None:
        self._on_answer(reply, None, buffers)

    def fail(self, error: PlatformError) -> None:
        self._on_answer(None, error, ())


class RecordingPeer:
    """Sends requests without a channel, as ``Peer`` does, and records them."""

    def __init__(self, peers: RecordingPeers, address: Address | None) -> None:
        self._peers = peers
        self._address = address
        self.death: PeerUnreachable | None = None

    def send(self, request: Any, on_answer: Callable[..., None], buffers: Sequence[Any] = ()) -> None:
        self._peers.asked.append(Asked(self._address, request, on_answer, buffers))

    async def call(self, request: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_answer(reply: Any, error: PlatformError | None, buffers: Sequence[Any]) -> None:
            if error is None:
                answer.set_result(reply)
            else:
                answer.set_exception(error)

        self.send(request, on_answer)
        return await answer


class RecordingPeers:
    """As ``Peers``."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.reported_dead: list[bytes] = []
        self.local = RecordingPeer(self, None)
        """The local raylet, or the gcs."""

    def to(self, address: Address) -> RecordingPeer:
        return RecordingPeer(self, address)

    def on_death_of(self, worker_id: bytes, reason: str) -> None:
        self.reported_dead.append(worker_id)

    def take(self, *kinds: type[Any]) -> Asked:
        """The one request that is there; forgets it."""
        assert [type(asked.request) for asked in self.asked] == list(kinds or [type(self.asked[0].request)])
        return self.asked.pop(0)

    def take_all(self, kind: type[Any]) -> list[Asked]:
        """Those of this kind, in order; forgets them."""
        found = [asked for asked in self.asked if isinstance(asked.request, kind)]
        self.asked = [asked for asked in self.asked if asked not in found]
        return found


def unreachable(is_certain: bool = True) -> PeerUnreachable:
    error = PeerUnreachable("nobody listens there")
    error.is_certain = is_certain
    return error
