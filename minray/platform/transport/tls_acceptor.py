"""Connections that come in over TCP where TLS is spoken: accepted one by one, so that each failure has words.

Ray: src/ray/rpc/grpc_server.cc, which leaves this to gRPC

asyncio's servers tell no protocol why a TLS handshake has failed, and a peer without TLS gets no answer from OpenSSL. So
this file accepts connections itself, and looks at the first byte before TLS begins.

Rules
  * A peer that sends nothing costs a socket and a task, until the handshake's time is over. The buffers of TLS are made when
    its first byte has come.
  * A peer without TLS gets a ``Refusal`` that every version of minray understands, and its connection ends. A port for
    browsers says it in HTTP.
  * The TLS handshake has ten seconds (``HANDSHAKE_TIMEOUT_S``). The handshake of the token then has as many again.
  * When this process has no more descriptors, accepting pauses. The kernel keeps the connections that wait.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from minray.common.task_set import TaskSet
from minray.platform.base import PlatformError
from minray.platform.transport.handshake import HANDSHAKE_TIMEOUT_S, TLS_RECORDS, Refusal, encode
from minray.platform.transport.strangers import CROWDED, Stranger, Strangers
from minray.platform.transport.tls import LOST_BY_SERVER, PLAIN_PEER, SHUTDOWN_S, Tls, describe
from minray.platform.transport.web_tls import WebTls

ACCEPTED_AT_ONCE = 64
"""Most connections accepted before the loop does something else."""
PAUSE_S = 1.0
"""Seconds without accepting after this process had no more descriptors (as in asyncio)."""
FIRST_BYTES = 4096
"""Most bytes of a refused peer that are read and dropped, since unread ones would make the kernel drop our refusal."""
REFUSED_PLAIN = encode(Refusal("tls"))
"""Answer to a peer without TLS, which every version of minray understands."""


Refuse = Callable[[str, str, str], None]
"""``refuse(machine, place, reason)`` logs a connection that is not accepted."""


async def listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    """Open a socket that listens at the first address of a host. Raises OSError."""
    # Only the first of several addresses (localhost has two): port 0 would become a different number on each.
    family, _, _, _, address = (await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    return socket.create_server((str(address[0]), port), family=family, backlog=backlog)


class TlsGreeting:
    """A connection that came in and whose TLS handshake is not over."""

    def __init__(self, connected: socket.socket, address: tuple[Any, ...], refuse: Refuse) -> None:
        self.connected = connected
        self.machine = str(address[0])
        self.is_handed_over = False
        """Whether a transport has the socket, and closes it."""
        self.task: asyncio.Task[None]
        self._place = f"{address[0]}:{address[1]}"
        self._refuse = refuse

    def refuse(self, reason: str) -> None:
        self._refuse(self.machine, self._place, reason)

    def crowd_out(self) -> None:
        self.refuse(CROWDED)
        self.task.cancel()

    def fileno(self) -> int:
        return self.connected.fileno()


class TlsAcceptor:
    """Accepts connections on listening sockets, and hands each of them to a new protocol inside TLS."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        tls: Tls | WebTls,
        strangers: Strangers[Stranger],
        new_protocol: Callable[[], asyncio.Protocol],
        refuse: Refuse,
        plain_answer: bytes = REFUSED_PLAIN,
    ) -> None:
        """Accept on these sockets. ``plain_answer``: what a peer without TLS is told."""
        self.sockets = sockets
        self.greetings: set[TlsGreeting] = set()
        """Connections whose TLS handshake is not over."""
        self._tls = tls
        self._strangers = strangers
        self._new_protocol = new_protocol
        self._refuse = refuse
        self._plain_answer = plain_answer
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskSet()
        self._pause: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        self._pause = None
        for listening in self.sockets:
            listening.setblocking(False)
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _stop(self) -> None:
        for listening in self.sockets:
            self._loop.remove_reader(listening.fileno())

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connected, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._stop()
                self._pause = self._loop.call_later(PAUSE_S, self._start)
                return
            self._begin(TlsGreeting(connected, address, self._refuse))

    def _begin(self, greeting: TlsGreeting) -> None:
        greeting.connected.setblocking(False)
        greeting.connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting.task = self._tasks.begin(self._greet(greeting), f"TLS with {greeting.machine}")
        greeting.task.add_done_callback(lambda _: self._end(greeting))
        self.greetings.add(greeting)
        surplus = self._strangers.add(greeting.machine, greeting)
        if surplus is not None:
            surplus.crowd_out()

    def _end(self, greeting: TlsGreeting) -> None:
        self.greetings.discard(greeting)
        self._strangers.discard(greeting.machine, greeting)
        if not greeting.is_handed_over:
            greeting.connected.close()

    async def _greet(self, greeting: TlsGreeting) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                first = await self._first_byte(greeting.connected)
                if first == TLS_RECORDS[0][:1]:
                    await self._shake_hands(greeting)
                elif first:
                    self._answer_plainly(greeting.connected)
                    greeting.refuse(PLAIN_PEER)
        except ssl.SSLError as error:
            greeting.refuse(describe(error))
        except TimeoutError:
            greeting.refuse(f"no TLS handshake within {HANDSHAKE_TIMEOUT_S:g} s")
        except ConnectionError:
            greeting.refuse(LOST_BY_SERVER)
        except (OSError, PlatformError) as error:
            greeting.refuse(str(error))

    async def _shake_hands(self, greeting: TlsGreeting) -> None:
        context = self._tls.server()
        greeting.is_handed_over = True
        await self._loop.connect_accepted_socket(
            self._new_protocol,
            greeting.connected,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )

    async def _first_byte(self, connected: socket.socket) -> bytes:
        """Wait for the first byte, and leave it where it is. Return nothing if the peer has only checked that we listen."""
        while True:
            with suppress(BlockingIOError, InterruptedError):
                return connected.recv(1, socket.MSG_PEEK)
            readable = self._loop.create_future()
            self._loop.add_reader(connected.fileno(), _settle, readable)
            try:
                await readable
            finally:
                self._loop.remove_reader(connected.fileno())

    def _answer_plainly(self, connected: socket.socket) -> None:
        with suppress(OSError):
            connected.recv(FIRST_BYTES)
            connected.send(self._plain_answer)

    async def close(self) -> None:
        """Stop accepting, and end the connections whose TLS handshake is not over."""
        if self._pause is not None:
            self._pause.cancel()
        self._stop()
        for listening in self.sockets:
            listening.close()
        await asyncio.gather(*self._tasks.cancel(), return_exceptions=True)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
