"""Log files of a simulated node, in the memory of its raylet.

They end with their raylet: nothing in the simulation reads the logs of a dead node.

Left out: rotation, since these files stay small. ``tests/raylet/test_log_service.py`` rotates real files.
"""

from __future__ import annotations

from collections.abc import Sequence

from minray.common.log_files import LogEntry


class SimLogs:
    """Implements ``LogDirectory``."""

    def __init__(self) -> None:
        self.files: dict[str, SimLog] = {}

    def open_sink(self, name: str) -> SimLog:
        return self.files.setdefault(name, SimLog(len(self.files)))

    async def entries(self, names: Sequence[str] | None = None) -> list[LogEntry]:
        wanted = sorted(self.files) if names is None else [name for name in names if name in self.files]
        return [LogEntry(name, len(self.files[name].data), 0.0, self.files[name].inode) for name in wanted]

    async def read(self, name: str, inode: int, start: int, size: int) -> bytes | None:
        file = self.files.get(name)
        return bytes(file.data[start : start + size]) if file is not None and file.inode == inode else None


class SimLog:
    """Implements ``LogSink``."""

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.data = bytearray()

    def write(self, text: str, heading: str = "", /) -> int:
        self.data += text.encode(errors="backslashreplace")
        return len(text)

    def close(self) -> None:
        pass
