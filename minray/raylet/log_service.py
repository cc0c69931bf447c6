"""Lists and reads the log files of this node for all processes of the cluster.

Ray: python/ray/dashboard/modules/log/log_agent.py (LogAgentV1Grpc)

Rules
  * A name is that of a plain file in the session's directory of logs. Everything else is refused with words.
  * One answer looks through a bounded number of bytes and returns a bounded number, so no reader holds up the loop.
  * A file and its backups are one text. A place in it is an inode and an offset, so it is found again after a rotation.

What we do not like about it yet: an inode may be used again. A follower that falls behind by all backups at once can take
the newest file for the one that is gone; then it misses the lines before its offset, and is not told.
"""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase

from minray.common.log_files import LogDirectory, LogEntry, is_plain_name, series_of
from minray.common.shown import shown
from minray.protocol.logs import EVERYTHING, MOST_LOG_FILES, ListLogs, LogFile, LogFiles, LogPart, LogPosition, ReadLog
from minray.raylet.log_lines import LineChooser, count_lines, start_of_last
from minray.rpc.service import Call

PIECE_BYTES = 256 * 1024
"""Bytes that are read at once, and bytes after which an answer is full. Their lines take the loop 1 or 2 ms."""
MOST_SCANNED_BYTES = 16 * PIECE_BYTES
"""Most bytes that are looked through for one answer, which may then have no line."""
MOST_ATTEMPTS = 10
"""Number of times that a request begins again because files were renamed while it read them."""
ATTEMPT_S = 0.02
"""Seconds between two attempts: a rotation is over by then."""
NO_FILES = "this node keeps no log files: its cluster lives in one Python process, whose own streams show what workers print"


class LogService:
    """Serves the messages of ``protocol/logs.py``."""

    def __init__(self, logs: LogDirectory | None, backup_count: int) -> None:
        """``logs`` None: this node keeps no log files. ``backup_count``: most backups of a file."""
        self._logs = logs
        self._backup_count = backup_count

    async def handle_ListLogs(self, request: ListLogs, call: Call) -> LogFiles:
        if self._logs is None:
            return LogFiles([], 0, NO_FILES)
        try:
            found = [entry for entry in await self._logs.entries() if fnmatchcase(entry.name, request.pattern)]
        except OSError as error:
            return LogFiles([], 0, f"the directory of log files cannot be read: {error.strerror}")
        files = [LogFile(entry.name, entry.size, entry.modified) for entry in found[:MOST_LOG_FILES]]
        return LogFiles(files, len(found))

    async def handle_ReadLog(self, request: ReadLog, call: Call) -> LogPart:
        if self._logs is None:
            return _absent(NO_FILES)
        if not is_plain_name(request.name):
            return _absent(f"{shown(request.name)} is not the name of a log file: give a name without a directory")
        for _ in range(MOST_ATTEMPTS):
            try:
                series = await self._logs.entries(series_of(request.name, self._backup_count))
                part = await _Reading(self._logs, request, series).answer() if series else None
            except OSError as error:
                return _absent(f"the log file {shown(request.name)} cannot be read: {error.strerror}")
            if part is not None:
                return part
            await asyncio.sleep(ATTEMPT_S)
        if series:
            return _absent(f"the log file {shown(request.name)} is renamed too often to be read")
        if request.position is not None:
            return _absent(f"the log file {shown(request.name)} was removed while it was read")
        return _absent(f"there is no log file {shown(request.name)} on this node")


def _absent(why: str) -> LogPart:
    return LogPart(b"", None, True, absence=why)


class _Reading:
    """One attempt to answer one request from a file and its backups, as they were when the attempt began."""

    def __init__(self, logs: LogDirectory, request: ReadLog, series: list[LogEntry]) -> None:
        self._logs = logs
        self._request = request
        self._series = series
        """The file and its backups, oldest first."""
        self._index = 0
        """Index of the file that is read now."""
        self._offset = 0
        self._note = ""

    async def answer(self) -> LogPart | None:
        """Return the answer; None if a file was renamed meanwhile."""
        request, position = self._request, self._request.position
        if position is not None:
            self._resume(position)
        elif request.tail != EVERYTHING and not await self._go_to_last(request.tail):
            return None
        mark = position.mark if position is not None and not self._note else ""
        chooser = LineChooser(request.choice, request.name.startswith("worker-"), mark)
        chosen: list[bytes] = []
        scanned = size = 0
        while scanned < MOST_SCANNED_BYTES and size < PIECE_BYTES:
            piece = await self._piece()
            if piece is None:
                return None
            data, is_last = piece
            chosen.append(chooser.choose(data))
            scanned += len(data)
            size += len(chosen[-1])
            if is_last:
                return self._part(chosen, chooser, True)
        return self._part(chosen, chooser, False)

    def _part(self, chosen: list[bytes], chooser: LineChooser, is_end: bool) -> LogPart:
        position = LogPosition(self._series[self._index].inode, self._offset, chooser.mark)
        return LogPart(b"".join(chosen), position, is_end, self._note)

    def _resume(self, position: LogPosition) -> None:
        """Go on where the last answer has ended."""
        for index, entry in enumerate(self._series):
            if entry.inode == position.inode:
                self._index = index
                self._offset = position.offset
                if position.offset > entry.size:
                    self._offset, self._note = 0, f"{entry.name} was cut; it is read from its beginning"
                return
        self._note = f"lines of {self._request.name} are missing here: the file that had them is gone"

    async def _piece(self) -> tuple[bytes, bool] | None:
        """Read the next piece, and tell whether nothing follows it at the moment; None if the file was renamed."""
        entry, is_newest = self._series[self._index], self._index == len(self._series) - 1
        data = await self._logs.read(entry.name, entry.inode, self._offset, PIECE_BYTES)
        if data is None:
            return None
        at_end = len(data) < PIECE_BYTES
        whole = data.rfind(b"\n") + 1
        if whole < len(data) and (whole and not at_end or at_end and is_newest and self._request.is_followed):
            data = data[:whole]  # The rest is the beginning of a line, and is read with its end.
        self._offset += len(data)
        if at_end and not is_newest:
            self._index, self._offset = self._index + 1, 0
            if data and not data.endswith(b"\n"):
                data += b"\n"
        return data, at_end and is_newest

    async def _go_to_last(self, lines: int) -> bool:
        """Go to the place behind which there are ``lines`` lines; False if a file was renamed meanwhile."""
        self._index = len(self._series) - 1
        self._offset = self._series[-1].size
        missing = lines
        for index in reversed(range(len(self._series))) if missing > 0 else ():
            entry, next_byte = self._series[index], b""
            end = entry.size
            while end:
                start = max(0, end - PIECE_BYTES)
                block = await self._logs.read(entry.name, entry.inode, start, end - start)
                if block is None or len(block) < end - start:
                    return False
                count = count_lines(block + next_byte, is_first=not start)
                if count >= missing:
                    self._index, self._offset = index, start + start_of_last(block + next_byte, missing)
                    return True
                missing -= count
                end, next_byte = start, block[:1]
        if missing > 0:
            self._index = self._offset = 0
        return True
