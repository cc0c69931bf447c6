"""Requests of a process to its node's store, and its reads and writes there, with a pretended store and arena."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from minray.object_store.client import StoreClient
from minray.platform.base import MemoryFailed, PlatformError
from minray.protocol.base import DONE
from minray.protocol.object_store import (
    CREATED,
    FREED,
    GET,
    LOST,
    PINNED,
    AbortObject,
    CreateObject,
    CreateReply,
    Pinned,
    PinObjects,
    PinReply,
    ReleasePins,
    SealObject,
)
from tests.object_store.copies import OWNERS, WORKERS, object_id
from tests.platform_record import platform_record

A, B = object_id("a"), object_id("b")
OWNER = OWNERS[0]


class Process:
    """A client, what it has asked, and the memory of its node."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._on_answer: list[Callable[..., None]] = []
        self.arenas: dict[str, Any] = {"memory": memoryview(bytearray(range(100))), "disk": memoryview(bytearray(100))}
        self.unreachable: list[str] = []
        self.got: list[Any] = []
        """Answer to the last ``pin``."""
        platform = platform_record(memory=self, user_code=self)
        raylet: Any = self
        self.client = StoreClient(platform, raylet, WORKERS[0], "memory", "disk", self.unreachable.append)

    def send(self, request: Any, on_answer: Callable[..., None]) -> None:
        self.asked.append(request)
        self._on_answer.append(on_answer)

    def attach(self, endpoint: str) -> Any:
        if endpoint not in self.arenas:
            raise MemoryFailed(f"{endpoint} is gone")
        return self.arenas[endpoint]

    def post(self, callback: Callable[..., None], *arguments: Any) -> None:
        callback(*arguments)

    post_later = post

    def answer(self, reply: Any) -> Any:
        """Answer the oldest question; returns it."""
        error = None if reply is not None else PlatformError("the raylet has died")
        self._on_answer.pop(0)(reply, error, ())
        return self.asked.pop(0)

    def pin(self, *keys: bytes) -> None:
        self.client.pin([(key, OWNER, 3) for key in keys], GET, 1.5, self._on_pinned)

    def _on_pinned(self, got: Sequence[Any]) -> None:
        self.got = [*got]


def test_what_is_read_stays_where_it_is_until_the_last_view_has_gone() -> None:
    it = Process()
    it.pin(A, B)
    request = it.answer(PinReply([Pinned(PINNED, offset=10, size=2), Pinned(FREED)]))
    assert isinstance(request, PinObjects) and (request.client, request.purpose, request.timeout_s) == (WORKERS[0], GET, 1.5)
    assert [(one.object_id, one.owner, one.attempt) for one in request.wanted] == [(A, OWNER, 3), (B, OWNER, 3)]
    assert it.answer(DONE) == ReleasePins([request.wanted[1].pin]), "the question may come to the store once more, and late"
    view, other = it.got
    assert bytes(view) == bytes([10, 11]) and view.readonly and other == Pinned(FREED)
    part = view[1:]
    it.got.clear()
    del view
    gc.collect()
    assert it.asked == [] and bytes(part) == bytes([11])
    del part
    gc.collect()
    assert it.answer(DONE) == ReleasePins([request.wanted[0].pin])


def test_no_two_uses_have_the_same_name() -> None:
    it = Process()
    it.pin(A, A)
    it.pin(A)
    pins = [one.pin for request in it.asked for one in request.wanted]
    assert len(set(pins)) == 3


def test_g79_what_lies_on_disk_is_read_and_written_there() -> None:
    it = Process()
    it.client.view(105, 2)[:] = b"xy"
    it.pin(A)
    it.answer(PinReply([Pinned(PINNED, offset=105, size=2)]))
    assert bytes(it.got[0]) == b"xy" == bytes(it.arenas["disk"][5:7])
    it.client.view(7, 1)[:] = b"z"
    assert bytes(it.arenas["memory"][6:9]) == bytes([6]) + b"z" + bytes([8])


def test_without_a_store_nothing_can_be_read() -> None:
    it = Process()
    it.pin(A, B)
    it.answer(None)
    assert [one.status for one in it.got] == [LOST, LOST] and "the raylet has died" in it.got[0].reason


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_memory_that_cannot_be_mapped_is_told_and_what_is_there_given_back(place: str) -> None:
    it = Process()
    del it.arenas[place]
    offset = 10 if place == "memory" else 110
    it.pin(A)
    request = it.answer(PinReply([Pinned(PINNED, offset=offset, size=1)]))
    assert [one.status for one in it.got] == [LOST] and it.unreachable == [f"{place} is gone"]
    assert it.answer(DONE) == ReleasePins([request.wanted[0].pin])
    with pytest.raises(MemoryFailed, match="is gone"):
        it.client.view(offset, 1)
    assert it.unreachable == [f"{place} is gone"] * 2


def test_what_is_written_is_asked_for_and_sealed_or_given_up() -> None:
    it = Process()
    heard: list[Any] = []
    it.client.create(A, 1, 50, OWNER, lambda reply, error: heard.append((reply, error)))
    reply = CreateReply(CREATED, OWNER, 4)
    assert it.answer(reply) == CreateObject(A, 1, 50, OWNER, WORKERS[0])
    it.client.seal(A, 1, heard.append)
    assert it.answer(DONE) == SealObject(A, 1)
    it.client.seal(A, 1, heard.append)
    it.answer(None)
    assert heard[:2] == [(reply, None), None] and isinstance(heard[2], PlatformError)
    del heard[:]
    for answer in (DONE, None):
        it.client.abort(A, 1, lambda: heard.append("aborted"))
        assert it.answer(answer) == AbortObject(A, 1) and heard.pop() == "aborted" and not heard
    assert not it.client.is_own(OWNER)
