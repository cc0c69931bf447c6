"""A log file that does not grow for ever: when it is full it gets a number, and a new one begins.

Ray: src/ray/util/pipe_logger.cc, python/ray/_private/ray_constants.py (LOGGING_ROTATE_BYTES, LOGGING_ROTATE_BACKUP_COUNT)

``worker-1.out`` becomes ``worker-1.out.1``, which becomes ``.2``, and so on; the last one is removed. Raylets keep the
output of their workers in such files. The gcs and the raylets log into such files too. Their standard output and error lead
to the same file, also after a rotation (``standard``).

What we do not like about it yet: output that goes to these descriptors directly (from C libraries, of tracebacks) is not
counted until the file is opened again.
"""

from __future__ import annotations

import os
from contextlib import suppress


class RotatingLog:
    """A text stream as far as logs need one. Each piece of text is written at once, into one file."""

    def __init__(self, path: str, max_bytes: int, backup_count: int, standard: tuple[int, ...] = ()) -> None:
        """Open the log. Raises OSError.

        ``max_bytes`` 0: never rotate. ``standard``: descriptors of this process that are made to lead to the file.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._backup_count = backup_count
        self._standard = standard
        self._descriptor = -1
        """The descriptor of the current file; -1 when it is closed."""
        self._size = 0
        """Size of the file when it was opened, plus the bytes written here since."""
        self._open()

    def write(self, text: str, heading: str = "", /) -> int:
        """Write the text into one file, after a rotation if it would not fit. Raises OSError.

        ``heading``: what a new file begins with, unless the text does.
        """
        data = text.encode(errors="backslashreplace")
        if self._max_bytes and self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
            if not text.startswith(heading):
                data = heading.encode(errors="backslashreplace") + data
        self._size += len(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return len(text)

    def flush(self) -> None:
        """Do nothing: ``write`` buffers nothing."""

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.close()
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        for standard in self._standard:
            os.dup2(descriptor, standard)

    def _rotate(self) -> None:
        for number in range(self._backup_count, 0, -1):
            older = f"{self._path}.{number - 1}" if number > 1 else self._path
            with suppress(FileNotFoundError):
                os.replace(older, f"{self._path}.{number}")
        if not self._backup_count:
            os.unlink(self._path)
        self._open()
