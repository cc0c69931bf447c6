"""The seconds that messages, disks and starts of processes take in a simulated world.

``SimWorld`` has one ``Costs``, and asks it for each message, each access to a disk, and each child process. The class here
gives every pair of machines a link of its own, with constants. ``minray/laboratory/`` replaces it by a model of shared links
and disks, and counts with it what is moved.

Rules
  * A method may use the time of the process's loop and its own state, and no other chance: runs must be repeatable.
  * ``latency_s`` alone decides the order of the messages of a channel. ``carry_s`` delays only what may be overtaken.

Left out: processor time, which no step of a simulated process takes.
"""

from __future__ import annotations

from minray.platform.transport.queued_channel import Message
from minray.simulation.loop import SimProcess

LOCAL_LATENCY_S = 0.000_05
"""Seconds that a message takes between two processes of one node."""
REMOTE_LATENCY_S = 0.000_2
"""Seconds that a message takes between two nodes."""
BANDWIDTH_UNIT_BYTES = 1024 * 1024
BANDWIDTH_UNIT_S = 0.000_5
"""Seconds by which each full unit of a message's buffers delays it."""
SPAWN_S = 0.004
"""Seconds from the decision to start a process until it runs."""
SEEK_S = 0.000_1
BYTES_PER_S = 1 << 30
"""Speed of a disk: seconds until its first byte, and bytes per second from then on."""
READ, WRITE = "read", "write"
"""Operations of a disk."""


class Costs:
    """The plain costs, with a link for each pair of machines and a disk for each access."""

    def latency_s(self, source: SimProcess, target: SimProcess) -> float:
        """Return the seconds from the sending of a message until its beginning arrives."""
        return LOCAL_LATENCY_S if source.node == target.node else REMOTE_LATENCY_S

    def carry_s(self, source: SimProcess, target: SimProcess, message: Message) -> float:
        """Return the further seconds until all buffers of a message have arrived. Called once for each message sent."""
        size_bytes = sum(buffer.nbytes for buffer in message.buffers)
        return size_bytes // BANDWIDTH_UNIT_BYTES * BANDWIDTH_UNIT_S

    def disk_s(self, process: SimProcess, operation: str, size_bytes: int) -> float:
        """Return the seconds that a process's node takes to read or write (``operation``) bytes of its disk."""
        return SEEK_S + size_bytes / BYTES_PER_S

    def spawn_s(self, parent: SimProcess) -> float:
        """Return the seconds that a process takes to start a child."""
        return SPAWN_S
