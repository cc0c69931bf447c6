"""Which lines of a piece of a log file a reader wants: the pure half of reading logs.

Ray: python/ray/dashboard/modules/log/log_agent.py (find_start_offset_last_n_lines_from_offset)

Marks of tasks (``minray/protocol/logs.py``) are dropped from every piece, and say to which task the lines after them
belong. A piece is made of bytes, because a log file may hold text in any encoding.
"""

from __future__ import annotations

import re

from minray.protocol.core_worker import TASK_NAME_MARK
from minray.protocol.logs import EVERYTHING, LogChoice, Mark, read_mark

MARK_BYTE = TASK_NAME_MARK.encode()
_MARK_LINE = re.compile(rb"^" + MARK_BYTE + rb"[^\n]*(?:\n|\Z)", re.MULTILINE)


class LineChooser:
    """Chooses the lines of one reader from the pieces of a file, which it is given in their order."""

    def __init__(self, choice: LogChoice, has_marks: bool, mark: str = "") -> None:
        """``has_marks``: whether the file is a worker's. ``mark``: the mark that holds before the first piece."""
        self.mark = mark
        """The mark that holds now. An actor's first mark holds for ever, since its worker runs nothing else."""
        self._choice = choice
        self._search = choice.search.encode(errors="surrogateescape").lower()
        self._has_marks = has_marks
        self._is_wanted = self._wants(read_mark(mark))

    def choose(self, piece: bytes) -> bytes:
        """Return the wanted lines of a piece, with their ends."""
        if self._choice.is_everything():
            return _MARK_LINE.sub(b"", piece) if self._has_marks and MARK_BYTE in piece else piece
        return b"".join(line for line in _split(piece) if self._takes(line))

    def _takes(self, line: bytes) -> bool:
        if self._has_marks and line.startswith(MARK_BYTE):
            self._on_mark(line.rstrip(b"\n").decode(errors="replace"))
            return False
        return self._is_wanted and self._search in line.lower()

    def _on_mark(self, mark: str) -> None:
        if self._choice.actor_id and self._is_wanted:
            return
        self.mark = mark
        self._is_wanted = self._wants(read_mark(mark))

    def _wants(self, mark: Mark) -> bool:
        choice = self._choice
        if choice.actor_id and mark.actor_id != choice.actor_id:
            return False
        return not choice.task_id or (mark.task_id == choice.task_id and choice.attempt in (EVERYTHING, mark.attempt))


def _split(piece: bytes) -> list[bytes]:
    """Split a piece at newlines alone, and keep them."""
    *whole, rest = piece.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def count_lines(block: bytes, is_first: bool) -> int:
    """Return the number of lines that begin in a block after its first byte; with ``is_first`` also there. Marks are not
    counted.

    The block's last byte is the first one of the block behind it, or the last one of the file.
    """
    begun = block.count(b"\n", 0, len(block) - 1) - block.count(b"\n" + MARK_BYTE)
    return begun + (is_first and not block.startswith(MARK_BYTE))


def start_of_last(block: bytes, lines: int) -> int:
    """Return where the last ``lines`` lines of a block begin, which has at least as many (``count_lines``)."""
    at = len(block) - 1
    while lines:
        at = block.rfind(b"\n", 0, at)
        if at < 0:
            return 0
        lines -= not block.startswith(MARK_BYTE, at + 1)
    return at + 1
