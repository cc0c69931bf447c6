"""How many connections without a proof a listener keeps, and whose go first."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from minray.platform.process.host import raise_file_limit
from minray.platform.transport import strangers
from minray.platform.transport.sockets import StreamListener, StreamNetwork
from minray.platform.transport.strangers import Strangers
from tests.platform.transports import CLIENT, SERVER, TIMEOUT_S, RealHost, ask, echo, listening, tls, until

TOKEN = b"token"


class Connection:
    """A connection that is only counted."""

    def crowd_out(self) -> None:
        raise AssertionError("the listener does this")


def test_the_machine_with_most_connections_loses_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 4)
    held: Strangers[Connection] = Strangers()
    flood = [Connection() for _ in range(5)]
    honest = Connection()
    assert held.add("honest", honest) is None
    assert [held.add("flood", connection) for connection in flood] == [None, None, None, flood[0], flood[1]]
    another = Connection()
    assert held.add("honest", another) is flood[2] and len(held) == 4
    held.discard("honest", another)
    held.discard("honest", another)
    held.discard("nowhere", another)
    assert len(held) == 3 and held.add("flood", Connection()) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_never_more_than_the_bound_and_a_single_connection_stays(steps: list[tuple[str, bool]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(strangers, "MOST_STRANGERS", 5)
        held: Strangers[Connection] = Strangers()
        lonely = Connection()
        held.add("lonely", lonely)
        known: dict[Connection, str] = {}
        for machine, comes in steps:
            if comes or not known:
                connection = Connection()
                known[connection] = machine
                dropped = held.add(machine, connection)
                assert dropped is not lonely
                if dropped is not None:
                    del known[dropped]
            else:
                connection = next(iter(known))
                held.discard(known.pop(connection), connection)
            assert len(held) == len(known) + 1 <= 5


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"minr"], ids=["nothing", "tls", "minray"])
def test_1000_connections_that_say_little_cost_a_bounded_number_and_keep_nobody_out(
    scheme: str, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert raise_file_limit() > 2000, "both ends of all connections are in this process"
    most: list[int] = []

    def look(listener: StreamListener) -> None:
        most.append(len(listener.strangers))

    async def story() -> None:
        network = StreamNetwork(TOKEN, RealHost(), tls=tls(scheme))
        async with asyncio.timeout(TIMEOUT_S), listening(network, "tcp:127.0.0.1:0", echo) as listener:
            assert isinstance(listener, StreamListener)
            (await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)).close()  # opens the loop's own files
            await until(lambda: not listener.connections)
            before = _descriptors()
            await flood(listener, 1000, sent, look)
            channel = await network.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            assert await ask(channel, "Ping", b"1") == (b"1", ())
            channel.close()
            await until(lambda: not listener.strangers and _descriptors() <= before)

    uvloop.run(story())
    assert max(most) <= strangers.MOST_STRANGERS
    assert len(caplog.messages) <= 1, "one line for the machine; the rest is counted"


class Flooder(asyncio.Protocol):
    """A connection that says a few bytes and then waits."""

    is_over = False

    def eof_received(self) -> bool:
        self.is_over = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True


async def flood(listener: StreamListener, count: int, sent: bytes, look: Callable[[StreamListener], Any]) -> None:
    """Open connections without ending any, and say the same on each; then end all."""
    loop, port = asyncio.get_running_loop(), int(listener.endpoint.rpartition(":")[2])
    opened = []
    for _ in range(count):
        transport, flooder = await loop.create_connection(Flooder, "127.0.0.1", port)
        opened.append((transport, flooder))
        transport.write(sent)
        look(listener)
    await until(lambda: sum(flooder.is_over for _, flooder in opened) >= count - strangers.MOST_STRANGERS)
    look(listener)
    for transport, _ in opened:
        transport.abort()
