"""The lanes of a node: opened when another one asks for the first time, and used in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from minray.object_manager.bulk import Bulk
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.object_store import ChunkReply, OpenLanes, OpenLanesReply, ReadChunk
from tests.object_manager.node import A, OneWay, raylet
from tests.platform_record import platform_record, raylet_config
from tests.rpc.fake_network import in_virtual_time, turns

X, Y = raylet("x"), raylet("y")


class Listener:
    def __init__(self, network: Network, endpoint: str) -> None:
        self._network = network
        self.endpoint = endpoint.replace(":0", ":1234")
        network.listening.append(self.endpoint)

    async def close(self) -> None:
        self._network.listening.remove(self.endpoint)


class Network:
    """A lane, of which only listening is real."""

    def __init__(self, broken: str = "") -> None:
        self.listening: list[str] = []
        self._broken = broken
        """Where nobody can listen."""

    async def listen(self, endpoint: str, identity: bytes, on_incoming: Any) -> Listener:
        await turns(1)
        if self._broken and endpoint.startswith(self._broken):
            raise PlatformError(f"{endpoint} is taken")
        return Listener(self, endpoint)


class Asking:
    """Stands for the peers on one network: what they were asked, and of whom they know that they are dead."""

    def __init__(self) -> None:
        self.asked: list[tuple[Address, Any, Callable[..., None]]] = []
        self.dead: list[bytes] = []
        self.is_closed = False

    def to(self, address: Address) -> Any:
        def send(request: Any, on_answer: Callable[..., None], into: Any = ()) -> None:
            self.asked.append((address, request, on_answer))

        return OneWay(send)

    def on_death_of(self, worker_id: bytes, reason: str) -> None:
        self.dead.append(worker_id)

    def close(self) -> None:
        self.is_closed = True


class Node:
    """With some lanes; ``others`` is the connection for all else."""

    def __init__(self, lanes: int = 2, tcp_host: str = "", broken: str = "") -> None:
        self.networks = [Network(broken if number == lanes - 1 else "") for number in range(lanes)]
        self.others = Asking()
        config, others = raylet_config(b"here", socket_dir="/s", tcp_host=tcp_host), cast(Any, self.others)
        self.bulk = Bulk(platform_record(), config, others)
        self.lanes = [Asking() for _ in range(lanes)]
        bulk: Any = self.bulk
        bulk._networks, bulk._lanes = self.networks, self.lanes
        self.answers: list[Any] = []

    def read(self, source: Address = X) -> None:
        def on_answer(reply: ChunkReply | None, error: PlatformError | None, _: Any) -> None:
            self.answers.append(reply or error)

        self.bulk.read(source, ReadChunk(A, 0, 0, 1, 1), memoryview(bytearray(1)), on_answer)

    async def open(self) -> list[str]:
        lanes = await self.bulk.open(lambda incoming: None)
        return [endpoint for lane in lanes for endpoint in (lane.endpoint, lane.tcp_endpoint) if endpoint]

    def listening(self) -> list[str]:
        return [endpoint for network in self.networks for endpoint in network.listening]


LANES = [Address(b"x", b"x", "sim:x-0"), Address(b"x", b"x", "sim:x-1")]


def test_a_node_is_asked_once_where_it_listens_and_then_on_its_lanes_in_turn() -> None:
    node = Node()
    for _ in range(3):
        node.read()
    ((to, request, on_answer),) = node.others.asked
    assert (to, request) == (X, OpenLanes()) and not any(lane.asked for lane in node.lanes)
    on_answer(OpenLanesReply(LANES), None, ())
    node.read()
    assert [[to for to, _, _ in lane.asked] for lane in node.lanes] == [[LANES[0]] * 2, [LANES[1]] * 2]
    assert len(node.others.asked) == 1


def test_a_node_that_has_no_lanes_or_does_not_say_is_asked_on_the_other_connection() -> None:
    node = Node()
    for source, reply in ((X, OpenLanesReply([])), (Y, None)):
        node.read(source)
        node.others.asked.pop()[2](reply, None, ())
        to, request, _ = node.others.asked.pop()
        assert (to, type(request)) == (source, ReadChunk)
    node.read(X)
    assert isinstance(node.others.asked.pop()[1], ReadChunk)
    node.read(Y)
    assert isinstance(node.others.asked.pop()[1], OpenLanes), "it is asked again"


def test_a_dead_node_is_forgotten_on_all_lanes() -> None:
    node = Node()
    node.read()
    node.others.asked.pop()[2](OpenLanesReply(LANES), None, ())
    node.bulk.on_node_death(X.worker_id, "dead")
    assert [lane.dead for lane in node.lanes] == [[X.worker_id]] * 2
    node.read()
    assert isinstance(node.others.asked.pop()[1], OpenLanes)


@in_virtual_time
async def test_a_node_listens_when_it_is_asked_and_once() -> None:
    node = Node()
    assert node.listening() == []
    first, second = await asyncio.gather(node.open(), node.open())
    assert first == second == await node.open() == node.listening() == ["/s/bulk-0", "/s/bulk-1"]
    await node.bulk.close()
    assert node.listening() == [] and all(lane.is_closed for lane in node.lanes)


@in_virtual_time
async def test_a_node_that_others_reach_by_tcp_listens_there_too() -> None:
    node = Node(tcp_host="1.2.3.4")
    assert await node.open() == ["/s/bulk-0", "tcp:1.2.3.4:1234", "/s/bulk-1", "tcp:1.2.3.4:1234"]
    await node.bulk.close()
    assert node.listening() == []


@in_virtual_time
async def test_a_node_that_cannot_listen_on_all_lanes_has_none() -> None:
    node = Node(broken="/s/bulk-1")
    assert await node.open() == [] == await node.open()
    await node.bulk.close()
    assert node.listening() == []
