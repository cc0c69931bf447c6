"""Directories whose paths no other user of the machine can redirect: how they are made, opened and removed.

Ray: has no counterpart; its sessions in /tmp/ray are open to all users of a machine

Another user who can rename or replace any directory on the way to a file decides what the file's path means. A session
there would serve that user's sockets and unpickle that user's bytes, and a removal would empty whatever a link leads to.

Rules
  * Before a directory is used, every directory on the way to it is checked (``resolve``). Each must belong to root or to
    this user, and others must not be able to write to it. A sticky directory (like /tmp) may be writable: users cannot
    rename each other's entries there.
  * A link on the way is followed only if it belongs to root or to this user. From then on the path without links is used.
  * The owner of ``/`` counts as root: in a user namespace root has another number, or none.
  * Files are opened and removed relative to an open directory, never through a link (``PrivateDirectory``, ``remove_tree``).
  * Group write permission is allowed for the owner's private group (of the same name, without other members), which is what
    a umask of 002 is made for.
  * ``MINRAY_TRUSTED_DIRECTORIES`` names directories, joined by colons, that others may write to although no other user can
    reach them. The volumes of a container are like this: Kubernetes makes them with mode 0777, or for a group. They must
    belong to root or to this user all the same.

Left out: access control lists. Their rights show in the group's permissions, and are judged as the group's. Windows, which
has nothing but those, does not open directories either. Only what is below the user's own temporary directory is used there
(``PlainDirectory``).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

MOST_LINKS = 40
"""Number of links followed on the way to one directory, as many as Linux follows."""
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
OPENS_DIRECTORIES = hasattr(os, "O_DIRECTORY")
"""Whether this system opens directories."""
NO_FOLLOW, CLOSE_ON_EXEC = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_CLOEXEC", 0)
"""Flags of ``os.open``; 0 on Windows, whose links need a privilege and whose programs inherit no descriptor."""
OPEN_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NO_FOLLOW | CLOSE_ON_EXEC


TRUSTED_VARIABLE = "MINRAY_TRUSTED_DIRECTORIES"
"""Environment variable with the directories that the user vouches for."""


class Exposed(PermissionError):
    """Another user can change where a path leads; ``strerror`` says at which place and why."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(errno.EPERM, message, path)


def make_private(path: str) -> str:
    """Make the directory at an absolute path, mode 0700, and missing ones above it; return the path without links.

    Raises ``Exposed`` if it is a link, belongs to another user, or if others may write to it or change a directory above it.
    Raises another OSError if it cannot be made.
    """
    if os.path.islink(path):
        raise Exposed(f"{path} is a link, which may lead elsewhere later", path)
    resolved = resolve(path, make=True)
    PrivateDirectory(resolved)
    return resolved


def resolve(path: str, *, make: bool = False) -> str:
    """Check that no other user can change where a directory's path leads, and return that path without links.

    ``make``: make missing directories, mode 0700. Raises ``Exposed`` if another user can change the path, FileNotFoundError
    or another OSError if there is no such directory.
    """
    resolved, links = "/", 0
    missing = path.split("/")[::-1]
    """Names of the path that are not checked yet, the next one last."""
    while missing:
        name = missing.pop()
        if name in ("", "."):
            continue
        if name == "..":
            resolved = os.path.dirname(resolved)
            continue
        place = os.path.join(resolved, name)
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):  # another process has just made it
                os.mkdir(place, 0o700)
            status = os.lstat(place)
        _check_owner(place, status)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(place)
            resolved = "/" if target.startswith("/") else resolved
            missing += target.split("/")[::-1]
        elif stat.S_ISDIR(status.st_mode):
            if not status.st_mode & stat.S_ISVTX:
                _check_permissions(place, status)
            resolved = place
        else:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place)
    return resolved


def _check_is_own(place: str, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise Exposed(f"{place} belongs to another user (uid {status.st_uid})", place)


def _check_owner(place: str, status: os.stat_result) -> None:
    """Raise ``Exposed`` unless a directory on the way belongs to this user or to root."""
    if status.st_uid not in (0, os.stat("/").st_uid):
        _check_is_own(place, status)


def _check_permissions(place: str, status: os.stat_result) -> None:
    writers = status.st_mode & WRITABLE_BY_OTHERS
    is_private = writers == stat.S_IWGRP and _is_private_group(status.st_uid, status.st_gid)
    if writers and not is_private and place not in os.environ.get(TRUSTED_VARIABLE, "").split(":"):
        raise Exposed(f"others may write to {place}", place)


def _is_private_group(user: int, group: int) -> bool:
    import grp
    import pwd

    try:
        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return owner.pw_gid == group and members.gr_name == owner.pw_name and set(members.gr_mem) <= {owner.pw_name}


class PrivateDirectory:
    """An open directory of this user. A link that is put in its place later has no effect.

    It is closed when nothing refers to this object any more.
    """

    def __init__(self, path: str) -> None:
        """Open the directory. Raises ``Exposed`` if another user owns it or may write to it, another OSError if it cannot be
        opened."""
        self._descriptor = -1
        """-1 until it is open."""
        self._descriptor = os.open(path, OPEN_DIRECTORY)
        status = os.fstat(self._descriptor)
        self.inode = status.st_ino
        _check_is_own(path, status)
        _check_permissions(path, status)

    def open(self, name: str, flags: int) -> int:
        """Open a plain file of this user in the directory and return its descriptor. Raises ``Exposed`` or another OSError.

        It can be the ``opener`` of Python's ``open``.
        """
        descriptor = os.open(name, flags | NO_FOLLOW | CLOSE_ON_EXEC, 0o600, dir_fd=self._descriptor)
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise Exposed(f"{name} is not a file of this user's", name)
        return descriptor

    def unlink(self, name: str) -> None:
        """Remove a file of the directory. Raises OSError."""
        os.unlink(name, dir_fd=self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class PlainDirectory:
    """A directory with the methods of ``PrivateDirectory``, for systems that do not open directories."""

    def __init__(self, path: str) -> None:
        """Raises OSError if there is no such directory."""
        self._path = path
        self.inode = os.stat(path).st_ino

    def open(self, name: str, flags: int) -> int:
        return os.open(os.path.join(self._path, name), flags | getattr(os, "O_BINARY", 0), 0o600)

    def unlink(self, name: str) -> None:
        os.unlink(os.path.join(self._path, name))


def open_directory(path: str) -> PrivateDirectory | PlainDirectory:
    """Open a directory in the safest way that this system has. Raises OSError."""
    return PrivateDirectory(path) if OPENS_DIRECTORIES else PlainDirectory(path)


def remove_tree(path: str, inode: int | None = None) -> None:
    """Remove a directory with everything in it, as far as possible. Never raises.

    Nothing is removed if the path is a link, the directory is another user's, or its inode is not ``inode`` (if given).
    """
    if not OPENS_DIRECTORIES:
        _remove_plain_tree(path, inode)
        return
    with suppress(OSError):
        descriptor = os.open(path, OPEN_DIRECTORY)
        try:
            status = os.fstat(descriptor)
            _check_is_own(path, status)
            if inode in (None, status.st_ino):
                _empty(descriptor)
                os.rmdir(path)
        finally:
            os.close(descriptor)


def _remove_plain_tree(path: str, inode: int | None) -> None:
    import shutil

    with suppress(OSError):
        if not os.path.islink(path) and inode in (None, os.stat(path).st_ino):
            shutil.rmtree(path, ignore_errors=True)


def _empty(descriptor: int) -> None:
    for _, folders, files, at in os.fwalk(".", topdown=False, follow_symlinks=False, dir_fd=descriptor):
        for name in files:
            with suppress(OSError):
                os.unlink(name, dir_fd=at)
        for name in folders:
            with suppress(OSError):
                try:
                    os.rmdir(name, dir_fd=at)
                except NotADirectoryError:  # a link to a directory
                    os.unlink(name, dir_fd=at)
