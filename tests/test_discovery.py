"""Which nodes on this machine an address means; how they are found is tested with real ones, in tests/cluster."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from minray.common.config import SystemConfig
from minray.node import discovery
from minray.node.discovery import NodeFile, default_spilling_place, new_session_path, nodes_of, runtime_root, runtime_roots


def node(gcs_address: str) -> NodeFile:
    return NodeFile(
        node_id="ab",
        node_ip="127.0.0.1",
        node_name="head",
        gcs_endpoint=f"tcp:{gcs_address}",
        gcs_address=gcs_address,
        raylet_endpoint="unix:/s/raylet",
        socket_dir="unix:/s",
        tcp_host="",
        session_dir=f"/sessions/{gcs_address}",
        is_head=True,
        detached=True,
        system_config=SystemConfig(),
        zygote_pid=1,
    )


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("localhost:80", "127.0.0.1:80"),
        ("127.0.0.1:80", "localhost:80"),
        ("[::1]:80", "::1:80"),
        ("::1:80", "[::1]:80"),
        ("tcp:[::1]:80", "::1:80"),
        ("/sessions/[::1]:80", "[::1]:80"),
    ],
)
def test_an_address_has_several_spellings(given: str, known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("127.0.0.1:81"), node("[::2]:80"), node(known)]
    monkeypatch.setattr(discovery, "find_nodes", lambda: nodes)
    assert nodes_of(given) == [nodes[2]] and nodes_of("host:80") == []


def test_a_relative_directory_is_the_same_wherever_a_program_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINRAY_TMPDIR", "sessions")
    assert runtime_root() == tmp_path / "sessions"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose ``login`` is that of this user's login, and ``tmp`` that of temporary files."""
    for name in ("MINRAY_TMPDIR", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for variable, name in (("XDG_RUNTIME_DIR", "login"), ("TMPDIR", "tmp")):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr(discovery, "LINGERING_USERS", str(tmp_path / "linger"))
    return tmp_path


OWN = f"minray-{os.geteuid()}"


def test_the_directory_of_the_login_comes_first(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime_root() == places / "login" / "minray"
    assert default_spilling_place(runtime_root() / "session_1") == str(places / "tmp"), "it may be memory"
    monkeypatch.setenv("RAY_TMPDIR", str(places / "ray"))
    assert runtime_root() == places / "ray" / OWN
    monkeypatch.setenv("MINRAY_TMPDIR", str(places / "minray"))
    assert runtime_root() == places / "minray"
    assert default_spilling_place(runtime_root() / "session_1") == ""


def test_a_directory_that_goes_with_the_login_comes_last(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (places / "login").rename(places / str(os.geteuid()))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(places / str(os.geteuid())))
    monkeypatch.setattr(discovery, "LOGIN_DIRECTORIES", str(places))
    assert runtime_root() == places / "tmp" / OWN
    (places / "tmp" / OWN).rmdir()
    (places / "tmp" / OWN).symlink_to("somewhere")
    assert runtime_root() == places / str(os.geteuid()) / "minray"
    (places / "linger").mkdir()
    (places / "linger" / pwd.getpwuid(os.geteuid()).pw_name).touch()
    (places / "tmp" / OWN).unlink()
    assert runtime_root() == places / str(os.geteuid()) / "minray"


@pytest.mark.parametrize("value", ["", "relative", "/nowhere/at/all"])
def test_a_directory_of_the_login_that_is_none(places: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    monkeypatch.setattr(discovery, "make_private", refusing("/nowhere", discovery.make_private))
    assert runtime_root() == places / "tmp" / OWN


def refusing(beginning: str, make: Callable[[str], str]) -> Callable[[str], str]:
    """Make ``make`` refuse places that begin so."""

    def make_private(path: str) -> str:
        if path.startswith(beginning):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return make(path)

    return make_private


def test_nodes_are_looked_for_in_every_place(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime_roots() == [places / "login" / "minray"]
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_roots() == [places / "tmp" / OWN]
    head = discovery.head_directory("127.0.0.1:80")
    assert head.parent == places / "tmp" / OWN
    head.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(places / "login"))
    assert runtime_roots() == [places / "login" / "minray", places / "tmp" / OWN]
    assert discovery.head_directory("127.0.0.1:80") == head
    discovery.forget_heads()
    assert not head.exists()


def test_no_place_at_all_says_why(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (places / "login").chmod(0o777)
    (places / "tmp").chmod(0o777)
    with pytest.raises(RuntimeError, match=f"cannot use .*/minray for sessions: others may write to {places}/login; set"):
        runtime_root()
    monkeypatch.setenv("MINRAY_TMPDIR", str(places / "tmp"))
    with pytest.raises(RuntimeError, match="set MINRAY_TMPDIR to a directory of your own"):
        runtime_root()


def test_sessions_that_start_in_one_second_are_named_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = iter([1.7e9, 1.7e9 + 0.004, 1.7e9 + 0.987, 1.7e9 + 1])
    monkeypatch.setattr(discovery.time, "time", lambda: next(starts))
    names = [new_session_path().name for _ in range(4)]
    assert names == sorted(names) and len(set(names)) == 4
