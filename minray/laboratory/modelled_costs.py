"""A cost model at work in a simulated world: shared links, shared disks, and counts of all that is moved.

Ray: has no counterpart

Rules
  * Buffers (values of objects) queue for each link on their way, first come, first served, in both directions apart. They
    travel in chunks, so that transfers which share a link take turns. A message without buffers (control, small values
    inside it) only takes the latency: it slips between the packets of others.
  * A process writes to one connection after the other. What it sends over one of them at one moment is one write, and
    arrives together, as it does from a real process. So messages to one node do not alternate with those to another one.
  * A node's disk serves one access after the other.
  * With ``shrink`` the values that are really copied are smaller by this factor than those that are meant. Bandwidths are
    divided and counts multiplied by it, so that times and counts stay those of the real sizes.

Left out: TCP's slow start, and fairness between transfers of unequal chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from minray.laboratory.cost_model import CostModel
from minray.platform.transport.queued_channel import Message
from minray.simulation.costs import WRITE, Costs
from minray.simulation.loop import TICKS_PER_SECOND, SimProcess

Link = tuple[str, int, str]
"""One direction of a link: ("node" or "rack", its number, "up" or "down")."""


class ModelledCosts(Costs):
    """Implements ``Costs`` with a model, for nodes with known numbers."""

    def __init__(self, model: CostModel, numbers: Mapping[str, int], shrink: int = 1) -> None:
        self._model = model
        self._write_s = max(model.write_s, 1 / TICKS_PER_SECOND) if model.write_s else 0.0
        """Time of a write; at least the shortest time that the simulation knows, or writes would have no order."""
        self._numbers = numbers
        """The number of each node, by its name."""
        self._shrink = shrink
        self._free_s: dict[Link, float] = {}
        """Time at which all that has been sent over a link has left it."""
        self._written: dict[str, tuple[int, float, dict[str, float]]] = {}
        """(tick of the last writes, when they have ended, when that to each target has) of each process, by their names."""
        self._disk_free_s: dict[str, float] = {}
        """Time at which a node's disk has served all accesses so far."""
        self.messages: Counter[str] = Counter()
        """Number of messages by their words, those within a node included."""
        self.pairs: Counter[tuple[str, str]] = Counter()
        """Bytes of values by (from node, to node), for different nodes."""
        self.control_bytes = 0
        """Bytes of messages between different nodes, without the buffers."""
        self.links: Counter[Link] = Counter()
        """Bytes of values by link and direction."""
        self.disks: Counter[tuple[str, str]] = Counter()
        """Bytes by (node, operation)."""
        self.disk_busy_s: Counter[str] = Counter()
        """Time in which a node's disk has served accesses, by the node."""
        self.workers = 0
        """Number of processes that nodes have started."""

    def forget_bytes(self) -> None:
        """Count bytes, and the time of disks, from now on only."""
        for counts in (self.pairs, self.links, self.disks, self.disk_busy_s):
            counts.clear()
        self.control_bytes = 0

    def latency_s(self, source: SimProcess, target: SimProcess) -> float:
        return self._wait_to_write_s(source, target) + self._way_s(source, target)

    def _wait_to_write_s(self, source: SimProcess, target: SimProcess) -> float:
        """Return when a process has written a message, in seconds from now."""
        ticks = source.loop.ticks
        now_s = ticks / TICKS_PER_SECOND
        tick, free_s, ends = self._written.get(source.name, (ticks, 0.0, {}))
        if tick != ticks:
            ends = {}
        if target.name not in ends:
            ends[target.name] = free_s = max(now_s, free_s) + self._write_s
        self._written[source.name] = (ticks, free_s, ends)
        return ends[target.name] - now_s

    def _way_s(self, source: SimProcess, target: SimProcess) -> float:
        if source.node == target.node:
            return self._model.local_latency_s
        near, far = (self._model.rack_of(self._numbers[process.node]) for process in (source, target))
        return self._model.rack_latency_s if near == far else self._model.core_latency_s

    def carry_s(self, source: SimProcess, target: SimProcess, message: Message) -> float:
        self.messages[message.word] += 1
        size_bytes = sum(buffer.nbytes for buffer in message.buffers) * self._shrink
        if source.node == target.node:
            return size_bytes / self._model.memory_bytes_per_s
        self.control_bytes += len(message.payload)
        if not size_bytes:
            return 0.0
        self.pairs[source.node, target.node] += size_bytes
        now_s = ready_s = source.loop.ticks / TICKS_PER_SECOND
        for link in self._way(self._numbers[source.node], self._numbers[target.node]):
            self.links[link] += size_bytes
            bytes_per_s = self._model.node_bytes_per_s if link[0] == "node" else self._model.rack_bytes_per_s
            self._free_s[link] = max(now_s, self._free_s.get(link, 0.0)) + size_bytes / bytes_per_s
            ready_s = max(ready_s, self._free_s[link])
        return ready_s - now_s

    def _way(self, source: int, target: int) -> list[Link]:
        """Return the links from one node to another."""
        near, far = self._model.rack_of(source), self._model.rack_of(target)
        between: list[Link] = [] if near == far else [("rack", near, "up"), ("rack", far, "down")]
        return [("node", source, "up"), *between, ("node", target, "down")]

    def disk_s(self, process: SimProcess, operation: str, size_bytes: int) -> float:
        size_bytes *= self._shrink
        self.disks[process.node, operation] += size_bytes
        model = self._model
        speed = model.disk_write_bytes_per_s if operation == WRITE else model.disk_read_bytes_per_s
        now_s = process.loop.ticks / TICKS_PER_SECOND
        busy_s = model.disk_seek_s + size_bytes / speed
        self.disk_busy_s[process.node] += busy_s  # type: ignore[assignment]
        free_s = max(now_s, self._disk_free_s.get(process.node, 0.0)) + busy_s
        self._disk_free_s[process.node] = free_s
        return free_s - now_s

    def spawn_s(self, parent: SimProcess) -> float:
        self.workers += 1
        return self._model.worker_start_s
