"""Log files of all nodes for visitors: a table of them, the end of one, and what is written while somebody looks.

Ray: python/ray/dashboard/modules/log/log_manager.py

Each node's raylet lists and reads its files (``minray/observability/log_reader.py``), and takes a name without a directory
only. So nobody reads another file through the dashboard. An answer has a bounded number of lines and bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from minray.dashboard.cluster_state import DashboardState, NotFound
from minray.dashboard.listing import whole_number
from minray.dashboard.tables import Table
from minray.observability.log_cursor import LogCursor, LogPlace, NoSuchLog, name_of
from minray.observability.log_reader import ClusterLogs, grouped
from minray.platform.base import PlatformError
from minray.protocol.gcs import NodeInfo
from minray.protocol.logs import LogChoice

DEFAULT_TAIL, MOST_TAIL = 1000, 10_000
"""Number of lines of an answer, without a wish and at most."""
MOST_BYTES = 4_000_000
"""Most bytes of an answer or an event: lines may be long."""
LOOK_S = 0.5
"""Seconds between two looks at a file that is followed."""
READ_S = 20.0
"""Seconds for which a file is searched. It may be larger than anybody waits for."""


def log_rows(node: NodeInfo, files: Sequence[Any]) -> list[dict[str, Any]]:
    """Make the rows of a node's files."""
    groups = {name: group for group, names in grouped(files).items() for name in names}
    return [
        {
            "file": file.name,
            "node_id": node.node_id.hex(),
            "node_name": node.name,
            "group": groups[file.name],
            "size": file.size,
            "modified": file.modified,
        }
        for file in files
    ]


class LogWish(NamedTuple):
    """The lines that a visitor wants."""

    node_id: str
    file: str
    tail: int
    search: str


class LogDesk:
    """The log files of a cluster."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state

    def _logs(self) -> ClusterLogs:
        return ClusterLogs(self._state.connection.reader(), self._state.timeout_s)

    async def table(self) -> Table:
        """List the files of all living nodes."""
        logs = self._logs()
        nodes = [node for node in (await self._state.census()).value.nodes if node.alive]

        async def rows_of(node: NodeInfo) -> tuple[list[dict[str, Any]], int]:
            listed = await logs.list_logs(node)
            return log_rows(node, listed.files), listed.total - len(listed.files)

        found = await asyncio.gather(*map(rows_of, nodes), return_exceptions=True)
        rows: list[dict[str, Any]] = []
        silent, notes, left_out = [], [], 0
        for node, answer in zip(nodes, found, strict=True):
            if isinstance(answer, NoSuchLog | PlatformError):
                silent.append(name_of(node))
                notes.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                rows += answer[0]
                left_out += answer[1]
        return Table(rows, silent, left_out, tuple(notes))

    async def read(self, node_id: str, file: str, wishes: dict[str, str]) -> dict[str, Any]:
        """Return the last lines of a file, or those that contain a text. Raises NotFound and ValueError."""
        tail = whole_number("tail", wishes.get("tail", str(DEFAULT_TAIL)), 0, MOST_TAIL)
        pieces: deque[bytes] = deque()
        size, notes = 0, []
        try:
            cursor = await self._cursor(LogWish(node_id, file, tail, wishes.get("search", "")), is_followed=False)
            async with asyncio.timeout(READ_S):
                while not cursor.is_end:
                    pieces.append(await cursor.read())
                    size += len(pieces[-1])
                    while size > MOST_BYTES and len(pieces) > 1:
                        size -= len(pieces.popleft())
                        notes = [f"only the last {MOST_BYTES} bytes are shown"]
        except NoSuchLog as error:
            raise NotFound(str(error)) from None
        except TimeoutError:
            notes.append(f"the file was not read to its end within {READ_S:g} s")
        lines = lines_of(b"".join(pieces)[-MOST_BYTES:])[-tail:] if tail else []
        return {"file": file, "node_id": node_id, "lines": lines, "notes": notes}

    def follow(self, node_id: str, file: str, wishes: dict[str, str], heartbeat_s: float) -> AsyncIterator[Any]:
        """Return events with new lines; None if there were none for a while. The last event says why it is the last.

        Raises ValueError for a wrong wish.
        """
        tail = whole_number("tail", wishes.get("tail", "0"), 0, MOST_TAIL)
        return self._follow(LogWish(node_id, file, tail, wishes.get("search", "")), heartbeat_s)

    async def _follow(self, wish: LogWish, heartbeat_s: float) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        said_at = loop.time()
        try:
            cursor = await self._cursor(wish, is_followed=True)
            while True:
                piece = await cursor.read()
                if piece:
                    yield {"lines": lines_of(piece[-MOST_BYTES:])}
                    said_at = loop.time()
                elif cursor.is_end:
                    if loop.time() - said_at > heartbeat_s:
                        yield None
                        said_at = loop.time()
                    await asyncio.sleep(LOOK_S)
        except (NoSuchLog, PlatformError, ConnectionError, TimeoutError) as error:
            yield {"lines": [], "error": str(error) or "the cluster does not answer"}

    async def _cursor(self, wish: LogWish, is_followed: bool) -> LogCursor:
        logs = self._logs()
        place = LogPlace(await logs.node(wish.node_id), wish.file, LogChoice(search=wish.search))
        return logs.cursor(place, wish.tail, is_followed)


def lines_of(data: bytes) -> list[str]:
    """Split what a node has sent into lines."""
    return data.decode(errors="replace").removesuffix("\n").split("\n") if data else []
