"""Counts the bytecodes of decisions for which a program may name a policy: ``python -m tests.policies.bytecodes``.

The numbers depend on the version of Python, but not on the machine or its load. docs/policy_lab.md has them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from minray.object_store.allocator import ALIGNMENT, Allocator
from minray.object_store.object_table import ObjectTable
from minray.protocol.base import Address
from tests.scheduling.machines import Cluster, request


def counted(act: Callable[[], object]) -> int:
    """Count the bytecodes that an action runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def arrival(cpus: int, others: int) -> int:
    """Decide one request on a node with ``cpus`` that knows some nodes with four CPUs."""
    cluster = Cluster(CPU=cpus)
    for number in range(others):
        cluster.join(b"o%d" % number, CPU=4)
    cluster.machine.assign(0.0)
    cluster.machine.submit(request(1))
    return counted(lambda: cluster.machine.assign(0.0))


def move() -> int:
    """Send a request that waits here to a node that has just joined."""
    cluster = Cluster(CPU=1)
    cluster.submit(request(1), request(1))
    cluster.join(b"other", CPU=4)
    return counted(lambda: cluster.machine.assign(0.0))


def eviction() -> int:
    """Create and seal an object in a full store whose copies may all go."""
    table = ObjectTable(Allocator(4 * ALIGNMENT), None, lambda entry: None)
    owner = Address(b"o" * 16, b"n" * 16, "sim:owner")

    def put(number: int) -> None:
        entry = table.create(bytes([number]) * 28, 0, ALIGNMENT, owner, b"", is_primary=False)
        assert entry is not None
        table.seal(entry)

    for number in range(4):
        put(number)
    return counted(lambda: put(9))


def main() -> dict[str, int]:
    return {
        "a lease request that is granted on its own node": arrival(4, 1),
        "a lease request that is sent to another node": arrival(0, 3),
        "a waiting request that moves to another node": move(),
        "an object that evicts another one": eviction(),
    }


if __name__ == "__main__":
    for name, number in main().items():
        print(f"{number:6,}  {name}")
