"""One node of an in-process cluster, as the program around it starts, watches and kills it.

Ray: python/ray/_private/node.py

It has the methods that ``minray.node.node`` calls on a zygote (``node.Supervisor``), so that a node is started in one way in
all worlds. The first node makes the world; the others join it by the endpoint of its gcs.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, replace

import msgspec

from minray.common.clock import Clock
from minray.common.config import GcsConfig, RayletConfig, SystemConfig
from minray.common.signals import SIGKILL
from minray.in_process.process import LocalProcess
from minray.in_process.session import LocalSession
from minray.in_process.world import World, world_of
from minray.platform.base import ExitStatus, PlatformError, SpawnFailed
from minray.platform.process.processes import ChildEnd

POLL_S = 0.002
RESPAWN_S = 0.05
"""Seconds after which a gcs with storage is started again."""


@dataclass
class _Started:
    """A process that was started for the node."""

    name: str
    config: bytes
    process: LocalProcess
    respawns: bool
    is_essential: bool
    failure: str
    """Why it could not be started; empty if it has started."""
    is_reported: bool = False
    """Whether ``poll_exits`` has returned its end."""


class LocalSupervisor:
    """The gcs (head only) and the raylet of one node."""

    def __init__(self, gcs_endpoint: str, system_config: SystemConfig, session: LocalSession) -> None:
        """Make a world, or with the endpoint of a gcs join its world. Raises ConnectionError if that has ended."""
        self._is_head = not gcs_endpoint
        self.world = World(system_config) if self._is_head else world_of(gcs_endpoint)
        self.session_dir = session.path
        self.socket_dir = self.world.add_machine(session)
        """Beginning of the endpoints of this node's processes."""
        self.pid = 0
        """There is no zygote."""
        self.ended = False
        self._started: dict[int, _Started] = {}
        """All processes that were started here, by pid, oldest first."""

    def spawn(
        self,
        role: str,
        name: str,
        config: bytes,
        *,
        log_path: str = "",
        ready: bool = False,
        control: bool = False,
        essential: bool = False,
        respawn: bool = False,
        timeout_s: float = 10.0,
    ) -> int:
        """Start the ``gcs`` or the ``raylet`` and return its pid. Raises ``SpawnFailed``."""
        if self.ended:
            raise SpawnFailed("the node has ended")
        process, failure = self.world.thread.run(self._start(name, config), timeout_s)
        started = _Started(name, config, process, respawns=respawn, is_essential=essential, failure=failure)
        self._started[process.pid] = started
        if not failure:
            self.world.call_on_loop(lambda: self._watch(started))
        return process.pid

    async def _start(self, name: str, config: bytes) -> tuple[LocalProcess, str]:
        """Start a process; return it, and why it could not be started."""
        if name == "gcs":
            process = self.world.add_process("gcs", self.socket_dir)
            starting = self.world.start_gcs(process, msgspec.msgpack.decode(config, type=GcsConfig))
        else:
            raylet = msgspec.msgpack.decode(config, type=RayletConfig)
            process = self.world.add_process(f"raylet/{raylet.node_name}", self.socket_dir)
            starting = self.world.start_raylet(process, raylet)
        try:
            await starting
        except PlatformError as error:
            return process, str(error)
        return process, ""

    def _watch(self, started: _Started) -> None:
        """From the loop: react to the end of a process."""
        if not started.process.alive:
            self._on_end(started)
        started.process.on_death.append(lambda: self._on_end(started))

    def _on_end(self, started: _Started) -> None:
        if started.respawns and not self.ended:
            self.world.loop.call_later(RESPAWN_S, self._respawn, started)
        elif started.is_essential:
            self._end_processes()

    def _respawn(self, old: _Started) -> None:
        if old.respawns and not self.ended:
            self.world.begin_in_no_process(self._start_again(old))

    async def _start_again(self, old: _Started) -> None:
        process, failure = await self._start(old.name, old.config)
        new = replace(old, process=process, failure=failure, is_reported=False)
        self._started[process.pid] = new
        if failure:
            self.world.loop.call_later(RESPAWN_S, self._respawn, new)
        else:
            self._watch(new)

    def _end_processes(self) -> None:
        self.ended = True
        for started in list(self._started.values()):
            started.respawns = False
            started.process.exit(None, SIGKILL)

    def wait_ready(self, pid: int, timeout_s: float) -> bytes:
        """Return what the process reports about its start, as the zygote's children do."""
        failure = self._started[pid].failure
        return msgspec.json.encode(["failed", failure] if failure else ["ready"])

    def poll_exits(self, timeout_s: float = 0.0) -> list[ChildEnd]:
        """Return the processes that have ended since the last call. Waits up to ``timeout_s`` for the first one."""
        deadline = Clock.monotonic() + timeout_s
        while True:
            ended = [(pid, each) for pid, each in self._started.items() if each.process.status and not each.is_reported]
            if ended or self.ended or Clock.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        for _, each in ended:
            each.is_reported = True
        return [ChildEnd(pid, each.name, each.process.status) for pid, each in ended if each.process.status is not None]

    def living(self) -> dict[int, str]:
        """Return the names of living processes by pid."""
        return {pid: started.name for pid, started in list(self._started.items()) if started.process.alive}

    def latest(self, name: str) -> int | None:
        """Return the pid of the process of this name that was started last; None if there is none."""
        return next((pid for pid, each in reversed(list(self._started.items())) if each.name == name), None)

    def status_of(self, pid: int) -> ExitStatus | None:
        """Return how a process has ended; None if it lives."""
        return self._started[pid].process.status

    def wait_end(self, pid: int, timeout_s: float | None) -> None:
        """Wait until a process has ended. Raises ``subprocess.TimeoutExpired``."""
        deadline = None if timeout_s is None else Clock.monotonic() + timeout_s
        while self._started[pid].process.alive:
            if deadline is not None and Clock.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self._started[pid].name, timeout_s or 0.0)
            time.sleep(POLL_S)

    def kill(self, pid: int, for_good: bool = False) -> None:
        """End a process; ``for_good``: do not start it again."""
        started = self._started[pid]
        started.respawns = started.respawns and not for_good
        started.process.exit(None, SIGKILL)

    def detach(self) -> None:
        """Refuse: the node is a part of this process."""
        raise SpawnFailed("a node of local_mode cannot outlive its program")

    def disown(self) -> None:
        """In a forked copy of the program: do nothing, since the copy has no thread of the node."""

    def close(self) -> None:
        """End the node's processes; with the head the whole world. May be called again."""
        if self._is_head:
            self.ended = True
            self.world.close()
        elif not self.world.is_closed:
            self.world.call_on_loop(self._end_processes)
