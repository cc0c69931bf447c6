"""A terminal that attaches to a process over a unix socket, in one process: both sides, and what goes wrong between them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from minray.platform.base import AuthenticationFailed, ConnectRefused, PlatformError
from minray.platform.transport import endpoints
from minray.platform.transport.remote_terminal import MOST_KEPT, MOST_LINE_BYTES, TerminalListener, attach


def never() -> None:
    """Wait on."""


@pytest.fixture
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"unix:{tmp_path_factory.mktemp('t')}/b"


@contextmanager
def listening(endpoint: str) -> Generator[TerminalListener, None, None]:
    listener = TerminalListener(endpoint, never)
    try:
        yield listener
    finally:
        listener.close()


class User:
    """One who types all lines at once and then leaves; ``attach`` runs in a thread."""

    def __init__(self, endpoint: str, typed: str) -> None:
        self.shown: list[str] = []
        self.is_over: bool | None = None
        self._read, write = os.pipe()
        os.write(write, typed.encode())
        os.close(write)
        self._thread = threading.Thread(target=self._attach, args=(endpoint,))
        self._thread.start()

    def _attach(self, endpoint: str) -> None:
        self.is_over = attach(endpoint, self._read, self.shown.append)

    def leave(self) -> str:
        self._thread.join(30)
        assert not self._thread.is_alive()
        os.close(self._read)
        return "".join(self.shown)


def test_a_terminal_gets_what_was_written_before_it_came_and_sends_lines(endpoint: str) -> None:
    with listening(endpoint) as listener:
        listener.write("grüße\n(Pdb) ")
        user = User(endpoint, "p 1\nc\n")
        assert listener.readline() == "p 1\n" and listener.is_attached
        listener.write("1\n(Pdb) ")
        assert listener.readline() == "c\n"
        listener.close()
        assert user.leave() == "grüße\n(Pdb) 1\n(Pdb) " and user.is_over is True
    assert not os.path.exists(endpoint.removeprefix("unix:"))


def test_the_next_terminal_gets_the_output_since_the_last_line(endpoint: str) -> None:
    with listening(endpoint) as listener:
        listener.write("first")
        user = User(endpoint, "one\n")
        assert listener.readline() == "one\n"
        listener.write("second")
        second: list[User] = []

        def come_when_the_first_has_left() -> None:
            assert user.leave() == "firstsecond" and user.is_over is False
            second.append(User(endpoint, "two\n"))

        other = threading.Thread(target=come_when_the_first_has_left)
        other.start()
        assert listener.readline() == "two\n"
        other.join()
        listener.close()
        assert second[0].leave() == "second"


def test_only_the_end_of_long_output_is_kept(endpoint: str) -> None:
    with listening(endpoint) as listener:
        listener.write("x" * MOST_KEPT)
        listener.write("end")
        user = User(endpoint, "line\n")
        assert listener.readline() == "line\n"
        listener.close()
        shown = user.leave()
        assert len(shown) == MOST_KEPT and shown.endswith("xend")


def test_a_line_without_end_ends_its_terminal_and_not_the_session(endpoint: str) -> None:
    with listening(endpoint) as listener:
        user = User(endpoint, "")

        def send_too_much() -> None:
            user.leave()
            with socket.socket(socket.AF_UNIX) as greedy:
                greedy.connect(endpoint.removeprefix("unix:"))
                try:
                    greedy.sendall(b"x" * (MOST_LINE_BYTES + 1))
                    while greedy.recv(1024):
                        pass
                except OSError:  # the listener has closed its end
                    pass
            user_of_the_rest.append(User(endpoint, "line\n"))

        user_of_the_rest: list[User] = []
        other = threading.Thread(target=send_too_much)
        other.start()
        assert listener.readline() == "line\n"
        other.join()
        listener.close()
        user_of_the_rest[0].leave()


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_wait_ends_with_what_the_check_raises(endpoint: str, is_attached: bool) -> None:
    asked: list[int] = []

    def give_up_at_last() -> None:
        asked.append(1)
        if len(asked) > 2:
            raise KeyboardInterrupt

    listener = TerminalListener(endpoint, give_up_at_last)
    with socket.socket(socket.AF_UNIX) as terminal:
        if is_attached:
            terminal.connect(endpoint.removeprefix("unix:"))
        with pytest.raises(KeyboardInterrupt):
            listener.readline()
        listener.close()


def test_another_users_process_is_shown_nothing(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def refuse_first(connected: endpoints.Connected) -> None:
        seen.append(1)
        if len(seen) == 1:
            raise AuthenticationFailed("process 1 there belongs to another user (uid 1)")

    with listening(endpoint) as listener:
        listener.write("secret")
        with socket.socket(socket.AF_UNIX) as stranger, socket.socket(socket.AF_UNIX) as friend:
            stranger.connect(endpoint.removeprefix("unix:"))
            friend.connect(endpoint.removeprefix("unix:"))
            friend.sendall(b"line\n")
            monkeypatch.setattr(endpoints, "check_peer", refuse_first)
            assert listener.readline() == "line\n"
            assert stranger.recv(100) == b"" and friend.recv(100) == b"secret"


def test_attaching_fails_with_the_reason(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectRefused, match="No such file"):
        attach(endpoint, 0, print)
    with pytest.raises(PlatformError, match="longer than the"):
        TerminalListener(f"unix:/tmp/{'x' * 120}", never)
    with listening(endpoint):
        with pytest.raises(PlatformError, match="in use"):
            TerminalListener(endpoint, never)

        def refuse(connected: endpoints.Connected) -> None:
            raise AuthenticationFailed("process 1 there belongs to another user (uid 1)")

        monkeypatch.setattr(endpoints, "check_peer", refuse)
        with pytest.raises(AuthenticationFailed, match="another user"):
            attach(endpoint, 0, print)
