"""The receiving side: who handles what, who answers when, and what the caller hears of mistakes."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from minray.platform.base import RemoteFailure
from minray.protocol.base import DONE, Done, Record, Request, decode, encode, reply_class
from minray.rpc.service import Call, Dispatcher
from tests.rpc.fake_network import MAX_BYTES, OWN, FakeIncoming, run, turns


class Ask(Request[Done], frozen=True):
    subject: bytes
    size: int = 0


class AskLater(Request[Done], frozen=True):
    name: str


class AskSlowly(Request[Done], frozen=True):
    subject: bytes
    size: int = 0


class Large(Record, frozen=True):
    data: bytes


class Words(Record, frozen=True):
    text: str


class Service:
    """One handler of each kind."""

    def __init__(self) -> None:
        self.later: list[Call] = []
        self.go_on = asyncio.Event()
        self.names: list[str] = []
        self.problem: Exception | None = None
        self.answer: Record = DONE
        self.peers: list[bytes] = []

    def handle_Ask(self, request: Ask, call: Call) -> Record:
        self.peers.append(call.peer)
        self._maybe_fail()
        return Large(bytes(request.size)) if request.size else self.answer

    def handle_AskLater(self, request: AskLater, call: Call) -> Done | None:
        self.later.append(call)
        return None

    async def handle_AskSlowly(self, request: AskSlowly, call: Call) -> Record:
        task = asyncio.current_task()
        assert task is not None
        self.names.append(task.get_name())
        await self.go_on.wait()
        self._maybe_fail()
        return Large(bytes(request.size)) if request.size else self.answer

    def _maybe_fail(self) -> None:
        if self.problem is not None:
            raise self.problem

    def helper(self) -> None:
        """No handler."""


class Scene:
    """A dispatcher in front of the service."""

    def __init__(self) -> None:
        self.service = Service()
        self.dispatcher = Dispatcher(self.service)
        self.answers: list[Any] = []
        """Payloads, or failures."""
        self.buffers: list[Any] = []

    def arrive(self, request: Record | bytes, method: str = "") -> None:
        payload = request if isinstance(request, bytes) else encode(request)
        incoming = FakeIncoming(method or type(request).__name__, payload, [b"beside"], OWN, self._on_answer)
        self.dispatcher(incoming)

    def _on_answer(self, error: Any, payload: bytes, buffers: Any) -> None:
        self.answers.append(error or payload)
        self.buffers += buffers

    def failure(self) -> str:
        (answer,) = self.answers
        assert isinstance(answer, RemoteFailure)
        return str(answer)


def test_a_plain_handler_answers_at_once() -> None:
    scene = Scene()
    scene.arrive(Ask(b"x"))
    assert [decode(Done, answer) for answer in scene.answers] == [DONE] and scene.service.peers == [OWN]


def test_a_handler_may_answer_later_and_with_buffers() -> None:
    scene = Scene()
    scene.arrive(AskLater("x"))
    assert scene.answers == []
    (call,) = scene.service.later
    assert call.buffers == [b"beside"]
    call.reply(DONE, [b"buffer"])
    assert len(scene.answers) == 1 and scene.buffers == [b"buffer"]


def test_a_handler_may_refuse_later() -> None:
    scene = Scene()
    scene.arrive(AskLater("x"))
    scene.service.later[0].fail("stale-lease", "it is over")
    assert scene.failure() == "stale-lease: it is over"


def test_a_coroutine_is_named_after_its_message_and_its_subject() -> None:
    async def story() -> None:
        scene = Scene()
        scene.arrive(AskSlowly(b"\x01\x02\x03\x04\x05"))
        await turns()
        assert scene.service.names == ["AskSlowly(01020304)"] and scene.answers == []
        scene.service.go_on.set()
        await turns()
        assert len(scene.answers) == 1

    run(story)


@pytest.mark.parametrize(
    ("payload", "method", "failure"),
    [
        (b"", "Launch", "unknown-method: 'Launch' is not understood here"),
        (b"", "helper", "unknown-method"),
        (b"", "Ask", "bad-request: Ask: Input data was truncated"),
        (b"\xc1\xff", "Ask", "bad-request: Ask"),
        (encode(AskLater("text")), "Ask", "bad-request: Ask: "),
        (b"\x91\xa2\xff\xfe", "AskLater", "bad-request: AskLater"),
    ],
)
def test_the_peers_mistakes_are_refused_in_words(payload: bytes, method: str, failure: str) -> None:
    async def story() -> None:
        scene = Scene()
        scene.arrive(payload, method)
        assert scene.failure().startswith(failure)
        scene.dispatcher.close()

    run(story)


@pytest.mark.parametrize("request_class", [Ask, AskSlowly])
def test_our_own_mistakes_are_logged_and_told_as_internal(request_class: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        scene = Scene()
        scene.service.problem = KeyError("lost")
        scene.service.go_on.set()
        scene.arrive(request_class(b"x"))
        await turns()
        assert scene.failure() == f"internal: {request_class.__name__}: KeyError: 'lost'"

    with caplog.at_level(logging.ERROR, "minray.rpc.service"):
        run(story)
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is KeyError


@pytest.mark.parametrize("request_class", [Ask, AskSlowly])
def test_a_reply_that_cannot_be_carried_does_not_leave_the_caller_waiting(request_class: Any) -> None:
    async def story() -> None:
        scene = Scene()
        scene.service.go_on.set()
        scene.arrive(request_class(b"x", MAX_BYTES + 1))
        await turns()
        assert scene.failure().startswith("too-large: ")

    run(story)


@pytest.mark.parametrize("request_class", [Ask, AskSlowly])
def test_a_reply_that_cannot_be_written_does_not_either(request_class: Any) -> None:
    async def story() -> None:
        scene = Scene()
        scene.service.answer = Words("\udc80")
        scene.service.go_on.set()
        scene.arrive(request_class(b"x"))
        await turns()
        assert scene.failure().startswith(f"internal: {request_class.__name__}: UnicodeEncodeError")

    run(story)


def test_closing_stops_what_is_being_handled() -> None:
    async def story() -> None:
        scene = Scene()
        scene.arrive(AskSlowly(b"x"))
        await turns()
        scene.dispatcher.close()
        scene.service.go_on.set()
        await turns()
        assert scene.answers == []

    run(story)


@pytest.mark.filterwarnings("always")
def test_closing_stops_what_has_not_begun_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    """Python warns of a coroutine that was made and never awaited."""

    async def story() -> None:
        scene = Scene()
        scene.arrive(AskSlowly(b"x"))
        scene.dispatcher.close()
        await turns()
        assert scene.answers == [] and scene.service.names == []

    run(story)
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_a_handler_is_named_after_its_message() -> None:
    class Wrong:
        def handle_Ask(self, request: AskLater, call: Call) -> Done:
            return DONE

    with pytest.raises(AssertionError, match="handle_Ask"):
        Dispatcher(Wrong())


def test_a_request_names_its_reply() -> None:
    assert reply_class(Ask) is Done
