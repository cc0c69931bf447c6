"""The records that a part is made with in a test: its platform, with fakes of the smallest members, and its configuration.

Whatever a test does not give is not there, so a part that reaches for it fails.
"""

from __future__ import annotations

from typing import Any

from minray.common.config import RayletConfig, SystemConfig
from minray.platform.base import Platform


def platform_record(**parts: Any) -> Platform:
    """Make a real record that has only these parts."""
    absent = dict.fromkeys(Platform.__struct_fields__)
    values: dict[str, Any] = {**absent, "name": "test", "identity": b"test".ljust(16), "bulk": (), **parts}
    return Platform(**values)


def raylet_config(node_id: bytes, **fields: Any) -> RayletConfig:
    """Make the configuration of a node's raylet; ``fields`` that it does not have are entries of the system's."""
    entries = {field: fields.pop(field) for field in list(fields) if field not in RayletConfig.__struct_fields__}
    values: dict[str, Any] = dict.fromkeys(
        ("node_name", "node_ip", "gcs_endpoint", "socket_dir", "tcp_host", "session_dir"), ""
    )
    values |= {"tcp_port": 0, "resources": {}, "labels": {}, "is_head": False, "spill_directories": [], **fields}
    return RayletConfig(node_id=node_id, system_config=SystemConfig.from_overrides(entries), **values)


class FakeHost:
    """Plays ``base.Host``: a test sets the wall clock, and the number that is drawn."""

    hostname = "test"
    cpu_count = 2
    memory_bytes = 1 << 30

    def __init__(self, time_s: float = 0.0, chance: float = 0.0) -> None:
        self._time_s = time_s
        self._chance = chance
        self.limit = ""
        """The limit that this process has nearly reached."""

    def shortage(self) -> str:
        return self.limit

    def time(self) -> float:
        return self._time_s

    def random(self) -> float:
        return self._chance

    def random_bytes(self, count: int) -> bytes:
        return b"r" * count

    def memory_usage(self) -> tuple[int, int]:
        return 0, self.memory_bytes

    def process_memory(self, pid: int) -> int:
        return 0


class FakeProcesses:
    """Plays ``base.Processes`` for a process without children: it writes down the codes with which it was ended."""

    def __init__(self) -> None:
        self.pid = 7
        self.marks = memoryview(bytearray(64))
        self.journal = memoryview(b"")
        self.is_copy = False
        self.codes: list[int] = []

    def exit(self, code: int) -> None:
        self.codes.append(code)
