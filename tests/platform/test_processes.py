"""Real processes: the zygote, its children, their ends, and that who survives whom.

The roles that the children play are in zygote_roles.py; zygote_owner.py is an owner that can be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.platform.base import ExitStatus, SpawnFailed
from minray.platform.process import session
from minray.platform.process.processes import (
    DRAIN_S,
    LineSplitter,
    OwnedZygote,
    PlainProcesses,
    start_zygote,
)
from minray.platform.process.zygote_link import MAX_CONFIG_BYTES, KillChild, Link, Release, Spawn
from tests.helpers import wait_for_condition

HERE = Path(__file__).parent
ROLES = str(HERE / "zygote_roles.py")
READY_S = 20.0


@pytest.fixture
def session_dir() -> str:
    """A session named as nodes name theirs: it is the newest, so another session's end does not remove its logs."""
    path = Path(os.environ["MINRAY_TMPDIR"], f"session_{time.strftime('%Y%m%d-%H%M%S')}_{time.monotonic_ns()}")
    path.mkdir(parents=True, mode=0o700)
    return str(path)


@pytest.fixture
def zygote(session_dir: str) -> Generator[OwnedZygote, None, None]:
    owned = start_zygote([ROLES], session_dir)
    yield owned
    owned.close()
    assert not (set(os.listdir(session_dir)) if os.path.exists(session_dir) else set()) - {"logs"}


def ready(zygote: OwnedZygote, role: str, config: bytes = b"", **options: Any) -> Any:
    """Spawn a child that reports, and return (its pid, its report)."""
    pid = zygote.spawn(role, f"test/{role}", config, ready=True, **options)
    return pid, json.loads(zygote.wait_ready(pid, READY_S))


def controlled(zygote: OwnedZygote, action: str) -> Any:
    """Report of a coroutine of zygote_roles that runs in a child with a control link."""
    log = os.path.join(zygote.session_dir, "logs", "control.log")
    return ready(zygote, "control", action.encode(), control=True, log_path=log)[1]


def wait_end(zygote: OwnedZygote, pid: int) -> ExitStatus:
    ends = {end.pid: end.status for end in zygote.poll_exits(READY_S)}
    return ends[pid]


def is_alive(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_gone(pids: list[int]) -> None:
    wait_for_condition(lambda: not any(map(is_alive, pids)), 1, f"one second later all of {pids} are gone")


# --- Ends of children ---


@pytest.mark.parametrize(
    ("role", "config", "expected"),
    [("ends_with", b"7", ExitStatus(7, None)), ("ends_with", b"0", ExitStatus(0, None)),
     ("returns", b"", ExitStatus(0, None)), ("raises", b"oh", ExitStatus(1, None))],
)  # fmt: skip
def test_exit_codes(zygote: OwnedZygote, role: str, config: bytes, expected: ExitStatus) -> None:
    assert wait_end(zygote, zygote.spawn(role, "child", config)) == expected


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_signals(zygote: OwnedZygote, number: int) -> None:
    pid, _ = ready(zygote, "holds")
    os.kill(pid, number)
    assert wait_end(zygote, pid) == ExitStatus(None, number)


def test_kill_by_the_owner(zygote: OwnedZygote) -> None:
    pid, _ = ready(zygote, "holds")
    zygote.kill(pid)
    assert wait_end(zygote, pid) == ExitStatus(None, signal.SIGKILL)
    zygote.kill(pid)  # Harmless, and the zygote still serves:
    assert ready(zygote, "holds")


def test_a_log_is_appended_to_and_private(zygote: OwnedZygote) -> None:
    log = Path(zygote.session_dir, "logs", "child.log")
    for text in ("one", "two\udcff"):
        wait_end(zygote, zygote.spawn("prints", "child", text.encode(errors="surrogateescape"), log_path=str(log)))
    assert log.read_text().splitlines()[:3] == ["one", "to stderr", "Traceback (most recent call last):"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_child_that_ends_before_it_is_ready_is_reported_with_its_log(zygote: OwnedZygote) -> None:
    log = os.path.join(zygote.session_dir, "logs", "gcs.log")
    pid = zygote.spawn("raises", "gcs", b"port 80 is taken", log_path=log, ready=True)
    with pytest.raises(SpawnFailed, match=r"(?s)gcs ended with exit code 1 before it was ready.*ValueError: port 80 is"):
        zygote.wait_ready(pid, READY_S)


def test_a_child_that_is_late_is_reported(zygote: OwnedZygote) -> None:
    pid = zygote.spawn("marks_and_holds", "gcs", b"abc", ready=True)
    with pytest.raises(SpawnFailed, match="gcs did not get ready: nothing was heard in time"):
        zygote.wait_ready(pid, 0.01)


# --- What a child is like ---


def test_a_child_holds_nothing_of_the_zygote_or_its_siblings(zygote: OwnedZygote) -> None:
    for _ in range(3):
        ready(zygote, "control", b"two_hold", control=True)
    _, state = ready(zygote, "tells_its_state")
    assert state["descriptors"] == [0, 1, 2, state["ready_descriptor"]]
    assert state["stdin"] == os.devnull
    assert state["comm"] == "minray:tells_it"
    assert state["sigint_is_default"] and state["sigterm_is_default"] and state["blocked_signals"] == 0
    assert state["modules"] == []


def test_children_have_randomness_of_their_own(zygote: OwnedZygote) -> None:
    assert ready(zygote, "tells_its_state")[1]["random"] != ready(zygote, "tells_its_state")[1]["random"]


def test_sigusr1_writes_the_stacks_to_the_childs_own_log(zygote: OwnedZygote) -> None:
    log = Path(zygote.session_dir, "logs", "child.log")
    pid, _ = ready(zygote, "holds", log_path=str(log))
    os.kill(pid, signal.SIGUSR1)
    wait_for_condition(lambda: "in holds" in log.read_text())
    assert is_alive(pid)


# --- Children of a raylet ---


def test_output_arrives_whole_and_before_the_end(zygote: OwnedZygote) -> None:
    code, number, stdout, stderr = controlled(zygote, "output_and_exit")
    assert (code, number) == (3, None)
    assert stdout == [f"line {number}" for number in range(30)]
    assert stderr == [f"error {number}" for number in range(30)]


def test_much_output(zygote: OwnedZygote) -> None:
    assert controlled(zygote, "much_output") == [True, 20000]


def test_the_used_part_of_a_journal_is_readable_after_kill_9(zygote: OwnedZygote) -> None:
    assert controlled(zygote, "journal_of_a_killed") == [True, 11, "abc"]


def test_marks_are_readable_after_kill_9_and_slots_are_used_again(zygote: OwnedZygote) -> None:
    assert controlled(zygote, "marks_of_a_killed") == ["abc", signal.SIGKILL, "abc", True, "abc"]


def test_a_grandchild_that_holds_the_pipes_does_not_hold_up_the_end(zygote: OwnedZygote) -> None:
    code, stdout, seconds = controlled(zygote, "pipes_in_other_hands")
    assert (code, stdout) == (0, ["last words"])
    assert seconds < DRAIN_S + 5  # The grandchild holds them for 1000.


def test_killing_twice_is_harmless(zygote: OwnedZygote) -> None:
    assert controlled(zygote, "kill_twice") == [None, signal.SIGKILL]


def test_a_cancelled_spawn_leaves_neither_process_nor_pipes(zygote: OwnedZygote) -> None:
    assert controlled(zygote, "cancelled_spawn") == [True, 0]


def test_fifty_spawns_at_once(zygote: OwnedZygote) -> None:
    seconds, signals = controlled(zygote, "many_at_once")
    assert signals == [signal.SIGKILL] * 50
    assert seconds < 5


def test_a_raylets_children_die_with_it_and_others_live(zygote: OwnedZygote) -> None:
    other, _ = ready(zygote, "holds")
    raylet, pids = ready(zygote, "control", b"two_hold", control=True)
    os.kill(raylet, signal.SIGKILL)
    all_gone(pids)
    assert is_alive(other)


def test_drivers_spawn_nobody() -> None:
    processes = PlainProcesses()
    with pytest.raises(SpawnFailed, match="only a raylet"):
        asyncio.run(processes.spawn("worker", "worker/1", b"", print))
    assert bytes(processes.marks) == bytes(64)


# --- Who survives whom ---


class Killable:
    """An owner in a process of its own, its zygote and its children."""

    def __init__(self, session_dir: str, mode: str) -> None:
        self.process = subprocess.Popen([sys.executable, str(HERE / "zygote_owner.py"), session_dir, mode],
                                        stdout=subprocess.PIPE)  # fmt: skip
        assert self.process.stdout is not None
        self.pids = json.loads(self.process.stdout.readline())
        self.process.stdout.close()
        self.family: list[int] = self.pids["family"]
        self.all = [self.pids["zygote"], self.pids["essential"], *self.family]
        assert len(self.family) == 4 and all(map(is_alive, self.all))

    def kill_owner(self) -> None:
        self.process.kill()
        self.process.wait()


def test_a_killed_owner_takes_everything_along(session_dir: str) -> None:
    owner = Killable(session_dir, "holds")
    Path(session_dir, "sockets").mkdir()
    Path(session_dir, "sockets", "raylet").touch()
    owner.kill_owner()
    all_gone(owner.all)
    assert not os.path.exists(session_dir)


def test_a_forked_copy_of_the_owner_does_not_keep_anything_alive(session_dir: str) -> None:
    owner = Killable(session_dir, "forks")
    owner.kill_owner()
    copy = owner.pids["copy"][0]
    all_gone(owner.all)
    assert is_alive(copy)
    os.kill(copy, signal.SIGKILL)


def test_logs_that_say_something_are_kept(zygote: OwnedZygote) -> None:
    logs = Path(zygote.session_dir, "logs")
    wait_end(zygote, zygote.spawn("prints", "child", b"hello", log_path=str(logs / "child.log")))
    zygote.close()
    assert [path.name for path in logs.iterdir()] == ["child.log"]


def test_a_killed_zygote_takes_everything_along(zygote: OwnedZygote) -> None:
    _, family = ready(zygote, "has_subprocesses")
    os.kill(zygote.pid, signal.SIGKILL)
    all_gone(family[:1])  # The kernel's part; the rest is done by the owner, which sees the end of the link.
    wait_for_condition(lambda: zygote.poll_exits(0.1) == [] and zygote.ended)
    zygote.close()
    all_gone(family)
    assert not os.path.exists(zygote.session_dir)


def test_spawning_from_a_dead_zygote_says_so(zygote: OwnedZygote) -> None:
    os.kill(zygote.pid, signal.SIGKILL)
    with pytest.raises(SpawnFailed, match="raylet could not be started: the zygote has ended"):
        zygote.spawn("holds", "raylet", b"")


def test_the_end_of_an_essential_child_ends_everything(zygote: OwnedZygote) -> None:
    other, _ = ready(zygote, "holds")
    essential, _ = ready(zygote, "holds", essential=True)
    os.kill(essential, signal.SIGKILL)
    all_gone([zygote.pid, other])
    assert not os.path.exists(zygote.session_dir)
    assert (essential, ExitStatus(None, signal.SIGKILL)) in [(end.pid, end.status) for end in zygote.poll_exits(1)]
    assert zygote.ended


def test_a_respawn_child_comes_back_and_reports_again(zygote: OwnedZygote) -> None:
    pid = zygote.spawn("holds", "gcs", b"", ready=True, respawn=True)
    for _ in range(2):
        zygote.wait_ready(pid, READY_S)
        os.kill(pid, signal.SIGKILL)
        assert wait_end(zygote, pid) == ExitStatus(None, signal.SIGKILL)
        wait_for_condition(zygote.living)
        (pid,) = zygote.living()
    assert json.loads(zygote.wait_ready(pid, READY_S)) == pid


def test_a_respawn_child_that_ends_in_order_stays_away(zygote: OwnedZygote) -> None:
    pid = zygote.spawn("returns", "raylet", b"", respawn=True)
    assert wait_end(zygote, pid) == ExitStatus(0, None)
    later, _ = ready(zygote, "holds")  # The zygote has nothing else to do any more.
    assert list(zygote.living()) == [later]


def test_the_process_group_of_a_dead_child_dies_with_it(zygote: OwnedZygote) -> None:
    _, family = ready(zygote, "has_subprocesses")
    os.kill(family[0], signal.SIGKILL)
    all_gone(family[:2])
    assert all(map(is_alive, family[2:]))  # They had put themselves into sessions of their own; until the end.


def test_a_detached_zygote_outlives_its_owner_until_it_is_terminated(session_dir: str) -> None:
    owner = Killable(session_dir, "detaches")
    owner.process.wait()
    assert session.live_sessions(os.environ["MINRAY_TMPDIR"])[session_dir] == owner.pids["zygote"]
    assert session_dir not in session.sweep_sessions(os.environ["MINRAY_TMPDIR"])
    assert all(map(is_alive, owner.all))
    os.kill(owner.pids["zygote"], signal.SIGTERM)
    all_gone(owner.all)
    assert not os.path.exists(session_dir)


def test_a_detached_zygote_ends_with_its_essential_child(session_dir: str) -> None:
    owner = Killable(session_dir, "detaches")
    owner.process.wait()
    os.kill(owner.pids["essential"], signal.SIGKILL)
    all_gone(owner.all)


def test_what_is_left_when_all_are_killed_at_once_is_swept(session_dir: str) -> None:
    owner = Killable(session_dir, "holds")
    os.kill(owner.pids["owner"], signal.SIGSTOP)
    os.kill(owner.pids["zygote"], signal.SIGKILL)
    owner.kill_owner()
    root = os.environ["MINRAY_TMPDIR"]
    wait_for_condition(lambda: session_dir not in session.live_sessions(root))
    assert session_dir in session.sweep_sessions(root)
    all_gone(owner.all)
    assert not os.path.exists(session_dir)


def test_a_beginning_session_is_not_swept(session_dir: str) -> None:
    Path(session_dir, "token").touch()
    assert session_dir not in session.sweep_sessions(os.environ["MINRAY_TMPDIR"])
    os.utime(session_dir, (0, 0))
    assert session_dir in session.sweep_sessions(os.environ["MINRAY_TMPDIR"])
    assert not os.path.exists(session_dir)


def test_closing_a_forked_copy_does_nothing(zygote: OwnedZygote) -> None:
    pid, _ = ready(zygote, "holds")
    copy = os.fork()
    if copy == 0:
        zygote.close()
        os._exit(0)
    os.waitpid(copy, 0)
    assert is_alive(pid) and ready(zygote, "holds")


# --- Trouble ---


def test_out_of_processes(session_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RLIMIT_NPROC does not bind root, so the zygote's fork is replaced."""
    monkeypatch.setenv("TEST_FORKS", "1")
    zygote = start_zygote([ROLES], session_dir)
    try:
        assert "test/returns could not be started: Resource temporarily unavailable" in controlled(zygote, "spawn_fails")
        with pytest.raises(SpawnFailed, match=r"raylet could not be started: Resource temporarily unavailable \(.*pids.max"):
            zygote.spawn("holds", "raylet", b"")
    finally:
        zygote.close()


def test_a_log_that_cannot_be_opened(zygote: OwnedZygote) -> None:
    with pytest.raises(SpawnFailed, match="gcs could not be started: .*/missing/gcs.log"):
        zygote.spawn("holds", "gcs", b"", log_path=f"{zygote.session_dir}/missing/gcs.log")
    assert ready(zygote, "holds")


def test_a_config_that_is_too_large(zygote: OwnedZygote) -> None:
    with pytest.raises(SpawnFailed, match=f"a config of {MAX_CONFIG_BYTES + 1} bytes, more than {MAX_CONFIG_BYTES}"):
        zygote.spawn("holds", "gcs", bytes(MAX_CONFIG_BYTES + 1))
    assert ready(zygote, "holds", bytes(MAX_CONFIG_BYTES))


def test_the_program_reads_what_it_is_told(session_dir: str) -> None:
    """The text is longer than an argument may be, and than a pipe keeps."""
    program = "import sys; raise SystemExit(f'told {len(sys.stdin.buffer.read())}')"
    zygote = start_zygote(["-c", program], session_dir, told=bytes(1_000_000))
    with pytest.raises(SpawnFailed, match=r"(?s)gcs could not be started: the zygote has ended.*told 1000000"):
        zygote.spawn("holds", "gcs", b"")
    zygote.close()
    deaf = start_zygote(["-c", "import os; os.close(0); os._exit(1)"], session_dir, told=bytes(1_000_000))
    with pytest.raises(SpawnFailed, match="gcs could not be started: the zygote has ended"):
        deaf.spawn("holds", "gcs", b"")
    deaf.close()


def test_a_session_directory_that_cannot_be_used(session_dir: str) -> None:
    Path(session_dir, "lock").mkdir()
    zygote = start_zygote([ROLES], session_dir)
    with pytest.raises(SpawnFailed, match=f"gcs could not be started: the session directory {session_dir} cannot be used"):
        zygote.spawn("holds", "gcs", b"")
    zygote.close()


def test_a_zygote_that_cannot_begin_says_why(session_dir: str) -> None:
    zygote = start_zygote(["-c", "raise ImportError('no uvloop')"], session_dir)
    with pytest.raises(SpawnFailed, match=r"(?s)gcs could not be started: the zygote has ended.*ImportError: no uvloop"):
        zygote.spawn("holds", "gcs", b"")
    zygote.close()


# --- Pieces ---


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"o", b"ne\nt", b"wo"], ["one", "two"]),
        ([b"\n\nx\n"], ["", "", "x"]),
        ([b"one\r\ntwo\r\n"], ["one", "two"]),
        ([b"one\r", b"\ntwo"], ["one", "two"]),
        ([b"\r 10%", b"\r 20%\r", b" 30%\n"], [" 10%", " 20%", " 30%"]),
        ([b"caf\xc3", b"\xa9 \xff\n"], ["caf\u00e9 \ufffd"]),
        ([b"x" * 65536 + b"y\n"], ["x" * 65536, "y"]),
        ([b"x" * 65535, b"y", b"z\n"], ["x" * 65535 + "y", "z"]),
    ],
)
def test_lines(pieces: list[bytes], lines: list[str]) -> None:
    splitter = LineSplitter()
    assert [line for piece in pieces for line in splitter.feed(piece)] + splitter.end() == lines


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xc3\xa9"])), st.data())
def test_lines_do_not_depend_on_how_they_were_cut(words: list[bytes], data: st.DataObject) -> None:
    text = b"".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = filter(None, (text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)))
    whole, cut = LineSplitter(), LineSplitter()
    assert [line for piece in pieces for line in cut.feed(piece)] + cut.end() == whole.feed(text) + whole.end()


def test_a_link_keeps_order_and_descriptors_when_the_socket_is_full() -> None:
    first, second = (Link(end) for end in socket.socketpair())
    pipes = [os.pipe() for _ in range(3)]
    for index, (read_end, write_end) in enumerate(pipes):
        os.write(write_end, b"%d" % index)
        os.close(write_end)
        first.send(Spawn(index, "role", "name", bytes(200_000)))
        first.send(KillChild(index), (read_end,))
    assert first.wants_write
    received = []
    while len(received) < 6:
        first.flush()
        received += second.receive()
    killed = [(message.pid, descriptors[0]) for message, descriptors in received if isinstance(message, KillChild)]
    kills = [(pid, os.read(descriptor, 10)) for pid, descriptor in killed]
    assert kills == [(0, b"0"), (1, b"1"), (2, b"2")]
    for _, descriptors in received:
        for descriptor in descriptors:
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)
    second.close()
    first.send(Release(1))
    with pytest.raises(EOFError):
        first.receive()
    first.close()
