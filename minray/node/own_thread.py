"""The thread, loop and platform with which this process takes part in a cluster, for one connection.

Ray: has no counterpart

A driver, a client of the command line and ``Cluster`` each have one. In a cluster of processes it is a thread with a loop of
its own; in a cluster inside this process it is the loop that all its processes share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from minray.common.config import LOCAL, SystemConfig
from minray.platform.base import Platform
from minray.platform.process.host import RealHost
from minray.platform.process.processes import PlainProcesses
from minray.platform.real import io_thread, make_platform
from minray.platform.threads.user_code import DriverUserCode
from minray.platform.transport.sockets import StreamNetwork

T = TypeVar("T")


class OwnThread(Protocol):
    """The loop of one connection, as other threads use it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """From another thread: run a coroutine to its end and return its result. Raises TimeoutError after ``timeout_s``."""

    def stop(self) -> None:
        """End the connection. May be called again."""


def make_own_thread(
    name: str, identity: bytes, gcs_endpoint: str, token: bytes, system_config: SystemConfig
) -> tuple[OwnThread, DriverUserCode, Platform]:
    """Make the thread and the platform for a connection to the cluster with this gcs; the caller stops the thread.

    Raises RuntimeError if the transport cannot be used here, ConnectionError if a cluster of this process has ended.
    """
    if system_config.transport == LOCAL:
        from minray.in_process.world import DriverThread, world_of  # Other programs need nothing of that world.

        local = DriverThread(world_of(gcs_endpoint), name, identity)
        return local, local.user_code, local.platform
    thread = io_thread(system_config)
    user_code = DriverUserCode(thread.loop)
    platform = make_platform(name, identity, system_config, token, PlainProcesses(), user_code, RealHost())
    if isinstance(platform.network, StreamNetwork):
        thread.before_end = platform.network.cut_off
    return thread, user_code, platform
