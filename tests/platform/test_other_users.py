"""Attempts through sockets that fail for a second user of the machine, even with the token (docs/security.md)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from minray.platform.base import AuthenticationFailed, Incoming, MemoryFailed, Network
from minray.platform.storage.memory import RealMemory
from minray.platform.transport import sockets
from minray.platform.transport.grpc_transport import GrpcNetwork
from minray.platform.transport.sockets import StreamNetwork
from tests.platform.second_user import NOBODY, needs_second_user, second_user, shared_directory
from tests.platform.transports import CLIENT, SERVER, RealHost, listening, run_asyncio, run_grpc

pytestmark = [
    needs_second_user,
    pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the kernel does not say whose process it is"),
]
TOKEN = b"token"
LISTENS = """
import asyncio
from minray.platform.transport.{module} import {network}
from tests.platform.transports import RealHost, SERVER, listening

async def story():
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, ended.set)
    async with listening({network}(b"token", RealHost()), sys.argv[1], lambda incoming: incoming.reply(b"theirs")):
        ready()
        await ended.wait()

become()
asyncio.run(story())
"""
CONNECTS = """
import asyncio
from minray.platform.base import ConnectFailed
from minray.platform.transport import endpoints
from minray.platform.transport.sockets import StreamNetwork
from tests.platform.transports import CLIENT, SERVER, RealHost

endpoints.check_peer = lambda connected: None  # This client does not care who listens.

async def story():
    try:
        await StreamNetwork(b"token", RealHost()).connect(sys.argv[1], SERVER, CLIENT, lambda: None)
    except ConnectFailed as error:
        return
    sys.exit("it was let in")

become()
ready()
asyncio.run(story())
"""
HANDS_OUT_MEMORY = """
import contextlib, socket, struct
become()
memory = os.memfd_create("theirs")
os.truncate(memory, 4096)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    ready()
    connection, _ = listener.accept()
    with connection, contextlib.suppress(BrokenPipeError):  # The client has left already, which is as good.
        socket.send_fds(connection, [struct.pack("<Q", 4096)], [memory])
"""
NETWORKS: dict[str, tuple[str, Callable[..., Network], Callable[[Any], None]]] = {
    "stream": ("sockets", StreamNetwork, run_asyncio),
    "grpc": ("grpc_transport", GrpcNetwork, run_grpc),
}


@pytest.mark.parametrize("transport", NETWORKS)
def test_a_client_says_nothing_to_a_listener_of_another_user(transport: str) -> None:
    module, network, run = NETWORKS[transport]

    async def story(endpoint: str) -> None:
        with pytest.raises(AuthenticationFailed, match=f"{endpoint}: .* belongs to another user .uid {NOBODY}"):
            await network(TOKEN, RealHost()).connect(endpoint, SERVER, CLIENT, lambda: None)

    program = LISTENS.format(module=module, network=network.__name__)  # type: ignore[attr-defined]
    with shared_directory() as shared, second_user(program, f"unix:{shared}/listener"):
        run(story(f"unix:{shared}/listener"))


def test_a_listener_hears_nothing_of_another_user(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Incoming] = []

    async def story(endpoint: str, path: str) -> None:
        async with listening(StreamNetwork(TOKEN, RealHost()), endpoint, heard.append):
            await asyncio.to_thread(sockets.os.chmod, path, 0o777)
            await asyncio.to_thread(meet, endpoint)

    def meet(endpoint: str) -> None:
        with second_user(CONNECTS, endpoint):
            pass

    with shared_directory() as shared:
        run_asyncio(story(f"unix:{shared}/listener", f"{shared}/listener"))
    assert heard == [] and f"belongs to another user (uid {NOBODY})" in caplog.text


def test_no_memory_is_taken_from_another_user() -> None:
    with shared_directory() as shared, second_user(HANDS_OUT_MEMORY, shared / "arena"):
        with pytest.raises(MemoryFailed, match=f"arena: .* belongs to another user .uid {NOBODY}"):
            RealMemory().attach(f"unix:{shared}/arena")
