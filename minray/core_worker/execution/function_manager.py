"""Exports the definition of a remote function or actor class once per job, and imports it once per worker.

Ray: python/ray/_private/function_manager.py

A definition is pickled at its first ``.remote()`` (G15, C8) and put into its job's namespace of the gcs's key-value store.
The namespace is deleted with the job. Tasks name the function id. A worker fetches a definition when the first task that
needs it arrives. It unpickles the definition in the thread that runs user code, since unpickling imports modules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from minray import cloudpickle
from minray.platform.base import PlatformError
from minray.protocol.gcs import KvGet, KvGetReply, KvPut, KvPutReply, job_namespace
from minray.rpc.connection import Peer

FETCH_AGAIN_S = 0.5
"""Seconds before an export or a fetch that failed is tried again; short, because a task waits for it."""


class FunctionManager:
    """Exports and imports the definitions of remote functions and actor classes for one process."""

    def __init__(self, gcs: Peer) -> None:
        self._gcs = gcs
        self._pickled: dict[bytes, bytes] = {}
        """Fetched definitions that have not been unpickled, by function id."""
        self._functions: dict[bytes, Callable[..., Any]] = {}
        """Unpickled functions and classes, by function id; written by the user thread."""
        self._wanted: set[bytes] = set()
        """Function ids that the gcs was asked for; a failed request is repeated until it succeeds."""

    def export(self, job_id: bytes, function_id: bytes, pickled: bytes, on_exported: Callable[[], None]) -> None:
        """Store a definition in the gcs, then call ``on_exported``; a failed request is repeated."""

        def on_answer(reply: KvPutReply | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if reply is not None:
                on_exported()
            elif self._gcs.death is None:
                loop = asyncio.get_running_loop()
                loop.call_later(FETCH_AGAIN_S, self.export, job_id, function_id, pickled, on_exported)

        self._gcs.send(KvPut(job_namespace(job_id), function_id, pickled, True), on_answer)

    def is_here(self, function_id: bytes) -> bool:
        return function_id in self._functions or function_id in self._pickled

    def fetch_function(self, job_id: bytes, function_id: bytes, on_fetched: Callable[[], None]) -> None:
        """Fetch a definition from the gcs, then call ``on_fetched``; only the first call for a function id has an effect."""
        if function_id not in self._wanted:
            self._wanted.add(function_id)
            self._ask(job_id, function_id, on_fetched)

    def _ask(self, job_id: bytes, function_id: bytes, on_fetched: Callable[[], None]) -> None:
        def on_answer(reply: KvGetReply | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if reply is not None and reply.value is not None:
                self._pickled[function_id] = reply.value
                on_fetched()
            elif self._gcs.death is None:
                asyncio.get_running_loop().call_later(FETCH_AGAIN_S, self._ask, job_id, function_id, on_fetched)

        self._gcs.send(KvGet(job_namespace(job_id), function_id), on_answer)

    def load(self, function_id: bytes) -> Callable[..., Any]:
        """Return the function, unpickled if need be; for the user thread.

        Whatever unpickling raises is raised here, at each attempt.
        """
        function = self._functions.get(function_id)
        if function is None:
            function = cloudpickle.loads(self._pickled[function_id])
            self._functions[function_id] = function
            del self._pickled[function_id]
        return function
