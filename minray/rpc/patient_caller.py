"""Requests that must reach a process unless it is dead: they are retried until its death is certain.

Ray: the retries of src/ray/rpc/retryable_grpc_client.h, which end with a callback when the server is unavailable too long

A peer that does not answer for a few seconds (a partition, a machine that swaps) is given up by ``rpc.connection``, since
most callers cannot wait longer. Giving back a borrower's ticket or a lease is different: if the message is lost, the
other side keeps the thing for ever. The gcs decides whether the other side is dead; until it does, the request is repeated.
A peer that refuses the connection, or whose endpoint another process has taken, is dead without a question to the gcs
(``PeerUnreachable.is_certain``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from minray.platform.base import Buffer, PlatformError, RemoteFailure
from minray.protocol.base import Address, Record, Request
from minray.protocol.gcs import GetWorkerDeath, GetWorkerDeathReply
from minray.rpc.connection import OnAnswer, Peer, Peers, PeerUnreachable, answer_of

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0
"""Seconds before a request is repeated whose receiver may still be alive."""

R = TypeVar("R", bound=Record)


class PatientCaller:
    """Sends requests of one process that must arrive, and retries them until the receiver answers or is dead."""

    def __init__(self, peers: Peers, gcs: Peer) -> None:
        self._peers = peers
        self._gcs = gcs
        self._is_closed = False

    def send(self, to: Address, request: Request[R], on_answer: OnAnswer[R], buffers: Sequence[Buffer] = ()) -> None:
        """Send like ``Peer.send``, but answer PeerUnreachable only if the peer is dead (or the gcs is gone too)."""

        def on_reply(reply: R | None, error: PlatformError | None, answered: Sequence[Buffer]) -> None:
            if isinstance(error, PeerUnreachable) and not error.is_certain:
                self._doubt(to, request, on_answer, buffers, error)
            else:
                on_answer(reply, error, answered)

        self._peers.to(to).send(request, on_reply, buffers)

    def _doubt(
        self, to: Address, request: Request[R], on_answer: OnAnswer[R], buffers: Sequence[Buffer], error: PeerUnreachable
    ) -> None:
        def on_verdict(reply: GetWorkerDeathReply | None, _error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if self._is_closed:
                return
            if reply is None:
                on_answer(None, error, ())
            elif reply.death is not None:
                certain = PeerUnreachable(reply.death.cause)
                certain.is_certain = True
                on_answer(None, certain, ())
            else:
                asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._send_again, to, request, on_answer, buffers)

        self._gcs.send(GetWorkerDeath(to.worker_id, to.node_id), on_verdict)

    def _send_again(
        self, to: Address, request: Request[R], on_answer: OnAnswer[R], buffers: Sequence[Buffer]
    ) -> None:
        if not self._is_closed:
            self.send(to, request, on_answer, buffers)

    def send_to_gcs(self, request: Request[R], on_answer: OnAnswer[R]) -> None:
        """Send a request that the gcs must receive, and repeat it while the gcs answers with a failure."""

        def on_reply(reply: R | None, error: PlatformError | None, answered: Sequence[Buffer]) -> None:
            if self._is_closed:
                return
            if isinstance(error, RemoteFailure):
                logger.debug("asking the gcs again: %s", error)
                asyncio.get_running_loop().call_later(ASK_AGAIN_S, self.send_to_gcs, request, on_answer)
            else:
                on_answer(reply, error, answered)

        if not self._is_closed:
            self._gcs.send(request, on_reply)

    def ask_gcs(self, request: Request[R], on_reply: Callable[[R], None]) -> None:
        """Send a request that must reach the gcs while there is one; without a gcs nothing follows."""

        def on_answer(reply: R | None, _error: PlatformError | None, _buffers: Sequence[Buffer]) -> None:
            if reply is not None:
                on_reply(reply)

        self.send_to_gcs(request, on_answer)

    async def call(self, to: Address, request: Request[R]) -> R:
        """Send a request, await its reply, and raise the errors of ``send``."""

        def send(on_answer: OnAnswer[R]) -> None:
            self.send(to, request, on_answer)

        reply, _ = await answer_of(send)
        return reply

    def close(self) -> None:
        """Stop all retries, because this process is ending."""
        self._is_closed = True
