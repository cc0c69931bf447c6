"""Spilled objects elsewhere than on this machine's disks: whatever fsspec has a file system for, such as S3.

Ray: python/ray/_private/external_storage.py (ExternalStorageSmartOpenImpl)

Where objects may go is one text, ``object_spilling_directory``: places joined by ``os.pathsep``, each of them a directory or
a URL. ``s3://bucket/prefix`` needs fsspec and s3fs, which minray does not install unless it is asked to (``minray[spill]``);
a node whose storage is missing says so when it starts. ``file://`` is only another way to write a directory.

Rules
  * An object of the store is one object there, written and closed before anybody hears of it. One that was not written to
    its end is not there.
  * A node removes what it no longer needs, and all that it has when it ends. What a node leaves that was killed cannot be
    removed by those who survive it on its machine: they would need its passwords. A rule of the bucket should, by age.
  * Passwords come from the environment of the node, as the libraries look for them; they are never part of the URL.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from minray.platform.base import Buffer, DiskFailed
from minray.platform.storage.disk import kind_of
from minray.platform.storage.disk_threads import DiskThreads

LOCAL = re.compile("file:(//)?(?=/)")
_PLACE = re.compile(r"[a-z][a-z0-9+.-]*://([^/@]*@)?[^/:]*(:\d+(?=[/:]|$))?[^:]*|file:/[^:]*|[^:]+", re.IGNORECASE)
"""A URL, whose user, password and port may have colons, or a path."""
FAREWELL_S = 3.0
"""So long a node that ends tries to remove what it has there."""

logger = logging.getLogger(__name__)


def split_places(places: str) -> list[str]:
    """The directories and URLs of one text, which colons separate, but not those within a URL."""
    return [LOCAL.sub("", found[0], count=1) for found in _PLACE.finditer(places)]


def is_external(place: str) -> bool:
    return "://" in place


def check_external(place: str) -> None:
    """Raises OSError, with what to do, if there is nothing here that can reach this place."""
    try:
        fsspec = importlib.import_module("fsspec")
        fsspec.get_filesystem_class(place.partition("://")[0])
    except ImportError as error:
        raise OSError(None, f"{error}; pip install 'minray[spill]'", place) from error
    except ValueError as error:
        raise OSError(None, str(error), place) from error


class ExternalDisk:
    """See ``base.Disk``: what has one URL as its beginning."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_used = False
        """Something was written."""
        self._threads = DiskThreads("minray-storage")

    @cached_property
    def _files(self) -> tuple[Any, str]:
        """The file system, and the path of the URL in it; imported in a thread, since that may take a second."""
        fsspec = importlib.import_module("fsspec")
        files, path = fsspec.core.url_to_fs(self._url, skip_instance_cache=True)
        return files, path

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        return await self._threads.run(self._failing(name, "written"), partial(self._write, name, pieces))

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        return await self._threads.run(self._failing(name, "read"), partial(self._read, name, start, pieces))

    def remove(self, name: str) -> None:
        self._threads.post(partial(self._remove, name))  # If it is closed, all of it goes.

    async def close(self) -> None:
        """What is there goes with the node, as a directory goes with its session."""
        if self._is_used:
            with suppress(TimeoutError, DiskFailed):
                async with asyncio.timeout(FAREWELL_S):
                    await self._threads.run(self._failing("", "removed"), partial(self._remove, ""))
        self._threads.close()

    def _failing(self, name: str, what: str) -> str:
        return f"{self._url}/{name} could not be {what}"

    # --- in the threads

    def _write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        checksums: list[int] = []
        self._is_used = True
        try:
            files, path = self._files
            try:
                file = files.open(f"{path}/{name}", "wb")
            except FileNotFoundError:  # One that has directories; others cannot tell.
                files.makedirs(path, exist_ok=True)
                file = files.open(f"{path}/{name}", "wb")
            with file:
                for piece in pieces:
                    file.write(piece)
                    checksums.append(zlib.crc32(piece))
        except Exception as error:  # each library has errors of its own
            self._remove(name)
            raise self._failure(name, "written", error) from error
        return checksums

    def _read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        size = sum(piece.nbytes for piece in pieces)
        try:
            files, path = self._files
            data = memoryview(files.cat_file(f"{path}/{name}", start=start, end=start + size))
        except Exception as error:
            raise self._failure(name, "read", error) from error
        if data.nbytes != size:
            raise DiskFailed(f"{self._failing(name, 'read')}: it is shorter than it was")
        checksums: list[int] = []
        for piece in pieces:
            piece[:], data = data[: piece.nbytes], data[piece.nbytes :]
            checksums.append(zlib.crc32(piece))
        return checksums

    def _remove(self, name: str) -> None:
        """A file, or everything."""
        try:
            files, path = self._files
            files.rm(f"{path}/{name}" if name else path, recursive=not name)
        except FileNotFoundError:
            return
        except Exception as error:
            logger.warning("%s/%s could not be removed: %s", self._url, name, error)

    def _failure(self, name: str, what: str, error: Exception) -> DiskFailed:
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error) or type(error).__name__
        return kind_of(error)(f"{self._failing(name, what)}: {reason}")
