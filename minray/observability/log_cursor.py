"""One reader's place in one log file of a node: it reads on, across rotations, piece by piece.

Ray: python/ray/dashboard/modules/log/log_agent.py (_stream_log_in_chunk)

A cursor asks the node's raylet for one piece after the other (``ReadLog``), and names with each request where the last piece
ended. A file of any size is read in bounded memory. If lines are lost because a file was cut, or was rotated away faster
than it was read, a line in brackets says so in their place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from minray.protocol.gcs import NodeInfo
from minray.protocol.logs import EVERYTHING, LogChoice, LogPart, LogPosition, ReadLog


class NoSuchLog(Exception):
    """A log does not exist or cannot be read; the message says why."""


class LogPlace(NamedTuple):
    """A log file of a node, and which lines of it are wanted."""

    node: NodeInfo
    file: str
    choice: LogChoice = LogChoice()


class AskForLog(Protocol):
    """Asks the raylet of a node for a piece of a file. Raises NoSuchLog if it cannot be reached."""

    async def __call__(self, node: NodeInfo, request: ReadLog, /) -> LogPart: ...


class LogCursor:
    """Reads one file from its beginning, or from its last lines on."""

    def __init__(self, ask: AskForLog, place: LogPlace, tail: int, is_followed: bool) -> None:
        """``tail``: number of lines to begin before the end; negative: all. ``is_followed``: a line is read with its end."""
        self.place = place
        self.is_end = False
        """Whether the file had nothing more when it was read last."""
        self._ask = ask
        self._tail = max(tail, EVERYTHING)
        self._is_followed = is_followed
        self._position: LogPosition | None = None

    async def read(self) -> bytes:
        """Return the next piece, which may be empty. Raises NoSuchLog if the file, or its node, is gone."""
        is_first = self._position is None
        if is_first and self._tail != EVERYTHING and not self.place.choice.is_everything():
            return await self._last_chosen()
        return await self._next()

    async def read_more(self, interval_s: float) -> bytes:
        """Return the next piece that is not empty. Look again after each ``interval_s`` until there is one."""
        while not (piece := await self.read()):
            if self.is_end:
                await asyncio.sleep(interval_s)
        return piece

    async def _next(self) -> bytes:
        is_tail = self.place.choice.is_everything()
        request = ReadLog(
            name=self.place.file,
            position=self._position,
            tail=self._tail if is_tail else EVERYTHING,
            choice=self.place.choice,
            is_followed=self._is_followed,
        )
        part = await self._ask(self.place.node, request)
        if part.position is None:
            raise NoSuchLog(f"{name_of(self.place.node)}: {part.absence}")
        self._position, self.is_end = part.position, part.is_end
        return f"[{part.note}]\n".encode() + part.data if part.note else part.data

    async def _last_chosen(self) -> bytes:
        """Read all wanted lines, and return the last ones: only a reader of all of them knows which these are."""
        last: deque[bytes] = deque(maxlen=self._tail)
        begun = b""
        while not self.is_end:
            *whole, begun = (begun + await self._next()).split(b"\n")
            last.extend(line + b"\n" for line in whole)
        if begun:
            last.append(begun)
        return b"".join(last)


def name_of(node: NodeInfo) -> str:
    """Return how a node is named to people."""
    digits = node.node_id.hex()[:8]
    return f"node {node.name} ({digits})" if node.name else f"node {digits}"
