"""Requests of the gcs to raylets and workers: they are repeated until they are answered or the receiver is dead.

Ray: the retries of src/ray/rpc/retryable_grpc_client.h

Other processes ask the gcs whether a silent receiver is dead (``rpc.patient_caller``). The gcs looks into its own tables.
A receiver that answers with a failure is asked again, too: what the gcs has decided must be carried out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minray.platform.base import PlatformError
from minray.protocol.base import Address, R, Request
from minray.rpc.connection import Peers, PeerUnreachable

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0
"""Seconds before a request is repeated whose receiver may still be alive."""


class PersistentCaller:
    """Sends requests of one part of the gcs, and repeats them."""

    def __init__(self, peers: Peers, is_dead: Callable[[Address], bool]) -> None:
        """``is_dead`` tells whether a process is known to be dead."""
        self._peers = peers
        self._is_dead = is_dead

    async def call(self, to: Address, request: Request[R]) -> R | None:
        """Send a request until it is answered, and return the reply; None when the receiver is dead."""
        while not self._is_dead(to):
            try:
                return await self._peers.to(to).call(request)
            except PeerUnreachable as error:
                if error.is_certain:
                    return None
            except PlatformError as error:
                logger.warning("%s failed and is sent again: %s", type(request).__name__, error)
            await asyncio.sleep(ASK_AGAIN_S)
        return None
