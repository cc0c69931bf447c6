"""The session between a client and its driver process: what is sent arrives once and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.platform.base import MAX_RECORD_BYTES
from minray.protocol.client import AnswerMessage, EndChannel, Parcel, Relayed
from minray.remote_client.session import (
    FRAME_BYTES,
    INLINE_BYTES,
    RECORD_BYTES,
    REPORT_BYTES,
    ClientSession,
    SessionBroken,
    SessionFrame,
    apart,
    frame_in,
)


def sent_by(session: ClientSession) -> list[SessionFrame]:
    frames = []
    while (frame := session.take()) is not None:
        frames.append(frame)
    return frames


def received(session: ClientSession, frames: list[SessionFrame]) -> list[Relayed]:
    return [record for frame in frames for record in session.receive(frame)]


def test_records_of_one_turn_travel_in_one_frame() -> None:
    here, there = ClientSession(), ClientSession()
    for number in range(1000):
        here.add(EndChannel(number))
    (frame,) = sent_by(here)
    assert received(there, [frame]) == [EndChannel(number) for number in range(1000)]
    assert not here.is_through()
    here.acknowledge(there.received)
    assert here.is_through()


def test_a_large_record_is_cut_into_frames_that_the_transport_takes() -> None:
    here, there = ClientSession(), ClientSession(window_bytes=10**9)
    payload = bytes(10 * FRAME_BYTES + 1)
    here.add(AnswerMessage(1, "", payload), len(payload))
    frames = []
    while not here.is_through():
        frames += sent_by(here)
        here.acknowledge(frames[-1].number)
    assert max(len(frame.data) for frame in frames) <= FRAME_BYTES < MAX_RECORD_BYTES
    assert [frame.is_end for frame in frames] == [False] * 10 + [True]
    assert received(there, frames) == [AnswerMessage(1, "", payload)]


def test_no_more_than_a_window_is_kept_and_the_rest_waits_unencoded() -> None:
    here, there = ClientSession(frame_bytes=1000, window_bytes=3000), ClientSession()
    for number in range(10):
        here.add(AnswerMessage(number, "", bytes(900)), 900)
    first = sent_by(here)
    assert len(first) == 4 and here.take() is None
    assert here.waiting_bytes == 6 * (900 + RECORD_BYTES)
    received(there, first[:2])
    here.acknowledge(there.received)
    assert [frame.number for frame in sent_by(here)] == [5, 6]


def test_frames_that_are_not_acknowledged_are_sent_again_and_taken_once() -> None:
    here, there = ClientSession(), ClientSession()
    here.add(EndChannel(1))
    first = sent_by(here)
    here.add(EndChannel(2))
    second = sent_by(here)
    assert received(there, first) == [EndChannel(1)]
    here.rewind()
    assert sent_by(here) == first + second
    assert received(there, first + second) == [EndChannel(2)]


def test_a_frame_that_has_overtaken_others_waits_for_them() -> None:
    here, there = ClientSession(), ClientSession()
    frames = []
    for number in range(4):
        here.add(EndChannel(number))
        frames += sent_by(here)
    assert there.receive(frames[2]) == there.receive(frames[1]) == there.receive(frames[2]) == []
    assert there.report() == 0
    assert there.receive(frames[0]) == [EndChannel(0), EndChannel(1), EndChannel(2)]
    assert received(there, frames[1:]) == [EndChannel(3)]
    assert there.report() == 4


def test_frames_beyond_the_window_end_the_session() -> None:
    there = ClientSession(window_bytes=1000)
    there.receive(SessionFrame(3, True, bytes(1900)))
    with pytest.raises(SessionBroken, match="frame 2 and others of .* bytes came before frame 1"):
        there.receive(SessionFrame(2, True, bytes(100)))


def test_much_that_arrives_has_to_be_reported_soon() -> None:
    there = ClientSession()
    there.receive(SessionFrame(1, False, bytes(REPORT_BYTES // 2)))
    assert not there.owes_report()
    there.receive(SessionFrame(2, False, bytes(REPORT_BYTES // 2)))
    assert there.owes_report() and there.report() == 2 and not there.owes_report()


def test_a_large_frame_is_the_buffer_of_its_message_and_a_small_one_is_inside() -> None:
    for size in (INLINE_BYTES, INLINE_BYTES + 1):
        frame = SessionFrame(7, True, bytes(size))
        data, buffers = apart(frame)
        assert (len(data), len(buffers)) == ((size, 0) if size == INLINE_BYTES else (0, 1))
        assert frame_in(Parcel(3, frame.number, frame.is_end, data), buffers) == frame


@given(
    st.lists(st.sampled_from(["send", "deliver", "overtake", "acknowledge", "break"]), max_size=60), st.integers(30, 400)
)
def test_whatever_the_connection_does_each_record_arrives_once_and_in_order(steps: list[str], frame_bytes: int) -> None:
    here, there = ClientSession(frame_bytes, window_bytes=1000), ClientSession()
    sent: list[Relayed] = []
    arrived: list[Relayed] = []
    under_way: list[SessionFrame] = []
    for step in [*steps, "break", *["deliver", "acknowledge"] * 100]:
        if step == "send":
            payload = bytes(10 * len(sent))
            sent.append(AnswerMessage(len(sent), "", payload))
            here.add(sent[-1], len(payload))
        elif step == "deliver":
            under_way += sent_by(here)
            arrived += there.receive(under_way.pop(0)) if under_way else []
        elif step == "overtake":
            under_way += sent_by(here)
            arrived += there.receive(under_way.pop()) if under_way else []
        elif step == "acknowledge":
            here.acknowledge(there.received)
        else:
            under_way.clear()
            here.rewind()
    assert arrived == sent
    assert here.is_through()


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (SessionFrame(1, True, b"garbage"), "malformed"),
        (SessionFrame(1, True, b"\x91\x92\x63\x01"), "malformed"),
    ],
)
def test_what_breaks_the_rules_ends_the_session(frame: SessionFrame, words: str) -> None:
    with pytest.raises(SessionBroken, match=words):
        ClientSession().receive(frame)


def test_an_acknowledgement_of_what_was_never_sent_ends_the_session() -> None:
    with pytest.raises(SessionBroken, match="frame 1 was acknowledged, but the last one is 0"):
        ClientSession().acknowledge(1)
