"""Lines about peers that have not proven anything: one at once, then a count a minute."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from minray.common import peer_log
from minray.common.peer_log import MOST_PEERS, OTHERS, WINDOW_S, PeerLog


class Clock:
    """The running loop, as far as it has timers."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: object) -> Clock:
        self.timers.append((delay_s, callback, args))
        return self

    def cancel(self) -> None:
        """Cancel, as a timer does."""
        self.timers.pop()

    def pass_time(self) -> None:
        """All windows that are open end."""
        timers, self.timers = self.timers, []
        for delay_s, callback, args in timers:
            assert delay_s == WINDOW_S
            callback(*args)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(peer_log.asyncio, "get_running_loop", lambda: made)
    return made


def test_a_peer_has_one_line_a_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = PeerLog(logging.getLogger("test"))
    for number in range(10_000):
        log.warn("10.0.0.7", f"garbage {number}")
    log.warn("10.0.0.8", "wrong token")
    assert caplog.messages == ["garbage 0", "wrong token"]
    clock.pass_time()
    assert caplog.messages[2:] == ["10.0.0.7: 9999 more in the last 60 s; the last one: garbage 9999"]
    log.warn("10.0.0.8", "wrong again")
    log.warn("10.0.0.7", "garbage still")
    assert caplog.messages[3:] == ["wrong again"]
    clock.pass_time()
    assert caplog.messages[4:] == ["10.0.0.7: 1 more in the last 60 s; the last one: garbage still"]
    clock.pass_time()
    assert len(caplog.messages) == 5 and clock.timers == []


def test_many_peers_share_a_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = PeerLog(logging.getLogger("test"))
    for number in range(3 * MOST_PEERS):
        log.warn(f"peer {number}", f"garbage of {number}")
    assert len(caplog.messages) == MOST_PEERS + 1 == len(clock.timers)
    clock.pass_time()
    last = 3 * MOST_PEERS - 1
    assert caplog.messages[-1] == f"{OTHERS}: {last - MOST_PEERS} more in the last 60 s; the last one: garbage of {last}"
    assert len(clock.timers) == 1


def test_a_listener_that_is_closed_says_the_rest_at_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = PeerLog(logging.getLogger("test"))
    for peer in ("10.0.0.7", "10.0.0.7", "10.0.0.8"):
        log.warn(peer, f"garbage of {peer}")
    log.close()
    assert caplog.messages[2:] == ["10.0.0.7: 1 more in the last 60 s; the last one: garbage of 10.0.0.7"]
    assert clock.timers == []
