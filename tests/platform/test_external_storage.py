"""Where spilled objects may go, by name; and S3, played by moto's server (skipped where that is not installed)."""

from __future__ import annotations

import asyncio
import os
import zlib
from pathlib import Path

import pytest

from minray.platform.base import DiskFailed
from minray.platform.storage.external_storage import ExternalDisk, check_external, is_external, split_places
from tests.bucket import bucket, names_in


def test_places_are_directories_and_urls() -> None:
    assert split_places("") == []
    assert split_places(os.pathsep.join(["/a/b", "s3://bucket/prefix", "file:///c", "memory://x", "d"])) == [
        "/a/b",
        "s3://bucket/prefix",
        "/c",
        "memory://x",
        "d",
    ]
    assert [is_external(place) for place in ("/a", "s3://b")] == [False, True]


@pytest.mark.parametrize(
    "places",
    [
        ["webhdfs://namenode:50070/p"],
        ["sftp://me:secret@host:22/p", "/tmp/x", "s3://bucket/a", "b"],
        ["memory://x", "memory://y", "/a"],
        ["smb://host:445", "s3://bucket"],
    ],
)
def test_colons_within_urls_do_not_separate(places: list[str]) -> None:
    assert split_places(":".join(places)) == places


def test_a_url_of_a_file_is_a_path() -> None:
    assert split_places("file:/tmp/x:file:///tmp/y:/tmp/z") == ["/tmp/x", "/tmp/y", "/tmp/z"]


def test_directories_are_made_where_there_are_such(tmp_path: Path) -> None:
    disk = ExternalDisk(f"local://{tmp_path}/new/session")

    async def story() -> None:
        await disk.write("objects-1", [b"value"])
        read = bytearray(5)
        await disk.read("objects-1", 0, [memoryview(read)])
        assert read == b"value" and os.listdir(tmp_path / "new/session") == ["objects-1"]
        await disk.close()

    asyncio.run(story())
    assert not (tmp_path / "new/session").exists()


def test_what_cannot_be_reached_from_here_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(OSError, match=r"pip install 'minray\[spill\]'"):
        check_external("s3://bucket")


def test_an_unknown_kind_of_storage_is_named() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(OSError, match="(?i)protocol not known: nowhere"):
        check_external("nowhere://at/all")
    check_external("memory://here")


def test_who_refuses_is_an_error_with_the_url() -> None:
    fsspec = pytest.importorskip("fsspec")
    disk = ExternalDisk("memory://refusing/deep")
    fsspec.filesystem("memory").pipe_file("/refusing/deep", b"a file where a directory should be")
    with pytest.raises(DiskFailed, match="memory://refusing/deep/a could not be written"):
        asyncio.run(disk.write("a", [b"1"]))
    asyncio.run(disk.close())


@pytest.mark.slow
def test_a_bucket_is_written_read_in_parts_and_left_empty() -> None:
    pieces = [os.urandom(100_000), b"more", bytes(10)]

    async def story(disk: ExternalDisk) -> None:
        assert await disk.write("a", pieces) == [zlib.crc32(piece) for piece in pieces]
        part = memoryview(bytearray(6))
        assert await disk.read("a", 99_998, [part]) == [zlib.crc32(part)]
        assert bytes(part) == pieces[0][-2:] + b"more"
        with pytest.raises(DiskFailed, match="it is shorter"):
            await disk.read("a", 100_013, [memoryview(bytearray(2))])
        with pytest.raises(DiskFailed, match="none could not be read: no such file"):
            await disk.read("none", 0, [memoryview(bytearray(2))])
        await disk.close()

    with bucket() as url:
        asyncio.run(story(ExternalDisk(f"{url}/prefix/session")))
        assert names_in(url) == []
