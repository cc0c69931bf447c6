"""Bytes that are nested more deeply than Python can follow, and times that are none: they are answered with an error."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from minray.core_worker.service import CoreWorkerService
from minray.gcs.server import GCS_SERVICES, GcsServer
from minray.gcs.storage import NODES, GcsStorage
from minray.node.discovery import NODE_FILE, read_node_file
from minray.platform.base import Platform, RemoteFailure, StorageFailed
from minray.platform.storage.sqlite_storage import _checksum
from minray.platform.storage.storage import open_storage
from minray.platform.transport.handshake import _HEADER as HANDSHAKE_HEADER
from minray.platform.transport.handshake import HandshakeRefused, ServerHandshake
from minray.protocol.base import Done, Record, Request, encode
from minray.protocol.gcs import Poll
from minray.raylet.raylet import RAYLET_SERVICES
from minray.rpc.connection import Peer
from minray.rpc.service import Dispatcher, _understood_by
from tests.rpc import fake_network
from tests.rpc.fake_network import OWN, FakeIncoming, FakeNetwork, run

DEPTH = 200_000
DEEP_ARRAYS, DEEP_MAPS = b"\x91" * DEPTH + b"\xc0", b"\x81\xa0" * DEPTH + b"\xc0"
SURPLUS_FIELD = b"\xdc\x00\x20" + b"\xc0" * 31 + DEEP_ARRAYS
"""A record of 32 fields, the last of which no record has: it is skipped."""
SERVICES = [*GCS_SERVICES, *RAYLET_SERVICES, CoreWorkerService]
METHODS = [(service, name) for service in SERVICES for name in _understood_by(service)]


class Nothing(Request[Done], frozen=True):
    """Has no fields, like CheckAlive."""


class Deaf:
    def handle_Nothing(self, request: Nothing, call: Any) -> Done:
        raise AssertionError("it was understood")


def kind_of_failure(service: Any, method: str, payload: bytes) -> str:
    answers: list[Any] = []
    Dispatcher(service)(FakeIncoming(method, payload, (), OWN, lambda failure, *_: answers.append(failure)))
    (failure,) = answers
    assert isinstance(failure, RemoteFailure)
    return failure.kind


@pytest.mark.parametrize("payload", [DEEP_ARRAYS, DEEP_MAPS, SURPLUS_FIELD], ids=["arrays", "maps", "a surplus field"])
def test_every_message_is_answered(payload: bytes) -> None:
    async def story() -> None:
        for service, name in METHODS:
            assert kind_of_failure(object.__new__(service), name, payload) == "bad-request", f"{service.__name__}: {name}"
        assert kind_of_failure(Deaf(), "Nothing", payload) == "bad-request"

    assert len(METHODS) > 80
    run(story)


@pytest.mark.parametrize("payload", [b"\x92\xa1a" + DEEP_ARRAYS, b"\x91\xa1\xff"])
def test_a_reply_that_cannot_be_decoded_ends_its_call(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_network, "MAX_BYTES", 2 * DEPTH)

    class Word(Record, frozen=True):
        text: str

    class AskWord(Request[Word], frozen=True):
        pass

    async def story() -> None:
        network = FakeNetwork()
        network.listen_at("fake:there", b"there", lambda incoming: incoming.reply(payload))
        peer = Peer(network.platform, "fake:there", b"there", 1.0, False)
        with pytest.raises(RemoteFailure, match="AskWord") as caught:
            await peer.call(AskWord())
        assert caught.value.kind == "bad-reply"

    run(story)


def test_a_handshake_is_refused() -> None:
    record = b"\x92\xa5hello" + b"\x91" * 280 + b"\xc0"
    server = ServerHandshake(b"token", b"server", bytes(32))
    with pytest.raises(HandshakeRefused):
        server.receive(bytearray(HANDSHAKE_HEADER.pack(b"minray", 1, len(record)) + record))


def test_a_row_of_the_tables_is_an_error_that_names_the_table(tmp_path: Path) -> None:
    path = str(tmp_path / "gcs.sqlite")
    open_storage(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        row = (NODES, "00", DEEP_ARRAYS, _checksum(NODES, "00", DEEP_ARRAYS))
        connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", row)
    platform: Any = type("Host", (), {"open_storage": staticmethod(open_storage), "host": None})
    platform.host = type("Entropy", (), {"random_bytes": staticmethod(bytes)})

    async def story() -> None:
        storage = await GcsStorage.open(_as_platform(platform), path)
        try:
            with pytest.raises(StorageFailed, match="table nodes has a row that is no NodeInfo"):
                storage.nodes()
        finally:
            storage.close()

    asyncio.run(story())


def _as_platform(platform: Any) -> Platform:
    return platform  # type: ignore[no-any-return]


@pytest.mark.parametrize("content", [b"[" * DEPTH, b'{"a":' * DEPTH, b"\xff\xfe", b""])
def test_a_node_s_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NODE_FILE).write_bytes(content)
    assert read_node_file(str(tmp_path)) is None


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -float("inf")])
def test_a_time_that_is_no_number_of_seconds_is_refused(seconds: float) -> None:
    """NaN among the timers of an event loop would put all others out of order."""

    async def story() -> None:
        poll = encode(Poll(channel="nodes", epoch=b"", version=0, timeout_s=seconds))
        assert kind_of_failure(object.__new__(GcsServer), "Poll", poll) == "bad-request"

    run(story)
