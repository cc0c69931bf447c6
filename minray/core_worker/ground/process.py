"""The record of this process, which most parts of a core worker hold.

Ray: CoreWorkerOptions in src/ray/core_worker/core_worker_options.h, WorkerContext in src/ray/core_worker/context.h

``core_worker.py`` makes the record, and completes its address when the process listens. Parts only read it. A field changes
later only if its docstring says so.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from minray.common.config import WorkerConfig
from minray.common.task_set import TaskSet
from minray.platform.base import Platform
from minray.protocol.base import Address
from minray.protocol.state import Breakpoint
from minray.rpc.connection import Peer, Peers
from minray.rpc.patient_caller import PatientCaller


class Process(msgspec.Struct):
    """A driver or worker, as its own parts see it."""

    platform: Platform
    """The seam to the outside world: network, memory, clock, threads."""
    config: WorkerConfig
    """The configuration that the process was started with."""
    address: Address
    """The address at which other processes reach this one; complete when parts get it, because the process listens then."""
    peers: Peers
    """Connections to other processes, each opened when it is first used."""
    gcs: Peer
    """The connection to the gcs."""
    raylet: Peer
    """The connection to the raylet of this node."""
    patient: PatientCaller
    """Sends messages that must arrive; it repeats them until they are answered."""
    now: Callable[[], float]
    """The loop's clock, in seconds."""
    raylet_address: Address | None = None
    """Address at which other nodes reach this node's raylet; ``CoreWorker`` sets it when the process has registered."""
    is_exiting: bool = False
    """Whether the process leaves its cluster, or has lost it; ``CoreWorker`` sets it, and nothing clears it."""
    breakpoints: dict[str, Callable[[], Breakpoint]] = msgspec.field(default_factory=dict)
    """Describes each thread of user code that waits in a debugger, by the breakpoint's id; those threads write it."""
    background: TaskSet = msgspec.field(default_factory=TaskSet)
    """Asyncio tasks that no other task awaits; ``CoreWorker`` cancels them when a driver leaves."""

    def begin(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run a coroutine in the background."""
        self.background.begin(coroutine, name)
