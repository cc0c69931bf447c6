"""The way to answer a request, as a handler has it in a test: it keeps what was answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RecordingCall:
    """Plays ``service.Call``: a request of one peer, which may be answered more than once."""

    def __init__(self, peer: bytes = b"") -> None:
        self.peer = peer
        self.replies: list[Any] = []
        self.buffers: Sequence[Any] = ()
        """Buffers that came beside the last reply."""
        self.failures: list[str] = []

    def reply(self, record: Any, buffers: Sequence[Any] = ()) -> None:
        self.replies.append(record)
        self.buffers = buffers

    def fail(self, kind: str, message: str) -> None:
        self.failures.append(kind)
