"""The record of this process, which most parts of a core worker hold.

Ray: CoreWorkerOptions in src/ray/core_worker/core_worker_options.h, WorkerContext in src/ray/core_worker/context.h

``core_worker.py`` makes one when the process listens, since only then its address is known. Parts read it; only the fields
whose sentence says so change later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from minray.common.config import WorkerConfig
from minray.platform.base import Platform
from minray.protocol.base import Address
from minray.rpc.connection import Peer, Peers
from minray.rpc.patient_caller import PatientCaller


@dataclass(slots=True)
class Process:
    """A driver or worker, as its own parts see it."""

    platform: Platform
    """The seam to the world outside."""
    config: WorkerConfig
    """The configuration that the process was started with."""
    address: Address
    """Where others reach it; complete, since the process listens already."""
    peers: Peers
    """Connections to other processes, made when they are used first."""
    gcs: Peer
    """The connection to the gcs."""
    raylet: Peer
    """The connection to the raylet of this node."""
    patient: PatientCaller
    """Sends what must arrive, again and again until it is answered."""
    now: Callable[[], float]
    """The loop's clock, in seconds."""
    raylet_address: Address | None = None
    """Where other nodes reach the raylet of this one; ``CoreWorker`` sets it when the raylet has registered this process."""
    is_exiting: bool = False
    """Whether the process leaves its cluster, or has lost it; ``CoreWorker`` sets it, and nothing clears it."""
    background: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks of the loop that no other task awaits; ``CoreWorker`` cancels them when a driver leaves."""

    def begin(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run a coroutine in the background."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self.background.add(task)
        task.add_done_callback(self.background.discard)
