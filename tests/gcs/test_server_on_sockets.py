"""The gcs on real sockets and a real disk: a raylet's process killed with ``kill -9``, a store that another gcs uses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
import uvloop

from minray.common.config import GcsConfig, SystemConfig
from minray.gcs.server import GcsServer
from minray.platform.base import Platform, StorageFailed
from minray.platform.process.host import RealHost
from minray.platform.storage.storage import open_storage
from minray.platform.transport.sockets import StreamNetwork
from minray.protocol.base import Address, decode
from minray.protocol.gcs import NODES, NodeInfo, Poll, PollReply, RegisterNode
from minray.rpc.connection import Peer
from tests.gcs.world import id_of, node_info

NOTICED_S = 0.1
TOKEN = b"token"
RAYLET = """
import asyncio, sys
from minray.platform.process.host import RealHost
from minray.platform.transport.sockets import StreamNetwork
from minray.protocol.base import DONE, encode

def answer(incoming):
    incoming.reply(encode(DONE))
    print(incoming.method, flush=True)

async def main():
    listener = await StreamNetwork(b"token", RealHost()).listen(sys.argv[1], bytes.fromhex(sys.argv[2]), answer)
    print(listener.endpoint, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def platform(name: str) -> Platform:
    nothing: Any = cast(Any, None)
    host = RealHost()
    return Platform(name, id_of(name), StreamNetwork(TOKEN, host), nothing, nothing, host, open_storage, nothing, nothing)


def gcs(directory: Path) -> GcsServer:
    config = GcsConfig([f"unix:{directory}/gcs"], f"{directory}/gcs.db", "session", SystemConfig())
    return GcsServer(platform("gcs"), config)


async def next_death(client: Peer, seen: PollReply) -> NodeInfo:
    while True:
        seen = await client.call(Poll(NODES, seen.epoch, seen.version, 30.0))
        for _, value in seen.entries:
            if value is not None and not (node := decode(NodeInfo, value)).alive:
                return node


async def seconds_until_noticed(directory: Path, where: str) -> float:
    server = gcs(directory)
    await server.start()
    command = [sys.executable, "-c", RAYLET, where, id_of("a").hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as raylet:
        assert raylet.stdout is not None
        endpoint = (await asyncio.to_thread(raylet.stdout.readline)).strip()
        client = Peer(platform("client"), server.endpoints[0], b"", 5.0, may_restart=True)
        await client.call(RegisterNode(node_info("a", address=Address(id_of("a"), id_of("a"), endpoint))))
        seen = await client.call(Poll(NODES, b"", 0, 0.0))
        assert await asyncio.to_thread(raylet.stdout.readline) == "CheckAlive\n"
        raylet.kill()
        killed = asyncio.get_running_loop().time()
        node = await next_death(client, seen)
        noticed = asyncio.get_running_loop().time()
    await server.close()
    client.close()
    assert "raylet is gone" in node.death_cause
    return noticed - killed


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_a_raylet_killed_with_kill_9_is_noticed_at_once(directory: Path, scheme: str) -> None:
    """The best of three, because machines are shared: no period and no time-out is waited for."""
    seconds = []
    for name in ("1", "2", "3"):
        (directory / name).mkdir()
        where = f"unix:{directory}/{name}/raylet" if scheme == "unix" else "tcp:127.0.0.1:0"
        seconds.append(uvloop.run(seconds_until_noticed(directory / name, where)))
    assert min(seconds) < NOTICED_S, seconds


@pytest.mark.slow
def test_a_store_is_one_gcs_s_and_the_next_one_goes_on(directory: Path) -> None:
    async def story() -> None:
        first, second = gcs(directory), gcs(directory)
        await first.start()
        client = Peer(platform("client"), first.endpoints[0], b"", 5.0, may_restart=True)
        nowhere = Address(id_of("a"), id_of("a"), f"unix:{directory}/nobody")
        cluster_id = (await client.call(RegisterNode(node_info("a", address=nowhere)))).cluster_id
        with pytest.raises(StorageFailed, match="another process uses it"):
            await second.start()
        await next_death(client, PollReply(b"", 0, True, []))
        await first.close()
        await second.wait_closed()
        third = gcs(directory)
        await third.start()
        reply = await client.call(RegisterNode(node_info("a", address=nowhere), cluster_id))
        assert "never returns" in reply.refused and reply.cluster_id == cluster_id
        await third.close()
        client.close()

    uvloop.run(story())
