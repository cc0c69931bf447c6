"""Packages: a directory as one zip file that is the same wherever it is made, and back to a directory.

Ray: python/ray/_private/runtime_env/packaging.py

Rules for packing
  * Entries are sorted, and have no times and no owners. Of the permissions only "may be executed" is kept. Nothing is
    compressed, as in Ray. So equal directories make equal bytes.
  * Left out is what the patterns of the caller say, and those of every ``.gitignore`` and ``.rayignore`` on the way.
  * A symbolic link is packed as what it leads to. A directory is not packed inside of itself.
  * Sockets, devices and pipes are left out.

Rules for unpacking
  * A directory gets its name only when it is complete, by a rename. Processes that unpack the same package wait for each
    other (flock). What a killed process has left is removed by the next one.
  * An entry that would lie outside of the directory refuses the whole package. No links are made.
  * Only this user may read the files.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email.parser import Parser
from typing import IO, NamedTuple

from minray.common.ignore_patterns import IgnorePatterns
from minray.platform.base import Buffer
from minray.platform.storage.private_paths import CLOSE_ON_EXEC, NO_FOLLOW, remove_tree

logger = logging.getLogger("minray")

IGNORE_FILES = (".gitignore", ".rayignore")
LARGE_FILE_BYTES = 10 << 20
"""Size of a file above which packing warns, as in Ray: mostly it was not meant to be packed."""
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time of every entry: the earliest that a zip file can have."""
COPY_BYTES = 1 << 20
"""Bytes that are copied at a time."""
PLAIN, EXECUTABLE = 0o644, 0o755
_unpacking = threading.Lock()
"""Held while a package is unpacked, where files cannot be locked."""


class PackageTooLarge(ValueError):
    """A package would have more bytes than the limit."""


class _LimitedFile(io.BytesIO):
    """A file in memory that raises PackageTooLarge beyond a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        if self.tell() + len(data) > self._limit:
            raise PackageTooLarge(f"it has more than {self._limit >> 20} MiB")
        return super().write(data)


class _Entry(NamedTuple):
    """A file, or an empty directory, that is packed."""

    name: str
    """Path in the package, with slashes."""
    path: str
    is_directory: bool


def pack_directory(
    directory: str, excludes: Sequence[str], limit: int, *, ignore_files: Sequence[str] = IGNORE_FILES, parent: str = ""
) -> bytes:
    """Pack a directory; with ``parent`` its entries lie in a folder of that name.

    ``excludes`` are patterns as in a ``.gitignore``. Raises OSError if a file cannot be read, PackageTooLarge beyond
    ``limit`` bytes.
    """
    entries = _entries(directory, "", [("", IgnorePatterns(excludes))], ignore_files, ())
    prefix = f"{parent}/" if parent else ""
    return _pack((entry._replace(name=prefix + entry.name) for entry in entries), limit)


def pack_file(path: str, limit: int) -> bytes:
    """Pack a single file. Raises OSError, PackageTooLarge."""
    return _pack([_Entry(os.path.basename(path), path, False)], limit)


def read_archive(path: str, limit: int) -> bytes:
    """Return an archive of a user as a package: a zip file as it is, a tar file packed anew.

    Raises ValueError for a damaged archive and for one with entries outside of it, PackageTooLarge, OSError.
    """
    if os.path.getsize(path) > limit:
        raise PackageTooLarge(f"it has more than {limit >> 20} MiB")
    try:
        if tarfile.is_tarfile(path):
            return _repack(path, limit)
        with open(path, "rb") as file:
            archive = file.read()
        with zipfile.ZipFile(io.BytesIO(archive)) as package:
            for name in package.namelist():
                check_entry(name)
        return archive
    except (zipfile.BadZipFile, tarfile.TarError) as error:
        raise ValueError(f"{path!r} is no archive that can be read: {error}") from None


def _entries(
    directory: str,
    prefix: str,
    patterns: list[tuple[str, IgnorePatterns]],
    ignore_files: Sequence[str],
    above: tuple[tuple[int, int], ...],
) -> Iterator[_Entry]:
    """Yield what is in a directory, sorted. ``patterns`` have the prefixes of the directories that they are relative to."""
    status = os.stat(directory)
    identity = status.st_dev, status.st_ino
    if identity in above:
        return
    for name in ignore_files:
        if os.path.isfile(os.path.join(directory, name)):
            with open(os.path.join(directory, name), encoding="utf-8", errors="surrogateescape") as file:
                patterns = [*patterns, (prefix, IgnorePatterns(file))]
    is_empty = True
    for name in sorted(os.listdir(directory)):
        is_empty = False
        path, inside = os.path.join(directory, name), prefix + name
        is_directory = os.path.isdir(path)
        if any(rules.matches(inside.removeprefix(base), is_directory) for base, rules in patterns):
            continue
        if is_directory:
            yield from _entries(path, f"{inside}/", patterns, ignore_files, (*above, identity))
        elif os.path.isfile(path):
            yield _Entry(inside, path, False)
    if is_empty and prefix:
        yield _Entry(prefix, directory, True)


def _pack(entries: Iterator[_Entry] | Sequence[_Entry], limit: int) -> bytes:
    target = _LimitedFile(limit)
    with zipfile.ZipFile(target, "w") as package:
        for entry in entries:
            if entry.is_directory:
                _write_directory(package, entry.name)
                continue
            status = os.stat(entry.path)
            if status.st_size >= LARGE_FILE_BYTES:
                advice = "Consider adding it to runtime_env['excludes'] or to a .gitignore file, so that it is not uploaded"
                logger.warning("File %s is very large (%.2f MiB). %s", entry.path, status.st_size / (1 << 20), advice)
            with open(entry.path, "rb") as source:
                _write_file(package, entry.name, source, bool(status.st_mode & stat.S_IXUSR))
    return target.getvalue()


def _repack(path: str, limit: int) -> bytes:
    """Pack the files of a tar file. Links and devices in it are left out, as in Ray."""
    target = _LimitedFile(limit)
    with tarfile.open(path) as archive, zipfile.ZipFile(target, "w") as package:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            name = member.name.removeprefix("./").rstrip("/")
            if name in ("", "."):
                continue
            check_entry(name)
            source = archive.extractfile(member) if member.isfile() else None
            if source is not None:
                _write_file(package, name, source, bool(member.mode & stat.S_IXUSR))
            elif member.isdir():
                _write_directory(package, f"{name}/")
    return target.getvalue()


def _write_file(package: zipfile.ZipFile, name: str, source: IO[bytes], is_executable: bool) -> None:
    info = zipfile.ZipInfo(name, EARLIEST)
    info.create_system = 3  # Unix: the permissions are those of Unix on every system.
    info.external_attr = (stat.S_IFREG | (EXECUTABLE if is_executable else PLAIN)) << 16
    with package.open(info, "w") as target:
        shutil.copyfileobj(source, target, COPY_BYTES)


def _write_directory(package: zipfile.ZipFile, name: str) -> None:
    info = zipfile.ZipInfo(name, EARLIEST)
    info.create_system = 3
    info.external_attr = (stat.S_IFDIR | EXECUTABLE) << 16
    package.writestr(info, b"")


def check_entry(name: str) -> None:
    """Raise ValueError if an entry of an archive would not lie inside of the directory that the archive is unpacked to."""
    parts = name.removesuffix("/").split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError(f"the entry {name!r} of this archive may lie outside of it")


def unpack(archive: Buffer, directory: str, check: Callable[[], None]) -> None:
    """Make the directory from a package, unless it is there already; ``check`` raises if the package is a wrong one.

    Raises OSError, ValueError; then there is no directory.
    """
    os.makedirs(os.path.dirname(directory), 0o700, exist_ok=True)
    with _locked(f"{directory}.lock"):
        if os.path.isdir(directory):
            return
        check()
        work = f"{directory}.part"
        remove_tree(work)
        os.mkdir(work, 0o700)
        try:
            _extract(archive, work)
            os.rename(work, directory)
        except BaseException:
            remove_tree(work)
            raise


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Let one process at a time run the block, or one thread where a cluster is one process (Windows). Raises OSError."""
    try:
        import fcntl
    except ModuleNotFoundError:
        with _unpacking:
            yield
        return
    lock = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW | CLOSE_ON_EXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _extract(archive: Buffer, directory: str) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as package:
            for info in package.infolist():
                check_entry(info.filename)
                path = os.path.join(directory, info.filename)
                if info.is_dir():
                    os.makedirs(path, 0o700, exist_ok=True)
                    continue
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                mode = 0o700 if (info.external_attr >> 16) & stat.S_IXUSR else 0o600
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | CLOSE_ON_EXEC, mode)
                with open(descriptor, "wb") as target, package.open(info) as source:
                    shutil.copyfileobj(source, target, COPY_BYTES)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:  # The last two: encryption, odd compression.
        raise ValueError(f"the package cannot be unpacked: {error}") from None


def requirements_of_wheel(archive: bytes) -> list[str]:
    """Return the requirements that the metadata of a wheel name."""
    with zipfile.ZipFile(io.BytesIO(archive)) as package:
        names = [name for name in package.namelist() if name.endswith(".dist-info/METADATA")]
        text = package.read(names[0]).decode() if names else ""
    return Parser().parsestr(text, headersonly=True).get_all("Requires-Dist", [])
