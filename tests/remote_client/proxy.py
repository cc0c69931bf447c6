"""A TCP proxy before a client server, whose connections a test cuts, as a network does that fails for a while."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from minray.platform.threads.user_code import IoThread


class Proxy:
    """Forwards connections from a port of its own to another one."""

    def __init__(self, target: str) -> None:
        """Forward to host and port."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._thread = IoThread("proxy")
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.connections = 0
        """Number of connections that were let through."""
        self._server = self._thread.run(asyncio.start_server(self._forward, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        self.connections += 1
        there, to_there = await asyncio.open_connection(self._host, self._port)
        both = {writer, to_there}
        self._writers |= both
        try:
            await asyncio.gather(_copy(reader, to_there), _copy(there, writer))
        finally:
            self._writers -= both

    def cut(self) -> None:
        """End all connections, and let none through."""
        self._thread.run(self._cut())

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def inject(self, data: bytes) -> None:
        """Write something of our own to both sides of all connections."""
        self._thread.run(self._inject(data))

    async def _inject(self, data: bytes) -> None:
        for writer in self._writers:
            writer.write(data)

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def close(self) -> None:
        self.cut()
        self._thread.run(self._close())
        self._thread.stop()

    async def _close(self) -> None:
        self._server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
