"""Promises of the real transports beyond the contract: socket files, ports, and callbacks that raise."""

from __future__ import annotations

import asyncio
import os
import socket
import stat

import pytest

from minray.platform.base import ConnectFailed, ConnectRefused, Incoming, PlatformError, RemoteFailure
from minray.platform.transport import endpoints
from tests.platform.transports import CLIENT, SERVER, Conversation, Transport, ask, converse, echo, listening

REAL = ["stream-unix", "stream-tcp", "stream-unix-asyncio", "stream-tcp-asyncio", "grpc-unix", "grpc-tcp"]
on_unix = pytest.mark.parametrize("transport", [name for name in REAL if "unix" in name], indirect=True)
on_tcp = pytest.mark.parametrize("transport", [name for name in REAL if "tcp" in name], indirect=True)
everywhere = pytest.mark.parametrize("transport", REAL, indirect=True)


def path_of(transport: Transport) -> str:
    return transport.endpoint.removeprefix("unix:")


async def listen_fails(transport: Transport, endpoint: str, why: str) -> None:
    with pytest.raises(PlatformError, match=why) as caught:
        await transport.network_b.listen(endpoint, SERVER, echo)
    assert endpoint in str(caught.value)


@on_unix
def test_the_socket_file_comes_and_goes_with_its_listener(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        assert stat.S_ISSOCK(os.stat(path_of(transport)).st_mode)
        assert talk.listener.endpoint == transport.endpoint
        await talk.listener.close()
        assert not os.path.lexists(path_of(transport))

    converse(transport, story)


@on_unix
def test_a_stale_socket_file_is_replaced(transport: Transport) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path_of(transport))
        left_behind.listen()

    async def story(talk: Conversation) -> None:
        assert await talk.ask("Ping", b"x") == (b"x", ())

    converse(transport, story)


@on_unix
def test_a_live_listener_is_not_replaced(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        await listen_fails(transport, transport.endpoint, "another process listens there")
        assert await ask(await talk.connect(), "Ping", b"x") == (b"x", ())

    converse(transport, story)


@on_unix
def test_any_other_file_is_not_touched(transport: Transport) -> None:
    with open(path_of(transport), "w") as file:
        file.write("precious")
    transport.run(listen_fails(transport, transport.endpoint, "not a socket"))
    with open(path_of(transport)) as file:
        assert file.read() == "precious"


@pytest.mark.parametrize("transport", ["stream-unix", "stream-unix-asyncio"], indirect=True)  # gRPC removes any file
def test_the_file_of_a_successor_is_not_removed(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        os.unlink(path_of(transport))
        async with listening(transport.network_b, transport.endpoint, echo) as successor:
            await talk.listener.close()
            (await transport.network_a.connect(successor.endpoint, SERVER, CLIENT, lambda: None)).close()

    converse(transport, story)


@on_unix
def test_a_path_too_long_says_so(transport: Transport) -> None:
    async def story() -> None:
        longest = path_of(transport).ljust(endpoints.MAX_UNIX_PATH_BYTES, "x")
        async with listening(transport.network_b, f"unix:{longest}", echo) as listener:
            (await transport.network_a.connect(listener.endpoint, SERVER, CLIENT, lambda: None)).close()
        await listen_fails(transport, f"unix:{longest}x", "longer than the 10[37] bytes")
        with pytest.raises(ConnectFailed, match="longer than the 10[37] bytes"):
            await transport.network_a.connect(f"unix:{longest}x", SERVER, CLIENT, lambda: None)

    transport.run(story())


@on_unix
def test_no_such_directory(transport: Transport) -> None:
    endpoint = f"{transport.endpoint}/no/such/directory"
    with pytest.raises(ConnectRefused, match=endpoint):
        transport.run(transport.network_a.connect(endpoint, SERVER, CLIENT, lambda: None))
    transport.run(listen_fails(transport, endpoint, endpoint))


@on_tcp
def test_port_zero_becomes_a_number(transport: Transport) -> None:
    async def story(talk: Conversation) -> None:
        host, _, port = talk.listener.endpoint.rpartition(":")
        assert host == "tcp:127.0.0.1" and int(port) > 0
        await listen_fails(transport, talk.listener.endpoint, "in use")

    converse(transport, story)


@on_tcp
def test_a_name_that_cannot_be_resolved(transport: Transport) -> None:
    with pytest.raises(ConnectFailed, match="no-such-host.invalid"):
        transport.run(transport.network_a.connect("tcp:no-such-host.invalid:1", SERVER, CLIENT, lambda: None))
    transport.run(listen_fails(transport, "tcp:no-such-host.invalid:0", "no-such-host.invalid"))


@on_tcp
def test_localhost_may_have_several_addresses(transport: Transport) -> None:
    async def story() -> None:
        async with listening(transport.network_b, "tcp:localhost:0", echo) as listener:
            channel = await transport.network_a.connect(listener.endpoint, SERVER, CLIENT, lambda: None)
            assert await ask(channel, "Ping", b"x") == (b"x", ())
            channel.close()
        with pytest.raises(ConnectRefused, match="tcp:localhost:"):
            await transport.network_a.connect(listener.endpoint, SERVER, CLIENT, lambda: None)

    transport.run(story())


@everywhere
@pytest.mark.parametrize("endpoint", ["", "unix:", "tcp:", "tcp:localhost", "tcp:localhost:http", "tcp::1", "sim:a", "x"])
def test_what_is_no_endpoint(transport: Transport, endpoint: str) -> None:
    transport.run(listen_fails(transport, endpoint, "not an endpoint"))
    with pytest.raises(ConnectFailed, match="not an endpoint"):
        transport.run(transport.network_a.connect(endpoint, SERVER, CLIENT, lambda: None))


@pytest.mark.parametrize(
    "endpoint", ["tcp:127.0.0.1:80", "tcp:[::1]:80", "tcp:host.example:0", "unix:/tmp/a:b", "unix:relative"]
)
def test_endpoints_are_read_and_written(endpoint: str) -> None:
    parsed = endpoints.parse(endpoint)
    assert str(parsed) == endpoint if isinstance(parsed, endpoints.TcpEndpoint) else f"unix:{parsed.path}" == endpoint


@everywhere
def test_callbacks_that_raise_are_logged_and_the_channel_goes_on(
    transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(incoming: Incoming) -> None:
        incoming.reply(incoming.payload)
        raise ZeroDivisionError("in on_incoming")

    async def story(talk: Conversation) -> None:
        called = asyncio.Event()

        def on_reply(*_: object) -> None:
            called.set()
            raise ZeroDivisionError("in on_reply")

        talk.channel.call("Ping", b"", (), on_reply)
        await called.wait()
        assert await talk.ask("Ping", b"x") == (b"x", ())

    converse(transport, story, answer)
    raised = sorted(str(record.exc_info[1]) for record in caplog.records if record.exc_info)
    assert raised == ["in on_incoming", "in on_incoming", "in on_reply"]


@everywhere
def test_only_the_first_answer_counts(transport: Transport) -> None:
    def answer(incoming: Incoming) -> None:
        incoming.reply(b"first")
        incoming.reply(b"second")
        incoming.fail(RemoteFailure("internal", "third"))

    async def story(talk: Conversation) -> None:
        for _ in range(3):
            assert await talk.ask("Ping") == (b"first", ())

    converse(transport, story, answer)


def test_a_free_port_is_below_those_of_outgoing_connections_and_can_be_listened_on() -> None:
    port = endpoints.free_port("127.0.0.1")
    assert endpoints.PORTS[0] <= port < endpoints.PORTS[1]
    with socket.create_server(("127.0.0.1", port)), pytest.raises(endpoints.PortInUse, match=f"127.0.0.1:{port}"):
        endpoints.check_free("127.0.0.1", port)
    endpoints.check_free("127.0.0.1", port)


def test_a_port_is_free_although_connections_of_its_last_listener_linger() -> None:
    port = endpoints.free_port("127.0.0.1")
    with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
        accepted, _ = server.accept()
        accepted.close()  # The server's side closes first, so that the kernel remembers the connection on this port.
    endpoints.check_free("127.0.0.1", port)


def test_an_address_of_another_machine_has_no_free_port() -> None:
    with pytest.raises(PlatformError, match=r"192.0.2.1") as caught:
        endpoints.free_port("192.0.2.1")
    assert not isinstance(caught.value, endpoints.PortInUse)


def test_our_address_is_loopback_for_ourselves_and_none_for_a_host_that_does_not_exist() -> None:
    assert endpoints.own_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(PlatformError, match=r"no.such.invalid"):
        endpoints.own_address("no.such.invalid")
