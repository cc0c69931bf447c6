"""A session's log files are read without leaving their directory, whatever stands in it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from minray.common.log_files import is_plain_name, series_of
from minray.platform.process.log_directory import SessionLogs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


@pytest.fixture
def logs(folder: Path) -> SessionLogs:
    return SessionLogs(str(folder), 100, 2)


def test_files_are_listed_by_name_and_read_by_inode(folder: Path, logs: SessionLogs) -> None:
    sink = logs.open_sink("b.log")
    sink.write("0123456789")
    sink.close()
    (folder / "a.log").write_text("a")

    async def story() -> None:
        a, b = await logs.entries()
        assert (a.name, b.name, b.size) == ("a.log", "b.log", 10) and b.modified > 0
        assert await logs.entries(["none", "b.log"]) == [b]
        assert await logs.read("b.log", b.inode, 3, 4) == b"3456"
        assert await logs.read("b.log", b.inode, 8, 100) == b"89" and await logs.read("b.log", b.inode, 100, 1) == b""
        assert await logs.read("b.log", a.inode, 0, 4) is None and await logs.read("none", a.inode, 0, 4) is None

    asyncio.run(story())


def test_links_pipes_and_directories_are_no_log_files(folder: Path, logs: SessionLogs) -> None:
    secret = folder.parent / "token"
    secret.write_text("secret")
    (folder / "link.log").symlink_to(secret)
    (folder / "directory.log").mkdir()
    os.mkfifo(folder / "pipe.log")
    (folder / os.fsdecode(b"bytes\xff.log")).write_text("no text")

    async def story() -> None:
        assert await logs.entries() == [] and await logs.entries(["link.log", "pipe.log"]) == []
        with pytest.raises(OSError, match="link"):
            await logs.read("link.log", secret.stat().st_ino, 0, 10)
        for name in ("pipe.log", "directory.log"):
            assert await logs.read(name, (folder / name).stat().st_ino, 0, 10) is None

    asyncio.run(story())


def test_a_directory_that_is_a_link_is_refused(folder: Path) -> None:
    (folder.parent / "other").symlink_to(folder)
    with pytest.raises(OSError, match="other"):
        asyncio.run(SessionLogs(str(folder.parent / "other"), 0, 0).entries())


@pytest.mark.parametrize("name", ["", ".", "..", "../token", "/etc/passwd", "a/b", "a\\b", "a\0b", "x" * 256])
def test_a_name_with_a_directory_is_none(name: str) -> None:
    assert not is_plain_name(name)


def test_backups_are_older() -> None:
    assert is_plain_name("raylet.log") and series_of("raylet.log", 2) == ["raylet.log.2", "raylet.log.1", "raylet.log"]
