"""Spilled objects in external storage, such as S3: any place for which fsspec has a file system.

Ray: python/ray/_private/external_storage.py (ExternalStorageSmartOpenImpl)

The option ``object_spilling_directory`` names the places for spilled objects. Joined by ``os.pathsep``, each is a directory
or a URL. ``s3://bucket/prefix`` needs fsspec and s3fs, which only ``minray[spill]`` installs; a node that lacks them says so
when it starts. ``file://`` is only another way to write a directory.

Rules
  * A spill file is one object of the storage, written and closed before its name is given to anybody. If writing fails, the
    object is removed.
  * A node removes what it no longer needs, and everything it has when it ends. The files of a killed node stay: the
    surviving processes of its machine would need its passwords. A lifecycle rule of the bucket should remove them by age.
  * Passwords come from the environment of the node, where the libraries look for them; they are never part of the URL.
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
"""Matches a URL, whose user, password and port may have colons, or a path."""
FAREWELL_S = 3.0
"""Seconds that a node, when it ends, spends at most on removing its files: an unreachable storage must not hold it up."""

logger = logging.getLogger(__name__)


def split_places(places: str) -> list[str]:
    """Split a text at its colons, except those within a URL, and return the directories and URLs."""
    return [LOCAL.sub("", found[0], count=1) for found in _PLACE.finditer(places)]


def is_external(place: str) -> bool:
    return "://" in place


def check_external(place: str) -> None:
    """Raise OSError, with advice, if no installed library can reach this place."""
    try:
        fsspec = importlib.import_module("fsspec")
        fsspec.get_filesystem_class(place.partition("://")[0])
    except ImportError as error:
        raise OSError(None, f"{error}; pip install 'minray[spill]'", place) from error
    except ValueError as error:
        raise OSError(None, str(error), place) from error


class ExternalDisk:
    """Implements ``base.Disk`` with the files below one URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_used = False
        """Whether anything was written."""
        self._threads = DiskThreads("minray-storage")

    @cached_property
    def _files(self) -> tuple[Any, str]:
        """The file system, and the URL's path in it. Used in the threads alone, since the import may take a second."""
        fsspec = importlib.import_module("fsspec")
        files, path = fsspec.core.url_to_fs(self._url, skip_instance_cache=True)
        return files, path

    async def write(self, name: str, pieces: Sequence[Buffer]) -> list[int]:
        return await self._threads.run(self._failing(name, "written"), partial(self._write, name, pieces))

    async def read(self, name: str, start: int, pieces: Sequence[memoryview]) -> list[int]:
        return await self._threads.run(self._failing(name, "read"), partial(self._read, name, start, pieces))

    def remove(self, name: str) -> None:
        self._threads.post(partial(self._remove, name))  # Does nothing after ``close``, which removes everything.

    async def close(self) -> None:
        """Remove all files below the URL, as removing a session removes a directory; then stop the threads."""
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
            except FileNotFoundError:  # Raised only by file systems that have directories.
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
            raise DiskFailed(f"{self._failing(name, 'read')}: it is shorter than when it was written")
        checksums: list[int] = []
        for piece in pieces:
            piece[:], data = data[: piece.nbytes], data[piece.nbytes :]
            checksums.append(zlib.crc32(piece))
        return checksums

    def _remove(self, name: str) -> None:
        """Remove a file; with an empty name, everything below the URL."""
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
