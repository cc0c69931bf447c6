"""Connections between machines notice that the other side has gone without a word; those within a machine need not.

That the kernel keeps its word was seen in a network namespace whose only interface was switched off: a connection broke
after 30 seconds, with and without unacknowledged bytes, and a gRPC channel after 20.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from minray.platform.transport.sockets import KEEPALIVE
from tests.platform.transports import TRANSPORTS, Conversation, converse


@pytest.mark.parametrize("name", ["stream-tcp", "stream-tls", "stream-tcp-asyncio", "stream-unix"])
def test_both_ends_of_a_tcp_connection_are_asked_whether_they_are_there(name: str, tmp_path: Path) -> None:
    seen: list[dict[str, int]] = []

    def look(connection: Any) -> None:
        connected = connection._transport.get_extra_info("socket")
        if connected.family == socket.AF_UNIX:
            seen.append({"SO_KEEPALIVE": connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)})
        else:
            levels = dict.fromkeys(KEEPALIVE, socket.IPPROTO_TCP) | {"SO_KEEPALIVE": socket.SOL_SOCKET}
            present = {option: level for option, level in levels.items() if hasattr(socket, option)}
            seen.append({option: connected.getsockopt(level, getattr(socket, option)) for option, level in present.items()})

    async def story(talk: Conversation) -> None:
        await talk.ask("Ping")
        look(talk.channel)
        look(talk.heard[0].connection)  # type: ignore[attr-defined]

    with TRANSPORTS[name](tmp_path) as transport:
        converse(transport, story)
    wanted = {option: value for option, value in KEEPALIVE.items() if hasattr(socket, option)} | {"SO_KEEPALIVE": 1}
    assert seen == ([{"SO_KEEPALIVE": 0}] * 2 if name == "stream-unix" else [wanted] * 2)


@pytest.mark.parametrize("name", ["stream-unix", "stream-tcp-asyncio", "stream-tls", "stream-tls-asyncio"])
def test_a_network_knows_its_sockets_which_a_forked_child_lets_go_of(name: str, tmp_path: Path) -> None:
    async def story(talk: Conversation) -> None:
        await talk.ask("Ping")
        networks: tuple[Any, Any] = transport.network_a, transport.network_b
        connected, heard = (network.descriptors() for network in networks)
        assert (len(connected), len(heard)) == (1, 2), "the listener is one of them"
        assert all(stat.S_ISSOCK(os.fstat(descriptor).st_mode) for descriptor in (*connected, *heard))
        child = os.fork()
        if not child:
            os._exit(any(stat.S_ISSOCK(os.fstat(descriptor).st_mode) for descriptor in (*connected, *heard)))
        assert os.waitpid(child, 0)[1] == 0
        await talk.ask("Ping")
        talk.channel.close()
        assert networks[0].descriptors() in ([], connected), "it ends soon"

    with TRANSPORTS[name](tmp_path) as transport:
        converse(transport, story)
