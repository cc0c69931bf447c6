"""Simulated machines: processes that start and die, their marks and output, disks that lose unsynced writes.

A world (``SimWorld``) is one loop, one wire, one oracle and one trace. On its nodes run processes, each with a ``Platform``
like any other. ``start`` makes a process from a role; ``SimProcesses.spawn`` does the same for children.

Rules
  * A process ends in one way: its exit status is set, none of its code runs any more, and its channels end. A little later
    its parent learns of the end, after all of its output.
  * Children of a dead process die soon after it, as with the zygote's pipe, but not at once.
  * A crash of a process does not damage its marks, its journal or the disk. Writes that were not synced may be lost.
  * Entropy is a function of the seed, the process's name and the number of earlier processes of that name.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from minray.common.machine_usage import MachineUsage, ProcessUsage
from minray.platform.base import JOURNAL_BYTES, ExitStatus, OnOutput, Platform, ProcessGone, SpawnFailed, StorageFailed
from minray.simulation.costs import Costs
from minray.simulation.disk import SimDisk
from minray.simulation.faults import ORPHAN_DELAYS_S, REAPS_S, SPAWNS, SWITCH, SWITCHES_S, Oracle, StepFaults
from minray.simulation.interpreter import wall_time
from minray.simulation.loop import Failure, SimLoop, SimProcess
from minray.simulation.memory import SimArena, SimMemory
from minray.simulation.network import SimNetwork, SimWire
from minray.simulation.node import SimNode, Table
from minray.simulation.trace import FAULT, LIFE, OUTPUT, Trace
from minray.simulation.user_code import SimUserCode
from minray.simulation.user_thread import this_thread

MARK_BYTES = 64
STILL_S = 1000.0
"""Seconds that a process with the spawn fault "stands still" is stalled: longer than any process waits for it."""
REPORT_S = 0.000_1
"""Seconds until a parent receives a child's output, or learns of its death."""
SYNC_S = 0.002

Main = Callable[[Platform, bytes], Coroutine[Any, Any, int | None]]
"""The coroutine function of a role: runs to the role's end and returns the exit code."""


@dataclass(frozen=True)
class Role:
    """The program of one kind of process."""

    main: Main
    identity: Callable[[bytes], bytes]
    """Returns the incarnation that the configuration names."""


class SimChild:
    """Implements ``base.Process``: a simulated process as its parent sees it."""

    def __init__(self, process: SimProcess, parent: SimProcess, on_output: OnOutput) -> None:
        self.pid = process.pid
        self.marks = memoryview(bytearray(MARK_BYTES))
        self.journal = _new_journal()
        self._process = process
        self._parent = parent
        self._on_output = on_output
        self._status: ExitStatus | None = None
        """The exit status, once the parent has learned of the end; None before."""
        self._waiters: list[asyncio.Future[ExitStatus]] = []

    async def wait(self) -> ExitStatus:
        if self._status is not None:
            return self._status
        waiter: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return await waiter

    def kill(self) -> None:
        self._process.exit(None, 9)

    def on_line(self, stream: str, line: str) -> None:
        self._parent.call_later(REPORT_S, self._on_output, stream, line)

    def on_end(self, status: ExitStatus, delay_s: float) -> None:
        self._parent.call_later(REPORT_S + delay_s, self._hear_end, status)

    def _hear_end(self, status: ExitStatus) -> None:
        self._status = status
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(status)


class SimProcesses:
    """Implements ``base.Processes``: this simulated process and its children."""

    def __init__(self, world: SimWorld, process: SimProcess, marks: memoryview, journal: memoryview) -> None:
        self.pid = process.pid
        self.marks = marks
        self.journal = journal
        self.is_copy = False
        self._world = world
        self._process = process
        self.children: list[SimProcess] = []

    async def spawn(self, role: str, name: str, config: bytes, on_output: OnOutput) -> SimChild:
        await asyncio.sleep(self._world.costs.spawn_s(self._process))
        fault = SPAWNS[self._world.oracle.choose(("spawn", name), len(SPAWNS))]
        if fault:
            self._world.trace.add(self._process.name, FAULT, f"spawn: {fault}", name)
        if fault == "no process":
            raise SpawnFailed(f"{name}: no processes left")
        child = self._world.spawn(self, self._process, role, name, config, on_output)
        if fault == "ends at once":
            self.children[-1].exit(1)
        elif fault == "stands still":
            self._world.loop.stall(self.children[-1], STILL_S)
        return child

    def exit(self, code: int) -> None:
        thread = this_thread()
        if thread is not None:
            thread.die(code, None)
        self._process.exit(code)
        raise ProcessGone


def _new_journal() -> memoryview:
    """Map memory for a journal: like the real one, it takes memory only where it is written."""
    return memoryview(mmap.mmap(-1, JOURNAL_BYTES))


class SimHost:
    """Implements ``base.Host`` with a simulated machine and entropy from the oracle."""

    def __init__(self, node: SimNode, process: SimProcess, oracle: Oracle, incarnation: int) -> None:
        self.hostname = node.name
        self.cpu_count = node.cpu_count
        self.memory_bytes = node.memory_bytes
        self._node = node
        self._process = process
        self._oracle = oracle
        self._key = ("entropy", process.name, incarnation)
        self._draws = 0
        self._looks = 0
        """Number of calls of ``memory_usage``."""

    def memory_usage(self) -> tuple[int, int]:
        self._looks += 1
        is_full = self._oracle.choose(("memory", self._process.name, self._looks), 2)
        return self._node.memory_bytes if is_full else self._node.memory_used, self._node.memory_bytes

    def process_memory(self, pid: int) -> int:
        return self._node.process_memory.get(pid, 0)

    def machine_usage(self) -> MachineUsage:
        """Measure a machine whose CPUs never work; its memory and disk are those of the node."""
        return MachineUsage(
            cpu_count=self.cpu_count,
            cpu_busy_s=0.0,
            cpu_total_s=self.cpu_count * asyncio.get_running_loop().time(),
            memory_used=self._node.memory_used,
            memory_total=self._node.memory_bytes,
            memory_shared=0,
            disk_used=self._node.disk_bytes - self._node.disk_room(),
            disk_free=self._node.disk_room(),
            disk_read_bytes=0,
            disk_written_bytes=0,
            disk_reads=0,
            disk_writes=0,
            network_sent_bytes=0,
            network_received_bytes=0,
        )

    def process_usage(self, pid: int) -> ProcessUsage | None:
        memory = self._node.process_memory.get(pid)
        if memory is None:
            return None
        return ProcessUsage(cpu_s=0.0, rss_bytes=memory, shared_bytes=0, open_files=-1, title="")

    def shortage(self) -> str:
        return ""

    def random_bytes(self, count: int) -> bytes:
        self._draws += 1
        return self._oracle.bytes((*self._key, self._draws), count)

    def random(self) -> float:
        return int.from_bytes(self.random_bytes(6), "big") / (1 << 48)

    def time(self) -> float:
        return wall_time(self._process)


class SimStorage:
    """Implements ``base.Storage`` on a simulated disk, or with an empty path in this process's memory."""

    def __init__(self, node: SimNode, path: str, process: SimProcess, oracle: Oracle) -> None:
        self.durable = bool(path)
        self._node = node
        self._path = path
        self._oracle = oracle
        self._tables: dict[str, Table] = node.disk.setdefault(path, {}) if path else {}
        self._staged: list[tuple[str, str, bytes | None]] = []
        self._syncing: list[tuple[str, str, bytes | None]] = []
        """Rows that are being written and are not known to be durable."""
        self._waiters: list[asyncio.Future[None]] = []
        """Commits that wait for the staged rows."""
        self._sync_task: asyncio.Task[None] | None = None
        self._process = process
        process.on_death.append(self._on_death)

    def load(self, table: str) -> dict[str, bytes]:
        return dict(self._tables.get(table, {}))

    def put(self, table: str, key: str, value: bytes) -> None:
        self._staged.append((table, key, value))

    def delete(self, table: str, key: str) -> None:
        self._staged.append((table, key, None))

    async def commit(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._sync_task is None:
            self._sync_task = asyncio.get_running_loop().create_task(self._sync(), name="sync")
        await waiter

    def close(self) -> None:
        self._staged.clear()

    async def _sync(self) -> None:
        while self._waiters:
            waiters, self._waiters = self._waiters, []
            self._syncing, self._staged = self._staged, []
            if self.durable:
                await asyncio.sleep(SYNC_S)
            error = StorageFailed(f"{self._path}: no space left") if self._node.disk_full and self.durable else None
            if error is None:
                self._apply()
            else:
                self._staged = [row for row in self._syncing if row[2] is None] + self._staged
            self._syncing = []
            for waiter in waiters:
                if waiter.done():
                    continue
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)
        self._sync_task = None

    def _apply(self) -> None:
        for table, key, value in self._syncing:
            if value is None:
                self._tables.get(table, {}).pop(key, None)
            else:
                self._tables.setdefault(table, {})[key] = value

    def _on_death(self) -> None:
        if self._syncing and self._oracle.choose(("unsynced", self._process.name, self._process.next_ordinal("sync")), 2):
            self._apply()


class SimWorld:
    """The shared parts of a simulated world: its loop, wire, oracle, trace and machines."""

    def __init__(
        self, oracle: Oracle, roles: Mapping[str, Role], token: bytes = b"token", costs: Costs | None = None
    ) -> None:
        self.loop = SimLoop()
        self.costs = costs or Costs()
        self.oracle = oracle
        self.trace = Trace(self.loop)
        self.wire = SimWire(self.loop, oracle, self.trace, self.costs)
        self.nodes: dict[str, SimNode] = {}
        self.step_faults = StepFaults(self.loop, oracle, self.trace, self.lose_node)
        self._roles = roles
        self._token = token
        self._incarnations: dict[str, int] = {}
        """Number of processes of each name so far."""
        self._mains: list[asyncio.Task[None]] = []
        """The first task of every process, kept here because the loop keeps only weak references to tasks."""
        self._networks: list[SimNetwork] = []
        self._arenas: dict[str, SimArena] = {}
        """The arenas that are handed out, by endpoint; written by ``SimMemory``."""

    def node(self, name: str) -> SimNode:
        """Return the machine of this name; make a new one if there is none, or if it is lost."""
        there = self.nodes.get(name)
        if there is not None and there.lost:
            self.wire.replace_node(name)
        if there is None or there.lost:
            there = self.nodes[name] = SimNode(name)
        return there

    def start(self, role: str, name: str, node: SimNode, config: bytes) -> SimProcess:
        """Start a process without a parent."""
        process = self._add_process(name, node)
        marks = memoryview(bytearray(MARK_BYTES))
        platform = self._platform(process, node, self._roles[role].identity(config), marks, memoryview(b""))
        self._begin(process, role, platform, config)
        return process

    def spawn(
        self, parent: SimProcesses, parent_process: SimProcess, role: str, name: str, config: bytes, on_output: OnOutput
    ) -> SimChild:
        node = self.nodes[parent_process.node]
        process = self._add_process(name, node)
        child = SimChild(process, parent_process, on_output)
        platform = self._platform(process, node, self._roles[role].identity(config), child.marks, child.journal)
        status = ExitStatus(None, 9)
        lines = self.read_output(process, child.on_line)

        def on_exit(code: int | None, signal: int | None) -> None:
            nonlocal status
            if process.alive:
                status = ExitStatus(code, signal)

        def on_death() -> None:
            lines.flush()
            child.on_end(status, REAPS_S[self.oracle.choose(("reap", process.name), len(REAPS_S))])

        process.on_exit = on_exit
        process.on_death.append(on_death)
        parent.children.append(process)
        self._begin(process, role, platform, config)
        return child

    def read_output(self, process: SimProcess, on_line: Callable[[str, str], None]) -> Lines:
        """From now on pass what the process prints to the trace and to ``on_line``, line by line."""
        lines = Lines(self.trace, process.name, on_line)
        process.on_text = lines.write
        return lines

    def _add_process(self, name: str, node: SimNode) -> SimProcess:
        assert not node.lost, f"{node.name} is lost"
        self._incarnations[name] = self._incarnations.get(name, 0) + 1
        offset_s = self.oracle.below(("clock", name, self._incarnations[name]), 1 << 16)
        self.trace.add(name, LIFE, "starts")
        return self.loop.add_process(name, node.name, offset_s)

    def _platform(
        self, process: SimProcess, node: SimNode, identity: bytes, marks: memoryview, journal: memoryview
    ) -> Platform:
        host = SimHost(node, process, self.oracle, self._incarnations[process.name])
        process.random_bytes = host.random_bytes
        processes = SimProcesses(self, process, marks, journal)
        network = SimNetwork(self.wire, process, self._token)
        self._networks.append(network)
        process.on_death.append(lambda: self._on_death(process, processes))
        oracle = self.oracle

        def preempt(ordinal: int) -> bool:
            return bool(oracle.choose(("preempt", process.name, ordinal), 2))

        def switch(function: str, ordinal: int) -> float | None:
            answer = oracle.choose((SWITCH, process.name, function, ordinal), len(SWITCHES_S))
            return SWITCHES_S[answer] if answer else None

        return Platform(
            name=process.name,
            identity=identity,
            network=network,
            processes=processes,
            user_code=SimUserCode(process, preempt, switch if oracle.wants(SWITCH) else None, node.directories),
            host=host,
            open_storage=lambda path: SimStorage(node, path, process, oracle),
            memory=SimMemory(self._arenas, process, node, oracle),
            open_disk=lambda path: SimDisk(node, path, process, oracle, self.costs),
            record=self.trace.recorder(process.name),
            bulk=(network, network),
        )

    def _begin(self, process: SimProcess, role: str, platform: Platform, config: bytes) -> None:
        self._mains.append(process.create_task(self._live(process, role, platform, config), name=role))

    async def _live(self, process: SimProcess, role: str, platform: Platform, config: bytes) -> None:
        """Run a process's role as its first task, and end the process with it."""
        try:
            code = await self._roles[role].main(platform, config)
        except Exception as error:
            self.loop.failures.append(Failure(process.name, "its role raised", error))
            code = 1
        process.exit(code or 0)

    def _on_death(self, process: SimProcess, processes: SimProcesses) -> None:
        self.trace.add(process.name, LIFE, "ends")
        for child in processes.children:
            delay_s = ORPHAN_DELAYS_S[self.oracle.choose(("orphan", child.name), len(ORPHAN_DELAYS_S))]
            self.loop.world.call_later(delay_s, child.exit, None, 9)

    def close(self) -> None:
        """End the world; after that only its trace and its failures can be read."""
        self.loop.close()
        for network in self._networks:
            network.forget()
        for process in self.loop.processes:
            process.context = Context()
            process.on_death.clear()

    def lose_node(self, name: str) -> None:
        """Lose a machine: all its processes die at once, and their peers are not told."""
        node = self.nodes[name]
        if not node.lost:
            node.lost = True
            self.trace.add(name, FAULT, "node lost")
            self.wire.lose_node(name)
            for process in list(self.loop.processes):
                if process.node == name:
                    process.exit(None, 9)


class Lines:
    """Cuts the output of a process into lines."""

    def __init__(self, trace: Trace, process: str, on_line: Callable[[str, str], None]) -> None:
        self._trace = trace
        self._process = process
        self._on_line = on_line
        self._partial = {"stdout": "", "stderr": ""}

    def write(self, stream: str, text: str) -> None:
        *lines, self._partial[stream] = (self._partial[stream] + text).split("\n")
        for line in lines:
            self._tell(stream, line)

    def flush(self) -> None:
        for stream, rest in self._partial.items():
            if rest:
                self._tell(stream, rest)

    def _tell(self, stream: str, line: str) -> None:
        self._trace.add(self._process, OUTPUT, stream, line)
        self._on_line(stream, line)
