"""Tells a machine whether its node could join: what the gcs runs on, and whether the gcs reaches that machine.

Ray: `ray health-check` and the checks in python/ray/_private/services.py; none connects back

A node needs connections in both directions. ``minray check`` listens at the address that its node would have, and the gcs
connects to it, with the same transport and the same handshake as for a raylet.
"""

from __future__ import annotations

import asyncio
import sys

from minray._version import __version__
from minray.platform.base import Platform, PlatformError
from minray.protocol.gcs import CheckJoin, CheckJoinReply
from minray.rpc.service import Call

CONNECT_BACK_S = 3.0
"""Seconds that a connection to the asking machine may take: less than a command waits for an answer."""


class JoinCheck:
    """Answers ``CheckJoin``."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    async def handle_CheckJoin(self, request: CheckJoin, call: Call) -> CheckJoinReply:
        return CheckJoinReply(
            time=self._platform.host.time(),
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            version=__version__,
            unreachable=await self._connect(request.endpoint) if request.endpoint else "",
        )

    async def _connect(self, endpoint: str) -> str:
        """Connect to the endpoint and close the connection; return the reason if that fails."""
        if not endpoint.startswith("tcp:"):
            return f"{endpoint} is not a TCP endpoint"
        try:
            async with asyncio.timeout(CONNECT_BACK_S):
                channel = await self._platform.network.connect(endpoint, b"", self._platform.identity, lambda: None)
        except TimeoutError:
            return f"{endpoint} does not answer within {CONNECT_BACK_S:g} s"
        except PlatformError as error:
            return str(error)
        channel.close()
        return ""
