"""A proxy in front of unix sockets: it takes the place of a listener's file, and can hold back or cut connections.

Rules
  * A file is replaced in one step, so every client finds a listener where a living process listens.
  * Held back means silent: bytes, new connections and ends of connections wait, in order, and pass at the release.
  * Cut means broken: open connections are reset, and new ones are closed at once. New ones are never refused, because a
    refused connection means a dead process.
  * Sockets that hand out descriptors have no proxy, because a proxy passes on bytes only.
  * When the process behind a proxy is gone, the proxy's file goes. The next client is refused, as it should be.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

ARENAS = ("s-", "f-")
"""First letters of sockets that hand out the memory of object stores."""
BEHIND = ".behind"
"""Added to the file name of a listener that has a proxy."""


class Link:
    """One connection, with two ends: one towards the client, one towards the listener."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.ends = _End(self), _End(self)
        self.is_over = False
        self._actions: list[Callable[[], None]] = []
        """Actions that wait while the relay holds."""

    def other(self, end: _End) -> _End:
        return self.ends[end is self.ends[0]]

    def do(self, action: Callable[[], None]) -> None:
        """Do an action at once, or after all actions that wait already."""
        if self.relay.is_held or self._actions:
            self._actions.append(action)
        else:
            action()

    def release(self) -> None:
        actions, self._actions = self._actions, []
        for action in actions:
            action()

    def finish(self) -> None:
        """Close both ends, after all bytes are written: one end is gone."""
        self._end("close")

    def abort(self) -> None:
        self._actions.clear()
        self._end("abort")

    def _end(self, how: str) -> None:
        self.is_over = True
        self.relay.links.discard(self)
        for end in self.ends:
            if end.transport is not None:
                getattr(end.transport, how)()


class _End(asyncio.Protocol):
    """One of a link's two sockets."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        self._early = bytearray()
        """Bytes to write as soon as there is a socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._link.relay.open_ends.add(self)
        self.transport.write(self._early)
        if self._link.is_over:
            self.transport.close()
        elif self is self._link.ends[0]:
            self._link.relay.on_connected(self._link)

    def data_received(self, data: bytes) -> None:
        self._link.do(lambda: self._link.other(self).write(data))

    def write(self, data: bytes) -> None:
        if self.transport is None:
            self._early += data
        else:
            self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._link.relay.open_ends.discard(self)
        self._link.do(self._link.finish)


class Relay:
    """The proxy of one listener. It lives on the loop of ``Proxies``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = path.with_name(path.name + BEHIND)
        self.links: set[Link] = set()
        self.open_ends: set[_End] = set()
        """Ends whose sockets are not closed yet, also of links that are over."""
        self.is_held = False
        self.is_cut = False
        self._server: asyncio.Server | None = None
        self._connecting: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Take the place of the listener. Raises OSError if that has gone."""
        beginning = self.path.with_name(self.path.name + ".new")
        os.link(self.path, self.behind)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: Link(self).ends[0], beginning)
        os.rename(beginning, self.path)

    def on_connected(self, link: Link) -> None:
        self.links.add(link)
        if self.is_cut or self.is_over:
            link.abort()
        else:
            link.do(lambda: self._connect(link))

    def _connect(self, link: Link) -> None:
        task = asyncio.get_running_loop().create_task(self._reach(link), name=f"reach {self.path.name}")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _reach(self, link: Link) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link.ends[1], self.behind)
        except OSError:
            self.vanish()
            link.abort()

    def vanish(self) -> None:
        """Close the server and remove both files: no process listens behind it any more."""
        if self._server is not None:
            self._server.close()
            self._server = None
            for path in (self.path, self.behind):
                path.unlink(missing_ok=True)

    def step_aside(self) -> None:
        """Give the listener its place back; open connections stay."""
        if self._server is not None:
            with suppress(FileNotFoundError):
                os.rename(self.behind, self.path)
            self._server.close()
            self._server = None

    def release(self) -> None:
        self.is_held = self.is_cut = False
        for link in list(self.links):
            link.release()

    def cut(self) -> None:
        self.is_cut = True
        for link in list(self.links):
            link.abort()

    async def end(self) -> None:
        self.step_aside()
        for task in list(self._connecting):
            await task
        for link in list(self.links):
            link.abort()

    async def close_ends(self) -> None:
        """Close all open ends, even with unwritten bytes. No client may connect any more."""
        for end in list(self.open_ends):
            if end.transport is not None:
                end.transport.abort()
        while self.open_ends:
            await asyncio.sleep(0)

    @property
    def is_over(self) -> bool:
        return self._server is None


class Proxies:
    """All proxies, on a thread with a loop of its own. Its methods are for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        self._relays: dict[Path, Relay] = {}
        self._begun: list[Relay] = []
        """All relays ever. One that has stepped aside, or has failed to begin, may have open connections."""

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def listeners(self, folder: Path) -> list[Path]:
        """Paths in a directory of sockets that have a proxy now."""
        return sorted(path for path, relay in self._relays.items() if path.parent == folder and not relay.is_over)

    def put_before_all_of(self, folder: Path) -> None:
        """Put a proxy before each listener of a directory that has none, and can have one."""
        names = {
            path for path in folder.glob("*") if path.suffix not in (BEHIND, ".new") and not path.name.startswith(ARENAS)
        }
        for path in sorted(names - set(self.listeners(folder))):
            relay = Relay(path)
            self._begun.append(relay)
            with suppress(OSError):
                self._run(relay.begin())
                self._relays[path] = relay

    def hold(self, path: Path) -> None:
        async def act() -> None:
            self._relays[path].is_held = True

        self._run(act())

    def cut(self, path: Path) -> None:
        async def act() -> None:
            self._relays[path].cut()

        self._run(act())

    def release(self, paths: Sequence[Path]) -> None:
        """Let connections pass again. A proxy that has stepped aside meanwhile holds nothing."""

        async def act() -> None:
            for path in paths:
                if path in self._relays:
                    self._relays[path].release()

        self._run(act())

    def step_aside(self, path: Path) -> None:
        """Remove the proxy of a listener that is about to be killed and started again at the same path."""

        async def act() -> None:
            self._relays.pop(path).step_aside()

        if path in self._relays:
            self._run(act())

    def close(self) -> None:
        async def act() -> None:
            for relay in self._begun:
                await relay.end()
            while accepting := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(accepting)
            for relay in self._begun:
                await relay.close_ends()

        self._run(act())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
