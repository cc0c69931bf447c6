"""The processes of a node as tests of Ray see them: by kind, each with the methods of ``subprocess.Popen``.

Ray: all_processes, live_processes, dead_processes and kill_gcs_server in python/ray/_private/node.py

The gcs and the raylet are children of the node's zygote, so it alone knows how they have ended. A process that was killed by
these methods is not listed any more; one that has died in another way is listed as dead.
"""

from __future__ import annotations

from typing import NamedTuple

from minray.common.signals import SIGKILL
from minray.node.node import Node

RAYLET, GCS_SERVER = "raylet", "gcs_server"
"""Ray's names of the kinds of processes."""
_NAMES = {RAYLET: "raylet", GCS_SERVER: "gcs"}
"""minray's name of each kind."""
END_S = 10.0
"""Seconds that a killed process may take to end."""


class NodeProcess:
    """A gcs or raylet that this process has started; it can be asked and killed like a ``Popen``."""

    def __init__(self, node: Node, pid: int) -> None:
        self.pid = pid
        self._node = node

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        """Return the exit code, the negative number of a signal, or None while the process lives."""
        self._node.processes()  # which reads the zygote's messages
        status = self._node.zygote.status_of(self.pid)
        if status is None:
            return -SIGKILL if self._node.zygote.ended else None
        return status.code if status.signal is None else -status.signal

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises ``subprocess.TimeoutExpired``."""
        self._node.zygote.wait_end(self.pid, timeout)
        code = self.poll()
        assert code is not None, "it has ended"
        return code

    def kill(self) -> None:
        """Send SIGKILL; a gcs with ``storage`` is started again."""
        self._node.zygote.kill(self.pid)

    def __repr__(self) -> str:
        return f"NodeProcess(pid={self.pid}, returncode={self.poll()})"


class ProcessInfo(NamedTuple):
    """An entry of ``all_processes``."""

    process: NodeProcess


class NodeProcesses:
    """The gcs (head only) and the raylet of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._killed: set[str] = set()
        """Kinds of processes that ``kill`` has ended."""

    def all(self) -> dict[str, list[ProcessInfo]]:
        """Return the processes by kind, living and dead ones, without those that ``kill`` has ended."""
        found = {kind: self._latest(name) for kind, name in _NAMES.items() if kind not in self._killed}
        return {kind: [ProcessInfo(process)] for kind, process in found.items() if process is not None}

    def _latest(self, name: str) -> NodeProcess | None:
        pid = self._node.zygote.latest(name)
        return None if pid is None else NodeProcess(self._node, pid)

    def living(self) -> list[tuple[str, NodeProcess]]:
        return [(kind, process) for kind, process in self._flat() if process.poll() is None]

    def dead(self) -> list[tuple[str, NodeProcess]]:
        return [(kind, process) for kind, process in self._flat() if process.poll() is not None]

    def _flat(self) -> list[tuple[str, NodeProcess]]:
        return [(kind, info.process) for kind, infos in self.all().items() for info in infos]

    def kill(self, kind: str, check_alive: bool) -> None:
        """Kill a process for good and wait for its end.

        Raises RuntimeError if the node has no such process (any more), and with ``check_alive`` if it is dead already.
        """
        infos = self.all().get(kind)
        if not infos:
            raise RuntimeError(f"this node has no process of type {kind!r}, or it was killed before")
        process = infos[0].process
        if check_alive and process.poll() is not None:
            raise RuntimeError(f"attempting to kill a process of type {kind!r}, but this process is already dead")
        self._killed.add(kind)
        self._node.zygote.kill(process.pid, for_good=True)
        process.wait(END_S)

    def start_gcs(self) -> None:
        """Start the gcs again after ``kill``. Raises RuntimeError if it lives, or the node has ended."""
        if any(kind == GCS_SERVER for kind, _ in self.living()):
            raise RuntimeError("the gcs of this node lives; call kill_gcs_server() before")
        self._node.start_gcs()
        self._killed.discard(GCS_SERVER)
