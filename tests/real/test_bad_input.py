"""Clusters that are not there, directories that cannot be used, and strangers at the sockets: clear errors, no harm."""

from __future__ import annotations

import os
import random
import resource
import shutil
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import minray as ray
from minray.exceptions import WorkerCrashedError
from tests.real.support import Files, echo, hold, run_driver


def said(program: str, *arguments: str, **environment: str) -> str:
    """The last line of the traceback of a program that fails, within seconds."""
    before = time.monotonic()
    done = run_driver(program, *arguments, **environment)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert time.monotonic() - before < 15
    return done.stderr.strip().splitlines()[-1]


# --- clusters


def test_a_cluster_that_is_not_there() -> None:
    for address in ("10.255.255.1:6379", "/tmp/no/such/session", "nonsense"):
        assert "ConnectionError" in said("ray.init(address=sys.argv[1])", address)


def test_auto_without_any_cluster(tmp_path: Path) -> None:
    line = said("ray.init(address='auto')", MINRAY_TMPDIR=str(tmp_path / "empty"))
    assert "ConnectionError" in line and "minray start" in line


def test_the_address_of_a_client_server_that_is_not_there() -> None:
    line = said("ray.init('ray://localhost:1')", MINRAY_TOKEN="00" * 32)
    assert "ConnectionError" in line and "client server at localhost:1" in line


def test_a_client_without_a_token(tmp_path: Path) -> None:
    assert "set $MINRAY_TOKEN" in said("ray.init('ray://localhost:1')", MINRAY_TMPDIR=str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("local_mode=1", "TypeError: local_mode must be a bool, not int"),
        ("number_of_cpus=1, x=2", "RuntimeError: Unknown keyword argument(s): number_of_cpus, x"),
        ("_temp_dir='relative'", "ValueError: _temp_dir must be an absolute path or None, not 'relative'"),
        ("_temp_dir=3", "TypeError: _temp_dir must be a str, not int"),
        ("num_cpus=-1", "ValueError"),
        ("num_cpus='two'", "TypeError"),
        ("resources={'x': -1}", "ValueError"),
        ("resources=['x']", "TypeError"),
        ("resources={'CPU': 1}", "ValueError"),
        ("labels={'a': 1}", "TypeError"),
        ("labels={'a b': 'x'}", "ValueError"),
        ("runtime_env={'conda': 'x'}", "ValueError"),
        ("_system_config={'no_such_entry': 1}", "ValueError"),
        ("_system_config={'get_warning_s': 'long'}", "TypeError"),
        ("object_store_memory=-1", "ValueError"),
        ("object_store_memory=0", "ValueError: object_store_memory must be from 1000 bytes to "),
        ("object_store_memory=1.5", "ValueError: object_store_memory must be from"),
        ("object_store_memory=2**50", "ValueError: object_store_memory must be from"),
        ("object_store_memory=True", "TypeError: object_store_memory must be a number of bytes, not True"),
        ("namespace=1", "TypeError"),
    ],
)
def test_wrong_arguments_of_init(arguments: str, error: str) -> None:
    line = said(f"ray.init({arguments})")
    assert line.startswith(error), line


def test_the_defaults_of_rays_init_may_be_given() -> None:
    done = run_driver(
        """
        defaults = dict(local_mode=False, cgroup_path=None, proxy_server_url=None, system_reserved_cpu=None, job_config=None)
        ray.init(num_cpus=1, logging_level="ERROR", log_to_driver=None, **defaults)
        ray.get(ray.remote(lambda: print("shown")).remote())
        """
    )
    assert done.returncode == 0 and done.stdout.endswith(") shown\n"), done.stderr


@pytest.mark.parametrize("level", ["error", "ERROR", 40])
def test_a_level_of_logging_may_be_written_small(level: str | int) -> None:
    program = f"import logging\nray.init(num_cpus=1, logging_level={level!r})\nprint(logging.getLogger('minray').level)"
    done = run_driver(program)
    assert done.stdout.split() == ["40"] and done.stderr == ""


@pytest.mark.usefixtures("shutdown_only")
def test_a_token_that_is_wrong_or_cannot_be_read(tmp_path: Path) -> None:
    session = Path(ray.init(num_cpus=1)["session_dir"])
    token = (session / "token").read_bytes()
    assert stat.S_IMODE((session / "token").stat().st_mode) == 0o600 and stat.S_IMODE(session.stat().st_mode) == 0o700
    (session / "token").write_bytes(b"x" * len(token))
    line = said("ray.init(address=sys.argv[1])", str(session))
    assert "ConnectionError" in line and "token" in line
    (session / "token").unlink()
    line = said("ray.init(address=sys.argv[1])", str(session))
    assert "cannot read the cluster's token" in line and str(session) in line
    (session / "token").write_bytes(token)
    assert ray.get(echo.remote(1)) == 1


# --- directories and limits


def test_a_directory_too_long_for_sockets(tmp_path: Path) -> None:
    line = said("ray.init(num_cpus=1)", MINRAY_TMPDIR=str(tmp_path / ("long" * 25)))
    assert "too long" in line and "MINRAY_TMPDIR" in line


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = said("ray.init(num_cpus=1)", MINRAY_TMPDIR=str(tmp_path / "file"))
    assert "RuntimeError" in line and "MINRAY_TMPDIR" in line


def test_a_limit_of_open_files_that_is_too_low() -> None:
    line = said(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
        ray.init(num_cpus=1)
        """
    )
    assert "Error" in line and ("descriptor" in line or "open files" in line or "started" in line), line


def test_a_session_whose_processes_are_gone_is_swept_by_the_next_one() -> None:
    root = f"/tmp/minray-sweep-{os.getpid()}"
    try:
        left = Path(root, "session_20200101-000000_abcdef")
        (left / "sockets").mkdir(parents=True, mode=0o700)
        (left / "logs").mkdir()
        (left / "token").write_text("old")
        (left / "lock").write_text("")
        os.chmod(root, 0o700)
        done = run_driver("ray.init(num_cpus=1, logging_level='ERROR')", MINRAY_TMPDIR=root)
        assert done.returncode == 0, done.stderr
        assert not left.exists() or os.listdir(left) == ["logs"]
    finally:
        shutil.rmtree(root, ignore_errors=True)


# --- arguments of init, again


@pytest.mark.usefixtures("cluster")
def test_what_init_does_not_know_is_an_error_also_of_who_is_connected() -> None:
    with pytest.raises(RuntimeError, match="Unknown keyword argument.*number_of_cpus"):
        ray.init(number_of_cpus=1, ignore_reinit_error=True)


# --- strangers


@pytest.mark.usefixtures("cluster")
def test_garbage_on_every_socket_disturbs_nobody(node: Any, files: Files) -> None:
    dice = random.Random(5)
    started, release = files.signal("started"), files.signal("release")
    running = hold.options(max_retries=0).remote(started, release, "undisturbed")
    started.wait()
    paths = [path for path in Path(node["session_dir"], "sockets").iterdir() if path.is_socket()]
    assert len(paths) >= 4
    for path in paths:
        for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\xff" * 70_000, dice.randbytes(1000)):
            talk_until_closed(path, garbage)
    release.set()
    assert ray.get(running) == "undisturbed"
    assert ray.get([echo.remote(number) for number in range(50)]) == list(range(50))
    logs = "".join(path.read_text(errors="replace") for path in Path(node["session_dir"], "logs").iterdir())
    assert "Traceback" not in logs


def talk_until_closed(path: Path, garbage: bytes) -> None:
    """A connection that is not closed within its time limit is an error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(15)
        stranger.connect(str(path))
        with suppress(BrokenPipeError, ConnectionResetError):
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65_536):
                """Read all that the other side sends before it closes."""


@pytest.mark.usefixtures("cluster")
def test_strangers_that_say_nothing_do_not_hold_anything_up(node: Any) -> None:
    silent = []
    try:
        for path in Path(node["session_dir"], "sockets").iterdir():
            for _ in range(5):
                silent.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                silent[-1].connect(str(path))
        assert ray.get([echo.remote(number) for number in range(50)]) == list(range(50))
    finally:
        for stranger in silent:
            stranger.close()


@pytest.mark.usefixtures("cluster")
def test_a_log_that_cannot_be_written_ends_nobody(node: Any) -> None:
    """As on a full disk: what workers print still reaches the driver, and tasks run."""
    logs = Path(node["session_dir"], "logs")
    for path in logs.glob("worker-*"):
        path.unlink()

    @ray.remote(max_calls=1)
    def speak(number: int) -> int:
        print("words", number)
        return number

    kept = logs.with_name("logs-kept")
    logs.rename(kept)
    try:
        assert ray.get([speak.remote(number) for number in range(4)]) == list(range(4))
    finally:
        kept.rename(logs)
    assert ray.get(echo.remote(1)) == 1


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_cannot_reach_the_store_says_why() -> None:
    """The worker has run out of descriptors."""

    @ray.remote(max_retries=0)
    def put_without_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        ray.put(bytes(1_000_000))

    with pytest.raises(WorkerCrashedError, match="this worker ends: .*Too many open files"):
        ray.get(put_without_descriptors.remote())
